//! Which room may use which, read from the paths in the sources.
//!
//! A room is a file or folder directly below a folder of the tables, such as `actors/src`, or a module inside
//! one where the table names it (`mirrors::plan`). A path that leads to a re-exported name counts as a use of the room that
//! defines the name.

mod paths;

use std::collections::{BTreeMap, BTreeSet};

use self::paths::{Crate, ModulePath};
use crate::files::{in_repository, is_test, sources};

/// The name and the rooms of each layer, lowest layer first.
type Layers = &'static [(&'static str, &'static [&'static str])];

/// The rooms of `actors/src`, lowest layer first. A room uses lower layers, and rooms of its own layer if no cycle results.
pub(super) const ACTORS: Layers = &[
    ("helpers", &["journal", "mailbox"]),
    (
        "stores and managers",
        &[
            "claims",
            "container_manager",
            "statuses",
            "final_statuses",
            "desired",
            "active_pods",
            "resizes",
            "run_facts",
            "health",
            "metered",
            "mirrors::checks",
            "mirrors::plan",
            "probe_manager",
            "shutdown",
            "starts",
        ],
    ),
    (
        "actors",
        &[
            "observer",
            "sync",
            "dispatcher",
            "housekeeping",
            "image_gc",
            "eviction",
            "explain",
            "mirrors",
            "status_writer",
            "node_status",
        ],
    ),
    ("node", &["node"]),
];

/// The rooms of `actors/engine/src`, lowest layer first.
const ENGINE: Layers =
    &[("codec", &["codec"]), ("recorder", &["recorder"]), ("engine", &["engine"]), ("replay", &["replay"])];

/// The rooms of `actors/core/src`. They may use each other if no cycle results. `Cargo.toml` says what else they use.
const CORE: Layers = &[(
    "pure cores",
    &[
        "admission",
        "config",
        "containers",
        "housekeeping",
        "objects",
        "pod_manager",
        "pod_worker",
        "probes",
        "resize",
        "status",
    ],
)];

/// The rooms of `adapters/host/src`. They may use each other if no cycle results.
pub(super) const HOST: Layers = &[(
    "what adapters share",
    &[
        "cdi",
        "changed_pods",
        "dir_watch",
        "disk_usage",
        "log",
        "mounts",
        "node_meter",
        "pod_group",
        "record",
        "regular",
        "signals",
        "stats",
        "step_error",
        "storage",
        "streaming",
        "sub_path",
        "tree",
        "trusted_dir",
        "trusted_file",
    ],
)];

/// The rooms of `src/agent`, lowest layer first. A room uses lower layers, and rooms of its own layer if no cycle results.
pub(super) const AGENT: Layers = &[
    (
        "helpers",
        &[
            "boot",
            "certificates",
            "client",
            "error_text",
            "events",
            "instance",
            "kubelet_config",
            "machine",
            "pod_names",
            "program",
            "root",
            "runtime",
            "table",
        ],
    ),
    ("command line", &["cli"]),
    ("access to the node", &["logging", "runtime_ports", "unknown_pod", "until", "view"]),
    (
        "commands and displays",
        &["admin", "configz", "get", "page", "pod_resources", "preview", "replay", "screen", "shutdown", "validate"],
    ),
    ("run", &["run", "controllers"]),
];

/// One use of a room by another, with the first file and line of it.
type Arrows = BTreeMap<(String, String), String>;

#[test]
fn rooms_in_actors_use_only_lower_layers() {
    let faults = upward_arrows("actors/src", "", ACTORS, "ACTORS");
    assert!(faults.is_empty(), "arrows between rooms of actors/src point down:\n{}", faults.join("\n"));
}

#[test]
fn rooms_in_the_engine_use_only_lower_layers() {
    let faults = upward_arrows("actors/engine/src", "", ENGINE, "ENGINE");
    assert!(faults.is_empty(), "arrows between rooms of actors/engine/src point down:\n{}", faults.join("\n"));
}

