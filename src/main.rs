//! The program `podwright`: a node agent, its command-line client, and the shims of its process runtime.

use std::process::ExitCode;

use podwright::adapters::process::{SHIM_ARGUMENT, shim_main};

fn main() -> ExitCode {
    // A shim is this same program. Hundreds of shims may start, so the check comes before any other work.
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|arg| arg == SHIM_ARGUMENT) {
        return shim_main(args);
    }
    podwright::agent::main()
}
