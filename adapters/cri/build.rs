//! Generates the client of the Container Runtime Interface (CRI) from its `.proto` file. Needs no `protoc`.

#![allow(missing_docs, reason = "only cargo calls this file")]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const FOLDER: &str = "proto";
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
    // Without this line cargo would run the script again after a change of any file in the package.
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
