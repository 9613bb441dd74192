//! The configuration of a kubelet as settings of `podwright run`.
//!
//! ```text
//!   --config FILE ──> document ──┐
//!   --config-dir  ──> document ──┼─> merge ──> convert ──> flags of `podwright run`, notices
//!   flags of `podwright kubelet` ┘               ▲
//!                                             fields: what each field means here
//! ```
//!
//! A setting has one owner, the arguments of `podwright run`. A file sets nothing itself: its fields become words of the command line,
//! which are parsed, checked and shown like those of a user. So a setting is the same by a flag and by a file, in `/configz` too.
//!
//! | part | what it does |
//! |---|---|
//! | `fields` | the one table of fields of `KubeletConfiguration` and flags of a kubelet, and what each means here |
//! | `kind` (pure) | the types of the fields |
//! | `document` (pure) | the text of a file becomes a layer of fields, or faults with line and field |
//! | `merge` (pure) | a layer replaces fields of the layers below it |
//! | `convert` (pure) | fields become settings, notices and faults |
//! | `combined` (pure) | the settings that depend on several fields |
//! | `files` | reads the files |

mod combined;
mod convert;
mod document;
mod fields;
mod files;
mod kind;
mod merge;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use podwright_sources::manifest::Position;
use serde_json::Value;

pub(crate) use convert::{Context, Setting, convert};
pub(crate) use fields::{Field, Meaning, Needs, flags};
pub(crate) use files::{lines, read};
pub(crate) use kind::Kind;
pub(crate) use merge::merge;

/// The API version of the configuration.
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The kind of the configuration.
const KIND: &str = "KubeletConfiguration";

/// The fields of one file, of the flags, or of all together, by their paths. A flag without a field has its name, such as `--cert-dir`.
pub(crate) type Layer = BTreeMap<&'static str, Given>;

/// The value of a field, and where it was given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Given {
    /// The value, of the kind of its field.
    pub(crate) value: Value,
    pub(crate) place: Place,
}

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At this position of a file, if the parser knows it.
    File { path: Arc<str>, at: Option<Position> },
    /// In this flag, such as `max-pods`.
    Flag(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, at: Some(at) } => write!(f, "{path}: {at}"),
            Place::File { path, at: None } => f.write_str(path),
            Place::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// A field that cannot be used, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {field}: {message}")]
pub(crate) struct ConfigFault {
    pub(crate) place: Place,
    /// The path of the field, or the name of the flag.
    pub(crate) field: String,
    pub(crate) message: String,
}

/// A value that is accepted and has no effect, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) place: Place,
    pub(crate) field: String,
    pub(crate) why: String,
}

#[cfg(test)]
mod tests;
