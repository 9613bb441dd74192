//! What a build of one crate contains.

use std::collections::BTreeSet;
use std::process::Command;

use crate::root;

/// An author of a driver builds neither the engine nor the crates that only the engine and the agent need.
#[test]
fn library_for_drivers_builds_no_engine() {
    const OF_THE_AGENT: [&str; 9] = [
        "actix",
        "axum",
        "clap",
        "podwright-actors",
        "podwright-core",
        "podwright-engine",
        "podwright-metrics",
        "prometheus-client",
        "zbus",
    ];
    for (package, features) in [("podwright-dra-driver", ""), ("podwright", "dra-driver")] {
        let crates = crates_of(package, features);
        let unwanted: Vec<_> = OF_THE_AGENT.into_iter().filter(|name| crates.contains(*name)).collect();
        assert!(unwanted.is_empty(), "{package} {features} builds {unwanted:?}");
        assert!(crates.contains("podwright-slices") && crates.contains("tonic"), "the list is not complete");
    }
}

/// The same question about the engine, so that a list that is always empty does not pass.
#[test]
fn engine_builds_actix_and_no_agent() {
    let crates = crates_of("podwright", "engine");
    let has = |name: &str| crates.contains(name);
    assert!(has("actix") && has("podwright-metrics"));
    assert!(!has("axum") && !has("clap") && !has("kube") && !has("tonic"), "the feature engine builds adapters");
}

/// Who embeds the engine alone builds neither the node nor an adapter.
#[test]
fn engine_alone_builds_no_node() {
    let crates = crates_of("podwright-engine", "");
    let unwanted: Vec<_> =
        ["kube", "podwright", "podwright-actors", "tonic"].into_iter().filter(|name| crates.contains(*name)).collect();
    assert!(unwanted.is_empty(), "podwright-engine builds {unwanted:?}");
    assert!(crates.contains("actix") && crates.contains("podwright-core"), "the list is not complete");
}

/// The controllers of the control plane are no part of a node.
#[test]
fn controllers_build_no_engine_and_no_client() {
    let crates = crates_of("podwright-controllers", "");
    let unwanted: Vec<_> =
        ["actix", "kube", "podwright-actors", "tonic"].into_iter().filter(|name| crates.contains(*name)).collect();
    assert!(unwanted.is_empty(), "podwright-controllers builds {unwanted:?}");
    assert!(crates.contains("podwright-work-loop"), "the list is not complete");
}

/// The adapters of a node.
const ADAPTERS: [&str; 11] = [
    "podwright-checkpoint",
    "podwright-credentials",
    "podwright-cri",
    "podwright-dra",
    "podwright-kube",
    "podwright-logind",
    "podwright-network",
    "podwright-node-api",
    "podwright-process",
    "podwright-simulated",
    "podwright-sources",
];

/// An adapter implements ports, so an edit of the engine or the node does not compile it again.
#[test]
fn adapters_build_no_node() {
    for package in ADAPTERS.into_iter().chain(["podwright-kube-controllers"]) {
        let crates = crates_of(package, "");
        let unwanted: Vec<_> = ["actix", "podwright-actors", "podwright-engine"]
            .into_iter()
            .filter(|name| crates.contains(*name))
            .collect();
        assert!(unwanted.is_empty(), "{package} builds {unwanted:?}");
        assert!(crates.contains("podwright-ports"), "the list is not complete");
    }
}

/// The plugins and the simulated pods need none of the pure cores, so an edit of a core does not compile these crates again.
#[test]
fn plugins_and_simulated_pods_build_no_core() {
    for package in ["podwright-dra", "podwright-simulated"] {
        let crates = crates_of(package, "");
        assert!(!crates.contains("podwright-core"), "{package} builds podwright-core");
        assert!(crates.contains("podwright-ports"), "the list is not complete");
    }
}

/// An adapter uses what the adapters share, and no other adapter. `podwright-kube-controllers` is above `podwright-kube`.
#[test]
fn an_adapter_builds_no_other_adapter() {
    for package in ADAPTERS {
        let crates = crates_of(package, "");
        let others: Vec<_> = ADAPTERS.into_iter().filter(|name| *name != package && crates.contains(*name)).collect();
        assert!(others.is_empty(), "{package} builds {others:?}");
        assert!(crates.contains("podwright-ports"), "the list is not complete");
    }
}

/// What the node API needs of a runtime and of an API server is an argument.
#[test]
fn node_api_builds_no_runtime_and_no_client() {
    let crates = crates_of("podwright-node-api", "");
    let unwanted: Vec<_> =
        ["kube", "podwright", "tonic", "zbus"].into_iter().filter(|name| crates.contains(*name)).collect();
    assert!(unwanted.is_empty(), "podwright-node-api builds {unwanted:?}");
    assert!(crates.contains("podwright-http-server"), "the list is not complete");
}

/// An edit of a runtime gets an answer of its tests, with real processes and containers, without a build of the node or the agent.
#[test]
fn tests_of_runtimes_build_no_node() {
    for package in ["podwright-cri", "podwright-process"] {
        let crates = tree(package, "", "normal,build,dev");
        let unwanted: Vec<_> = ["actix", "podwright", "podwright-actors", "podwright-engine"]
            .into_iter()
            .filter(|name| crates.contains(*name))
            .collect();
        assert!(unwanted.is_empty(), "the tests of {package} build {unwanted:?}");
        assert!(crates.contains("podwright-fixtures"), "the list is not complete");
    }
}

/// Crates whose code decides by its arguments alone can neither wait, log nor count.
#[test]
fn pure_crates_build_no_tokio_and_no_tracing() {
    for package in ["podwright-model", "podwright-work-queue"] {
        let crates = crates_of(package, "");
        let impure: Vec<_> = ["actix", "podwright-metrics", "tokio", "tracing"]
            .into_iter()
            .filter(|name| crates.contains(*name))
            .collect();
        assert!(impure.is_empty(), "{package} builds {impure:?}");
        assert!(crates.contains("k8s-openapi"), "the list is not complete");
    }
}

/// Every crate that a build of a package with some features needs, also for its build script.
fn crates_of(package: &str, features: &str) -> BTreeSet<String> {
    tree(package, features, "normal,build")
}

/// Every crate that a package with some features reaches by dependencies of these kinds.
fn tree(package: &str, features: &str, kinds: &str) -> BTreeSet<String> {
    // Not `--offline`: a build of this package alone has not fetched the crates in the list.
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["tree", "--locked", "--package", package, "--no-default-features"]);
    cargo.args(["--features", features, "--edges", kinds, "--prefix", "none", "--format", "{p}"]);
    let output = cargo.output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}
