//! What a build with few features contains.

use std::process::Command;

use crate::root;

/// An author of a driver builds neither the engine nor the crates that only the engine and the agent need.
#[test]
fn library_for_drivers_builds_no_engine() {
    const OF_THE_AGENT: [&str; 6] = ["actix", "axum", "clap", "podwright-metrics", "prometheus-client", "zbus"];
    let crates = crates_with("dra-driver");
    let own = |name: &str| crates.iter().find(|found| found.name == name);

    let unwanted: Vec<_> = OF_THE_AGENT.into_iter().filter(|name| own(name).is_some()).collect();
    assert!(unwanted.is_empty(), "the feature dra-driver builds {unwanted:?}");
    let values = own("podwright-actors").expect("the library uses the values of podwright-actors");
    assert_eq!(values.features, "", "features of podwright-actors in a build with dra-driver");
    assert!(own("tonic").is_some(), "the list is not complete");
}

/// The same question about the engine, so that a list that is always empty does not pass.
#[test]
fn engine_builds_actix_and_no_agent() {
    let crates = crates_with("engine");
    let has = |name: &str| crates.iter().any(|found| found.name == name);
    assert!(has("actix") && has("podwright-metrics"));
    assert!(!has("axum") && !has("clap") && !has("kube") && !has("tonic"), "the feature engine builds adapters");
}

struct Dependency {
    name: String,
    /// The features that are on, separated by commas.
    features: String,
}

/// Every crate that a build of the library with one feature needs, also for its build script.
fn crates_with(feature: &str) -> Vec<Dependency> {
    // Not `--offline`: a build of this package alone has not fetched the crates in the list.
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["tree", "--locked", "--package", "podwright", "--no-default-features"]);
    cargo.args(["--features", feature, "--edges", "normal,build", "--prefix", "none", "--format", "{p}\t{f}"]);
    let output = cargo.output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    let dependency = |line: &str| {
        let (package, features) = line.split_once('\t')?;
        // A crate that was listed before has this mark behind its features.
        let features = features.trim_end_matches("(*)").trim().to_owned();
        Some(Dependency { name: package.split(' ').next()?.to_owned(), features })
    };
    text.lines().filter_map(dependency).collect()
}
