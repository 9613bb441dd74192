//! The codes in comments and the rules that `docs/rules.md` defines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::files::{documents, in_repository, sources};
use crate::root;

/// Subjects of codes. A code is a subject, a letter and a number, as in `POD-W13`. The code of a known failure has no letter.
const SUBJECTS: [&str; 5] = ["POD-", "DRA-", "CLAIM-", "TAINT-", KNOWN_FAILURE];
/// The subject of known failures, as in `KF8`.
const KNOWN_FAILURE: &str = "KF";
/// Letters that begin the codes of rules.
const LETTERS: &str = "DIKSUW";
const RULES: &str = "docs/rules.md";

#[test]
fn every_cited_rule_is_defined() {
    let defined = defined();
    let mut faults: Vec<String> = cited().into_iter().filter(|(code, _)| !defined.contains(code)).map(fault).collect();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let undefined = codes(&text).into_iter().filter(|code| !defined.contains(code));
        faults.extend(undefined.map(|code| fault((code, in_repository(&path)))));
    }
    assert!(faults.is_empty(), "codes that {RULES} does not define:\n{}", faults.join("\n"));
}

#[test]
fn every_defined_rule_is_cited() {
    let cited = cited();
    let unused: Vec<String> = defined().into_iter().filter(|code| !cited.contains_key(code)).collect();
    assert!(unused.is_empty(), "{RULES} defines codes that no source cites: {}", unused.join(", "));
}

#[test]
fn a_code_carries_its_subject() {
    let mut faults = Vec::new();
    for path in cited_in() {
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            if let Some(code) = prose(line).iter().find_map(|text| bare(text)) {
                faults.push(format!("{}:{}: {code}", in_repository(&path), number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "codes without a subject (write POD-W13, not W13):\n{}", faults.join("\n"));
}

fn fault((code, place): (String, String)) -> String {
    format!("{place}: {code}")
}

/// The codes in the first column of the tables in the rules.
fn defined() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(RULES)).unwrap();
    let mut found = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("| ")) {
        let cell = line.split(" | ").next().unwrap();
        if SUBJECTS.iter().any(|subject| cell.starts_with(subject)) {
            assert!(found.insert(cell.to_owned()), "{RULES} defines {cell} twice");
        }
    }
    assert!(!found.is_empty(), "no rules in {RULES}");
    found
}

/// Every code that a source cites, with one file that does.
fn cited() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for path in cited_in() {
        let text = fs::read_to_string(&path).unwrap();
        found.extend(codes(&text).into_iter().map(|code| (code, in_repository(&path))));
    }
    found
}

fn cited_in() -> Vec<std::path::PathBuf> {
    let folders = ["actors", "adapters", "metrics", "src", "tests", "benches", "fuzz/src", "fuzz/fuzz_targets"];
    let files = folders.iter().flat_map(|folder| sources(folder));
    files.filter(|path| !in_repository(path).starts_with("tests/tidy")).collect()
}

/// The codes in a text; a range such as `POD-U1 to POD-U16` stands for all codes in it. A word such as `XKF3` contains no code.
fn codes(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut last: Option<(&str, u32, usize)> = None;
    let starts = SUBJECTS.iter().flat_map(|subject| text.match_indices(subject));
    let mut starts: Vec<(usize, &str)> = starts.collect();
    starts.sort_unstable();
    for (at, subject) in starts.into_iter().filter(|(at, _)| !text[..*at].ends_with(char::is_alphanumeric)) {
        let rest = &text[at + subject.len()..];
        let code = if subject == KNOWN_FAILURE { number(rest) } else { letter_and_number(rest) };
        let Some((number, length)) = code else { continue };
        let end = at + subject.len() + length;
        let kind = text[at..end].trim_end_matches(|c: char| c.is_ascii_digit());
        // A suffix such as the b of POD-U3b belongs to the code: a rule may have parts, which are defined one by one.
        let suffix = text[end..].split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        if let Some((before, from, end)) = last
            && before == kind
            && text[end..at].trim() == "to"
        {
            found.extend((from + 1..number).map(|number| format!("{kind}{number}")));
        }
        found.push(format!("{kind}{number}{suffix}"));
        last = Some((kind, number, end));
    }
    found
}

/// The number of the code that a text begins with, and the length of its letter and its number.
fn letter_and_number(text: &str) -> Option<(u32, usize)> {
    let rest = text.strip_prefix(|c: char| c.is_ascii_uppercase())?;
    number(rest).map(|(number, digits)| (number, 1 + digits))
}

/// The number that a text begins with, and how many digits it has.
fn number(text: &str) -> Option<(u32, usize)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..digits].parse().ok()?, digits))
}

/// The comment of a line, and its string literals.
fn prose(line: &str) -> Vec<&str> {
    if let Some(comment) = line.trim_start().strip_prefix("//") {
        return vec![comment];
    }
    let comment = line.split_once(" // ").map(|(_, comment)| comment);
    line.split('"').skip(1).step_by(2).chain(comment).collect()
}

/// The first code without a subject in a text. What looks like one inside a word, a path or a number is none.
fn bare(text: &str) -> Option<String> {
    for (at, _) in text.char_indices().filter(|(_, letter)| LETTERS.contains(*letter)) {
        let before = text[..at].chars().next_back();
        let Some((_, length)) = letter_and_number(&text[at..]) else { continue };
        let rest = text[at + length..].trim_start_matches(['a', 'b']);
        let after = rest.chars().next();
        let joins = |c: char| c.is_alphanumeric() || "_-/:.=<{+".contains(c);
        let ends = after.is_none_or(|c| !c.is_alphanumeric() && !"_-<>=+".contains(c));
        if length <= 4 && ends && before.is_none_or(|c| !joins(c)) {
            return Some(text[at..at + length].to_owned());
        }
    }
    None
}

#[test]
fn codes_and_ranges_are_read() {
    assert_eq!(codes("as POD-U3b says (POD-W13)"), ["POD-U3b", "POD-W13"]);
    assert_eq!(codes("rules POD-K9 to POD-K12"), ["POD-K9", "POD-K10", "POD-K11", "POD-K12"]);
    assert_eq!(codes("KF12, KF45 to KF47"), ["KF12", "KF45", "KF46", "KF47"]);
    assert_eq!(codes("POD-W1 to KF3"), ["POD-W1", "KF3"]);
    assert_eq!(codes("KEP-5532, POD-NAME, KFC, XKF3"), Vec::<String>::new());
    assert_eq!(bare("not looked yet (W14)"), Some("W14".to_owned()));
    assert_eq!(bare(" S6, W14"), Some("S6".to_owned()));
    assert_eq!(bare("POD-W14, x86-S3 and W3C at /S3"), None);
}
