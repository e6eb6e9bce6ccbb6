//! Compiles what replicas say to each other, with protox (no protoc needed), into Rust: both sides. The contract is
//! compiled in `crates/proto`.

use std::path::PathBuf;
use std::{env, error, fs};

use prost::Message as _;

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let peer = protox::compile(["fermata/internal/v1/peer.proto"], ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("peer.binpb"), peer.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".fermata.internal.v1")
        .compile_fds(peer)?;
    Ok(())
}
