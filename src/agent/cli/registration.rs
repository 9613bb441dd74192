//! The flags for the node of an API server.

use std::net::{IpAddr, UdpSocket};
use std::str::FromStr;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgAction, Args, ValueEnum};
use k8s_openapi::api::core::v1::Taint;

use crate::agent::runtime::{RUNTIME_KEY, Runtime};

/// How the node is registered in the cluster of `--kubeconfig`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options for a node of a cluster (--kubeconfig FILE)")]
pub(crate) struct RegistrationArgs {
    /// Whether to create the node if the API server does not have it: true or false. With false, the agent waits until somebody
    /// creates it.
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        default_value_t = true,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        requires = "kubeconfig"
    )]
    pub(crate) register_node: bool,
    /// Whether pods may be scheduled to a node that the agent creates: true or false. With false, kubectl uncordon permits it.
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        default_value_t = true,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        requires = "kubeconfig"
    )]
    pub(crate) register_schedulable: bool,
    /// Whether a node that the agent creates has the taint podwright.dev/runtime=process:NoSchedule: true or false. The taint keeps pods
    /// away that do not expect to be processes of the node.
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        default_value_t = true,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        requires = "kubeconfig"
    )]
    register_runtime_taint: bool,
    /// Whether new pods of the API server may be, or become, root of this node as its processes: refuse or allow. Static pods may be
    /// root.
    #[arg(long, value_enum, value_name = "refuse|allow", default_value_t, requires = "kubeconfig")]
    process_root_pods: RootPods,
    /// The address of the node, or one IPv4 and one IPv6 address. They must be addresses of this machine [default: the source
    /// addresses of its default routes].
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',', requires = "kubeconfig")]
    node_ip: Vec<NodeIp>,
    /// The ID of this machine at its cloud provider, for the Node object. It cannot be changed later.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), requires = "kubeconfig")]
    pub(crate) provider_id: Option<String>,
    /// `external` if the controller of a cloud provider initializes the node: the node is created with the taint
    /// node.cloudprovider.kubernetes.io/uninitialized, and the controller sets its addresses.
    #[arg(long, value_name = "external", default_value = "", hide_default_value = true, requires = "kubeconfig")]
    cloud_provider: CloudProvider,
    /// Delete the node from the API server when a signal ends the agent. The rights of a node do not permit that: grant the
    /// verb delete on nodes. Use it with --pods-on-exit stop, because the cluster deletes the pods of a node that is gone.
    #[arg(long, requires = "kubeconfig")]
    pub(crate) deregister_on_exit: bool,
}

impl RegistrationArgs {
    /// The addresses of the flag. Empty without it.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.node_ip.iter().map(|NodeIp(ip)| *ip).collect()
    }

    /// Whether pods of the API server that are or can become root of the node are refused.
    pub(crate) fn refuses_root_pods(&self) -> bool {
        self.process_root_pods == RootPods::Refuse
    }

    /// These taints and that of the runtime. A taint of a flag replaces that of the runtime.
    pub(crate) fn with_runtime_taint(&self, mut taints: Vec<Taint>, runtime: &Runtime) -> Vec<Taint> {
        let Some(value) = runtime.label().filter(|_| self.register_runtime_taint) else { return taints };
        let effect = "NoSchedule";
        if !taints.iter().any(|taint| taint.key == RUNTIME_KEY && taint.effect == effect) {
            let (key, value) = (RUNTIME_KEY.to_owned(), Some(value.to_owned()));
            taints.push(Taint { key, value, effect: effect.to_owned(), time_added: None });
        }
        taints
    }

    /// Whether the controller of a cloud provider initializes the node.
    pub(crate) fn has_external_cloud(&self) -> bool {
        self.cloud_provider == CloudProvider::External
    }

    /// What is wrong with the addresses together, with the remedy.
    pub(super) fn fault(&self) -> Option<String> {
        let fits = match self.node_ip.as_slice() {
            [] | [_] => true,
            [NodeIp(first), NodeIp(second)] => first.is_ipv4() != second.is_ipv4(),
            _ => false,
        };
        (!fits).then(|| {
            "--node-ip has several addresses of one kind: use one address, or one IPv4 and one IPv6 address".to_owned()
        })
    }
}

/// What happens to the pods of an API server that are or can become root of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum RootPods {
    #[default]
    Refuse,
    Allow,
}

/// Who initializes the node in its cloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CloudProvider {
    /// Nobody.
    #[default]
    None,
    /// A controller of the cloud provider.
    External,
}

impl FromStr for CloudProvider {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" => Ok(CloudProvider::None),
            "external" => Ok(CloudProvider::External),
            _ => Err(
                "no cloud provider is built in, as in a kubelet: use external, and run the controller of the cloud \
                      provider, or leave the flag out"
                    .to_owned(),
            ),
        }
    }
}

/// An address of this machine that other machines can reach (upstream `validateNodeIP`, kubelet 1.36).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeIp(IpAddr);

