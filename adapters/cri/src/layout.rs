//! Paths of the files and directories that the adapter uses, in the kubelet's layout. Pure.

use std::path::{Path, PathBuf};

use podwright_host::log::LogDir;
use podwright_host::mounts;
use podwright_model::pod::PodObject;

/// The longest file name, in bytes (`NAME_MAX` of Linux).
const MAX_FILE_NAME: usize = 255;
/// The kubelet's root directory (default of `--root-dir`, kubelet 1.36).
pub(super) const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// The directories in which the adapter keeps files of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The pods' own directories, by UID.
    pub(super) pods: PathBuf,
    /// The pods' logs.
    pub(super) logs: PathBuf,
    /// The links to the logs.
    pub(super) links: PathBuf,
    /// The directories of the kubelet whose pods the agent may adopt.
    pub(super) kubelet: KubeletDirectories,
}

/// The directories in which a kubelet keeps files of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubeletDirectories {
    /// The pods' own directories.
    pub(super) pods: PathBuf,
    /// The pods' logs.
    pub(super) logs: PathBuf,
    /// The links to the logs.
    pub(super) links: PathBuf,
}

/// The kubelet's defaults (`--root-dir`, `podLogsDir` and `legacyLogSymlinksDir`, kubelet 1.36).
impl Default for KubeletDirectories {
    fn default() -> Self {
        KubeletDirectories {
            pods: Path::new(KUBELET_ROOT).join("pods"),
            logs: "/var/log/pods".into(),
            links: "/var/log/containers".into(),
        }
    }
}

impl Layout {
    /// The log directory of a pod: `NAMESPACE_NAME_UID` (upstream `BuildPodLogsDirectory`, kubelet 1.36).
    pub(super) fn log_dir(&self, pod: &PodObject) -> PathBuf {
        let name = pod.full_name();
        self.logs.join(Layout::log_dir_name(name.namespace(), name.name(), &pod.uid().to_string()))
    }

    /// The file name of a pod's log directory.
    pub(super) fn log_dir_name(namespace: &str, name: &str, uid: &str) -> String {
        format!("{namespace}_{name}_{uid}")
    }

    /// The log file of one run of a container, relative to the pod's [`log_dir`](Layout::log_dir).
    pub(super) fn log_path(container: &str, restart_count: u32) -> String {
        format!("{container}/{restart_count}.log")
    }

    /// The directory and the name of a log file; `None` if the path is not below the pods' logs.
    pub(super) fn log_at(&self, path: &Path) -> Option<(LogDir, String)> {
        let dir = path.parent()?;
        let (logs, below) = self.all_logs().find_map(|logs| Some((logs, dir.strip_prefix(logs).ok()?)))?;
        Some((LogDir::new(logs, below), path.file_name()?.to_str()?.to_owned()))
    }

    /// The directories of pod logs: the agent's, then the kubelet's.
    pub(super) fn all_logs(&self) -> impl Iterator<Item = &Path> {
        [&*self.logs, &*self.kubelet.logs].into_iter()
    }

    /// The directories of links to logs: the agent's, then the kubelet's.
    pub(super) fn all_links(&self) -> impl Iterator<Item = &Path> {
        [&*self.links, &*self.kubelet.links].into_iter()
    }

    /// The link to the log of one run. A file name that would be too long is cut before the container ID (upstream
    /// `LogSymlink`, kubelet 1.36).
    pub(super) fn log_link(&self, namespace: &str, pod: &str, container: &str, id: &str) -> PathBuf {
        self.links.join(Layout::log_link_name(namespace, pod, container, id))
    }

    /// The file name of the link to the log of one run.
    pub(super) fn log_link_name(namespace: &str, pod: &str, container: &str, id: &str) -> String {
        let mut name = format!("{pod}_{namespace}_{container}");
        let end = format!("-{id}.log");
        // Names in the API are ASCII, so the cut cannot fall inside a character.
        name.truncate(MAX_FILE_NAME.saturating_sub(end.len()));
        name + &end
    }

    /// The file that the pod's containers see as `/etc/hosts`.
    pub(super) fn hosts(&self, uid: &str) -> PathBuf {
        self.pods.join(uid).join("etc-hosts")
    }

    /// The mount point of a `subPath`. `number` is the index of the mount in the container's list of mounts.
    pub(super) fn sub_path(&self, uid: &str, volume: &str, container: &str, number: usize) -> PathBuf {
        mounts::sub_path(&self.pods, uid, volume, container, number)
    }

    /// The directory of a container's termination message files.
    pub(super) fn messages(&self, uid: &str, container: &str) -> PathBuf {
        self.pods.join(uid).join("containers").join(container)
    }

    /// The termination message file of one run.
    pub(super) fn message(&self, uid: &str, container: &str, restart_count: u32) -> PathBuf {
        self.messages(uid, container).join(format!("{restart_count}.message"))
    }

    /// The directory of pods that a path is inside. A file that a container may have changed is read only if there is one.
    pub(super) fn pods_above(&self, path: &Path) -> Option<&Path> {
        [&*self.pods, &*self.kubelet.pods].into_iter().find(|pods| path.starts_with(pods))
    }
}
