//! The flags for DNS, cgroups, profiles and runtime classes of a container runtime.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::adapters::cri::{CGROUP_ROOT, CgroupDriver, NodeSettings, SwapBehavior};
use podwright_model::text::reason;
use podwright_ports::NamedRuntimeClasses;

/// The settings of a node with a container runtime.
#[derive(Args, Debug)]
#[command(next_help_heading = super::CRI_ONLY)]
pub(crate) struct NodeSettingsArgs {
    /// The IP addresses of the cluster's DNS servers. Without any, pods use the node's DNS servers.
    #[arg(long, value_name = "IP,...", value_delimiter = ',')]
    cluster_dns: Vec<IpAddr>,
    /// The cluster's domain, such as cluster.local, which pods search first [default: none].
    #[arg(long, value_name = "DOMAIN", default_value = "", hide_default_value = true)]
    cluster_domain: String,
    /// The node's resolver configuration, for pods that use the node's DNS servers [default: /etc/resolv.conf, or the file
    /// of systemd-resolved if that runs].
    #[arg(long, value_name = "FILE")]
    resolv_conf: Option<ReadableFile>,
    /// The cgroup driver, cgroupfs or systemd, for a container runtime that does not report its own [default: the driver that
    /// the runtime reports, or cgroupfs]. containerd reports its driver.
    #[arg(long, value_name = "DRIVER")]
    cgroup_driver: Option<CgroupDriver>,
    /// The container runtime's handler for pods of a runtimeClassName, such as gvisor=runsc. May be repeated; the last value
    /// for a name counts.
    #[arg(long, value_name = "NAME=HANDLER")]
    runtime_class: Vec<RuntimeClass>,
    /// The cgroup that holds the cgroups of all pods. It must differ from the cgroup root of a kubelet on the same node,
    /// which is /. Change it only while no pods run: the agent stops the pods in the previous cgroup root and does not
    /// remove their cgroups.
    #[arg(long, value_name = "PATH", default_value = CGROUP_ROOT)]
    cgroup_root: CgroupPath,
    /// Give the container runtime's own seccomp profile to each container for which neither the container nor the pod names a
    /// profile. Without this flag, such a container runs without a profile. Containers that run keep their profile.
    #[arg(long)]
    seccomp_default: bool,
    /// The most processes and threads that a pod may have at a time; -1 for no limit. The limit applies to pods that start after it
    /// was set.
    #[arg(long, value_name = "N", default_value_t, allow_negative_numbers = true)]
    pod_max_pids: PodPidsLimit,
    /// NoSwap: no container uses swap space. LimitedSwap: a container of a burstable pod may use the part of the swap space that its
    /// memory request is of the memory of the machine. It needs cgroup version 2.
    #[arg(long, value_name = "BEHAVIOR", default_value_t)]
    swap_behavior: SwapBehavior,
    /// Adopt the pods that a kubelet started in this container runtime, without restarting them: those of manifests with the
    /// same name, namespace and node name, or with the same UID. Stop the kubelet first.
    #[arg(long)]
    pub(crate) adopt_kubelet_pods: bool,
}

impl From<&NodeSettingsArgs> for NodeSettings {
    fn from(args: &NodeSettingsArgs) -> Self {
        NodeSettings {
            cluster_dns: args.cluster_dns.clone(),
            cluster_domain: args.cluster_domain.trim_matches('.').to_owned(),
            resolv_conf: args.resolv_conf.clone().map(|ReadableFile(path)| path),
            cgroup_root: args.cgroup_root.0.clone(),
            cgroup_driver: args.cgroup_driver,
            allocatable: None,
            seccomp_default: args.seccomp_default,
            pod_pids_limit: args.pod_max_pids.0,
            swap_behavior: args.swap_behavior,
        }
    }
}

impl NodeSettingsArgs {
    /// The fields of `KubeletConfiguration`. The cgroup driver is that of the flag: that of the runtime is not known here.
    pub(crate) fn configuration(&self) -> serde_json::Value {
        let settings = NodeSettings::from(self);
        serde_json::json!({
            "clusterDNS": settings.cluster_dns,
            "clusterDomain": settings.cluster_domain,
            "resolvConf": settings.resolv_conf,
            "cgroupRoot": settings.cgroup_root,
            "cgroupDriver": settings.cgroup_driver.map(|driver| driver.to_string()),
            "seccompDefault": settings.seccomp_default,
            "memorySwap": {"swapBehavior": settings.swap_behavior.to_string()},
            "podPidsLimit": settings.pod_pids_limit.map_or(-1, |most| i64::try_from(most.get()).unwrap_or(i64::MAX)),
            "cgroupsPerQOS": true,
            "enforceNodeAllocatable": ["pods"],
        })
    }

