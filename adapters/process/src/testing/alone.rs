//! Runs a test in a process of its own.

use std::env;
use std::process::Command;

/// The environment variable of a process that runs one test alone.
const ALONE: &str = "PODWRIGHT_TEST_ALONE";

/// Whether this process runs no other test. Otherwise, runs the test with this path in a process of its own, where it must pass, and
/// returns false. For tests that change what all threads of a process share, such as the limit on open files. nextest starts a process
/// for each test.
pub(crate) fn is_alone(test: &str) -> bool {
    if env::var_os("NEXTEST").is_some() || env::var_os(ALONE).is_some() {
        return true;
    }
    let (_, path) = test.split_once("::").unwrap();
    let again =
        Command::new(env::current_exe().unwrap()).args(["--exact", path, "--nocapture"]).env(ALONE, "1").output();
    let again = again.unwrap();
    let (text, errors) = (String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&again.stderr));
    assert!(again.status.success() && text.contains("1 passed"), "{text}{errors}");
    false
}
