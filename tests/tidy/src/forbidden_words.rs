//! Words that do not belong into a room: input and output in `actors`, time and tasks in pure modules.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::files::{in_repository, is_test, sources};

#[test]
fn metrics_know_no_pod_and_no_actor() {
    forbid(
        &sources("metrics/src"),
        &["podwright_actors", "k8s_openapi", "actix", "tokio"],
        "metrics are counted, not decided",
    );
}

#[test]
fn actors_open_no_socket_and_no_file() {
    let io = [
        "std::fs",
        "tokio::fs",
        "tokio::net",
        "std::net::Tcp",
        "std::net::Udp",
        "std::os::",
        "std::process",
        "tokio::process",
        "tokio::signal",
        "rustix",
        "reqwest",
        "hyper",
        "axum",
        "println!",
        "eprintln!",
    ];
    let folders = [
        "actors/src",
        "actors/controllers/src",
        "actors/core/src",
        "actors/engine/src",
        "actors/model/src",
        "actors/parts/src",
        "actors/ports/src",
        "actors/work-loop/src",
        "actors/work-queue/src",
    ];
    let files: Vec<PathBuf> = folders.into_iter().flat_map(sources).collect();
    forbid(&files, &io, "input and output belong to the adapters");
}

/// A comment alone cannot promise that a module decides by its arguments, so what it says is tested.
#[test]
fn modules_that_call_themselves_pure_are_pure() {
    let files: Vec<PathBuf> = pure_files().into_iter().collect();
    let impure =
        ["actix", "tokio", "tracing", "Instant::now", "SystemTime", "dyn Clock", "thread_rng", "async fn", ".await"];
    forbid(&files, &impure, "a pure module decides by its arguments alone");
}

#[test]
fn steps_plans_and_decisions_are_pure() {
    let pure = pure_files();
    let decides = |path: &PathBuf| ["step.rs", "plan.rs", "decide.rs"].iter().any(|name| path.ends_with(name));
    let files = product_files().into_iter().filter(|path| decides(path) && !is_test(path));
    let silent: Vec<String> = files.filter(|path| !pure.contains(path)).map(|path| in_repository(&path)).collect();
    assert!(
        silent.is_empty(),
        "these files decide: make them pure, and say \"Pure.\" in their //!\n{}",
        silent.join("\n")
    );
}

/// The files of all modules that call themselves pure, and of the modules below them.
fn pure_files() -> BTreeSet<PathBuf> {
    let files = product_files();
    let roots: Vec<&PathBuf> =
        files.iter().filter(|path| calls_itself_pure(&fs::read_to_string(path).unwrap())).collect();
    assert!(!roots.is_empty(), "no module calls itself pure");
    let is_pure = |path: &Path| roots.iter().any(|root| path == *root || path.starts_with(folder_of_module(root)));
    files.iter().filter(|path| is_pure(path)).cloned().collect()
}

fn product_files() -> Vec<PathBuf> {
    ["actors", "adapters", "metrics/src", "src"].into_iter().flat_map(sources).collect()
}

/// Whether the `//!` of a file has the sentence "Pure.", or a sentence that begins with "Pure:".
fn calls_itself_pure(text: &str) -> bool {
    let comment = text.lines().map_while(|line| line.strip_prefix("//!"));
    comment.flat_map(str::split_whitespace).any(|word| word == "Pure." || word == "Pure:")
}

/// The folder of the modules below the module of a file.
fn folder_of_module(file: &Path) -> PathBuf {
    if file.ends_with("lib.rs") { file.with_file_name("") } else { file.with_extension("") }
}

#[test]
fn only_the_comment_of_a_file_calls_it_pure() {
    assert!(
        calls_itself_pure("//! Decides. Pure.\n\nuse a;\n") && calls_itself_pure("//! One.\n//! Pure: no clock.\n")
    );
    assert!(
        !calls_itself_pure("//! | `state` (pure) | decides |\n") && !calls_itself_pure("//! Performs.\n\n/// Pure.\n")
    );
}

#[test]
fn only_the_binary_uses_anyhow() {
    let library: Vec<PathBuf> = product_files().into_iter().filter(|path| !path.ends_with("src/agent.rs")).collect();
    forbid(&library, &["anyhow"], "a library says what failed by its own types");
}

/// The text of an error of kube contains the answer of the server twice, once as a Rust value, and its source contains the answer again.
/// `KubeError` has the text for people. The files of the list only read and make errors of kube. Every other file gets a `KubeError`, or the
/// error of a port that was made from one.
#[test]
fn errors_of_kube_become_kube_errors() {
    let readers = [
        "adapters/kube/src/connection.rs",
        "adapters/kube-controllers/src/calls.rs",
        "adapters/kube-controllers/src/claims.rs",
        "adapters/kube-controllers/src/watch_problems.rs",
        "adapters/kube/src/listing.rs",
        "adapters/kube/src/node_authorizer.rs",
        "adapters/kube-api/src/resource_api.rs",
        "adapters/kube-api/src/resource_api/version.rs",
        "adapters/slices/src/api.rs",
    ];
    let files = ["adapters", "src"].into_iter().flat_map(sources);
    let files = files.filter(|path| !path.ends_with("adapters/kube-api/src/error.rs"));
    let (reading, others): (Vec<_>, Vec<_>) = files.partition(|path| readers.contains(&in_repository(path).as_str()));
    assert_eq!(reading.len(), readers.len(), "a file moved: mend this list");
    forbid(&others, &["kube::Error", "watcher::Error"], "an error of kube becomes a KubeError where it arises");
    let shown = ["error_chain", "error_text", "%error", "error.to_string()", "Box<kube::Error>", "Box<watcher::Error>"];
    forbid(&reading, &shown, "only the text of a KubeError is shown");
}

/// The code of a file, less its comments and what follows `#[cfg(test)]`.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Fails with every place where a file of `files` says a forbidden word.
fn forbid(files: &[PathBuf], words: &[&str], why: &str) {
    let mut places = Vec::new();
    for path in files.iter().filter(|path| !is_test(path)) {
        for (number, line) in code(path).lines().enumerate() {
            if let Some(word) = words.iter().find(|word| line.contains(**word)) {
                places.push(format!("{}: {word} in code line {}", in_repository(path), number + 1));
            }
        }
    }
    assert!(places.is_empty(), "{why}:\n{}", places.join("\n"));
}
