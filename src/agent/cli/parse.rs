//! Parses the command line, and refuses flags that have no effect with the chosen runtime.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches, Id};

use super::configuration::Configured;
use super::{Cli, Command, RunArgs, kubelet, program};
use crate::agent::runtime::Runtime;

/// Parses a command line, whose first word is the program's name. With the name `kubelet`, the program is the command `kubelet`.
///
/// The fields of a configuration and the flags of `kubelet` become words of `run`, which are parsed like those of a user. Blocking.
///
/// # Errors
/// The fault with its remedy. A request for help or for the version is an error too.
pub(crate) fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    let mut words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    if words.first().is_some_and(|name| Path::new(name).file_name() == Some(OsStr::new(kubelet::NAME))) {
        let own = words.into_iter().skip(1);
        words = ["podwright", kubelet::NAME].map(OsString::from).into_iter().chain(own).collect();
    }
    let mut program = program();
    let matches = match program.try_get_matches_from_mut(&words) {
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => completed_by_files(&words).ok_or(error)?,
        found => found?,
    };
    let configured = match matches.subcommand() {
        Some((kubelet::NAME, given)) => Configured::of_kubelet(given),
        Some(("run", given)) => {
            let run = RunArgs::from_arg_matches(given)?;
            if !run.configuration.is_given() {
                return checked(&matches).map_err(|fault| fault.of(&mut program));
            }
            Configured::of_run(&run, &words, |argument| is_given(given, argument))
        }
        _ => return checked(&matches).map_err(|fault| fault.of(&mut program)),
    };
    let configured = configured.map_err(|text| program.error(ErrorKind::ValueValidation, text))?;
    // A program that has parsed a command line keeps what it has built for it.
    let again = super::program().try_get_matches_from(&configured.words);
    let matches = again.map_err(|error| configured.explain(error, &mut program))?;
    let mut cli = checked(&matches).map_err(|fault| match fault {
        Fault::Parsed(error) => configured.explain(error, &mut program),
        Fault::Together(kind, text) => program.error(kind, configured.locate(text)),
    })?;
    if let Command::Run(run) = &mut cli.command {
        run.configuration.notices = configured.notices;
    }
    Ok(cli)
}

/// A command line of `run` that names a configuration and lacks flags that its own flags require. The fields of the configuration may give
/// them, so nothing is required of it yet.
fn completed_by_files(words: &[OsString]) -> Option<ArgMatches> {
    let lenient = |run: clap::Command| run.mut_args(|flag| flag.requires(Resettable::<Id>::Reset));
    let matches = program().mut_subcommand("run", lenient).try_get_matches_from(words).ok()?;
    let (_, given) = matches.subcommand().filter(|(name, _)| *name == "run")?;
    let run = RunArgs::from_arg_matches(given).ok()?;
    run.configuration.is_given().then_some(matches)
}

/// What is wrong with a command line.
enum Fault {
    /// An argument.
    Parsed(clap::Error),
    /// Flags together.
    Together(ErrorKind, String),
}

impl Fault {
    fn of(self, program: &mut clap::Command) -> clap::Error {
        match self {
            Fault::Parsed(error) => error,
            Fault::Together(kind, text) => program.error(kind, text),
        }
    }
}

/// The command with its arguments, if they fit together.
fn checked(matches: &ArgMatches) -> Result<Cli, Fault> {
    let cli = Cli::from_arg_matches(matches).map_err(Fault::Parsed)?;
    if let (Command::Run(run), Some((_, given))) = (&cli.command, matches.subcommand())
        && let Some((flag, runtime)) = flag_of_other_runtime(run, |flag| is_given(given, flag))
    {
        let flag = flag.replace('_', "-");
        let text = format!("--{flag} has no effect with this runtime: add --runtime {runtime}, or leave out --{flag}");
        return Err(Fault::Together(ErrorKind::ArgumentConflict, text));
    }
    let fault = match &cli.command {
        Command::Run(run) => fault(run),
        Command::Get(args) => args.fault(),
        Command::Explain(args) => args.fault(),
        Command::Logs(args) => args.fault(),
        Command::Controllers(args) => args.fault(),
        _ => None,
    };
    match fault {
        Some(text) => Err(Fault::Together(ErrorKind::MissingRequiredArgument, text)),
        None => Ok(cli),
    }
}

/// Whether the command line has a value for an argument.
fn is_given(matches: &ArgMatches, argument: &str) -> bool {
    matches.value_source(argument) == Some(ValueSource::CommandLine)
}

/// What is wrong with flags together, with the remedy.
fn fault(run: &RunArgs) -> Option<String> {
    let fault = run.admin.fault().or_else(|| run.shutdown.fault()).or_else(|| run.admission.fault());
    fault.or_else(|| run.registration.fault()).or_else(|| run.node_api.fault()).or_else(|| run.images.fault())
}

/// A given flag that belongs to another runtime, and that runtime.
fn flag_of_other_runtime(run: &RunArgs, given: impl Fn(&str) -> bool) -> Option<(String, &'static str)> {
    let other_runtimes = [
        (!matches!(run.runtime, Runtime::Cri(_)), "cri=ENDPOINT", {
            let flags = <super::images::ImageArgs as clap::Args>::augment_args(clap::Command::new("run"));
            ids(&<super::NodeSettingsArgs as clap::Args>::augment_args(flags))
        }),
        (run.runtime != Runtime::Simulated, "simulated", vec!["simulate".to_owned()]),
        (run.runtime != Runtime::Process, "process", OF_PROCESSES.map(str::to_owned).to_vec()),
    ];
    let flags = other_runtimes.into_iter().filter(|(is_other, ..)| *is_other);
    let mut flags = flags.flat_map(|(_, runtime, flags)| flags.into_iter().map(move |flag| (flag, runtime)));
    flags.find(|(flag, _)| given(flag))
}

/// The flags that only the process runtime uses.
const OF_PROCESSES: [&str; 2] = ["process_root_pods", "register_runtime_taint"];

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
        for flag in ["--process-root-pods=allow", "--register-runtime-taint=false"] {
            let other = ["--kubeconfig=k", "--runtime=simulated", flag];
            assert!(error(&other).contains("add --runtime process"), "{flag}: {}", error(&other));
            assert_eq!(error(&["--kubeconfig=k", flag]), "");
        }
        assert_eq!(error(&["--max-pods=5"]), "");
    }
}
