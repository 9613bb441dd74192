//! Expands `$(VAR)` in texts of a pod's spec (core/v1 `Container.command`, `EnvVar.value`).

use std::collections::BTreeSet;

use crate::texts::containers::config as texts;

/// A text refers to variables that are not set or empty. The error lists them in alphabetical order (upstream
/// `ExpandContainerVolumeMounts`, kubelet 1.36).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", texts::no_variable(&.0.iter().map(String::as_str).collect::<Vec<_>>().join(", ")))]
pub struct MissingValues(pub BTreeSet<String>);

/// Replaces each `$(NAME)` by its value. `$$` becomes one `$`, so `$$(NAME)` is not replaced. A reference to an
/// unset variable and any other `$` stay as they are. Values are not expanded again.
pub fn expand<'v>(text: &str, value: impl Fn(&str) -> Option<&'v str>) -> String {
    let mut out = String::with_capacity(text.len());
    for piece in Pieces(text) {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Reference { name, written } => out.push_str(value(name).unwrap_or(written)),
        }
    }
    out
}

/// Like [`expand`], for texts in which every reference must have a value that is not empty.
///
/// # Errors
/// [`MissingValues`] with every reference that has no value.
pub(crate) fn expand_all<'v>(text: &str, value: impl Fn(&str) -> Option<&'v str>) -> Result<String, MissingValues> {
    let mut out = String::with_capacity(text.len());
    let mut missing = BTreeSet::new();
    for piece in Pieces(text) {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Reference { name, .. } => match value(name).filter(|value| !value.is_empty()) {
                Some(value) => out.push_str(value),
                None => drop(missing.insert(name.to_owned())),
            },
        }
    }
    if missing.is_empty() { Ok(out) } else { Err(MissingValues(missing)) }
}

enum Piece<'t> {
    Text(&'t str),
    Reference { name: &'t str, written: &'t str },
}

/// Splits a text into references and the text between them.
struct Pieces<'t>(&'t str);

impl<'t> Iterator for Pieces<'t> {
    type Item = Piece<'t>;

    fn next(&mut self) -> Option<Piece<'t>> {
        let rest = self.0;
        let take = |end: usize| (&rest[..end], &rest[end..]);
        let piece = if let Some(after) = rest.strip_prefix("$(") {
            match after.split_once(')') {
                Some((name, left)) => {
                    self.0 = left;
                    return Some(Piece::Reference { name, written: &rest[..rest.len() - left.len()] });
                }
                None => take("$(".len()),
            }
        } else if let Some(left) = rest.strip_prefix("$$") {
            ("$", left)
        } else if rest.is_empty() {
            return None;
        } else {
            // A lone `$`, or the text up to the next `$`.
            take(rest.bytes().skip(1).position(|byte| byte == b'$').map_or(rest.len(), |next| next + 1))
        };
        self.0 = piece.1;
        Some(Piece::Text(piece.0))
    }
}
