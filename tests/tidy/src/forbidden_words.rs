//! Words that do not belong into a room: input and output in `actors`, time and tasks in the cores.

use std::fs;
use std::path::{Path, PathBuf};

use crate::files::{in_repository, is_test, sources};
use crate::root;

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

#[test]
fn cores_are_pure() {
    let cores = [
        "actors/core/src",
        "actors/engine/src/recorder/capture.rs",
        "actors/engine/src/recorder/capture",
        "actors/controllers/src/device_taint_eviction",
        "actors/controllers/src/device_taint_eviction.rs",
        "actors/controllers/src/leader_election/candidate.rs",
        "actors/controllers/src/leader_election/record.rs",
        "actors/controllers/src/names.rs",
        "actors/controllers/src/owners.rs",
        "actors/controllers/src/ownership.rs",
        "actors/controllers/src/resource_claim",
        "actors/controllers/src/resource_claim.rs",
        "actors/controllers/src/table.rs",
        "actors/src/explain.rs",
        "actors/src/explain/activities.rs",
        "actors/src/explain/chain.rs",
        "actors/src/explain/chain/node.rs",
        "actors/src/explain/chain/summary.rs",
        "actors/src/explain/containers.rs",
        "actors/src/explain/facts.rs",
        "actors/src/explain/long_wait_reports.rs",
        "actors/src/explain/text.rs",
        "actors/src/explain/wait.rs",
        "actors/src/container_manager/governor/state.rs",
        "actors/src/final_statuses/lines.rs",
        "actors/src/journal/lines.rs",
        "actors/src/housekeeping/garbage/plan.rs",
        "actors/src/image_gc/plan.rs",
        "actors/src/node_status/conditions.rs",
        "actors/src/node_status/lease.rs",
        "actors/src/node_status/next.rs",
        "actors/src/node_status/object.rs",
        "actors/src/eviction/limits.rs",
        "actors/src/eviction/policy.rs",
        "actors/src/eviction/pressure.rs",
        "actors/src/eviction/rank.rs",
        "actors/src/eviction/signals.rs",
        "actors/src/eviction/thresholds.rs",
        "actors/src/explain/local_storage.rs",
        "actors/src/claims/fault.rs",
        "actors/src/claims/record.rs",
        "actors/src/claims/step.rs",
        "actors/src/claims/step/answers.rs",
        "actors/src/claims/step/prepare.rs",
        "actors/src/claims/step/release.rs",
        "actors/src/claims/step/saved.rs",
        "actors/src/claims/table.rs",
        "actors/engine/src/codec.rs",
        "actors/engine/src/recorder/file.rs",
        "actors/engine/src/recorder/note.rs",
        "actors/engine/src/recorder/planned.rs",
        "actors/engine/src/replay.rs",
        "actors/work-queue/src",
        "actors/src/status_writer/patch.rs",
        "actors/src/status_writer/write.rs",
        "actors/src/shutdown/config.rs",
        "actors/src/shutdown/plan.rs",
        "actors/src/shutdown/step.rs",
        "actors/engine/src/replay",
        "actors/engine/src/recorder/ring.rs",
        "actors/src/dispatcher/turns.rs",
        "actors/src/observer/diff.rs",
        "actors/src/observer/relist.rs",
        "actors/model/src",
        "src/adapters/cri/access.rs",
        "src/adapters/cri/config",
        "src/adapters/cri/config.rs",
        "src/adapters/cri/credentials",
        "src/adapters/cri/image_name.rs",
        "src/adapters/cri/layout.rs",
        "src/adapters/cri/read.rs",
        "src/adapters/dra/answers.rs",
        "src/adapters/dra/node_slices/resources.rs",
        "src/adapters/dra/node_slices/state.rs",
        "src/adapters/dra/node_slices/stream.rs",
        "src/adapters/dra/node_slices/wiping.rs",
        "src/adapters/dra/plugins/state.rs",
        "src/adapters/dra/registry/state.rs",
        "src/adapters/kube/controllers/claim_bytes.rs",
        "src/adapters/manifest/encoding.rs",
        "src/adapters/process/view.rs",
        "src/adapters/log/file_names.rs",
        "src/adapters/log/printer.rs",
        "src/adapters/sources/holders.rs",
        "src/adapters/sources/settle.rs",
        "src/agent/admin/logs/selection.rs",
        "src/agent/container_logs/selection.rs",
        "src/agent/node_api/attributes.rs",
        "src/agent/node_api/stats/assembly.rs",
        "src/agent/node_api/stats/exposition.rs",
        "src/agent/shutdown/step.rs",
        "src/adapters/simulated/behaviour.rs",
        "src/adapters/simulated/behaviour",
        "src/adapters/simulated/draw.rs",
        "src/adapters/simulated/table.rs",
        "src/adapters/simulated/table",
    ];
    let files: Vec<PathBuf> = cores
        .iter()
        .flat_map(|core| if core.ends_with(".rs") { vec![root().join(core)] } else { sources(core) })
        .collect();
    for file in &files {
        assert!(file.exists(), "{} moved: mend this list", file.display());
    }
    let impure =
        ["actix", "tokio", "tracing", "Instant::now", "SystemTime", "dyn Clock", "thread_rng", "async fn", ".await"];
    forbid(&files, &impure, "a core decides by its arguments alone");
}

#[test]
fn only_the_binary_uses_anyhow() {
    let library: Vec<PathBuf> = ["actors", "adapters", "metrics/src", "src"]
        .iter()
        .flat_map(|folder| sources(folder))
        .filter(|path| !path.ends_with("src/agent.rs"))
        .collect();
    forbid(&library, &["anyhow"], "a library says what failed by its own types");
}

/// The text of an error of kube contains the answer of the server twice, once as a Rust value, and its source contains the answer again.
/// `KubeError` has the text for people. The files of the list only read and make errors of kube. Every other file gets a `KubeError`, or the
/// error of a port that was made from one.
#[test]
fn errors_of_kube_become_kube_errors() {
    let readers = [
        "src/adapters/kube/connection.rs",
        "src/adapters/kube/controllers/calls.rs",
        "src/adapters/kube/controllers/claims.rs",
        "src/adapters/kube/controllers/watch_problems.rs",
        "src/adapters/kube/listing.rs",
        "src/adapters/kube/node_authorizer.rs",
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
