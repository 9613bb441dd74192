//! The problems of a pod, and checks that many fields share.

use std::fmt;

use crate::config::linux_id::{MAX_ID, linux_id};
use crate::names;

/// A problem in a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The field, as `spec.containers[0].name`; map keys are in brackets.
    pub path: String,
    /// The mistake.
    pub message: String,
    /// The remedy.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.path, self.message, self.remedy)
    }
}

#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) problems: Vec<Problem>,
}

impl Report {
    pub(super) fn add(&mut self, path: impl Into<String>, message: impl Into<String>, remedy: impl Into<String>) {
        self.problems.push(Problem { path: path.into(), message: message.into(), remedy: remedy.into() });
    }

    /// Checks that a value, if set, is one of a list.
    pub(super) fn one_of(&mut self, path: impl Into<String>, value: Option<&str>, allowed: &[&str]) {
        if let Some(value) = value
            && !allowed.contains(&value)
        {
            let listed = allowed.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(", ");
            self.add(path, format!("is {value:?}"), format!("use one of {listed}"));
        }
    }

    /// Checks that a number, if set, is not below a bound.
    pub(super) fn at_least(&mut self, path: impl Into<String>, value: Option<impl Into<i64>>, least: i64) {
        if let Some(value) = value.map(Into::into)
            && value < least
        {
            self.add(path, format!("is {value}"), format!("use {least} or more"));
        }
    }

    /// Checks that a number, if set, is a user or group ID.
    pub(super) fn id(&mut self, path: impl Into<String>, id: Option<i64>) {
        if let Some(id) = id
            && linux_id(id).is_err()
        {
            self.add(path, format!("is {id}"), format!("use an ID from 0 to {MAX_ID}"));
        }
    }

    /// Checks that a text is a path that stays below the directory it is relative to.
    pub(super) fn relative_path(&mut self, path: impl Into<String>, text: &str, below: &str) {
        if text.starts_with('/') || text.split('/').any(|part| part == "..") {
            self.add(path, format!("{text:?} leaves {below}"), "use a relative path without '..'");
        }
    }

    /// Checks that a port number is from 1 to 65535.
    pub(super) fn port(&mut self, path: impl Into<String>, port: i32) {
        if !(1..=65535).contains(&port) {
            self.add(path, format!("is {port}"), "use a port from 1 to 65535");
        }
    }

    /// Checks that a text is a DNS-1123 label.
    pub(super) fn label(&mut self, path: impl Into<String>, text: &str) {
        if !names::is_label(text) {
            self.add(
                path,
                format!("{text:?} is not a valid name"),
                "use at most 63 lower-case letters, digits and '-', with a letter or digit at each end",
            );
        }
    }

    /// Checks that a text is a DNS-1123 subdomain.
    pub(super) fn subdomain(&mut self, path: impl Into<String>, text: &str) {
        if !names::is_subdomain(text) {
            self.add(
                path,
                format!("{text:?} is not a valid name"),
                "use at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at each end",
            );
        }
    }

    /// Checks that a text is a name with an optional DNS domain and a slash before it.
    pub(super) fn qualified(&mut self, path: impl Into<String>, text: &str) {
        if !names::is_qualified(text) {
            self.add(
                path,
                format!("{text:?} is not a valid name"),
                "use a name of at most 63 letters, digits, '-', '_' and '.', optionally behind a DNS domain and a slash",
            );
        }
    }

    /// Reports the key of a label or annotation that is not valid.
    pub(super) fn bad_key(&mut self, path: impl Into<String>) {
        self.add(
            path,
            "is not a valid key",
            "use a name of at most 63 letters, digits, '-', '_' and '.', optionally behind a DNS domain and a slash",
        );
    }

    /// Checks that a text is the value of a label.
    pub(super) fn label_value(&mut self, path: impl Into<String>, text: &str) {
        if !names::is_label_value(text) {
            self.add(
                path,
                format!("{text:?} is not a valid label value"),
                "use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at each end",
            );
        }
    }

    /// Checks that a text is the name of an environment variable.
    pub(super) fn env_name(&mut self, path: impl Into<String>, text: &str) {
        if text.is_empty() {
            self.add(path, "is missing", "give the variable a name");
        } else if text.contains('=') {
            self.add(path, format!("{text:?} contains '='"), "remove it from the name");
        } else if !text.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            self.add(path, format!("{text:?} is not a valid name"), "use printable ASCII characters except '='");
        }
    }

    /// Checks that exactly one of several alternatives is set.
    pub(super) fn exactly_one(&mut self, path: &str, set: &[(&str, bool)]) {
        let given: Vec<_> = set.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
        let all = || set.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        match given.len() {
            0 => self.add(path, "says nothing", format!("set one of {}", all())),
            1 => {}
            _ => self.add(path, format!("sets {} together", given.join(" and ")), "keep one of them"),
        }
    }

    /// Checks file mode bits.
    pub(super) fn mode(&mut self, path: impl Into<String>, mode: Option<i32>) {
        if let Some(mode) = mode
            && !(0..=0o777).contains(&mode)
        {
            self.add(path, format!("is {mode}"), "use 0 to 0777 octal (511 decimal)");
        }
    }
}
