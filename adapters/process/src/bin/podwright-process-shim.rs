//! The shim of the process runtime as a program of its own, for an embedder whose program cannot be its own shim.
//!
//! The runtime starts it once for each container: see [`ProcessConfig::shim`](podwright_process::ProcessConfig::shim).

use std::process::ExitCode;

use podwright_process::{SHIM_ARGUMENT, shim_main};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|arg| arg == SHIM_ARGUMENT) {
        return shim_main(args);
    }
    eprintln!("only the process runtime runs this program: set `ProcessConfig::shim` to its path and `SHIM_ARGUMENT`");
    ExitCode::FAILURE
}
