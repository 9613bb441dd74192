//! The names that the libraries export are those of `public_api.txt`, so that a change of the public API is seen in
//! review. The names are read from the sources, with every feature.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use crate::{Names, public_names, root};

const CRATES: &[(&str, &str)] = &[
    ("podwright_metrics", "metrics/src"),
    ("podwright_model", "actors/model/src"),
    ("podwright_parts", "actors/parts/src"),
    ("podwright_ports", "actors/ports/src"),
    ("podwright_work_loop", "actors/work-loop/src"),
    ("podwright_work_queue", "actors/work-queue/src"),
    ("podwright_core", "actors/core/src"),
    ("podwright_engine", "actors/engine/src"),
    ("podwright_actors", "actors/src"),
    ("podwright_checkpoint", "adapters/checkpoint/src"),
    ("podwright_credentials", "adapters/credentials/src"),
    ("podwright_cri", "adapters/cri/src"),
    ("podwright_dra", "adapters/dra/src"),
    ("podwright_host", "adapters/host/src"),
    ("podwright_http_server", "adapters/http-server/src"),
    ("podwright_kube", "adapters/kube/src"),
    ("podwright_kube_api", "adapters/kube-api/src"),
    ("podwright_kube_controllers", "adapters/kube-controllers/src"),
    ("podwright_network", "adapters/network/src"),
    ("podwright_node_api", "adapters/node-api/src"),
    ("podwright_process", "adapters/process/src"),
    ("podwright_simulated", "adapters/simulated/src"),
    ("podwright_slices", "adapters/slices/src"),
    ("podwright_sources", "adapters/sources/src"),
    ("podwright_dra_driver", "adapters/dra-driver/src"),
    ("podwright", "src"),
];

#[test]
fn public_api_is_the_committed_one() {
    let mut counts = Vec::new();
    let mut lines = BTreeSet::new();
    for (name, folder) in CRATES {
        let Names { lines: found, types, functions } = public_names(name, &root().join(folder));
        counts.push(format!("{name} {types} types, {functions} functions"));
        lines.extend(found);
    }
    let mut text = format!("# {}\n", counts.join("; "));
    for line in &lines {
        writeln!(text, "{line}").unwrap();
    }

    let file = root().join("tests/tidy/public_api.txt");
    if std::env::var_os("PODWRIGHT_BLESS").is_some() {
        fs::write(&file, &text).unwrap();
        return;
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    if committed == text {
        return;
    }
    let before: BTreeSet<String> = committed.lines().skip(1).map(str::to_owned).collect();
    let mut changes = String::new();
    for line in before.difference(&lines) {
        writeln!(changes, "- {line}").unwrap();
    }
    for line in lines.difference(&before) {
        writeln!(changes, "+ {line}").unwrap();
    }
    panic!(
        "the public API has changed:\n{changes}If that is intended, run this test with PODWRIGHT_BLESS=1 and commit {file:?}."
    );
}
