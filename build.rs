//! Compiles `proto/` with protox (no protoc needed) into Rust and into the descriptor set that gRPC
//! reflection serves.

use std::path::PathBuf;
use std::{env, error, fs};

use prost::Message;

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = [
        "fermata/v1/types.proto",
        "fermata/v1/lock_service.proto",
        "fermata/v1/lock_admin.proto",
    ];
    let descriptors = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("fermata_v1.binpb"), descriptors.encode_to_vec())?;

    // Messages and servers, whose codec turns malformed input into INVALID_ARGUMENT.
    tonic_prost_build::configure()
        .build_client(false)
        .bytes(".fermata.v1")
        .codec_path("crate::rpc::codec::RequestCodec")
        .compile_fds(descriptors.clone())?;

    // Clients, on the same messages, with the plain codec.
    let clients = out.join("clients");
    fs::create_dir_all(&clients)?;
    tonic_prost_build::configure()
        .build_server(false)
        .extern_path(".fermata.v1", "crate::proto")
        .out_dir(&clients)
        .compile_fds(descriptors)?;

    // What replicas say to each other: both sides, and no part of what reflection serves.
    let peer = protox::compile(["fermata/internal/v1/peer.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".fermata.internal.v1")
        .compile_fds(peer)?;
    Ok(())
}
