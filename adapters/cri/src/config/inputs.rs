//! The inputs of the conversion, besides the pod itself.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::path::PathBuf;

use podwright_model::ids::ContainerId;

use super::cdi::CdiSupport;
use super::cgroup::Cgroups;
use super::limits::Bounds;
use super::resolver::{ClusterDns, Resolver};
use crate::layout::Layout;
use crate::v1;

/// What the conversion needs to know about the node and the runtime. A plain value: the conversion reads nothing else.
#[derive(Clone, Debug)]
pub(crate) struct NodeFacts {
    /// The directories of pods and logs.
    pub(crate) layout: Layout,
    /// How the node resolves names. Empty in cached facts.
    pub(crate) resolver: Resolver,
    /// The cluster's name servers and domain.
    pub(crate) cluster_dns: ClusterDns,
    /// How the node's cgroups are set up.
    pub(crate) cgroups: Cgroups,
    /// What all pods may use together.
    pub(crate) all_pods: Bounds,
    /// The most processes and threads that a pod may have at a time.
    pub(crate) pod_pids_limit: Option<NonZeroU64>,
    /// The machine's memory, in bytes.
    pub(crate) memory: i64,
    /// The swap space that all pods share, in bytes. `None` if pods use no swap space.
    pub(crate) shared_swap: Option<i64>,
    /// The huge page sizes that the kernel supports, in bytes.
    pub(crate) huge_pages: Vec<u64>,
    /// The directory of the seccomp profiles that `localhostProfile` names (upstream: `seccomp` in the root directory).
    pub(crate) seccomp_profiles: PathBuf,
    /// Whether a container without a seccomp profile gets the profile of the runtime.
    pub(crate) seccomp_default: bool,
    /// Whether SELinux is enabled.
    pub(crate) selinux: bool,
    /// Paths to mask besides the fixed list: `/sys/devices/system/cpu/cpuN/thermal_throttle`, where it exists (upstream
    /// `securitycontext.ConvertToRuntimeMaskedPaths`, kubelet 1.36).
    pub(crate) masked_paths: Vec<String>,
    /// The runtime handlers that support recursive read-only mounts. The default handler has an empty name.
    pub(crate) recursive_read_only: BTreeSet<String>,
    /// The runtime handlers that support user namespaces. The default handler has an empty name.
    pub(crate) user_namespaces: BTreeSet<String>,
    /// Whether the runtime supports `supplementalGroupsPolicy`.
    pub(crate) groups_policy: bool,
    /// Who applies the edits of CDI devices.
    pub(crate) cdi: CdiSupport,
}

/// What the node assigns to a pod before its sandbox is created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodAssignments {
    /// The runtime handler of the pod's runtime class. The default handler has an empty name.
    pub(crate) handler: String,
    /// The node's IDs to which the pod's user namespace is mapped. `None` if the pod has no user namespace of its own.
    pub(crate) users: Option<HostIdRange>,
}

/// A range of user and group IDs of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostIdRange {
    /// The first ID of the range, to which ID 0 of the pod is mapped.
    pub(crate) first: u32,
}

impl HostIdRange {
    /// The number of IDs in a range (upstream `userNsLength`, kubelet 1.36).
    pub(crate) const LENGTH: u32 = 65_536;

    /// The mapping as the runtime expects it.
    pub(crate) fn mapping(self) -> v1::IdMapping {
        v1::IdMapping { host_id: self.first, container_id: 0, length: HostIdRange::LENGTH }
    }
}

/// What the adapter looks up in the runtime before it creates a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerLookups {
    /// The user of the image.
    pub(crate) user: ImageUser,
    /// The running container that [`target_name`](super::target_name) names. `None` if it is not running, or if no target is
    /// named.
    pub(crate) target: Option<ContainerId>,
}

/// The user that the containers of an image run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageUser {
    /// A user ID. It is 0 if the image names no user.
    Id(i64),
    /// A user name. Only the image's own `/etc/passwd` maps it to an ID.
    Name(String),
}

impl ImageUser {
    /// The user in the runtime's description of an image.
    pub(crate) fn of(image: &v1::Image) -> Self {
        match &image.uid {
            Some(uid) => ImageUser::Id(uid.value),
            None if image.username.is_empty() => ImageUser::Id(0),
            None => ImageUser::Name(image.username.clone()),
        }
    }
}
