//! Logs of pods that are kept apart from the pods' directories, in the layout of a kubelet.

use std::fs;
use std::path::PathBuf;

use podwright_actors::ids::PodUid;
use podwright_actors::ports::StorageError;

use super::{entries, io_error, is_dir};

/// Where pods log, and where links to their logs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLogs {
    /// Each pod's logs, in a directory `NAMESPACE_NAME_UID`.
    pub pods: PathBuf,
    /// Links to them, `NAME_NAMESPACE_CONTAINER-ID.log`.
    pub links: PathBuf,
}

impl PodLogs {
    /// Removes the logs of a pod that is ours, and before them the links to them: logs that are there lead to what a removal
    /// that was cut off has left.
    pub(super) fn remove(&self, uid: &PodUid) -> Result<(), StorageError> {
        let suffix = format!("_{uid}");
        // Namespace, name and UID: none of them can hold an underscore.
        let is_of_pod = |name: &str| name.strip_suffix(&suffix).is_some_and(|rest| rest.split('_').count() == 2);
        let has_name = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(is_of_pod);
        for dir in entries(&self.pods)?.into_iter().filter(|path| has_name(path) && is_dir(path)) {
            for link in entries(&self.links)? {
                if fs::read_link(&link).is_ok_and(|target| target.starts_with(&dir)) {
                    fs::remove_file(&link).map_err(|error| io_error(&link, &error))?;
                }
            }
            crate::adapters::tree::remove(&dir).map_err(|error| io_error(&dir, &error))?;
        }
        Ok(())
    }
}
