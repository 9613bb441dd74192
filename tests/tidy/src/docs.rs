//! The documents: what they name exists, and they stay short.

use std::collections::BTreeSet;
use std::fs;

use crate::files::{documents, in_repository};
use crate::layers::{ACTORS, AGENT, HOST};
use crate::root;

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
    for (head, layers) in [("| layer, lowest first", ACTORS), ("| layer of the agent, lowest first", AGENT)] {
        let expected = layers.iter().map(|(layer, rooms)| format!("| {layer} | {} |", rooms.join(", ")));
        let expected: Vec<_> = expected.collect();
        assert_eq!(rows_of_architecture(head), expected, "docs/architecture.md and layers.rs, {head}");
    }
}

#[test]
fn the_architecture_page_has_the_rooms_of_the_host() {
    let rows = rows_of_architecture("| folder or file below `adapters/host/src`");
    let expected: BTreeSet<&str> = HOST.iter().flat_map(|(_, rooms)| *rooms).copied().collect();
    assert_eq!(rooms(rows.iter()), expected, "docs/architecture.md and layers.rs");
}

/// The files and folders in the first column of a table.
fn rooms<'a>(rows: impl Iterator<Item = &'a String>) -> BTreeSet<&'a str> {
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(without_rs).collect()
}

/// The rows of the table of docs/architecture.md whose first line starts with `head`.
fn rows_of_architecture(head: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let below = text.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    below.take_while(|line| line.starts_with('|')).map(str::to_owned).collect()
}

fn without_rs(file: &str) -> &str {
    file.trim_end_matches(".rs")
}

fn is_path(word: &str) -> bool {
    let folders = ["actors/", "adapters/", "metrics/", "src/", "tests/", "benches/", "fuzz/", "docs/", "examples/"];
    folders.iter().any(|folder| word.starts_with(folder)) && !word.contains(['*', '"', '\''])
}

/// The files that a line links to, relative to its own.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.map(|target| target.split('#').next().unwrap_or_default());
    files.filter(|file| !file.is_empty() && !file.contains("://"))
}
