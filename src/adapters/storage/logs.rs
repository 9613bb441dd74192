//! Logs of pods that are kept apart from the pods' directories, in the layout of a kubelet.

use std::fs;
use std::path::{Path, PathBuf};

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
    /// Removes the logs of a pod that is ours, and the links to them, also to those that are gone.
    pub(super) fn remove(&self, uid: &PodUid) -> Result<(), StorageError> {
        let suffix = format!("_{uid}");
        // Whatever the UID is, before it are a namespace and a name, and neither can hold an underscore.
        let is_of_pod = |name: &str| name.strip_suffix(&suffix).is_some_and(|rest| rest.split('_').count() == 2);
        let is_below = |path: &Path| {
            let dir = path.strip_prefix(&self.pods).ok().and_then(|below| below.iter().next()?.to_str());
            dir.is_some_and(is_of_pod)
        };
        for link in entries(&self.links)? {
            if fs::read_link(&link).is_ok_and(|target| is_below(&target)) {
                fs::remove_file(&link).map_err(|error| io_error(&link, &error))?;
            }
        }
        for dir in entries(&self.pods)?.into_iter().filter(|path| is_below(path) && is_dir(path)) {
            crate::adapters::tree::remove(&dir).map_err(|error| io_error(&dir, &error))?;
        }
        Ok(())
    }
}
