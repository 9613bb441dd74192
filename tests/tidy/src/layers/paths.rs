//! Reads the paths in the sources of a crate, and follows names that are imported or re-exported.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::files::{in_repository, is_test, sources};
use crate::root;

/// A path from the root of its crate: `["engine", "cell"]`.
pub(super) type ModulePath = Vec<String>;

/// How many imports a name may pass through. A longer chain is a cycle.
const MAX_IMPORTS: usize = 16;

/// The modules and imports of a crate.
pub(super) struct Crate {
    folder: PathBuf,
    modules: BTreeSet<ModulePath>,
    /// The path that each imported name leads to. The key is the module that imports the name, and the name.
    imports: BTreeMap<ModulePath, ModulePath>,
}

/// A path in a source file, with imports followed.
pub(super) struct Use {
    pub(super) path: ModulePath,
    pub(super) line: usize,
}

/// The end of a path in a source file.
#[derive(Debug)]
struct Leaf {
    path: ModulePath,
    /// The new name, if the path is followed by `as NAME`.
    alias: Option<String>,
    is_glob: bool,
}

impl Crate {
    /// Reads the crate in a folder.
    ///
    /// # Panics
    /// If a file re-exports all names of a module (`pub use NAME::*`), because this reader does not know these names.
    pub(super) fn read(folder: &str) -> Self {
        let files: Vec<_> = sources(folder).into_iter().filter(|path| !is_test(path)).collect();
        let mut read = Crate { folder: root().join(folder), modules: BTreeSet::new(), imports: BTreeMap::new() };
        read.modules = files.iter().map(|path| read.module(path)).collect();
        for path in &files {
            let module = read.module(path);
            let text = shipped(&fs::read_to_string(path).unwrap());
            read.import(&module, &text)
                .unwrap_or_else(|line| panic!("{}: {line}: name each item", in_repository(path)));
        }
        read
    }

    /// The module of a file: `actors/engine/src/engine/cell.rs` is `engine::cell`.
    pub(super) fn module(&self, path: &Path) -> ModulePath {
        let inner = path.strip_prefix(&self.folder).unwrap().with_extension("");
        inner.iter().map(|part| part.to_str().unwrap().to_owned()).filter(|part| part != "lib").collect()
    }

    /// Whether a path names a file of the crate.
    pub(super) fn has_module(&self, path: &[String]) -> bool {
        self.modules.contains(path)
    }

    /// Every path in a file that leads into its crate.
    pub(super) fn uses(&self, path: &Path) -> Vec<Use> {
        let text = shipped(&fs::read_to_string(path).unwrap());
        let leaves = self.leaves(&self.module(path), &text);
        leaves.into_iter().map(|(leaf, at)| Use { path: self.follow(leaf.path), line: line_of(&text, at) }).collect()
    }

    /// Adds the imports of a module. Fails with the line of a re-export that names no item.
    fn import(&mut self, module: &ModulePath, text: &str) -> Result<(), String> {
        for (leaf, at) in self.leaves(module, text) {
            let line = text[..at].rsplit('\n').next().unwrap().trim_start();
            if line != "use " && !(line.starts_with("pub") && line.ends_with(" use ")) {
                continue;
            }
            if leaf.is_glob && line != "use " {
                return Err(format!("{line}{}::*", leaf.path.join("::")));
            }
            if let Some(name) = leaf.alias.or_else(|| leaf.path.last().cloned()) {
                let mut imported = module.clone();
                imported.push(name);
                if imported != leaf.path && !leaf.is_glob {
                    self.imports.insert(imported, leaf.path);
                }
            }
        }
        Ok(())
    }

    /// Follows the imported names in a path to the definition.
    fn follow(&self, mut path: ModulePath) -> ModulePath {
        for _ in 0..MAX_IMPORTS {
            let imported = (1..=path.len()).find_map(|end| Some((end, self.imports.get(&path[..end])?)));
            let Some((end, target)) = imported else { break };
            path = target.iter().chain(&path[end..]).cloned().collect();
        }
        path
    }

