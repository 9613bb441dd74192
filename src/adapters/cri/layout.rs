//! Where the adapter's own files are, beside those that containers are told of. Pure.

use std::path::{Path, PathBuf};

use super::config::Layout;

/// The longest name of a file, in bytes.
const LONGEST_NAME: usize = 255;

impl Layout {
    /// The link to a run's log. What would be too long for a file is cut before the id (upstream `LogSymlink`).
    pub(super) fn log_link(&self, namespace: &str, pod: &str, container: &str, id: &str) -> PathBuf {
        let mut name = format!("{pod}_{namespace}_{container}");
        let end = format!("-{id}.log");
        // Names in the API are ASCII, so that any place is one between letters.
        name.truncate(LONGEST_NAME.saturating_sub(end.len()));
        self.links.join(name + &end)
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
