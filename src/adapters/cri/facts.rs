//! What the translation of pods has to know of the node.

use std::path::{Path, PathBuf};

use podwright_actors::pod::PodObject;

use super::dns::Resolver;

/// The node, as far as pods see it. A plain value: whoever translates a pod reads nothing else.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// Where things are.
    pub(super) layout: Layout,
    /// How the node resolves names.
    pub(super) resolver: Resolver,
}

/// Where things are on disk, in the layout that a kubelet uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The pods' own directories, by UID.
    pub(super) pods: PathBuf,
    /// The pods' logs.
    pub(super) logs: PathBuf,
    /// Links to the logs, by names that older collectors know.
    pub(super) links: PathBuf,
}

impl Layout {
    /// Where a pod's containers log: `NAMESPACE_NAME_UID` (upstream `BuildPodLogsDirectory`, kubelet 1.36).
    pub(super) fn log_dir(&self, pod: &PodObject) -> PathBuf {
        let (name, uid) = (pod.full_name(), pod.uid());
        self.logs.join(format!("{}_{}_{uid}", name.namespace(), name.name()))
    }

    /// Where a run logs, relative to its pod's [`log_dir`](Layout::log_dir).
    pub(super) fn log_path(container: &str, restart_count: u32) -> String {
        format!("{container}/{restart_count}.log")
    }

    /// The link to a run's log.
    pub(super) fn log_link(&self, namespace: &str, pod: &str, container: &str, id: &str) -> PathBuf {
        self.links.join(format!("{pod}_{namespace}_{container}-{id}.log"))
    }

    /// What a pod's containers see as `/etc/hosts`.
    pub(super) fn hosts(&self, uid: &str) -> PathBuf {
        self.pods.join(uid).join("etc-hosts")
    }

    /// The file that a run sees at its termination message path.
    pub(super) fn message(&self, uid: &str, container: &str, restart_count: u32) -> PathBuf {
        self.messages(uid, container).join(format!("{restart_count}.message"))
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