impl FromStr for NodeIp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ip: IpAddr = text.parse().map_err(|_| "not an IP address: write it like 192.0.2.1".to_owned())?;
        let is_link_local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        if ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || is_link_local {
            return Err(
                "other machines cannot reach the node at this address: use an address of its network".to_owned()
            );
        }
        // A socket can be bound to an address of this machine only.
        match UdpSocket::bind((ip, 0)) {
            Ok(_) => Ok(NodeIp(ip)),
            Err(_) => Err("not an address of this machine: use one that `ip address` lists".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::cli::{self, Command};

    fn parse(flags: &[&str]) -> Result<RegistrationArgs, String> {
        match cli::parse(["podwright", "run"].iter().chain(flags)).map(|cli| cli.command) {
            Ok(Command::Run(args)) => Ok(args.registration.clone()),
            Ok(_) => panic!("run is parsed"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_node_is_registered_and_schedulable_unless_the_flags_say_otherwise() {
        let flags = |args: &RegistrationArgs| (args.register_node, args.register_schedulable, args.deregister_on_exit);
        assert_eq!(flags(&parse(&[]).unwrap()), (true, true, false));
        let args = ["--kubeconfig=k", "--register-node=false", "--register-schedulable=false", "--deregister-on-exit"];
        assert_eq!(flags(&parse(&args).unwrap()), (false, false, true));
        assert_eq!(flags(&parse(&["--kubeconfig=k", "--register-node"]).unwrap()), (true, true, false));
        for flag in [
            "--register-node=false",
            "--register-schedulable=false",
            "--deregister-on-exit",
            "--node-ip=192.0.2.1",
            "--provider-id=a",
            "--cloud-provider=external",
        ] {
            let error = parse(&[flag]).unwrap_err();
            assert!(error.contains("--kubeconfig") || error.contains("not an address"), "{flag}: {error}");
        }
    }

    #[test]
    fn a_node_that_runs_processes_refuses_root_pods_and_has_a_taint_unless_the_flags_say_otherwise() {
        let args = parse(&["--kubeconfig=k"]).unwrap();
        let taint = |value: &str| Taint {
            key: "podwright.dev/runtime".to_owned(),
            value: Some(value.to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        };
        let own = taint("own");
        let cri = Runtime::Cri("unix:///c.sock".parse().unwrap());
        assert!(args.refuses_root_pods());
        assert_eq!(args.with_runtime_taint(Vec::new(), &Runtime::Process), [taint("process")]);
        assert_eq!(args.with_runtime_taint(vec![own.clone()], &Runtime::Process), std::slice::from_ref(&own));
        for runtime in [cri, Runtime::Simulated] {
            assert!(args.with_runtime_taint(Vec::new(), &runtime).is_empty(), "{runtime:?}");
        }
        let args = parse(&["--kubeconfig=k", "--register-runtime-taint=false", "--process-root-pods=allow"]).unwrap();
        assert!(!args.refuses_root_pods());
        assert_eq!(args.with_runtime_taint(vec![own.clone()], &Runtime::Process), [own]);
        for flag in ["--register-runtime-taint=false", "--process-root-pods=allow"] {
            assert!(parse(&[flag]).unwrap_err().contains("--kubeconfig"), "{flag}");
        }
    }

    #[test]
    fn only_an_external_cloud_provider_initializes_the_node() {
        let cloud = |flags: &[&str]| parse(flags).map(|args| (args.has_external_cloud(), args.provider_id));
        assert_eq!(cloud(&[]), Ok((false, None)));
        assert_eq!(cloud(&["--kubeconfig=k", "--cloud-provider="]), Ok((false, None)));
        let both = ["--kubeconfig=k", "--cloud-provider=external", "--provider-id=cloud:///1"];
        assert_eq!(cloud(&both), Ok((true, Some("cloud:///1".to_owned()))));
        for (flag, says) in [("--cloud-provider=aws", "use external"), ("--provider-id=", "--provider-id")] {
            let error = cloud(&["--kubeconfig=k", flag]).unwrap_err();
            assert!(error.contains(says), "{flag}: {error}");
        }
    }

    #[test]
    fn addresses_that_other_machines_cannot_reach_are_refused() {
        for (ip, says) in [
            ("node", "not an IP address"),
            ("127.0.0.1", "cannot reach"),
            ("::1", "cannot reach"),
            ("0.0.0.0", "cannot reach"),
            ("169.254.1.1", "cannot reach"),
            ("224.0.0.1", "cannot reach"),
            ("192.0.2.1", "not an address of this machine"),
        ] {
            let error = parse(&["--kubeconfig=k", &format!("--node-ip={ip}")]).unwrap_err();
            assert!(error.contains(says), "{ip}: {error}");
        }
        let ip = |text: &str| NodeIp(text.parse().unwrap());
        let is_fault =
            |ips: Vec<NodeIp>| RegistrationArgs { node_ip: ips, ..RegistrationArgs::default() }.fault().is_some();
        assert!(!is_fault(vec![ip("192.0.2.1"), ip("2001:db8::1")]));
        assert!(is_fault(vec![ip("192.0.2.1"), ip("192.0.2.2")]));
    }
}
