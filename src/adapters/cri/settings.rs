//! What only whoever set the node up can tell.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use super::config::Driver;

/// The cgroup below which all pods are by default.
pub const CGROUP_ROOT: &str = "/podwright";

/// How pods find names, and where their cgroups are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Name servers of the cluster, for pods whose `dnsPolicy` is `ClusterFirst`; without any they resolve names as the node
    /// does.
    pub cluster_dns: Vec<IpAddr>,
    /// The cluster's domain, such as `cluster.local`; empty for none.
    pub cluster_domain: String,
    /// How the node resolves names, if not as `/etc/resolv.conf` says.
    pub resolv_conf: Option<PathBuf>,
    /// The cgroup below which all pods are, as `/` or `/agent`. By default one that no kubelet has: below `/` a kubelet has its
    /// pods, removes the cgroups of all that it does not know, and has its classes share by its own pods.
    pub cgroup_root: String,
    /// Who makes cgroups, where the runtime does not tell.
    pub cgroup_driver: CgroupDriver,
}

impl Default for NodeSettings {
    fn default() -> Self {
        NodeSettings {
            cluster_dns: vec![],
            cluster_domain: String::new(),
            resolv_conf: None,
            cgroup_root: CGROUP_ROOT.to_owned(),
            cgroup_driver: CgroupDriver::default(),
        }
    }
}

/// Who makes cgroups: what a runtime is set up with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Whoever needs one, as a directory.
    #[default]
    Cgroupfs,
    /// systemd, as a slice.
    Systemd,
}

impl fmt::Display for CgroupDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CgroupDriver::Cgroupfs => "cgroupfs",
            CgroupDriver::Systemd => "systemd",
        })
    }
}

impl FromStr for CgroupDriver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "cgroupfs" => Ok(CgroupDriver::Cgroupfs),
            "systemd" => Ok(CgroupDriver::Systemd),
            _ => Err("there is no such driver: write cgroupfs or systemd".to_owned()),
        }
    }
}

impl From<CgroupDriver> for Driver {
    fn from(driver: CgroupDriver) -> Self {
        match driver {
            CgroupDriver::Cgroupfs => Driver::Cgroupfs,
            CgroupDriver::Systemd => Driver::Systemd,
        }
    }
}
