//! Sources of static pods: files and directories, and URLs.
//!
//! A source sends a full [`SourceSet`](podwright_actors::ports::SourceSet) when it starts and whenever its pods or problems
//! change. A place that cannot be read or used keeps the pods it held last for as long as it exists, and is reported as a
//! problem (W27). Nothing a place holds affects the other places.

mod files;
mod manifest_cache;
mod scan;
mod url;
mod watch;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use podwright_actors::ports::{Clock, SourceUpdate};

pub use files::FileSource;
pub use scan::{contents, list};
pub use url::UrlSource;

/// How often every place is read again, whatever the watch says (upstream `FileCheckFrequency` and `HTTPCheckFrequency`,
/// 1.36).
pub const CHECK_FREQUENCY: Duration = Duration::from_secs(20);

/// What every source needs.
#[derive(Clone)]
pub struct SourceContext {
    /// The name of this node.
    pub node_name: String,
    /// Tells when a pod was first seen.
    pub clock: Arc<dyn Clock>,
    /// How often every place is read again.
    pub check_frequency: Duration,
}

impl SourceContext {
    /// A context that checks every [`CHECK_FREQUENCY`].
    pub fn new(node_name: impl Into<String>, clock: Arc<dyn Clock>) -> Self {
        SourceContext { node_name: node_name.into(), clock, check_frequency: CHECK_FREQUENCY }
    }
}

impl fmt::Debug for SourceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceContext").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

/// A place that manifests come from, as a flag names it: an `http` or `https` URL, else a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file or a directory.
    Path(PathBuf),
    /// A URL.
    Url(reqwest::Url),
}

/// The text names no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseOriginError {
    /// It is empty.
    #[error("the path is empty: name a file, a directory or an http(s) URL")]
    Empty,
    /// It starts like a URL and is none.
    #[error("{text:?} is not a URL: {reason}")]
    Url {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl FromStr for Origin {
    type Err = ParseOriginError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(ParseOriginError::Empty);
        }
        if !text.starts_with("http://") && !text.starts_with("https://") {
            return Ok(Origin::Path(text.into()));
        }
        match reqwest::Url::parse(text) {
            Ok(url) => Ok(Origin::Url(url)),
            Err(error) => Err(ParseOriginError::Url { text: text.to_owned(), reason: error.to_string() }),
        }
    }
}

/// Lets news through: what differs from what was said before.
#[derive(Debug, Default)]
struct ChangeFilter {
    last: Option<SourceUpdate>,
}

impl ChangeFilter {
    /// What is said, if it is news.
    fn if_changed(&mut self, said: SourceUpdate) -> Option<SourceUpdate> {
        let same = |last: &SourceUpdate| match (last, &said) {
            (SourceUpdate::Set(last), SourceUpdate::Set(set)) => {
                last.problems == set.problems
                    && last.pods.len() == set.pods.len()
                    && last.pods.iter().zip(&set.pods).all(|(a, b)| Arc::ptr_eq(a, b))
            }
            (SourceUpdate::NotYet { problems: last, .. }, SourceUpdate::NotYet { problems, .. }) => last == problems,
            (SourceUpdate::Set(_), SourceUpdate::NotYet { .. })
            | (SourceUpdate::NotYet { .. }, SourceUpdate::Set(_)) => false,
        };
        if self.last.as_ref().is_some_and(same) {
            return None;
        }
        self.last = Some(said.clone());
        Some(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_url_only_if_it_says_so() {
        assert_eq!("/etc/pods".parse(), Ok(Origin::Path("/etc/pods".into())));
        assert_eq!("ftp://x".parse(), Ok(Origin::Path("ftp://x".into())));
        assert!(matches!("http://host:8080/pods".parse(), Ok(Origin::Url(_))));
        assert_eq!("".parse::<Origin>(), Err(ParseOriginError::Empty));
        assert!(matches!("https://".parse::<Origin>(), Err(ParseOriginError::Url { .. })));
    }
}
