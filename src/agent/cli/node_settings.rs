//! The flags that say how a container runtime's node is set up.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::actors::ports::NamedRuntimeClasses;
use crate::adapters::cri::{CGROUP_ROOT, CgroupDriver, NodeSettings};

/// What a container runtime's pods are told of the node.
#[derive(Args, Debug)]
pub(crate) struct NodeSettingsArgs {
    /// Name servers of the cluster, which pods ask by default; without any they resolve names as the node does.
    #[arg(long, value_name = "IP,...", value_delimiter = ',')]
    cluster_dns: Vec<IpAddr>,
    /// The cluster's domain, such as cluster.local, in which pods look names up first.
    #[arg(long, value_name = "DOMAIN", default_value = "")]
    cluster_domain: String,
    /// How the node resolves names, for pods that do the same [default: /etc/resolv.conf, or what systemd-resolved asks].
    #[arg(long, value_name = "FILE")]
    resolv_conf: Option<ReadableFile>,
    /// Who makes cgroups, where the container runtime does not tell: cgroupfs or systemd.
    #[arg(long, value_name = "DRIVER", default_value_t)]
    cgroup_driver: CgroupDriver,
    /// The handler of the container runtime that runs pods of this runtimeClassName, such as gvisor=runsc; may be given
    /// several times, and the last of one name counts.
    #[arg(long, value_name = "NAME=HANDLER")]
    runtime_class: Vec<RuntimeClass>,
    /// The cgroup below which all pods are: not that of a kubelet of the same node, which is /. To be changed only while no
    /// pod runs: pods below another one are stopped, and their cgroups stay.
    #[arg(long, value_name = "PATH", default_value = CGROUP_ROOT)]
    cgroup_root: CgroupPath,
}

impl From<&NodeSettingsArgs> for NodeSettings {
    fn from(args: &NodeSettingsArgs) -> Self {
        NodeSettings {
            cluster_dns: args.cluster_dns.clone(),
            cluster_domain: args.cluster_domain.trim_matches('.').to_owned(),
            resolv_conf: args.resolv_conf.clone().map(|ReadableFile(path)| path),
            cgroup_root: args.cgroup_root.0.clone(),
            cgroup_driver: args.cgroup_driver,
        }
    }
}

impl NodeSettingsArgs {
    /// The runtime classes of the node; of those with the same name the last.
    pub(crate) fn runtime_classes(&self) -> NamedRuntimeClasses {
        NamedRuntimeClasses(
            self.runtime_class.iter().map(|class| (class.name.clone(), class.handler.clone())).collect(),
        )
    }
}

/// A runtime class by name and handler.
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
            _ => Err("not of the form NAME=HANDLER: write for example gvisor=runsc".to_owned()),
        }
    }
}

/// The absolute path of a cgroup, in the tree of all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CgroupPath(String);

impl FromStr for CgroupPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.split('/').all(|part| !matches!(part, "." | ".."));
        match text.starts_with('/') && plain && !text.contains('\0') {
            true => Ok(CgroupPath(text.to_owned())),
            false => Err("not the path of a cgroup: write one from the root of the tree, such as /agent".to_owned()),
        }
    }
}

/// A file that can be read now.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReadableFile(PathBuf);

impl FromStr for ReadableFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match std::fs::read_to_string(text) {
            Ok(_) => Ok(ReadableFile(text.into())),
            Err(error) => Err(format!("cannot be read: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::agent::cli::{Cli, Command};

    #[test]
    fn a_node_is_set_up_for_its_pods() {
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
        ];
        let expected = NodeSettings {
            cluster_dns: vec!["10.0.0.10".parse().unwrap(), "fd00::a".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            resolv_conf: None,
            cgroup_root: "/a/b".into(),
            cgroup_driver: CgroupDriver::Systemd,
        };
        assert_eq!(parse(&args), Ok(expected));
        for (arg, says) in [
            ("--cluster-dns=dns", "invalid IP address"),
            ("--cgroup-root=a", "from the root of the tree"),
            ("--cgroup-root=/a/../b", "from the root of the tree"),
            ("--cgroup-driver=docker", "cgroupfs or systemd"),
            ("--resolv-conf=/nowhere/at-all", "cannot be read"),
            ("--runtime-class=gvisor", "NAME=HANDLER"),
        ] {
            let error = parse(&[arg]).unwrap_err();
            assert!(error.contains(says), "{arg}: {error}");
        }
    }
}
