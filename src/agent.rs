//! The node agent: one process that runs the pods of its manifests, and the commands that query it.
//!
//! ```text
//!  flags ──> run ──┬─> sources (files, URLs) ──> node (engine, actors) ──> container runtime
//!                  ├─> admin: a socket and a loopback port                     ▲
//!                  ├─> screen: the live table                                  │
//!                  └─> signals ──> stop: admission closed, sources stopped, pods stopped by group
//! ```
//!
//! The page, the live table and the admin endpoints read the node through `NodeView` (`view`), which changes nothing. Only `run` and the
//! endpoint that gives a driver up have the `NodeControl`.

mod admin;
mod boot;
mod certificates;
mod cli;
mod client;
mod configz;
mod controllers;
mod error_text;
mod events;
mod get;
mod instance;
mod kubelet_config;
mod logging;
mod machine;
mod page;
mod pod_names;
mod pod_resources;
mod preview;
mod program;
mod replay;
mod root;
mod run;
mod runtime;
mod runtime_ports;
mod screen;
mod shutdown;
mod table;
mod unknown_pod;
mod until;
mod validate;
mod view;

use std::io::Write;
use std::process::ExitCode;

use cli::Command;
use signal_hook::consts::SIGCHLD;

use podwright_host::signals;
use podwright_model::text::error_chain;

pub use admin::router;
pub use events::EventLog;
pub use page::{AgentInfo, ManifestLocation};
pub use podwright_node_api::{Stream, Streams, spdy};
pub use view::{NodeControl, NodeView};

/// Runs the command line of this process and returns its exit code.
pub fn main() -> ExitCode {
    // The program that started the agent may have left files open. Neither shims nor containers may inherit them.
    close_fds::set_fds_cloexec(3, &[]);
    // It may also block the stop signals, or ignore the ends of children, whose exit codes would then be lost.
    signals::unblock_all();
    signals::reset_ignored(|signal| signal == SIGCHLD);
    let cli = cli::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match command(cli.command) {
        Ok(code) => code,
        Err(error) => {
            let remedy = error_text::remedy_for_full_disk(error.chain()).map(|remedy| format!(": {remedy}"));
            // If standard error is closed, nobody can read the message.
            let _ =
                writeln!(std::io::stderr(), "podwright: {}{}", error_chain(error.as_ref()), remedy.unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

fn command(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => return Ok(run::run(*args)?),
        Command::Controllers(args) => return Ok(controllers::run(*args)?),
        Command::Get(args) if args.watch => get::watch(&args)?,
        Command::Get(args) => print(&get::get(&args)?),
        Command::Explain(args) => print(&get::explain(&args)?),
        Command::Health(args) => print(&get::health(&args)?),
        Command::Logs(args) => get::logs(&args)?,
        Command::GiveUp(args) => print(&get::give_up(&args)?),
        Command::Link(args) => print(&get::link(&args)?),
        Command::Replay(args) => {
            let report = replay::replay(&args)?;
            print(&report.text);
            if !report.agrees {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Preview(args) => print(&preview::preview(&args)?),
        Command::Validate(args) => {
            let findings = validate::validate(&args.paths, args.runtime.as_ref());
            print(&findings.lines.join("\n"));
            if findings.faults > 0 {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Completion(args) => print(&args.script()),
        Command::Version => print(&cli::version()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints to standard output. A reader that closes it early (`| head`) is no error.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
