//! The workflow in `.github` runs the steps of the gate, the toolchain is the oldest supported Rust, builds use the committed versions
//! of dependencies, and properties have fixed inputs.

use std::fs;

use crate::files::{documents, in_repository, sources};
use crate::root;

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

#[test]
fn the_workflow_runs_every_step_of_the_gate() {
    let (gate, workflow, makefile) = (text(".ci/run"), text(".github/workflows/ci.yml"), text("Makefile"));
    let steps: Vec<_> = gate.lines().filter_map(|line| line.strip_prefix("step ")?.split(' ').next()).collect();
    assert!(steps.len() >= 4, "the steps of .ci/run are {steps:?}");
    for step in steps {
        let run = format!("- run: make {step}");
        assert!(workflow.lines().any(|line| line.trim() == run), ".github/workflows/ci.yml does not run make {step}");
        assert!(makefile.contains(&format!("\n{step}:")), "the Makefile has no {step}");
    }
    // Without it, tests whose programs are missing would be skipped.
    let required = gate.lines().find_map(|line| line.strip_prefix("export PODWRIGHT_REQUIRE=")).unwrap();
    let required = format!("PODWRIGHT_REQUIRE: {required}");
    assert!(workflow.lines().any(|line| line.trim() == required), ".github/workflows/ci.yml lacks {required}");
}

/// In a mount namespace of its own, the agent would mount volumes that no container sees. Options that confine system calls would confine
/// the containers of the process runtime.
#[test]
fn the_example_unit_confines_only_what_pods_do_not_need() {
    let unit = text("examples/deploy/podwright.service");
    let options: Vec<&str> = unit.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let is_set = |option: &str| options.contains(&option);
    assert!(is_set("UMask") && is_set("KeyringMode"), "{options:?}");
    let breaking = ["Protect", "Private", "ReadOnly", "Inaccessible", "Restrict", "SystemCall", "Lock", "NoNew"];
    let breaks = |option: &&&str| breaking.iter().any(|start| option.starts_with(start));
    assert_eq!(options.iter().find(breaks), None, "the option breaks pods of the process runtime");
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

/// In the documents, the scripts, the examples and the benches.
#[test]
fn every_command_that_builds_uses_the_lock_file() {
    let commands = ["bench", "build", "check", "clippy", "deny check", "doc", "install", "nextest run", "run", "test"];
    let builds = |words: &str| {
        commands.iter().any(|command| words.strip_prefix(command).is_some_and(|options| options.starts_with(' ')))
    };
    let scripts =
        ["Makefile", ".ci/run", ".ci/soak", ".ci/install", ".github/workflows/ci.yml", ".github/workflows/weekly.yml"];
    let benches = sources("benches").into_iter().filter(|path| path.ends_with("main.rs"));
    let files =
        documents().into_iter().chain(scripts.map(|path| root().join(path))).chain(sources("examples")).chain(benches);
    let mut found = 0;
    for path in files {
        let text = fs::read_to_string(&path).unwrap().replace("$(CARGO) ", "cargo ");
        for line in text.lines() {
            let commands = line.split("cargo ").skip(1).map(|rest| rest.split('`').next().unwrap_or_default());
            for command in commands.filter(|command| builds(command)) {
                found += 1;
                assert!(command.contains("--locked"), "{}: cargo {command}: add --locked", in_repository(&path));
            }
        }
    }
    assert!(found > 30, "{found} commands");
}

#[test]
fn every_property_takes_its_inputs_from_the_one_seed() {
    let (macro_name, config) = (concat!("proptest", "! {"), "#![proptest_config(podwright_random::cases(");
    let mut found = 0;
    for path in ["actors", "adapters", "fuzz", "metrics", "src", "tests"].into_iter().flat_map(sources) {
        let text = fs::read_to_string(&path).unwrap();
        for inside in text.split(macro_name).skip(1) {
            found += 1;
            // The documentation of the seed has an example in a comment.
            let first = inside.trim_start_matches(|c: char| c.is_whitespace() || "/!".contains(c));
            assert!(
                first.starts_with(config),
                "{}: a property has random inputs: begin it with {config}N))]",
                in_repository(&path)
            );
        }
    }
    assert!(found > 10, "{found} properties");
}
