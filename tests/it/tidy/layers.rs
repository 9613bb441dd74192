//! Which room may use which, read from the paths in the sources.
//!
//! A room is a file or folder directly below `actors/src` or `src/adapters`, or a module inside one where the table names
//! it (`probes::manager`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{in_repository, is_test, root, sources};

/// The rooms of `actors/src`, lowest layer first. A room uses lower layers, and rooms of its own layer if no cycle results.
pub(super) const ACTORS: &[(&str, &[&str])] = &[
    ("values", &["text", "ids", "time", "pod"]),
    ("ports", &["ports"]),
    ("helpers", &["codec", "mailbox"]),
    ("pure cores", &["config", "pod_worker", "containers", "probes", "status", "pod_manager", "admission"]),
    ("recorder", &["recorder"]),
    ("engine", &["engine"]),
    (
        "stores and managers",
        &[
            "container_manager",
            "statuses",
            "final_statuses",
            "desired",
            "active_pods",
            "health",
            "metered",
            "probes::manager",
            "shutdown",
        ],
    ),
    ("actors", &["observer", "sync", "dispatcher", "housekeeping", "image_gc", "explain"]),
    ("replay", &["replay"]),
    ("node", &["node"]),
];

/// The rooms of `src/adapters`, lowest layer first. Adapters share helpers; an adapter never uses another adapter.
const HELPERS: &[&str] = &["changed_pods", "log", "manifest", "mounts", "record", "sub_path", "tree"];
const ADAPTERS: &[&str] = &["checkpoint", "cri", "network", "process", "simulated", "sources", "storage"];

/// One use of a room by another, with the first file and line of it.
type Arrows = BTreeMap<(String, String), String>;

#[test]
fn rooms_in_actors_use_only_lower_layers() {
    let mut layers = BTreeMap::new();
    for (layer, (_, rooms)) in ACTORS.iter().enumerate() {
        layers.extend(rooms.iter().map(|room| ((*room).to_owned(), layer)));
    }
    let mut arrows = arrows("actors/src", "", &layers);
    let mut faults = unknown_rooms(&arrows, &layers, "ACTORS");
    for ((from, to), line) in &arrows {
        let (Some(above), Some(below)) = (layers.get(from), layers.get(to)) else { continue };
        if above < below {
            faults.push(format!("{line}: {from} ({}) uses {to} ({})", ACTORS[*above].0, ACTORS[*below].0));
        }
    }
    // Between layers a cycle needs an arrow that points up, which is reported above.
    arrows.retain(|(from, to), _| layers.get(from) == layers.get(to));
    faults.extend(cycles(&arrows));
    assert!(faults.is_empty(), "arrows between rooms of actors/src point down:\n{}", faults.join("\n"));
}

#[test]
fn adapters_share_helpers_and_not_each_other() {
    let mut layers: BTreeMap<String, usize> = HELPERS.iter().map(|room| ((*room).to_owned(), 0)).collect();
    layers.extend(ADAPTERS.iter().map(|room| ((*room).to_owned(), 1)));
    let arrows = arrows("src/adapters", "adapters", &layers);
    let mut faults = unknown_rooms(&arrows, &layers, "HELPERS or ADAPTERS");
    for ((from, to), line) in &arrows {
        if layers.get(to) == Some(&1) {
            faults.push(format!("{line}: {from} uses the adapter {to}"));
        }
    }
    faults.extend(cycles(&arrows));
    assert!(faults.is_empty(), "an adapter uses helpers and no other adapter:\n{}", faults.join("\n"));
}

#[test]
fn adapters_do_not_use_the_agent() {
    let mut faults = Vec::new();
    for path in sources("src/adapters") {
        for (target, line) in uses(&path, &module(&path, "src")) {
            if target.first().is_some_and(|first| first == "agent") {
                faults.push(format!("{}:{line}", in_repository(&path)));
            }
        }
    }
    assert!(faults.is_empty(), "src/adapters uses src/agent:\n{}", faults.join("\n"));
}

