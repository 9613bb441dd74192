//! Generates the client of the Container Runtime Interface (CRI) and the services of dynamic resource allocation (DRA) from
//! their `.proto` files. Needs no `protoc`.

#![allow(missing_docs, reason = "only cargo calls this file")]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "cri")]
    cri()?;
    #[cfg(any(feature = "dra", feature = "dra-driver"))]
    dra()?;
    // Without this line cargo would run the script again after a change of any file in the package.
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}

#[cfg(feature = "cri")]
fn cri() -> Result<(), Box<dyn std::error::Error>> {
    const FOLDER: &str = "src/adapters/cri";
    println!("cargo::rerun-if-changed={FOLDER}/runtime.proto");
    let files = protox::compile(["runtime.proto"], [FOLDER])?;
    // Only tests use the generated servers: the fake runtime implements them.
    tonic_prost_build::configure()
        .server_mod_attribute(".", "#[cfg(test)]")
        .generate_default_stubs(true)
        // Labels and annotations share the bytes of the answer instead of copying them.
        .bytes(".runtime.v1.LabelEntry")
        // `AuthConfig` has its own `Debug` in `v1.rs`, which hides the password.
        .skip_debug(["AuthConfig"])
        .compile_fds(files)?;
    Ok(())
}

#[cfg(any(feature = "dra", feature = "dra-driver"))]
fn dra() -> Result<(), Box<dyn std::error::Error>> {
    const FOLDER: &str = "src/dra_api";
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
    Ok(())
}