    /// Every path that starts at `crate`, `self`, `super` or a child of the module, and where it starts in the text.
    fn leaves(&self, module: &ModulePath, text: &str) -> Vec<(Leaf, usize)> {
        let mut found = Vec::new();
        for (colons, _) in text.match_indices("::") {
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let at = text[..colons].rfind(|c| !is_name(c)).map_or(0, |before| before + 1);
            if text[..at].ends_with(':') {
                continue;
            }
            let start = match &text[at..colons] {
                "crate" => Vec::new(),
                "self" => module.clone(),
                "super" => module[..module.len().saturating_sub(1)].to_vec(),
                name => {
                    let child: ModulePath = module.iter().cloned().chain([name.to_owned()]).collect();
                    if !self.modules.contains(&child) {
                        continue;
                    }
                    child
                }
            };
            let mut leaves = Vec::new();
            expand(&text[colons + 2..], &start, &mut leaves);
            found.extend(leaves.into_iter().map(|leaf| (leaf, at)));
        }
        found
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Expands the path at the start of `text`, groups in braces included. Returns the text after it.
fn expand<'a>(text: &'a str, prefix: &[String], leaves: &mut Vec<Leaf>) -> &'a str {
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
    if let Some(rest) = text.strip_prefix('*') {
        leaves.push(Leaf { path: prefix.to_vec(), alias: None, is_glob: true });
        return rest;
    }
    let (name, rest) = split_name(text);
    let mut path = prefix.to_vec();
    match name {
        "" | "self" => {}
        "super" => drop(path.pop()),
        name => path.push(name.to_owned()),
    }
    if let Some(rest) = rest.strip_prefix("::") {
        return expand(rest, &path, leaves);
    }
    let (alias, rest) = match rest.strip_prefix(" as ") {
        Some(rest) => {
            let (alias, rest) = split_name(rest);
            (Some(alias.to_owned()), rest)
        }
        None => (None, rest),
    };
    leaves.push(Leaf { path, alias, is_glob: false });
    rest
}

fn split_name(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len()))
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
    let rest = expand("{a::{B, c as d}, e::*, super::f, self,\n}; x", &["z".to_owned()], &mut leaves);
    let found: Vec<String> = leaves.iter().map(|leaf| leaf.path.join("::")).collect();
    assert_eq!(found, ["z::a::B", "z::a::c", "z::e", "f", "z"]);
    assert_eq!(leaves[1].alias.as_deref(), Some("d"));
    assert!(leaves[2].is_glob);
    assert_eq!(rest, "; x");
}

#[test]
fn a_path_to_a_re_exported_name_leads_to_its_definition() {
    let path = |text: &str| text.split("::").map(str::to_owned).collect::<ModulePath>();
    let modules = ["probes", "probes::manager", "probes::attempt", "node"].map(path);
    let mut read = Crate { folder: root().to_owned(), modules: BTreeSet::from(modules), imports: BTreeMap::new() };
    read.import(
        &path("probes"),
        "pub(crate) use manager::{ProbeManager, ProbePorts as Ports};\nuse crate::ids::Uid;\n",
    )
    .unwrap();
    read.import(&path("node"), "pub use crate::probes::ProbeManager;\nlet x = crate::ids::Uid;\n").unwrap();
    let used = |module: &str, text: &str| {
        let leaves = read.leaves(&path(module), text);
        leaves.into_iter().map(|(leaf, _)| read.follow(leaf.path).join("::")).collect::<Vec<_>>()
    };
    assert_eq!(used("sync", "use crate::probes::ProbeManager;"), ["probes::manager::ProbeManager"]);
    assert_eq!(used("sync", "crate::node::ProbeManager::new()"), ["probes::manager::ProbeManager::new"]);
    assert_eq!(
        used("probes::attempt", "use super::{Ports, Uid, Other};"),
        ["probes::manager::ProbePorts", "ids::Uid", "probes::Other"],
    );
    assert_eq!(used("probes", "manager::run(); other::run();"), ["probes::manager::run"]);
    assert_eq!(used("node", "crate::node::Uid"), ["node::Uid"], "a path outside of an import imports nothing");
    assert!(read.import(&path("node"), "pub use crate::probes::*;").is_err());
    assert!(read.import(&path("node"), "use crate::probes::*;").is_ok());
}
