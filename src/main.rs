//! The node agent `podwright`: flags, and what the shell gets back.

mod agent;

use std::io::Write;
use std::process::ExitCode;

use agent::cli::{Cli, Command};
use clap::Parser;

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
    match command(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // With nobody left to read it there is nothing to be done.
            let _ = writeln!(std::io::stderr(), "podwright: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => return Ok(agent::run::run(args)?),
        Command::Get(args) => print(&agent::get::get(&args)?),
        Command::Explain(args) => print(&agent::get::explain(&args)?),
        Command::Replay(args) => {
            let told = agent::replay::replay(&args)?;
            print(&told.text);
            if !told.agrees {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Validate(args) => {
            let findings = agent::validate::validate(&args.paths);
            print(&findings.lines.join("\n"));
            if findings.faults > 0 {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// To standard output; a reader that has seen enough (`| head`) is no error.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
