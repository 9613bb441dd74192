//! The kinds of pod sources.

use std::fmt;

/// A kind of pod source. The engine keeps one set of pods per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SourceKind {
    /// Files and directories.
    File,
    /// URLs.
    Http,
    /// The API server.
    Api,
}

impl SourceKind {
    /// The source's name in [`SOURCE_ANNOTATION`](podwright_model::pod::SOURCE_ANNOTATION).
    pub const fn as_str(self) -> &'static str {
        match self {
            SourceKind::File => "file",
            SourceKind::Http => "http",
            SourceKind::Api => "api",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
