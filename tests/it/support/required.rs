//! Programs that are not on every machine. A test that needs one is skipped where it is missing, unless
//! `PODWRIGHT_REQUIRE` names it: then the test fails.

use std::env::{self, VarError};

/// Names the programs that must be there, separated by commas: `PODWRIGHT_REQUIRE=containerd,browser`.
const VARIABLE: &str = "PODWRIGHT_REQUIRE";

/// A program that a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// containerd with runc, the CNI plugins and busybox, and root to run them.
    Containerd,
    /// Chromium.
    Browser,
}

/// Passes on a program that was found. A missing one is reported on standard error, and the test skips itself.
///
/// # Panics
/// `PODWRIGHT_REQUIRE` names the missing program, or a word that is no program.
pub(crate) fn found_or_skip<T>(program: Program, found: Result<T, String>) -> Option<T> {
    let required = required();
    match found {
        Ok(found) => Some(found),
        Err(missing) if required.contains(&program) => {
            panic!("{missing}, and {VARIABLE} requires it: install it or take its word out of {VARIABLE}")
        }
        Err(missing) => {
            eprintln!("skipped: {missing}; with {VARIABLE} this is a failure");
            None
        }
    }
}

fn required() -> Vec<Program> {
    match env::var(VARIABLE) {
        Ok(words) => parse(&words).unwrap_or_else(|error| panic!("{error}")),
        Err(VarError::NotPresent) => vec![],
        Err(error) => panic!("{VARIABLE}: {error}"),
    }
}

fn parse(words: &str) -> Result<Vec<Program>, String> {
    let words = words.split(',').map(str::trim).filter(|word| !word.is_empty());
    let program = |word: &str| match word {
        "containerd" => Ok(Program::Containerd),
        "browser" => Ok(Program::Browser),
        _ => Err(format!("{VARIABLE} has the unknown word {word:?}: use containerd, browser or both, with a comma")),
    };
    words.map(program).collect()
}

#[test]
fn required_programs_are_parsed_and_an_unknown_word_is_an_error() {
    assert_eq!(parse(""), Ok(vec![]));
    assert_eq!(parse("browser, containerd"), Ok(vec![Program::Browser, Program::Containerd]));
    let error = parse("containerd,docker").unwrap_err();
    assert!(error.contains(VARIABLE) && error.contains("\"docker\""), "{error}");
}

// Fails on a misspelt word even in a run without any test that needs a program.
#[test]
fn the_environment_requires_only_known_programs() {
    required();
}
