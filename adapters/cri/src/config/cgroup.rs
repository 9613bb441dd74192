//! The cgroup of a pod in the node's cgroup tree.

use std::fmt;
use std::str::FromStr;

use podwright_core::config::pod_resources::qos_class;
use podwright_model::pod::PodObject;

/// How the node's cgroups are set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cgroups {
    /// The kernel interface.
    pub(crate) version: CgroupVersion,
    /// The cgroup driver.
    pub(crate) driver: CgroupDriver,
    /// The parent cgroup of `kubepods`; `/` for the root of the tree.
    pub(crate) root: String,
    /// Whether the runtime creates its cgroups in the tree that this process sees. If not, the runtime manages all cgroups.
    pub(crate) shared: bool,
}

/// The version of the kernel's cgroup interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CgroupVersion {
    /// One tree for each controller.
    V1 {
        /// Whether the kernel has `memory.memsw.limit_in_bytes`.
        swap: bool,
    },
    /// One tree for all controllers.
    V2 {
        /// Whether the kernel has `memory.swap.max`.
        swap: bool,
    },
}

/// The cgroup driver: how cgroups are created. The runtime and the agent must use the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Cgroups are directories of the cgroup file system, created by the agent and the runtime.
    #[default]
    Cgroupfs,
    /// Cgroups are slices and scopes, created by systemd.
    Systemd,
}

/// `cgroupfs` or `systemd`.
impl fmt::Display for CgroupDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CgroupDriver::Cgroupfs => "cgroupfs",
            CgroupDriver::Systemd => "systemd",
        })
    }
}

/// A text is not the name of a cgroup driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown cgroup driver: use cgroupfs or systemd")]
pub struct ParseCgroupDriverError(());

impl FromStr for CgroupDriver {
    type Err = ParseCgroupDriverError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "cgroupfs" => Ok(CgroupDriver::Cgroupfs),
            "systemd" => Ok(CgroupDriver::Systemd),
            _ => Err(ParseCgroupDriverError(())),
        }
    }
}

/// The QoS class of a pod. It decides in which cgroup the pod's cgroup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub(super) fn of(pod: &PodObject) -> Self {
        match qos_class(pod).as_str() {
            "Guaranteed" => QosClass::Guaranteed,
            "BestEffort" => QosClass::BestEffort,
            _ => QosClass::Burstable,
        }
    }

    /// The cgroup of the class in `kubepods`. Guaranteed pods have none: their cgroups are in `kubepods` itself.
    const fn cgroup(self) -> Option<&'static str> {
        match self {
            QosClass::Guaranteed => None,
            QosClass::Burstable => Some("burstable"),
            QosClass::BestEffort => Some("besteffort"),
        }
    }
}

impl Cgroups {
    /// The path of a pod's cgroup. The runtime creates the cgroups of the pod's containers in it (upstream
    /// `GetPodCgroupParent`, kubelet 1.36).
    pub(crate) fn of_pod(&self, pod: &PodObject) -> String {
        self.path(QosClass::of(pod), &pod.uid().to_string())
    }

    /// The path of `kubepods`, which contains the cgroups of all pods.
    pub(crate) fn all_pods(&self) -> String {
        self.join(&["kubepods"])
    }

    /// The path of a QoS class, `burstable` or `besteffort`.
    pub(crate) fn of_class(&self, class: &str) -> String {
        self.join(&["kubepods", class])
    }

    /// The path of the cgroup root.
    pub(crate) fn of_root(&self) -> String {
        self.join(&[])
    }

    /// The possible paths of a pod's cgroup, one for each QoS class. Used when the pod's spec is no longer known.
    pub(crate) fn of_uid(&self, uid: &str) -> [String; 3] {
        [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort].map(|class| self.path(class, uid))
    }

    fn path(&self, class: QosClass, uid: &str) -> String {
        let of_pod = format!("pod{uid}");
        let parts: Vec<&str> = ["kubepods"].into_iter().chain(class.cgroup()).chain([of_pod.as_str()]).collect();
        self.join(&parts)
    }

    fn join(&self, parts: &[&str]) -> String {
        let root = self.root.split('/').filter(|part| !part.is_empty());
        let parts: Vec<&str> = root.chain(parts.iter().copied()).collect();
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/{}", parts.join("/")),
            CgroupDriver::Systemd => slice_path(&parts),
        }
    }
}

/// The path of the slice with these parts. The name of a slice consists of the names of all its parents, joined by dashes, so
/// a part itself must not contain a dash (systemd.slice(5)).
fn slice_path(parts: &[&str]) -> String {
    let mut path = String::new();
    let mut name = String::new();
    for part in parts {
        let part = match part.strip_suffix(".slice") {
            // In the name of a slice, the text after the last dash is the slice's own part.
            Some(slice) => slice.rsplit('-').next().unwrap_or(slice).to_owned(),
            None => part.replace('-', "_"),
        };
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(&part);
        path.push('/');
        path.push_str(&name);
        path.push_str(".slice");
    }
    path
}
