//! Reading the command line, with flags that would have no effect refused.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches};

use super::{Cli, Command, RunArgs};
use crate::agent::runtime::Runtime;

/// Reads a command line; its first word is the program's name.
///
/// # Errors
/// What is wrong with it, with the remedy; also where help was asked for.
pub(crate) fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    let mut program = Cli::command();
    let matches = program.try_get_matches_from_mut(words)?;
    let cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Run(run), Some((_, given))) = (&cli.command, matches.subcommand())
        && let Some((flag, runtime)) = foreign(run, |flag| given.value_source(flag) == Some(ValueSource::CommandLine))
    {
        let flag = flag.replace('_', "-");
        let text = format!("--{flag} has no effect here: give --runtime {runtime} too, or leave it out");
        return Err(program.error(ErrorKind::ArgumentConflict, text));
    }
    Ok(cli)
}

/// A flag that was given and is for another runtime, with that one.
fn foreign(run: &RunArgs, given: impl Fn(&str) -> bool) -> Option<(String, &'static str)> {
    let of_another = [
        #[cfg(feature = "cri")]
        (!matches!(run.runtime, Runtime::Cri(_)), "cri=ENDPOINT", {
            let flags = super::images::ImageArgs::augment_args(clap::Command::new("run"));
            ids(&super::NodeSettingsArgs::augment_args(flags))
        }),
        #[cfg(feature = "simulated")]
        (run.runtime != Runtime::Simulated, "simulated", vec!["simulate".to_owned()]),
    ];
    let flags = of_another.into_iter().filter(|(other, ..)| *other);
    let mut flags = flags.flat_map(|(_, runtime, flags)| flags.into_iter().map(move |flag| (flag, runtime)));
    flags.find(|(flag, _)| given(flag))
}

#[cfg(feature = "cri")]
fn ids(flags: &clap::Command) -> Vec<String> {
    flags.get_arguments().map(|flag| flag.get_id().to_string()).collect()
}

#[cfg(all(test, feature = "cri", feature = "process", feature = "simulated"))]
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
            assert!(error(&[flag]).contains("give --runtime cri=ENDPOINT too"), "{flag}: {}", error(&[flag]));
            assert_eq!(error(&[flag, "--runtime=cri=unix:///c.sock"]), "");
        }
        assert!(error(&["--simulate=run-for=5s"]).contains("give --runtime simulated too"));
        assert_eq!(error(&["--simulate=run-for=5s", "--runtime=simulated"]), "");
        assert_eq!(error(&["--max-pods=5"]), "");
    }
}
