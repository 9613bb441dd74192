//! Parses the command line, and refuses flags that have no effect with the chosen runtime.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};

use super::{Cli, Command, RunArgs};
use crate::agent::runtime::Runtime;

/// Parses a command line, whose first word is the program's name.
///
/// # Errors
/// The fault with its remedy. A request for help or for the version is an error too.
pub(crate) fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    let mut program = Cli::command();
    let matches = program.try_get_matches_from_mut(words)?;
    let cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Run(run), Some((_, given))) = (&cli.command, matches.subcommand())
        && let Some((flag, runtime)) =
            flag_of_other_runtime(run, |flag| given.value_source(flag) == Some(ValueSource::CommandLine))
    {
        let flag = flag.replace('_', "-");
        let text = format!("--{flag} has no effect with this runtime: add --runtime {runtime}, or leave out --{flag}");
        return Err(program.error(ErrorKind::ArgumentConflict, text));
    }
    let fault = match &cli.command {
        Command::Run(run) => fault(run),
        Command::Get(args) => args.fault(),
        Command::Explain(args) => args.fault(),
        Command::Logs(args) => args.fault(),
        Command::Controllers(args) => args.fault(),
        _ => None,
    };
    if let Some(text) = fault {
        return Err(program.error(ErrorKind::MissingRequiredArgument, text));
    }
    Ok(cli)
}

/// What is wrong with flags together, with the remedy.
fn fault(run: &RunArgs) -> Option<String> {
    let fault = run.admin.fault().or_else(|| run.shutdown.fault()).or_else(|| run.admission.fault());
    fault.or_else(|| run.registration.fault()).or_else(|| run.node_api.fault())
}

/// A given flag that belongs to another runtime, and that runtime.
fn flag_of_other_runtime(run: &RunArgs, given: impl Fn(&str) -> bool) -> Option<(String, &'static str)> {
    let other_runtimes = [
        (!matches!(run.runtime, Runtime::Cri(_)), "cri=ENDPOINT", {
            let flags = <super::images::ImageArgs as clap::Args>::augment_args(clap::Command::new("run"));
            ids(&<super::NodeSettingsArgs as clap::Args>::augment_args(flags))
        }),
        (run.runtime != Runtime::Simulated, "simulated", vec!["simulate".to_owned()]),
    ];
    let flags = other_runtimes.into_iter().filter(|(is_other, ..)| *is_other);
    let mut flags = flags.flat_map(|(_, runtime, flags)| flags.into_iter().map(move |flag| (flag, runtime)));
    flags.find(|(flag, _)| given(flag))
}

fn ids(flags: &clap::Command) -> Vec<String> {
    flags.get_arguments().map(|flag| flag.get_id().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_for_another_runtime_is_refused() {
        let error = |flags: &[&str]| match parse(["podwright", "run"].iter().chain(flags)) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        for flag in ["--cgroup-root=/a", "--registry-config=/b", "--image-gc-high-threshold=85", "--runtime-class=a=b"]
        {
            assert!(error(&[flag]).contains("add --runtime cri=ENDPOINT"), "{flag}: {}", error(&[flag]));
            assert_eq!(error(&[flag, "--runtime=cri=unix:///c.sock"]), "");
        }
        assert!(error(&["--simulate=run-for=5s"]).contains("add --runtime simulated"));
        assert_eq!(error(&["--simulate=run-for=5s", "--runtime=simulated"]), "");
        assert_eq!(error(&["--max-pods=5"]), "");
    }
}
