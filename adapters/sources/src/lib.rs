//! Sources of static pods: files and directories, and URLs.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use podwright_ports::{SourceInbox, TokioClock};
//! use podwright_sources::{FileSource, SourceContext};
//! use tokio_util::sync::CancellationToken;
//!
//! /// Sends the pods of a directory to a node until `stop` is cancelled. `node` is `NodeHandle::sources`.
//! async fn run(node: Arc<dyn SourceInbox>, stop: CancellationToken) {
//!     let context = SourceContext::new("node-1", Arc::new(TokioClock::new()));
//!     FileSource::new(["/etc/kubernetes/manifests".into()], context).run(node, stop).await;
//! }
//! ```
//!
//! A source sends a full [`SourceSet`](podwright_ports::SourceSet) when it starts and whenever its pods or problems
//! change. A file or URL that cannot be read or used is reported as a problem. The source keeps the pods of its last good
//! content until the file or URL is readable again or removed, so a faulty edit does not stop any pod (POD-W27). Files and
//! URLs do not affect one another.
//!
//! A file is read when it is whole (`settle`). If several manifests define one pod, the one of the pod that runs keeps it
//! (`holders`).
//!
//! # Parts
//!
//! - [`FileSource`] and [`UrlSource`]: the sources, with the settings of [`SourceContext`].
//! - [`manifest`]: the text of a manifest becomes pods, faults and warnings.
//! - [`Origin`]: the file, directory or URL that a flag names. A URL is shown as [`redacted`] returns it.
//! - [`headers()`]: the headers of a file for the requests of a [`UrlSource`].
//!
//! # Arrows
//!
//! The crate uses `podwright-core` to validate pods, `podwright-host` to check files, and the ports. It knows no node but a
//! [`SourceInbox`](podwright_ports::SourceInbox), and no other adapter. Whoever adopts pods of a kubelet gives the sources a function
//! for it ([`adopt`](field@SourceContext::adopt)).

mod files;
mod holders;
pub mod manifest;
mod manifest_cache;
mod scan;
mod settle;
mod url;
mod watch;

use std::fmt;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use podwright_model::ids::PodUid;
use podwright_ports::{Clock, SourceUpdate};
use tokio::task::spawn_blocking;

use manifest::UnknownFields;

pub use files::FileSource;
pub use manifest_cache::MAX_NAME;
pub use scan::{check_root, contents, list};
pub use url::{HeaderFileError, UrlSource, headers, redacted};

/// How often every file and URL is read again, even if no change was noticed (upstream `FileCheckFrequency` and
/// `HTTPCheckFrequency`, kubelet 1.36).
pub const CHECK_FREQUENCY: Duration = Duration::from_secs(20);

/// The settings that all sources need.
#[derive(Clone)]
pub struct SourceContext {
    /// The name of this node.
    pub node_name: String,
    /// The clock for the time at which a pod was first seen.
    pub clock: Arc<dyn Clock>,
    /// How often every file and URL is read again.
    pub check_frequency: Duration,
    /// What an unknown field of a manifest means.
    pub unknown_fields: UnknownFields,
    /// Gives the pods of an update the UIDs under which they run, before the update is sent. `None` if all pods run under their own
    /// UIDs. Must be cancel safe.
    pub adopt: Option<Arc<Adopt>>,
    /// Whether this agent or an earlier one started a pod with this UID, and has not cleaned up after it. May block. If several
    /// manifests define one pod, a new agent keeps the pod that has started.
    pub has_started: Arc<dyn Fn(&PodUid) -> bool + Send + Sync>,
}

/// Takes an update of a source, and returns it as the engine gets it.
pub type Adopt = dyn Fn(SourceUpdate) -> BoxFuture<'static, SourceUpdate> + Send + Sync;

impl SourceContext {
    /// Settings with the default [`CHECK_FREQUENCY`], for a node on which no pod has started. Unknown fields of manifests are
    /// warnings.
    pub fn new(node_name: impl Into<String>, clock: Arc<dyn Clock>) -> Self {
        SourceContext {
            node_name: node_name.into(),
            clock,
            check_frequency: CHECK_FREQUENCY,
            unknown_fields: UnknownFields::Warn,
            adopt: None,
            has_started: Arc::new(|_: &PodUid| false),
        }
    }

    /// The update as the engine gets it: adopted pods have the UIDs under which they run.
    async fn adopt(&self, update: SourceUpdate) -> SourceUpdate {
        match &self.adopt {
            Some(adopt) => adopt(update).await,
            None => update,
        }
    }
}

impl fmt::Debug for SourceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceContext").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

/// The origin of manifests that a flag names: an `http` or `https` URL, or else a path. `Debug` prints no password of a URL.
#[derive(Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file or a directory.
    Path(PathBuf),
    /// A URL.
    Url(reqwest::Url),
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Path(path) => f.debug_tuple("Path").field(path).finish(),
            Origin::Url(url) => f.debug_tuple("Url").field(&redacted(url).as_str()).finish(),
        }
    }
}

/// Why a text does not name an origin of manifests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseOriginError {
    /// The text is empty.
    #[error("the path is empty: name a file, a directory or an http(s) URL")]
    Empty,
    /// The text starts like a URL but is not a valid one.
    #[error("{text:?} is not a URL: {reason}")]
    Url {
        /// The text, without a user name and a password.
        text: String,
        /// The error of the URL parser.
        reason: <reqwest::Url as FromStr>::Err,
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
            Err(reason) => Err(ParseOriginError::Url { text: without_login(text), reason }),
        }
    }
}

/// A text that is no valid URL, without what would be the user name and the password of one.
fn without_login(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    // A password may contain a slash that its writer has not encoded.
    rest.rsplit_once('@').map_or_else(|| text.to_owned(), |(_, place)| format!("{scheme}://{place}"))
}

/// Runs work on a thread that may block. A panic of the work continues here. `None` if the tokio runtime shuts down.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match spawn_blocking(work).await {
        Ok(result) => Some(result),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_cancelled) => None,
        },
    }
}

/// Drops an update that equals the previous one.
#[derive(Debug, Default)]
struct ChangeFilter {
    last: Option<SourceUpdate>,
}

impl ChangeFilter {
    /// The update, unless it equals the last one.
    fn if_changed(&mut self, update: SourceUpdate) -> Option<SourceUpdate> {
        let same = |last: &SourceUpdate| match (last, &update) {
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
        self.last = Some(update.clone());
        Some(update)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_a_url_only_with_an_http_scheme() {
        assert_eq!("/etc/pods".parse(), Ok(Origin::Path("/etc/pods".into())));
        assert_eq!("ftp://x".parse(), Ok(Origin::Path("ftp://x".into())));
        assert!(matches!("http://host:8080/pods".parse(), Ok(Origin::Url(_))));
        assert_eq!("".parse::<Origin>(), Err(ParseOriginError::Empty));
        assert!(matches!("https://".parse::<Origin>(), Err(ParseOriginError::Url { .. })));
    }

    #[test]
    fn passwords_of_urls_are_not_shown() {
        let error = "https://user:hunt/er2@host:port/pods".parse::<Origin>().unwrap_err().to_string();
        assert!(error.contains("\"https://host:port/pods\"") && !error.contains("er2"), "{error}");
        let origin: Origin = "https://user:hunter2@host/pods".parse().unwrap();
        assert_eq!(format!("{origin:?}"), "Url(\"https://host/pods\")");
    }
}
