//! What the translation has to know of the node.

use std::collections::BTreeSet;
use std::path::PathBuf;

use podwright_actors::pod::PodObject;

use super::cgroup::Cgroups;
use super::dns::{ClusterDns, Resolver};
use crate::adapters::mounts;

/// The node, as far as pods see it. A plain value: whoever translates a pod reads nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Where things are.
    pub(crate) layout: Layout,
    /// How the node resolves names.
    pub(crate) resolver: Resolver,
    /// How names of the cluster are resolved.
    pub(crate) cluster_dns: ClusterDns,
    /// How the node's cgroups are kept.
    pub(crate) cgroups: Cgroups,
    /// Processors of the machine in thousandths of one.
    pub(crate) cpu_millis: i64,
    /// Memory of the machine in bytes.
    pub(crate) memory: i64,
    /// Sizes of huge pages that the kernel knows, in bytes.
    pub(crate) huge_pages: Vec<u64>,
    /// Where `localhostProfile` of seccomp profiles is looked for (upstream: `seccomp` below the root directory).
    pub(crate) seccomp_profiles: PathBuf,
    /// Whether SELinux is on.
    pub(crate) selinux: bool,
    /// What containers must not see beside the well-known: `/sys/devices/system/cpu/cpuN/thermal_throttle`, where it
    /// exists (upstream `securitycontext.ConvertToRuntimeMaskedPaths`, kubelet 1.36).
    pub(crate) masked_paths: Vec<String>,
    /// Runtime handlers that can make mounts read-only with all that is mounted below; the default one has no name.
    pub(crate) recursive_read_only: BTreeSet<String>,
    /// Runtime handlers that can give a pod users of its own.
    pub(crate) user_namespaces: BTreeSet<String>,
    /// Whether the runtime heeds `supplementalGroupsPolicy`.
    pub(crate) groups_policy: bool,
}

/// Where things are on disk, in the layout that a kubelet uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The pods' own directories, by UID.
    pub(crate) pods: PathBuf,
    /// The pods' logs.
    pub(crate) logs: PathBuf,
    /// Links to the logs, by names that older collectors know.
    pub(crate) links: PathBuf,
}

impl Layout {
    /// Where a pod's containers log: `NAMESPACE_NAME_UID` (upstream `BuildPodLogsDirectory`, kubelet 1.36).
    pub(crate) fn log_dir(&self, pod: &PodObject) -> PathBuf {
        let name = pod.full_name();
        self.logs.join(Layout::log_dir_of(name.namespace(), name.name(), &pod.uid().to_string()))
    }

    /// The name of that directory.
    pub(crate) fn log_dir_of(namespace: &str, name: &str, uid: &str) -> String {
        format!("{namespace}_{name}_{uid}")
    }

    /// Where a run logs, relative to its pod's [`log_dir`](Layout::log_dir).
    pub(crate) fn log_path(container: &str, restart_count: u32) -> String {
        format!("{container}/{restart_count}.log")
    }

    /// What a pod's containers see as `/etc/hosts`.
    pub(crate) fn hosts(&self, uid: &str) -> PathBuf {
        self.pods.join(uid).join("etc-hosts")
    }

    /// What a container sees of a volume by its mount of this number, if that has a `subPath`.
    pub(crate) fn sub_path(&self, uid: &str, volume: &str, container: &str, number: usize) -> PathBuf {
        self.pods.join(uid).join(mounts::SUB_PATHS).join(volume).join(container).join(number.to_string())
    }

    /// The file that a run sees at its termination message path.
    pub(crate) fn message(&self, uid: &str, container: &str, restart_count: u32) -> PathBuf {
        self.pods.join(uid).join("containers").join(container).join(format!("{restart_count}.message"))
    }
}
