//! Variables from a file in a volume, which an init container of the same pod writes (KEP-3721).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::FileKeySelector;

use crate::containers::definition::Definition;
use crate::pod::{ContainerKind, PodObject};
use crate::ports::VolumeMounts;
use crate::texts::containers as texts;

/// The content of each file that variables are taken from, by volume and path in the volume. `None` if it cannot be read.
pub type EnvFiles = BTreeMap<(String, String), Option<Vec<u8>>>;

/// The longest line of a file, in bytes (the limit of Go's `bufio.Scanner`, which the kubelet uses).
const LONGEST_LINE: usize = 64 * 1024;

/// The value of a variable cannot be taken from a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileKeyError {
    /// The pod has no such volume.
    #[error("{}", texts::no_env_volume(.0))]
    NoVolume(String),
    /// The file is missing, or is not a list of variables.
    #[error("{}", texts::BAD_ENV_FILE)]
    BadFile,
    /// The file does not set the variable.
    #[error("{}", texts::no_env_key(.key, .path))]
    NoKey {
        /// The name of the variable in the file.
        key: String,
        /// The path of the file in its volume.
        path: String,
    },
}

/// The volumes and files that the variables of a container are taken from.
pub fn env_files(pod: &PodObject, kind: ContainerKind, name: &str) -> Vec<(String, String)> {
    let env = Definition::find_in(pod, kind, name).map_or(&[][..], Definition::env);
    let selectors = env.iter().filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref());
    let mut files: Vec<_> = selectors.map(key_of).collect();
    files.sort();
    files.dedup();
    files
}

fn key_of(selector: &FileKeySelector) -> (String, String) {
    (selector.volume_name.clone(), selector.path.clone())
}

/// The value of a variable; `None` if it is optional and the file does not set it. A file that is missing or damaged is an error also
/// for an optional variable (upstream `makeEnvironmentVariables`, kubelet 1.36).
pub(super) fn value_of(
    selector: &FileKeySelector,
    volumes: &VolumeMounts,
    files: &EnvFiles,
) -> Result<Option<String>, FileKeyError> {
    if !volumes.contains_key(&selector.volume_name) {
        return Err(FileKeyError::NoVolume(selector.volume_name.clone()));
    }
    let file = files.get(&key_of(selector)).and_then(Option::as_ref).ok_or(FileKeyError::BadFile)?;
    let value = parse(file, &selector.key).ok_or(FileKeyError::BadFile)?;
    match value.filter(|value| !value.is_empty()) {
        Some(value) => Ok(Some(value)),
        None if selector.optional == Some(true) => Ok(None),
        None => Err(FileKeyError::NoKey { key: selector.key.clone(), path: selector.path.clone() }),
    }
}

/// The value of the first variable of this name; `Some(None)` if the file has none, `None` if the file is not valid up to there.
///
/// A file has lines `NAME='value'`. The value is literal and may span lines. A comment may follow it. Empty lines and lines that
/// begin with `#` are skipped. Space before the name is ignored; before `=` it is an error; after `=` it makes the value empty
/// (upstream `pkg/util/env`, `ParseEnv`, kubelet 1.36).
fn parse(file: &[u8], key: &str) -> Option<Option<String>> {
    const SPACE: [char; 2] = [' ', '\t'];
    let mut lines = Lines { rest: Some(file) };
    while let Some(line) = lines.next() {
        let line = line?;
        let line = line.trim_start_matches(SPACE);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=')?;
        if name.is_empty() || name.ends_with(SPACE) {
            return None;
        }
        if value.starts_with(SPACE) {
            if name == key {
                return Some(None);
            }
            continue;
        }
        let mut rest = value.strip_prefix('\'')?;
        let mut value = String::new();
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                value.push_str(end);
                break after.trim_start_matches(SPACE);
            }
            value.push_str(rest);
            value.push('\n');
            rest = lines.next()??;
        };
        if !after.is_empty() && !after.starts_with('#') {
            return None;
        }
        if name == key {
            return Some(Some(value));
        }
    }
    Some(None)
}

/// The lines of a file without their ends. A line that is too long or that is not UTF-8 is `None`.
struct Lines<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Lines<'a> {
    type Item = Option<&'a str>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.filter(|rest| !rest.is_empty())?;
        let end = rest.iter().position(|byte| *byte == b'\n');
        let line = &rest[..end.unwrap_or(rest.len())];
        self.rest = end.map(|end| &rest[end + 1..]);
        if line.len() >= LONGEST_LINE {
            return Some(None);
        }
        Some(std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_literal_texts_in_single_quotes() {
        let file = "# c\n\n  A='1'\r\n\tB='two words $X \\n' # note\nC='a\n b\nc'\nD=''\nE= 'x'\nA='2'\nF='last'";
        for (key, value) in [
            ("A", Some("1")),
            ("B", Some("two words $X \\n")),
            ("C", Some("a\n b\nc")),
            ("D", Some("")),
            ("E", None),
            ("F", Some("last")),
            ("a", None),
        ] {
            assert_eq!(parse(file.as_bytes(), key), Some(value.map(str::to_owned)), "{key}");
        }
        assert_eq!(parse(b"", "A"), Some(None));
    }

    #[test]
    fn other_lines_are_faults_unless_the_variable_was_found_before() {
        for bad in ["A", "=x", "A ='x'", "A=x", "A=\"x\"", "A='x' y", "A='x", "A='x\n"] {
            assert_eq!(parse(bad.as_bytes(), "K"), None, "{bad:?}");
            assert_eq!(parse(format!("K='v'\n{bad}").as_bytes(), "K"), Some(Some("v".to_owned())), "{bad:?}");
        }
        assert_eq!(parse(b"A='\xff'", "A"), None);
        assert_eq!(parse(format!("A='{}'", "x".repeat(LONGEST_LINE)).as_bytes(), "A"), None);
    }
}
