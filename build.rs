//! Makes the client of the container runtime interface from its `.proto` file, with no compiler beside cargo's.

#![allow(missing_docs, reason = "the workspace's lints ask for docs of what cargo alone calls")]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "cri")]
    cri()?;
    // Nothing else changes what is made.
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}

#[cfg(feature = "cri")]
fn cri() -> Result<(), Box<dyn std::error::Error>> {
    const FOLDER: &str = "src/adapters/cri";
    println!("cargo::rerun-if-changed={FOLDER}/runtime.proto");
    let files = protox::compile(["runtime.proto"], [FOLDER])?;
    // The server's half is what tests talk to.
    tonic_prost_build::configure()
        .server_mod_attribute(".", "#[cfg(test)]")
        .generate_default_stubs(true)
        // They refer to the answer that they came in.
        .bytes(".runtime.v1.Entry")
        // Nobody is to see a password because somebody printed a request.
        .skip_debug(["AuthConfig"])
        .compile_fds(files)?;
    Ok(())
}
