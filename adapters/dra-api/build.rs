//! Generates the services of dynamic resource allocation (DRA) from their `.proto` files. Needs no `protoc`.

#![allow(missing_docs, reason = "only cargo calls this file")]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const FOLDER: &str = "proto";
    const FILES: [&str; 6] = [
        "registration.proto",
        "dra_v1.proto",
        "dra_v1beta1.proto",
        "health.proto",
        "node_resources.proto",
        "pod_resources.proto",
    ];
    for file in FILES {
        println!("cargo::rerun-if-changed={FOLDER}/{file}");
        // One file at a time, because the agent's package `v1` and the drivers' `v1alpha1` have no prefix.
        tonic_prost_build::configure().generate_default_stubs(true).compile_fds(protox::compile([file], [FOLDER])?)?;
    }
    // Without this line cargo would run the script again after a change of any file in the package.
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
