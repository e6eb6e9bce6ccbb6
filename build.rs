//! Compiles what replicas say to each other, with protox (no protoc needed), into Rust: both sides. The contract is
//! compiled in `crates/proto`.

use std::error;

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let peer = protox::compile(["fermata/internal/v1/peer.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".fermata.internal.v1")
        .compile_fds(peer)?;
    Ok(())
}
