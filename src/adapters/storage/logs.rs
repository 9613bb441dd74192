//! Logs of pods that are kept apart from the pods' directories, in the layout of a kubelet.

use std::fs;
use std::io::ErrorKind;
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
    /// The pods that have a directory of logs.
    pub(super) fn pods(&self) -> Result<Vec<PodUid>, StorageError> {
        Ok(self.directories()?.into_iter().map(|(uid, _)| uid).collect())
    }

    /// Removes the logs of a pod.
    pub(super) fn remove(&self, uid: &PodUid) -> Result<(), StorageError> {
        for (_, path) in self.directories()?.into_iter().filter(|(of, _)| of == uid) {
            crate::adapters::tree::remove(&path).map_err(|error| io_error(&path, &error))?;
        }
        Ok(())
    }

    /// Removes links to logs of pods that have none any more. A log that is being rotated is missing too, for a moment,
    /// but its directory is not.
    pub(super) fn remove_dead_links(&self) -> Result<(), StorageError> {
        for link in entries(&self.links)? {
            let Ok(target) = fs::read_link(&link) else { continue };
            let is_ours = target.starts_with(&self.pods) && link.extension().is_some_and(|it| it == "log");
            if is_ours && target.parent().is_some_and(is_gone) {
                fs::remove_file(&link).map_err(|error| io_error(&link, &error))?;
            }
        }
        Ok(())
    }

    /// What has the name of a directory of logs, with the pod's UID.
    fn directories(&self) -> Result<Vec<(PodUid, PathBuf)>, StorageError> {
        let of_pod = |path: PathBuf| {
            // No part of the name can hold an underscore.
            let mut parts = path.file_name()?.to_str()?.split('_');
            let (_namespace, _name, uid) = (parts.next()?, parts.next()?, PodUid::new(parts.next()?));
            (parts.next().is_none() && is_dir(&path)).then_some((uid, path))
        };
        Ok(entries(&self.pods)?.into_iter().filter_map(of_pod).collect())
    }
}

fn is_gone(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_pods_logs_go_and_then_the_links_to_them() {
        let root = tempfile::tempdir().unwrap();
        let logs = PodLogs { pods: root.path().join("pods"), links: root.path().join("containers") };
        assert_eq!(logs.pods(), Ok(vec![]), "nothing is there yet");
        assert_eq!(logs.remove_dead_links(), Ok(()));

        for dir in ["ns_a_u-1/main", "ns_b_u-2/main", "ns_c/main", "lost+found"] {
            fs::create_dir_all(logs.pods.join(dir)).unwrap();
        }
        fs::create_dir(&logs.links).unwrap();
        let link = |name: &str, target: &Path| symlink(target, logs.links.join(name)).unwrap();
        fs::write(logs.pods.join("ns_b_u-2/main/0.log"), "x").unwrap();
        link("a_ns_main-1.log", &logs.pods.join("ns_a_u-1/main/0.log"));
        link("b_ns_main-2.log", &logs.pods.join("ns_b_u-2/main/0.log"));
        link("b_ns_main-3.log", &logs.pods.join("ns_b_u-2/main/1.log"));
        link("other.log", &root.path().join("nowhere/else.log"));
        let mut pods = logs.pods().unwrap();
        pods.sort();
        assert_eq!(pods, [PodUid::new("u-1"), PodUid::new("u-2")]);

        logs.remove(&PodUid::new("u-1")).unwrap();
        logs.remove_dead_links().unwrap();
        assert!(!logs.pods.join("ns_a_u-1").exists() && logs.pods.join("ns_c").exists());
        let mut left: Vec<_> =
            fs::read_dir(&logs.links).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        // The one that is rotated right now stays, and so does what somebody else made.
        assert_eq!(left, ["b_ns_main-2.log", "b_ns_main-3.log", "other.log"]);
    }
}
