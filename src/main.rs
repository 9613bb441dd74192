//! The node agent `podwright`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Shims are this same program: hundreds may run, and one must start in no time.
    #[cfg(feature = "process")]
    {
        use podwright::adapters::process::{SHIM_ARGUMENT, shim_main};
        let mut args = std::env::args_os().skip(1);
        if args.next().is_some_and(|arg| arg == SHIM_ARGUMENT) {
            return shim_main(args);
        }
    }
    podwright::agent::main()
}
