//! The workflow in `.github` runs the steps of the gate, and the toolchain is the oldest supported Rust.

use std::fs;

use super::root;

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

#[test]
fn the_workflow_runs_every_step_of_the_gate() {
    let (gate, workflow, makefile) = (text(".ci/run"), text(".github/workflows/ci.yml"), text("Makefile"));
    let steps: Vec<_> = gate.lines().filter_map(|line| line.strip_prefix("step ")?.split(' ').next()).collect();
    assert!(steps.len() >= 4, "the steps of .ci/run are {steps:?}");
    for step in steps {
        assert!(
            workflow.contains(&format!("- run: make {step}\n")),
            ".github/workflows/ci.yml does not run make {step}"
        );
        assert!(makefile.contains(&format!("\n{step}:")), "the Makefile has no {step}");
    }
}

#[test]
fn the_toolchain_is_the_oldest_supported_rust() {
    let value = |path: &str, key: &str| {
        let text = text(path);
        let line =
            text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{path} has no {key}"));
        line.trim_matches([' ', '=', '"']).to_owned()
    };
    let (toolchain, oldest) = (value("rust-toolchain.toml", "channel"), value("Cargo.toml", "rust-version"));
    assert!(toolchain.starts_with(&format!("{oldest}.")), "Rust {oldest} is supported, and {toolchain} is used");
}
