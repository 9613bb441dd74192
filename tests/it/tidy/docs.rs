//! The documents: what they name exists, and they stay short.

use std::fs;

use super::layers::{ACTORS, AGENT};
use super::{documents, in_repository, root};

/// The README is read in one sitting.
const README_LINES: usize = 150;

#[test]
fn the_readme_is_read_in_one_sitting() {
    let lines = fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines; move something to docs/");
}

#[test]
fn every_page_says_who_needs_it() {
    for path in documents().into_iter().filter(|path| !path.ends_with("README.md")) {
        let text = fs::read_to_string(&path).unwrap();
        let opening = text.lines().skip(1).find(|line| !line.is_empty()).unwrap_or_default();
        assert!(
            opening.starts_with("For "),
            "{}: the first line after the title says who needs it",
            in_repository(&path)
        );
    }
}

/// Files and folders in backticks, in drawings and in links.
#[test]
fn files_that_documents_name_exist() {
    let mut faults = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            let named = line.split(|c: char| c.is_whitespace() || "`,;:()|<#".contains(c)).filter(|word| is_path(word));
            let missing = named.filter(|word| !root().join(word.trim_end_matches('.')).exists());
            let missing = missing.chain(links(line).filter(|link| !path.with_file_name(link).exists()));
            faults.extend(missing.map(|word| format!("{}:{}: {word}", in_repository(&path), number + 1)));
        }
    }
    assert!(faults.is_empty(), "documents name files that are not there:\n{}", faults.join("\n"));
}

#[test]
fn every_page_is_linked() {
    let texts: Vec<_> = documents().into_iter().map(|path| (fs::read_to_string(&path).unwrap(), path)).collect();
    for (_, page) in texts.iter().filter(|(_, path)| !path.ends_with("README.md")) {
        let is_linked = texts.iter().any(|(text, from)| {
            text.lines()
                .flat_map(links)
                .any(|link| from.with_file_name(link).canonicalize().ok().as_ref() == Some(page))
        });
        assert!(is_linked, "no page links to {}", in_repository(page));
    }
}

#[test]
fn the_architecture_page_has_the_layers_of_the_test() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    for (head, layers) in [("| layer, lowest first", ACTORS), ("| layer of the agent, lowest first", AGENT)] {
        let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with(head)).skip(2).collect();
        for (row, (layer, rooms)) in layers.iter().enumerate() {
            let expected = format!("| {layer} | {} |", rooms.join(", "));
            assert_eq!(table.get(row), Some(&expected.as_str()), "docs/architecture.md, the table of layers");
        }
    }
}

fn is_path(word: &str) -> bool {
    let folders = ["actors/", "metrics/", "src/", "tests/", "benches/", "fuzz/", "docs/", "examples/"];
    folders.iter().any(|folder| word.starts_with(folder)) && !word.contains(['*', '"', '\''])
}

/// The files that a line links to, relative to its own.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.map(|target| target.split('#').next().unwrap_or_default());
    files.filter(|file| !file.is_empty() && !file.contains("://"))
}
