//! The program that is only a shim, as somebody runs it by hand.

use std::process::Command;

use crate::support::SHIM;

#[test]
fn shim_program_that_no_runtime_starts_says_what_it_is_for() {
    for args in [vec![], vec!["run", "/no/such/directory"]] {
        let ran = Command::new(SHIM).args(&args).output().unwrap();
        let text = String::from_utf8(ran.stderr).unwrap();
        assert!(!ran.status.success() && text.contains("set `ProcessConfig::shim` to its path"), "{args:?}: {text}");
    }
}