    /// The runtime classes by name. The last value for a name counts.
    pub(crate) fn runtime_classes(&self) -> NamedRuntimeClasses {
        NamedRuntimeClasses(
            self.runtime_class.iter().map(|class| (class.name.clone(), class.handler.clone())).collect(),
        )
    }
}

/// A runtime class and its handler.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RuntimeClass {
    name: String,
    handler: String,
}

impl FromStr for RuntimeClass {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((name, handler)) if !name.is_empty() && !handler.is_empty() => {
                Ok(RuntimeClass { name: name.to_owned(), handler: handler.to_owned() })
            }
            _ => Err("not of the form NAME=HANDLER: write it like gvisor=runsc".to_owned()),
        }
    }
}

/// A limit of the processes of a pod. `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PodPidsLimit(Option<NonZeroU64>);

impl fmt::Display for PodPidsLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(most) => most.fmt(f),
            None => f.write_str("-1"),
        }
    }
}

impl FromStr for PodPidsLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A kubelet takes 0 for no limit too.
        match text.parse::<i64>() {
            Ok(-1 | 0) => Ok(PodPidsLimit(None)),
            Ok(most @ 1..) => Ok(PodPidsLimit(NonZeroU64::new(most.unsigned_abs()))),
            Ok(_) | Err(_) => Err("not a number of processes: write one such as 1024, or -1 for no limit".to_owned()),
        }
    }
}

/// The absolute path of a cgroup in the cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CgroupPath(String);

impl FromStr for CgroupPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.split('/').all(|part| !matches!(part, "." | ".."));
        if text.starts_with('/') && plain && !text.contains('\0') {
            Ok(CgroupPath(text.to_owned()))
        } else {
            Err("not an absolute cgroup path: begin it with / and use no . or .., such as /agent".to_owned())
        }
    }
}

/// The path of a file that could be read when the flag was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReadableFile(PathBuf);

impl FromStr for ReadableFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match std::fs::read_to_string(text) {
            Ok(_) => Ok(ReadableFile(text.into())),
            Err(error) => Err(format!("cannot be read ({}): check the path", reason(&error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::agent::cli::{Cli, Command};

    #[test]
    fn node_settings_parse_from_flags_and_bad_values_are_refused() {
        let parse =
            |args: &[&str]| match Cli::try_parse_from(["podwright", "run"].iter().chain(args)).map(|cli| cli.command) {
                Ok(Command::Run(args)) => Ok(NodeSettings::from(&*args.node_settings)),
                Ok(_) => panic!("run is parsed"),
                Err(error) => Err(error.to_string()),
            };
        assert_eq!(parse(&[]), Ok(NodeSettings::default()));
        let args = [
            "--cluster-dns=10.0.0.10,fd00::a",
            "--cluster-domain=cluster.local.",
            "--cgroup-root=/a/b",
            "--cgroup-driver=systemd",
            "--seccomp-default",
            "--pod-max-pids=1024",
            "--swap-behavior=LimitedSwap",
        ];
        let expected = NodeSettings {
            cluster_dns: vec!["10.0.0.10".parse().unwrap(), "fd00::a".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            resolv_conf: None,
            cgroup_root: "/a/b".into(),
            cgroup_driver: Some(CgroupDriver::Systemd),
            allocatable: None,
            seccomp_default: true,
            pod_pids_limit: NonZeroU64::new(1024),
            swap_behavior: SwapBehavior::LimitedSwap,
        };
        assert_eq!(parse(&args), Ok(expected));
        for unlimited in [&["--pod-max-pids=-1"][..], &["--pod-max-pids", "-1"], &["--pod-max-pids=0"]] {
            assert_eq!(parse(unlimited), Ok(NodeSettings::default()), "{unlimited:?}");
        }
        for (arg, says) in [
            ("--cluster-dns=dns", "invalid IP address"),
            ("--cgroup-root=a", "not an absolute cgroup path"),
            ("--cgroup-root=/a/../b", "not an absolute cgroup path"),
            ("--cgroup-driver=docker", "cgroupfs or systemd"),
            ("--resolv-conf=/nowhere/at-all", "cannot be read"),
            ("--runtime-class=gvisor", "NAME=HANDLER"),
            ("--pod-max-pids=-2", "-1 for no limit"),
            ("--pod-max-pids=many", "such as 1024"),
            ("--swap-behavior=UnlimitedSwap", "NoSwap or LimitedSwap"),
        ] {
            let error = parse(&[arg]).unwrap_err();
            assert!(error.contains(says), "{arg}: {error}");
        }
    }
}
