//! The programs of `examples/` run and end by themselves.

use std::process::Command;

/// Runs the example and returns what it printed. Cargo builds examples beside the tests, unless it builds only some targets.
fn run(name: &str) -> String {
    let test = std::env::current_exe().unwrap();
    let example = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(example.exists(), "{example:?} is missing: run `cargo build --examples` first");
    let output = Command::new(example).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn example_embed_prints_the_lifecycle_of_a_pod() {
    let printed = run("embed");
    let words: Vec<&str> = printed.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(words, ["sync", "the", "terminating", "terminated", "the", "known"], "{printed}");
    assert!(printed.contains("containers: true") && printed.contains("containers: false"), "{printed}");
    assert!(printed.ends_with("known pods: 0\n"), "{printed}");
}

#[test]
fn example_node_runs_a_pod_until_it_succeeds() {
    let printed = run("node");
    assert!(printed.contains("default/hello: Some(Succeeded)\n"), "{printed}");
    assert!(printed.ends_with("late pods: 0\n"), "{printed}");
}

#[test]
fn example_dra_demo_gives_a_pod_its_device_and_releases_it() {
    let printed = run("dra_demo");
    for part in ["my device: DEVICE_0=demo/device-0\n", "prepared 1 for claim default/camera\n", "unprepared claim "] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

#[test]
fn example_taint_demo_evicts_the_pod_of_a_tainted_device() {
    let printed = run("taint_demo");
    for part in [
        "1 allocated device matches; 1 pod in 1 namespace is evicted\n",
        "DeviceTaintManagerEviction: Marking for deletion\n",
        "unprepared claim ",
        "1 pod evicted since controller start",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}
