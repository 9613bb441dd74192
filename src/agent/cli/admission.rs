//! The flags for the admission of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use k8s_openapi::api::core::v1::{Node, Taint};

use crate::agent::machine::{self, Reservation};
use crate::agent::runtime::{RUNTIME_KEY, Runtime};
use podwright_core::admission::{AdmissionHandler, AppArmor, NodeCapacity, NodePredicates, SysctlAllowlist};
use podwright_model::names;
use podwright_model::quantity::Amount;

/// Which pods the node admits, and how much of the machine they may request.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options for the admission of pods")]
pub(crate) struct AdmissionArgs {
    /// The node's labels besides those of its operating system, architecture and name, for the node selectors and affinities of
    /// pods. With --kubeconfig, a node that exists keeps its labels, except for those of its machine and its topology.
    #[arg(long, value_name = "KEY=VALUE,...", value_delimiter = ',')]
    node_labels: Vec<NodeLabel>,
    /// The node's taints. A pod of an API server that does not tolerate a NoExecute taint is rejected; static pods ignore taints.
    /// With --kubeconfig, a node that exists keeps its taints.
    #[arg(long, value_name = "KEY[=VALUE]:EFFECT,...", value_delimiter = ',')]
    register_with_taints: Vec<NodeTaint>,
    /// Sysctls that pods may set besides the safe ones, such as net.core.somaxconn,kernel.msg*.
    #[arg(long, value_name = "SYSCTL,...", value_delimiter = ',')]
    allowed_unsafe_sysctls: Vec<SysctlPattern>,
    /// The resources to reserve for the system's daemons, such as cpu=500m,memory=1Gi. Pods cannot request them. The resources
    /// are cpu, memory and ephemeral-storage.
    #[arg(long, value_name = "RESOURCE=QUANTITY,...", default_value = "", hide_default_value = true)]
    system_reserved: Reserved,
    /// The resources to reserve for this agent and the container runtime, in addition to --system-reserved. Pods cannot request
    /// them.
    #[arg(long, value_name = "RESOURCE=QUANTITY,...", default_value = "", hide_default_value = true)]
    kube_reserved: Reserved,
}

impl AdmissionArgs {
    /// What pods may not request.
    pub(crate) fn reservations(&self) -> [Reservation; 2] {
        [self.system_reserved.0, self.kube_reserved.0]
    }

    /// The fault of a combination of taints, with the remedy.
    pub(super) fn fault(&self) -> Option<String> {
        let mut taints = self.register_with_taints.iter().map(|NodeTaint(taint)| (&taint.key, &taint.effect));
        let mut found = BTreeSet::new();
        let (key, effect) = taints.find(|taint| !found.insert(*taint))?;
        Some(format!("--register-with-taints has two taints {key}:{effect}: keep one of them"))
    }

    /// The labels that the runtime and the flags give to the node. A label of a flag replaces that of the runtime.
    pub(crate) fn labels(&self, runtime: &Runtime) -> BTreeMap<String, String> {
        let of_runtime = runtime.label().map(|value| (RUNTIME_KEY.to_owned(), value.to_owned()));
        let of_flags = self.node_labels.iter().map(|label| (label.key.clone(), label.value.clone()));
        of_runtime.into_iter().chain(of_flags).collect()
    }

    /// The taints that the flags give to the node.
    pub(crate) fn taints(&self) -> Vec<Taint> {
        self.register_with_taints.iter().map(|NodeTaint(taint)| taint.clone()).collect()
    }

    /// The fields of `KubeletConfiguration`.
    pub(crate) fn configuration(&self) -> serde_json::Value {
        let sysctls: Vec<&str> = self.allowed_unsafe_sysctls.iter().map(|SysctlPattern(pattern)| &**pattern).collect();
        let [system, kube] = self.reservations().map(|reserved| {
            let bytes = |bytes: i64| (bytes > 0).then(|| bytes.to_string());
            let cpu = (reserved.cpu_millis > 0).then(|| format!("{}m", reserved.cpu_millis));
            let amounts = [
                ("cpu", cpu),
                ("memory", bytes(reserved.memory_bytes)),
                ("ephemeral-storage", bytes(reserved.storage_bytes)),
            ];
            let amounts = amounts.into_iter().filter_map(|(resource, amount)| Some((resource, amount?)));
            amounts.collect::<BTreeMap<_, _>>()
        });
        serde_json::json!({
            "registerWithTaints": self.taints(),
            "allowedUnsafeSysctls": sysctls,
            "systemReserved": system,
            "kubeReserved": kube,
        })
    }

