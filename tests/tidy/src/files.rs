//! The sources and the documents of the repository.

use std::fs;
use std::path::{Path, PathBuf};

use crate::root;

/// Every Rust file below a folder.
pub(crate) fn sources(folder: &str) -> Vec<PathBuf> {
    files(folder, ".rs")
}

/// README.md and the pages below docs/.
pub(crate) fn documents() -> Vec<PathBuf> {
    let mut found = files("docs", ".md");
    found.push(root().join("README.md"));
    found
}

fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no {ending} in {folder}");
    found
}

/// A path as it is printed: relative to the repository.
pub(crate) fn in_repository(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

/// True if a file holds tests or what only tests use.
pub(crate) fn is_test(path: &Path) -> bool {
    let text = format!("/{}", in_repository(path));
    ["tests", "fixtures", "fakes", "testing"].iter().any(|word| {
        text.contains(&format!("/{word}/"))
            || text.ends_with(&format!("/{word}.rs"))
            || text.contains(&format!("/{word}_"))
    })
}

#[test]
fn no_room_hides_behind_mod_rs() {
    for folder in ["actors", "adapters", "metrics/src", "src", "tests"] {
        let hidden: Vec<_> = sources(folder).into_iter().filter(|path| path.ends_with("mod.rs")).collect();
        assert!(hidden.is_empty(), "{hidden:?}: name the file after its folder");
    }
}
