//! Compiles the contract in `proto/` with protox (no protoc needed) into Rust and, for servers, into the descriptor
//! set that gRPC reflection serves.

use std::path::{Path, PathBuf};
use std::{env, error, fs};

use prost::Message as _;

/// A link to the folder at the top, which a package has as a folder of its own.
const PROTO: &str = "proto";

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let files = [
        "fermata/v1/types.proto",
        "fermata/v1/lock_service.proto",
        "fermata/v1/lock_admin.proto",
        "fermata/v1/row_lock_service.proto",
    ];
    let descriptors = protox::compile(files, [PROTO])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    if env::var_os("CARGO_FEATURE_SERVER").is_some() {
        fs::write(out.join("fermata_v1.binpb"), descriptors.encode_to_vec())?;
        servers(&out.join("servers"), descriptors.clone())?;
    }
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".fermata.v1")
        .compile_fds(descriptors)?;
    Ok(())
}

/// Servers on the same messages, whose codec turns malformed input into INVALID_ARGUMENT.
fn servers(
    out: &Path,
    descriptors: prost_types::FileDescriptorSet,
) -> Result<(), Box<dyn error::Error>> {
    fs::create_dir_all(out)?;
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".fermata.v1", "crate")
        .codec_path("crate::codec::RequestCodec")
        .out_dir(out)
        .compile_fds(descriptors)?;
    Ok(())
}