    /// The admission handlers of a node with this runtime, in upstream's order. `strict_groups` says whether the runtime supports strict
    /// supplemental groups. `registered` returns the node of the API server, if it is registered.
    pub(crate) fn handlers(
        &self,
        runtime: &Runtime,
        node: &str,
        capacity: NodeCapacity,
        strict_groups: impl Fn() -> bool + Send + Sync + 'static,
        registered: impl Fn() -> Option<Arc<Node>> + Send + Sync + 'static,
    ) -> Vec<Arc<dyn AdmissionHandler>> {
        let safe = SysctlAllowlist::safe(machine::kernel_version());
        let patterns = self.allowed_unsafe_sysctls.iter();
        let sysctls = patterns.fold(safe, |list, SysctlPattern(pattern)| {
            list.allow(pattern).expect("the pattern was validated when the flag was parsed")
        });
        let predicates = NodePredicates::new(node, capacity)
            .labels(self.labels(runtime))
            .taints(self.taints())
            .strict_groups(strict_groups)
            .registered(registered);
        let app_armor = AppArmor { is_enabled: machine::has_app_armor() };
        vec![Arc::new(sysctls), Arc::new(predicates), Arc::new(app_armor)]
    }
}

/// A label of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeLabel {
    key: String,
    value: String,
}

/// The labels of Kubernetes' own domains that a node may set (upstream `kubeletLabels`, kubelet 1.36).
const KUBERNETES_LABELS: [&str; 12] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// The domains in which a node may set every label (upstream `kubeletLabelNamespaces`, kubelet 1.36).
const NODE_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

impl FromStr for NodeLabel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, value) = text.split_once('=').ok_or("not of the form KEY=VALUE: write it like disk=ssd")?;
        if !names::is_qualified(key) {
            return Err(format!(
                "{key:?} is not a label: use letters, digits, '-', '_' and '.', after an optional DOMAIN/"
            ));
        }
        if !names::is_label_value(value) {
            return Err(format!("{value:?} is not a label's value: use at most 63 letters, digits, '-', '_' and '.'"));
        }
        let is_in =
            |domain: &str, of: &str| domain == of || domain.strip_suffix(of).is_some_and(|rest| rest.ends_with('.'));
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let is_reserved = is_in(domain, "kubernetes.io") || is_in(domain, "k8s.io");
        let is_of_node = NODE_DOMAINS.iter().any(|of| is_in(domain, of)) || KUBERNETES_LABELS.contains(&key);
        if is_reserved && !is_of_node {
            return Err(format!(
                "{key} is a label of Kubernetes that a node does not set: use another domain, or {}",
                NODE_DOMAINS.join(" or ")
            ));
        }
        Ok(NodeLabel { key: key.to_owned(), value: value.to_owned() })
    }
}

/// A taint of the node, as in `drain=now:NoExecute` (upstream `parseTaint`, 1.36).
#[derive(Clone, Debug, PartialEq)]
struct NodeTaint(Taint);

impl FromStr for NodeTaint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        let (name, effect) =
            text.rsplit_once(':').ok_or("not of the form KEY[=VALUE]:EFFECT: write it like drain=now:NoExecute")?;
        if !EFFECTS.contains(&effect) {
            return Err(format!("{effect:?} is not an effect of a taint: use {}", EFFECTS.join(", ")));
        }
        let (key, value) = name.split_once('=').map_or((name, None), |(key, value)| (key, Some(value)));
        if !names::is_qualified(key) {
            return Err(format!(
                "{key:?} is not the key of a taint: use letters, digits, '-', '_' and '.', after an optional DOMAIN/"
            ));
        }
        if let Some(value) = value.filter(|value| !names::is_label_value(value)) {
            return Err(format!("{value:?} is not a taint's value: use at most 63 letters, digits, '-', '_' and '.'"));
        }
        let (key, effect, value) = (key.to_owned(), effect.to_owned(), value.map(str::to_owned));
        Ok(NodeTaint(Taint { key, effect, value, time_added: None }))
    }
}

/// A valid pattern of sysctls.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SysctlPattern(String);

impl FromStr for SysctlPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        SysctlAllowlist::safe((0, 0)).allow(text).map_err(|error| error.to_string())?;
        Ok(SysctlPattern(text.to_owned()))
    }
}

/// Amounts of resources, as in `cpu=500m,memory=1Gi`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reserved(Reservation);