/// The arrows between the rooms in `folder`, whose module in its crate is `base`.
fn arrows(folder: &str, base: &str, layers: &BTreeMap<String, usize>) -> Arrows {
    let room = |path: &[String]| {
        let inner = if base.is_empty() { path } else { path.split_first()?.1 };
        let name = inner.first()?;
        let two = format!("{name}::{}", inner.get(1).map_or("", String::as_str));
        let is_room = layers.contains_key(name) || is_module(folder, name);
        is_room.then(|| if layers.contains_key(&two) { two } else { name.clone() })
    };
    let mut found = Arrows::new();
    for path in sources(folder).iter().filter(|path| !is_test(path)) {
        let own = module(path, if base.is_empty() { folder } else { "src" });
        let Some(from) = room(&own) else { continue };
        for (target, line) in uses(path, &own) {
            let outside = !base.is_empty() && target.first().is_none_or(|first| first != base);
            let Some(to) = (if outside { None } else { room(&target) }) else { continue };
            if to != from {
                let place = format!("{}:{line}", in_repository(path));
                found.entry((from.clone(), to)).or_insert(place);
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

fn is_module(folder: &str, name: &str) -> bool {
    root().join(folder).join(format!("{name}.rs")).exists()
}

/// The module path of a file: `actors/src/engine/cell.rs` is `engine::cell`.
fn module(path: &Path, folder: &str) -> Vec<String> {
    let inner = path.strip_prefix(root().join(folder)).unwrap().with_extension("");
    inner.iter().map(|part| part.to_str().unwrap().to_owned()).filter(|part| part != "lib").collect()
}

/// Every path that starts at `crate` or `super`, from the crate's root, with its line.
fn uses(path: &Path, own: &[String]) -> Vec<(Vec<String>, usize)> {
    let text = shipped(&fs::read_to_string(path).unwrap());
    let mut found = Vec::new();
    for (at, _) in text.match_indices("crate::").chain(text.match_indices("super::")) {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let mut rest = &text[at..];
        let mut start = if rest.starts_with("crate") { Vec::new() } else { own.to_vec() };
        while let Some(inner) = rest.strip_prefix("super::") {
            start.pop();
            rest = inner;
        }
        rest = rest.strip_prefix("crate::").unwrap_or(rest);
        let line = text[..at].matches('\n').count() + 1;
        let mut leaves = Vec::new();
        expand(rest, &start, &mut leaves);
        found.extend(leaves.into_iter().map(|leaf| (leaf, line)));
    }
    found
}

/// Expands the path at the start of `text`, groups in braces included; gives what follows it.
fn expand<'a>(text: &'a str, prefix: &[String], leaves: &mut Vec<Vec<String>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = expand(rest, prefix, leaves).trim_start();
            match rest.split_at_checked(1) {
                Some((",", more)) if !more.trim_start().starts_with('}') => rest = more,
                Some((",", more)) => return &more.trim_start()[1..],
                Some((_, more)) => return more,
                None => return rest,
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let mut path = prefix.to_vec();
    if !name.is_empty() && name != "self" {
        path.push(name.to_owned());
    }
    if let Some(rest) = rest.strip_prefix("::") {
        return expand(rest, &path, leaves);
    }
    leaves.push(path);
    let rest = rest.strip_prefix(" as ").map_or(rest, |rest| rest.trim_start_matches(|c: char| c.is_alphanumeric()));
    rest.strip_prefix('*').unwrap_or(rest)
}

/// The text with the lines of comments and of items under `#[cfg(test)]` emptied.
fn shipped(text: &str) -> String {
    let mut kept = String::new();
    let mut skipping: Option<usize> = None;
    for line in text.lines() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if code.starts_with("#[cfg(test)]") {
            skipping = Some(indent);
        } else if let Some(outer) = skipping {
            if indent <= outer && (code.ends_with(';') || code.ends_with('}')) {
                skipping = None;
            }
        } else if !code.starts_with("//") {
            kept.push_str(line);
        }
        kept.push('\n');
    }
    kept
}

#[test]
fn paths_are_read_with_groups_and_super() {
    let mut leaves = Vec::new();
    let rest = expand("{a::{B, c as d}, e::*, self,\n}; x", &["z".to_owned()], &mut leaves);
    let found: Vec<String> = leaves.iter().map(|leaf| leaf.join("::")).collect();
    assert_eq!(found, ["z::a::B", "z::a::c", "z::e", "z"]);
    assert_eq!(rest, "; x");
}
