//! What can be wrong with a specification, and why a device cannot be used.

use std::fmt;
use std::io;
use std::path::PathBuf;

use podwright_model::text::plain;
use podwright_ports::RuntimeError;

/// Why a container cannot get a device of CDI. The container must not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CdiError {
    /// A driver returned a text that is not the name of a device.
    #[error("{:?} is not the name of a CDI device: the driver must return VENDOR/CLASS=NAME", plain(.0, MAX_NAME))]
    Name(String),
    /// No specification has the device.
    #[error("no CDI specification has device {}: check that its driver runs and writes a specification to {}{}",
        plain(.name, MAX_NAME), Listed(.directories), Faults(.faults))]
    Unknown {
        /// The device.
        name: String,
        /// The directories of specifications.
        directories: Vec<PathBuf>,
        /// The files and directories that cannot be used. One of them may have the device.
        faults: Vec<SpecFault>,
    },
    /// Two files of one directory have the device.
    #[error("CDI device {} is in more than one specification of its directory: keep it in one of {}",
        plain(.name, MAX_NAME), Listed(.files))]
    Conflict {
        /// The device.
        name: String,
        /// The files.
        files: Vec<PathBuf>,
    },
    /// The runtime cannot apply an edit.
    #[error("CDI {} cannot be applied: {}; {remedy}", plain(.edit, MAX_TEXT), plain(.reason, MAX_TEXT))]
    Unsupported {
        /// The edit.
        edit: String,
        /// Why it cannot be applied.
        reason: String,
        /// What to do instead.
        remedy: &'static str,
    },
    /// An edit names a file or device that does not exist on the node or cannot be used.
    #[error("CDI {} cannot be applied: {error}: check that the device exists, and that its driver has written the right path",
        plain(.edit, MAX_TEXT))]
    Node {
        /// The edit.
        edit: String,
        /// The system's error.
        error: io::Error,
    },
}

impl From<CdiError> for RuntimeError {
    fn from(error: CdiError) -> Self {
        match error {
            CdiError::Unknown { .. } | CdiError::Node { .. } => RuntimeError::missing_device(error),
            CdiError::Name(_) | CdiError::Conflict { .. } | CdiError::Unsupported { .. } => RuntimeError::config(error),
        }
    }
}

/// A file or directory of specifications that cannot be used. Other files are not affected.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}", path = .path.display())]
pub struct SpecFault {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong with it.
    pub error: SpecError,
}

/// Why a specification cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The system refused to read it.
    #[error("cannot be read: {0}")]
    Io(io::Error),
    /// It is not a file.
    #[error("is not a regular file: remove it")]
    NotRegular,
    /// Another user can change it.
    #[error("{path} belongs to user {owner}, who can change CDI devices: give it to root (chown root)", path = .path.display())]
    Owner {
        /// The file, or a directory above it.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Other users can change it.
    #[error("other users can write to {path} (mode {mode:04o}) and change CDI devices: remove their write permission (chmod go-w)",
        path = .path.display())]
    Mode {
        /// The file, or a directory above it.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is too large.
    #[error("has more than {0} bytes: split it")]
    TooLarge(u64),
    /// The directory has too many files.
    #[error("has more than {0} files: remove those that are not used")]
    TooManyFiles(usize),
    /// It is not the JSON or YAML of a specification.
    #[error("is not a CDI specification: {0}")]
    Syntax(String),
    /// The version is unknown.
    #[error("cdiVersion {0:?} is not known: use 0.3.0 to 0.8.0, 1.0.0 or 1.1.0")]
    Version(String),
    /// The version is older than a field that the specification has.
    #[error("has {what}, which needs cdiVersion {needed}, but declares {declared:?}: raise cdiVersion")]
    TooOld {
        /// What needs the later version.
        what: &'static str,
        /// The first version that has it.
        needed: &'static str,
        /// The `cdiVersion` of the file.
        declared: String,
    },
    /// A value is not allowed.
    #[error("{field} is {value:?}: use {allowed}")]
    Value {
        /// The field.
        field: String,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

impl SpecError {
    /// The error of a parser. The texts of parsers quote the file, which may have any content.
    pub(super) fn syntax(error: impl fmt::Display) -> Self {
        let text = error.to_string();
        SpecError::Syntax(plain(text.lines().next().unwrap_or_default(), MAX_TEXT).into_owned())
    }

    /// A value that is not allowed.
    pub(super) fn value(field: impl Into<String>, value: &str, allowed: &'static str) -> Self {
        SpecError::Value {
            field: plain(&field.into(), MAX_TEXT).into_owned(),
            value: plain(value, MAX_NAME).into_owned(),
            allowed,
        }
    }
}

/// The size limit of a quoted name in bytes.
const MAX_NAME: usize = 200;
/// The size limit of a parser's text in bytes.
const MAX_TEXT: usize = 300;
/// How many files an error lists.
const MAX_LISTED: usize = 3;

struct Listed<'a>(&'a [PathBuf]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, path) in self.0.iter().take(MAX_LISTED).enumerate() {
            write!(f, "{}{}", if index > 0 { ", " } else { "" }, path.display())?;
        }
        if self.0.len() > MAX_LISTED { write!(f, " and {} more", self.0.len() - MAX_LISTED) } else { Ok(()) }
    }
}

struct Faults<'a>(&'a [SpecFault]);

impl fmt::Display for Faults<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(MAX_LISTED).try_for_each(|fault| write!(f, "; {fault}"))?;
        let more = self.0.len().saturating_sub(MAX_LISTED);
        if more > 0 { write!(f, "; and {more} more files cannot be used") } else { Ok(()) }
    }
}