impl FromStr for Reserved {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut reserved = Reservation::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (resource, quantity) =
                part.split_once('=').ok_or("not of the form RESOURCE=QUANTITY: write it like cpu=500m,memory=1Gi")?;
            let amount = Amount::parse(quantity).map_err(|error| error.to_string())?;
            if amount.is_negative() {
                return Err(format!("{resource} is negative: write an amount of 0 or more"));
            }
            match resource {
                "cpu" => reserved.cpu_millis = amount.millis(),
                "memory" => reserved.memory_bytes = amount.units(),
                "ephemeral-storage" => reserved.storage_bytes = amount.units(),
                other => return Err(format!("{other:?} cannot be reserved: use cpu, memory or ephemeral-storage")),
            }
        }
        Ok(Reserved(reserved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::cli::{self, Command};
    use podwright_core::admission::Admitted;
    use podwright_model::pod::PodObject;

    fn parse(flags: &[&str]) -> Result<AdmissionArgs, String> {
        match cli::parse(["podwright", "run"].iter().chain(flags)).map(|cli| cli.command) {
            Ok(Command::Run(args)) => Ok(args.admission.clone()),
            Ok(_) => panic!("run is parsed"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn taints_of_the_flag_reject_pods_of_an_api_server_only() {
        let args = parse(&["--register-with-taints=drain=now:NoExecute,lazy:PreferNoSchedule"]).unwrap();
        let handlers = args.handlers(&Runtime::Simulated, "n", NodeCapacity::new(1000, 1 << 30, 10), || true, || None);
        let reason = |source: &str, tolerations: serde_json::Value| {
            let pod = serde_json::json!({
                "metadata": {"name": "p", "namespace": "n", "uid": "u",
                    "annotations": {"kubernetes.io/config.source": source}},
                "spec": {"containers": [{"name": "c", "image": "i"}], "tolerations": tolerations},
            });
            let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
            handlers.iter().find_map(|it| it.admit(&pod, &Admitted::default()).err()).map(|rejection| rejection.reason)
        };
        let tolerant = serde_json::json!([{"key": "drain", "value": "now"}]);
        assert_eq!(reason("api", serde_json::json!([])).as_deref(), Some("TaintToleration"));
        assert_eq!([reason("api", tolerant), reason("file", serde_json::json!([]))], [None, None]);
    }

    #[test]
    fn admission_flags_parse_and_bad_values_are_refused_with_a_remedy() {
        let args = parse(&[
            "--node-labels=disk=ssd,topology.kubernetes.io/zone=a,x.node.kubernetes.io/y=",
            "--allowed-unsafe-sysctls=net.core.somaxconn,kernel.msg*",
            "--system-reserved=cpu=0.5,memory=1Gi",
            "--kube-reserved=ephemeral-storage=2Gi",
        ])
        .unwrap();
        assert_eq!((args.node_labels.len(), args.allowed_unsafe_sysctls.len()), (3, 2));
        let none = Reservation::default();
        let system = Reservation { cpu_millis: 500, memory_bytes: 1 << 30, ..none };
        assert_eq!(args.reservations(), [system, Reservation { storage_bytes: 2 << 30, ..none }]);
        assert_eq!(parse(&[]).unwrap().reservations(), [none, none]);
        assert_eq!(args.labels(&Runtime::Process)["podwright.dev/runtime"], "process");
        assert_eq!(args.labels(&Runtime::Simulated).len(), 3);
        let own = parse(&["--node-labels=podwright.dev/runtime=own"]).unwrap();
        assert_eq!(own.labels(&Runtime::Process)["podwright.dev/runtime"], "own");
        for (flag, says) in [
            ("--node-labels=disk", "KEY=VALUE"),
            ("--node-labels=a b=c", "not a label"),
            ("--node-labels=a=b/c", "not a label's value"),
            ("--node-labels=kubernetes.io/role=x", "a label of Kubernetes"),
            ("--node-labels=node-role.kubernetes.io/x=", "a label of Kubernetes"),
            ("--register-with-taints=drain", "KEY[=VALUE]:EFFECT"),
            ("--register-with-taints=drain:Now", "not an effect"),
            ("--register-with-taints=a b:NoExecute", "not the key of a taint"),
            ("--register-with-taints=a=b/c:NoExecute", "not a taint's value"),
            ("--register-with-taints=a=b:NoExecute,a=c:NoExecute", "keep one of them"),
            ("--allowed-unsafe-sysctls=vm.swappiness", "has no namespace"),
            ("--allowed-unsafe-sysctls=*", "is not a sysctl"),
            ("--system-reserved=cpu", "RESOURCE=QUANTITY"),
            ("--system-reserved=cpu=much", "is not a quantity"),
            ("--kube-reserved=memory=-1", "negative"),
            ("--kube-reserved=pid=100", "cannot be reserved"),
        ] {
            let error = parse(&[flag]).unwrap_err();
            assert!(error.contains(says), "{flag}: {error}");
        }
    }
}
