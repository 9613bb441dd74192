//! The node agent: one process that runs the pods of its manifests.
//!
//! ```text
//!  flags ──> run ──┬─> sources (files, URLs) ──> node (engine, actors) ──> process runtime
//!                  ├─> admin: / /healthz /metrics /explain /recording ...  ▲
//!                  ├─> screen: the live table                              │
//!                  └─> signals ──> stop: gate closed, sources stopped, pods stopped by group
//! ```
//!
//! What people see of a pod, here or in the table, is drawn from `view`, which reads what the node knows at one instant
//! and changes nothing.

mod admin;
mod boot;
mod cli;
mod client;
mod container_logs;
mod events;
mod explain;
mod get;
mod logs;
mod machine;
mod page;
mod replay;
mod root;
mod run;
mod runtime;
mod screen;
mod table;
mod until;
mod validate;
mod view;

use std::io::Write;
use std::process::ExitCode;

use cli::Command;

pub use admin::router;
pub use events::EventLog;
pub use page::{About, Place};
pub use view::View;

/// The agent as a program: flags, and what the shell gets back.
pub fn main() -> ExitCode {
    let cli = cli::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match command(cli.command) {
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
        Command::Run(args) => return Ok(run::run(*args)?),
        Command::Get(args) => print(&get::get(&args)?),
        Command::Explain(args) => print(&get::explain(&args)?),
        Command::Logs(args) => container_logs::logs(&args)?,
        Command::Replay(args) => {
            let told = replay::replay(&args)?;
            print(&told.text);
            if !told.agrees {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Validate(args) => {
            let findings = validate::validate(&args.paths);
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
