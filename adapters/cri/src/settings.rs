//! Settings of the adapter.

use std::fmt;
use std::net::IpAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use podwright_metrics::Metrics;
use podwright_ports::{CredentialProviders, EventRecorder, PullSecrets, RuntimeClasses, RuntimeName};

use super::config::CgroupDriver;
use super::endpoint::Endpoint;
use super::verification::VerificationPolicy;
use crate::adoption::AdoptedPods;

/// The default of [`NodeSettings::cgroup_root`].
pub const CGROUP_ROOT: &str = "/podwright";

/// Settings of [`CriRuntime`](super::CriRuntime), and the ports that it calls.
#[derive(Clone)]
pub struct CriConfig {
    /// The socket of the container runtime.
    pub endpoint: Endpoint,
    /// The agent's root directory. `pods/` holds the directories of the pods; `seccomp/` holds the seccomp profiles that pods
    /// may name.
    pub root: PathBuf,
    /// The directory of the container logs. A node uses `/var/log/pods`.
    pub logs: PathBuf,
    /// The directory of the links to the logs, for log collectors that expect `/var/log/containers`.
    pub log_links: PathBuf,
    /// The node's registry logins: a Docker `config.json` or `.dockercfg`. The adapter reads the file again when it changes.
    pub registry_config: Option<PathBuf>,
    /// The source of the pods' image pull secrets.
    pub pull_secrets: Arc<dyn PullSecrets>,
    /// The node's credential provider plugins.
    pub credential_providers: Arc<dyn CredentialProviders>,
    /// How many images are pulled at the same time (the kubelet's `maxParallelImagePulls`).
    pub parallel_pulls: NonZeroUsize,
    /// Receives the runtime's name before the first list of pods is returned.
    pub name: RuntimeName,
    /// Counts calls and pulls.
    pub metrics: Metrics,
    /// Name resolution of the pods, and the location of their cgroups.
    pub settings: NodeSettings,
    /// Resolves a runtime class to its handler.
    pub runtime_classes: Arc<dyn RuntimeClasses>,
    /// Receives the events about pulls, pull secrets and DNS settings that a pod requests and does not get.
    pub events: Arc<dyn EventRecorder>,
    /// For which images that are present a pod must have access.
    pub verification: VerificationPolicy,
    /// The pods of a kubelet that belong to this agent too.
    pub adopted: Arc<AdoptedPods>,
    /// The directories with the specifications of CDI devices, for a runtime that does not apply these devices itself. A device in a
    /// later directory replaces one of the same name in an earlier directory. Only root and the user of this process may be able to
    /// change them.
    pub cdi_directories: Vec<PathBuf>,
}

/// Name resolution of the pods, and the location of their cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// The cluster's name servers, for pods whose `dnsPolicy` is `ClusterFirst`. If the list is empty, such pods resolve names
    /// as the node does.
    pub cluster_dns: Vec<IpAddr>,
    /// The cluster's domain, such as `cluster.local`. Empty if there is none.
    pub cluster_domain: String,
    /// The node's `resolv.conf`, if it is not `/etc/resolv.conf`.
    pub resolv_conf: Option<PathBuf>,
    /// The parent cgroup of `kubepods`, such as `/` or `/agent`. The default differs from the kubelet's `/` on purpose: a
    /// kubelet removes pod cgroups below its root that it does not know, and sets the CPU shares of the QoS classes from its
    /// own pods alone.
    pub cgroup_root: String,
    /// What pods may use of the node together: the machine's capacity minus what is reserved for the system. `None`: the CPUs
    /// that this process may use, and no limit on memory.
    pub allocatable: Option<Allocatable>,
    /// The cgroup driver, if the runtime does not report its own. It is an error if the runtime reports another one.
    pub cgroup_driver: Option<CgroupDriver>,
    /// Whether a container without a seccomp profile gets the profile of the runtime (the kubelet's `seccompDefault`). If not, it
    /// runs without a profile.
    pub seccomp_default: bool,
    /// The most processes and threads that a pod may have at a time (the kubelet's `podPidsLimit`). `None`: no limit.
    pub pod_pids_limit: Option<NonZeroU64>,
    /// Whether pods may use swap space (the kubelet's `memorySwap.swapBehavior`).
    pub swap_behavior: SwapBehavior,
}

/// What pods may use of the node together (upstream "node allocatable"). It is enforced on the cgroup `kubepods`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocatable {
    /// CPU in thousandths of a CPU. It decides the CPU shares of all pods, compared to the rest of the system.
    pub cpu_millis: i64,
    /// Memory in bytes. It is a limit.
    pub memory_bytes: i64,
}

/// Whether pods may use swap space (KEP-2400).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    /// No container uses swap space.
    #[default]
    NoSwap,
    /// A container of a burstable pod may use the part of the swap space of the machine that its memory request is of the memory of the
    /// machine. Needs cgroup version 2.
    LimitedSwap,
}

/// `NoSwap` or `LimitedSwap`.
impl fmt::Display for SwapBehavior {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SwapBehavior::NoSwap => "NoSwap",
            SwapBehavior::LimitedSwap => "LimitedSwap",
        })
    }
}

/// A text is not a swap behavior.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown swap behavior: use NoSwap or LimitedSwap")]
pub struct ParseSwapBehaviorError(());

impl FromStr for SwapBehavior {
    type Err = ParseSwapBehaviorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "NoSwap" => Ok(SwapBehavior::NoSwap),
            "LimitedSwap" => Ok(SwapBehavior::LimitedSwap),
            _ => Err(ParseSwapBehaviorError(())),
        }
    }
}

impl Default for NodeSettings {
    fn default() -> Self {
        NodeSettings {
            cluster_dns: vec![],
            cluster_domain: String::new(),
            resolv_conf: None,
            cgroup_root: CGROUP_ROOT.to_owned(),
            allocatable: None,
            cgroup_driver: None,
            seccomp_default: false,
            pod_pids_limit: None,
            swap_behavior: SwapBehavior::NoSwap,
        }
    }
}
