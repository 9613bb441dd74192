//! Where the adapter's own files are, beside those that containers are told of. Pure.

use std::path::{Path, PathBuf};

use super::config::Layout;

impl Layout {
    /// The link to a run's log.
    pub(super) fn log_link(&self, namespace: &str, pod: &str, container: &str, id: &str) -> PathBuf {
        self.links.join(format!("{pod}_{namespace}_{container}-{id}.log"))
    }

    /// Where the message files of a container are.
    pub(super) fn messages(&self, uid: &str, container: &str) -> PathBuf {
        self.pods.join(uid).join("containers").join(container)
    }

    /// Whether a path is below the pods' directories: only there files are read that a container may have changed.
    pub(super) fn is_of_a_pod(&self, path: &Path) -> bool {
        path.starts_with(&self.pods)
    }
}