#[test]
fn rooms_in_the_core_use_each_other_without_a_cycle() {
    let faults = upward_arrows("actors/core/src", "", CORE, "CORE");
    assert!(faults.is_empty(), "arrows between rooms of actors/core/src form a cycle:\n{}", faults.join("\n"));
}

#[test]
fn rooms_in_the_host_use_each_other_without_a_cycle() {
    let faults = upward_arrows("adapters/host/src", "", HOST, "HOST");
    assert!(faults.is_empty(), "arrows between rooms of adapters/host/src form a cycle:\n{}", faults.join("\n"));
}

#[test]
fn rooms_in_the_agent_use_only_lower_layers() {
    let faults = upward_arrows("src/agent", "agent", AGENT, "AGENT");
    assert!(faults.is_empty(), "arrows between rooms of src/agent point down:\n{}", faults.join("\n"));
}

/// Each arrow that points to a higher layer or lies on a cycle.
fn upward_arrows(folder: &str, base: &str, table: Layers, table_name: &str) -> Vec<String> {
    let mut layers = BTreeMap::new();
    for (layer, (_, rooms)) in table.iter().enumerate() {
        layers.extend(rooms.iter().map(|room| ((*room).to_owned(), layer)));
    }
    let mut arrows = arrows(folder, base, &layers);
    let mut faults = unknown_rooms(&arrows, &layers, table_name);
    for ((from, to), line) in &arrows {
        let (Some(above), Some(below)) = (layers.get(from), layers.get(to)) else { continue };
        if above < below {
            faults.push(format!("{line}: {from} ({}) uses {to} ({})", table[*above].0, table[*below].0));
        }
    }
    // Between layers a cycle needs an arrow that points up, which is reported above.
    arrows.retain(|(from, to), _| layers.get(from) == layers.get(to));
    faults.extend(cycles(&arrows));
    faults
}

/// The arrows between the rooms in `folder`, whose module in its crate is `base`.
fn arrows(folder: &str, base: &str, layers: &BTreeMap<String, usize>) -> Arrows {
    let members = Crate::read(if base.is_empty() { folder } else { "src" });
    let room = |path: &ModulePath| {
        let inner = if base.is_empty() { &path[..] } else { path.strip_prefix(&[base.to_owned()])? };
        let name = inner.first()?;
        if !members.has_module(&path[..path.len() - inner.len() + 1]) {
            return None;
        }
        let two = format!("{name}::{}", inner.get(1).map_or("", String::as_str));
        Some(if layers.contains_key(&two) { two } else { name.clone() })
    };
    let mut found = Arrows::new();
    for path in sources(folder).iter().filter(|path| !is_test(path)) {
        let Some(from) = room(&members.module(path)) else { continue };
        for used in members.uses(path) {
            let Some(to) = room(&used.path) else { continue };
            if to != from {
                let line = format!("{}:{}", in_repository(path), used.line);
                found.entry((from.clone(), to)).or_insert(line);
            }
        }
    }
    assert!(!found.is_empty(), "no arrows found in {folder}");
    found
}

/// Rooms that no table names.
fn unknown_rooms(arrows: &Arrows, layers: &BTreeMap<String, usize>, table: &str) -> Vec<String> {
    let rooms: BTreeSet<_> = arrows.keys().flat_map(|(from, to)| [from, to]).collect();
    let unknown = rooms.into_iter().filter(|room| !layers.contains_key(*room));
    unknown.map(|room| format!("the room {room} is new: give it a layer in {table} of {}", file!())).collect()
}

/// Each arrow that lies on a cycle of rooms.
fn cycles(arrows: &Arrows) -> Vec<String> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        next.entry(from).or_default().push(to);
    }
    let reaches = |from: &str, to: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(room) = open.pop() {
            if room == to {
                return true;
            }
            if seen.insert(room) {
                open.extend(next.get(room).into_iter().flatten());
            }
        }
        false
    };
    let turning = arrows.iter().filter(|((from, to), _)| reaches(to, from));
    turning.map(|((from, to), line)| format!("{line}: {from} uses {to}, and {to} leads back to {from}")).collect()
}
