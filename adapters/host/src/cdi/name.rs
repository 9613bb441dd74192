//! Names of kinds and devices.

use std::fmt;
use std::str::FromStr;

use super::error::CdiError;

/// The name of a device of CDI: `VENDOR/CLASS=NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceName {
    /// The vendor and the class, such as `vendor.example/gpu`.
    pub kind: String,
    /// The name, which is unique for the kind.
    pub name: String,
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind, self.name)
    }
}

impl FromStr for DeviceName {
    type Err = CdiError;

    fn from_str(text: &str) -> Result<Self, CdiError> {
        let parts = text.split_once('=').filter(|(kind, name)| is_kind(kind) && is_device(name));
        let (kind, name) = parts.ok_or_else(|| CdiError::Name(text.to_owned()))?;
        Ok(DeviceName { kind: kind.to_owned(), name: name.to_owned() })
    }
}

/// Whether a text is `VENDOR/CLASS`. Each part begins with a letter.
pub(super) fn is_kind(text: &str) -> bool {
    let part = |text: &str| text.starts_with(|c: char| c.is_ascii_alphabetic()) && is_word(text, "_-.");
    text.split_once('/').is_some_and(|(vendor, class)| part(vendor) && part(class))
}

/// Whether a text is the name of a device in its kind.
pub(super) fn is_device(text: &str) -> bool {
    is_word(text, "_-.:")
}

/// Whether a text begins and ends with a letter or a digit, and has only these and `more` between them.
fn is_word(text: &str, more: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(is_plain) && text.ends_with(is_plain) && text.chars().all(|c| is_plain(c) || more.contains(c))
}
