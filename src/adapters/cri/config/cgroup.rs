//! Where in the node's tree of cgroups a pod is.

use podwright_actors::pod::PodObject;
use podwright_actors::status::qos_class;

/// How the node's cgroups are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cgroups {
    /// Which interface of the kernel.
    pub(crate) version: Version,
    /// Who makes them.
    pub(crate) driver: Driver,
    /// Below which one all pods are; `/` for the root.
    pub(crate) root: String,
    /// Whether the runtime makes them in the tree that this process sees. If not, they are all the runtime's.
    pub(crate) shared: bool,
}

/// The interface of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// A tree per controller. Whether swap can be limited is the kernel's choice.
    V1 {
        /// Whether `memory.memsw.limit_in_bytes` exists.
        swap: bool,
    },
    /// One tree.
    V2 {
        /// Whether `memory.swap.max` exists.
        swap: bool,
    },
}

/// Who makes cgroups: the runtime and the node must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Directories in the cgroup file system.
    Cgroupfs,
    /// Slices of systemd.
    Systemd,
}

/// Which pods share what the others leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    pub(super) fn of(pod: &PodObject) -> Self {
        match qos_class(pod).as_str() {
            "Guaranteed" => Qos::Guaranteed,
            "BestEffort" => Qos::BestEffort,
            _ => Qos::Burstable,
        }
    }

    /// The cgroup of the class below that of all pods. What is guaranteed needs none: nobody takes from it.
    const fn cgroup(self) -> Option<&'static str> {
        match self {
            Qos::Guaranteed => None,
            Qos::Burstable => Some("burstable"),
            Qos::BestEffort => Some("besteffort"),
        }
    }
}

impl Cgroups {
    /// The path of a pod's cgroup, below which the runtime makes those of its containers (upstream `GetPodCgroupParent`,
    /// kubelet 1.36).
    pub(crate) fn of_pod(&self, pod: &PodObject) -> String {
        self.path(Qos::of(pod), &pod.uid().to_string())
    }

    /// The path of the one that all pods are below.
    pub(crate) fn all_pods(&self) -> String {
        self.join(&[])
    }

    /// Where the cgroup of a pod may be whose spec is gone: in that of any class.
    pub(crate) fn of_uid(&self, uid: &str) -> [String; 3] {
        [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort].map(|qos| self.path(qos, uid))
    }

    fn path(&self, qos: Qos, uid: &str) -> String {
        let of_pod = format!("pod{uid}");
        let parts: Vec<&str> = qos.cgroup().into_iter().chain([of_pod.as_str()]).collect();
        self.join(&parts)
    }

    fn join(&self, parts: &[&str]) -> String {
        let root = self.root.split('/').filter(|part| !part.is_empty()).chain(["kubepods"]);
        let parts: Vec<&str> = root.chain(parts.iter().copied()).collect();
        match self.driver {
            Driver::Cgroupfs => format!("/{}", parts.join("/")),
            Driver::Systemd => slices(&parts),
        }
    }
}

/// The path of the slice that has these steps: each slice is named for all that are above it, joined by dashes, so a step
/// itself has none (systemd.slice(5)).
fn slices(parts: &[&str]) -> String {
    let mut path = String::new();
    let mut name = String::new();
    for part in parts {
        let step = match part.strip_suffix(".slice") {
            // The step that a slice's name adds to its parent's is what follows the last dash.
            Some(slice) => slice.rsplit('-').next().unwrap_or(slice).to_owned(),
            None => part.replace('-', "_"),
        };
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(&step);
        path.push('/');
        path.push_str(&name);
        path.push_str(".slice");
    }
    path
}
