//! The flags of `podwright controllers`.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use podwright_controllers::device_taint_eviction::{self, Settings};
use podwright_controllers::leader_election::Timing;
use podwright_controllers::resource_claim::{self, Features};
use reqwest::Url;

use super::gates::{FeatureGate, Gate, Gated};
use super::time::time_span;
use super::{AdminArgs, ExplainOutput, LogFormat};
use crate::agent::client::AgentAddress;

#[derive(Args, Debug)]
pub(crate) struct ControllersArgs {
    /// The kubeconfig of the cluster. The credentials need the permissions that examples/deploy/controllers.yaml has for the controllers,
    /// and those of device-taint-rules.yaml for DeviceTaintRules.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,
    /// The controllers to run.
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',', default_value = "resourceclaim")]
    pub(crate) controllers: Vec<ControllerKind>,
    /// The directory for the admin socket [default: the directory controllers in the default root
    /// directory of `podwright run`].
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// Where other machines reach the address of --admin. A leader writes this to its leases, and the other replicas name it to clients
    /// [default: the address of --admin, or one of this machine's addresses if --admin is all of them].
    #[arg(long, value_name = "https://NODE:PORT", value_parser = advertised, requires = "admin_tls_cert")]
    pub(crate) advertise_address: Option<AgentAddress>,
    /// The format of log lines.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
    /// The largest number of pods, pod groups and claims that the ResourceClaim controller works on at one time.
    #[arg(long, value_name = "N", default_value = "50", allow_negative_numbers = true, value_parser = workers)]
    pub(crate) concurrent_resourceclaim_syncs: NonZeroUsize,
    /// The largest number of pods and rules that the device taint eviction controller works on at one time.
    #[arg(long, value_name = "N", default_value = "8", allow_negative_numbers = true, value_parser = workers)]
    pub(crate) concurrent_device_taint_eviction_syncs: NonZeroUsize,
    /// The largest number of pods that the device taint eviction controller deletes for one DeviceTaintRule. Further pods stay until
    /// the annotation podwright.dev/continue-evictions of the rule has a larger number [default: no limit].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = limit)]
    max_evictions_per_rule: Option<NonZeroU64>,
    /// Turn optional behaviour on or off. The names are those of upstream's feature gates: DRAAdminAccess (true),
    /// DRAPrioritizedList (true), DRAWorkloadResourceClaims (false), DRADeviceTaints (true; with false, the device taint eviction
    /// controller is not started) and DRADeviceTaintRules (false; with true, DeviceTaintRules evict pods, which needs more permissions
    /// and an API server that serves them). If a name appears twice, the last value applies.
    #[arg(long, value_name = "NAME=BOOL,...", value_delimiter = ',')]
    feature_gates: Vec<FeatureGate<ControllerGates>>,
    /// Elect one leader among several replicas. Without an election, run one replica only.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    pub(crate) leader_elect: bool,
    /// How long other replicas wait for a leader that does not renew its lease.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = time_span)]
    leader_elect_lease_duration: Duration,
    /// How long a leader tries to renew its lease before it stops leading.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time_span)]
    leader_elect_renew_deadline: Duration,
    /// The time between two attempts to take or to renew the lease.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time_span)]
    leader_elect_retry_period: Duration,
    /// The namespace of the leases. A lease has the name of its controller.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub(crate) leader_elect_resource_namespace: String,
}

#[derive(Args, Debug)]
pub(crate) struct PreviewArgs {
    /// The file with the DeviceTaintRule, in YAML or JSON. The rule need not exist in the cluster.
    #[arg(short, long = "filename", value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The kubeconfig of the cluster. Its user needs the permission to list pods, resourceclaims, resourceslices and devicetaintrules. By
    /// default, the file that the environment variable KUBECONFIG names, and without that variable ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The feature gates of the controller that evicts the pods. Only DRAWorkloadResourceClaims (false) has an effect: with true,
    /// claims that are reserved for pod groups count.
    #[arg(long, value_name = "NAME=BOOL,...", value_delimiter = ',')]
    feature_gates: Vec<FeatureGate<ControllerGates>>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: ExplainOutput,
}

impl PreviewArgs {
    /// The settings of the controller that evicts the pods.
    pub(crate) fn settings(&self) -> Settings {
        FeatureGate::features(&self.feature_gates).taint_settings()
    }
}

fn workers(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| AT_LEAST_ONE.to_owned())
}

fn limit(text: &str) -> Result<NonZeroU64, String> {
    text.parse().map_err(|_| format!("{AT_LEAST_ONE}, or leave the flag out for no limit"))
}

fn advertised(text: &str) -> Result<AgentAddress, String> {
    let address: AgentAddress = text.parse()?;
    if matches!(&address, AgentAddress::Https(url) if is_of_other_machines(url)) {
        return Ok(address);
    }
    Err("other machines cannot reach this address: write https://NODE:PORT".to_owned())
}

/// Whether other machines may reach the host and the port of a URL.
fn is_of_other_machines(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(ip) => ip.is_unspecified() || ip.is_loopback(),
        Err(_) => host == "localhost",
    };
    !is_local && url.port() != Some(0)
}

const AT_LEAST_ONE: &str = "write a whole number of at least 1";

/// A controller of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum ControllerKind {
    /// Generates, reserves, releases and deletes ResourceClaims.
    Resourceclaim,
    /// Deletes the pods that use devices with a NoExecute taint.
    DeviceTaintEviction,
}

impl ControllerKind {
    /// The name of the controller, as in logs and leases.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            ControllerKind::Resourceclaim => resource_claim::CONTROLLER_NAME,
            ControllerKind::DeviceTaintEviction => device_taint_eviction::CONTROLLER_NAME,
        }
    }

    /// The value of `--controllers`.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            ControllerKind::Resourceclaim => "resourceclaim",
            ControllerKind::DeviceTaintEviction => "device-taint-eviction",
        }
    }
}

impl fmt::Display for ControllerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ControllersArgs {
    /// What is wrong with flags together, with the remedy.
    pub(super) fn fault(&self) -> Option<String> {
        let timing = self.timing();
        let fault = timing.fault().filter(|_| self.leader_elect).map(|fault| {
            format!(
                "{fault}: correct --leader-elect-lease-duration, --leader-elect-renew-deadline or \
                 --leader-elect-retry-period"
            )
        });
        let distinct: BTreeSet<_> = self.controllers.iter().collect();
        let repeated = (distinct.len() < self.controllers.len())
            .then(|| "--controllers names a controller twice: name each controller once".to_owned());
        let none_is_left = self.enabled().next().is_none().then(|| {
            "the feature gate DRADeviceTaints is off, so there is no controller to run: turn it on, or name another controller with \
             --controllers"
                .to_owned()
        });
        let is_written_nowhere = (self.advertise_address.is_some() && !self.leader_elect).then(|| {
            "--advertise-address has no effect without an election, because there is no lease: leave out the address or \
             --leader-elect=false"
                .to_owned()
        });
        self.admin.fault().or(fault).or(repeated).or(none_is_left).or(self.limit_fault()).or(is_written_nowhere)
    }

    /// Why the limit of evictions has no effect, with the remedy.
    fn limit_fault(&self) -> Option<String> {
        self.max_evictions_per_rule?;
        let gates = self.gates();
        let (missing, remedy) = if !self.controllers.contains(&ControllerKind::DeviceTaintEviction) {
            ("the device taint eviction controller", "add device-taint-eviction to --controllers")
        } else if !gates.device_taints {
            ("the device taint eviction controller", "turn on the feature gate DRADeviceTaints")
        } else if !gates.device_taint_rules {
            ("rules", "add --feature-gates=DRADeviceTaintRules=true")
        } else {
            return None;
        };
        Some(format!("--max-evictions-per-rule has no effect without {missing}: {remedy}, or leave the flag out"))
    }

    /// The controllers that are named, without those that a feature gate turns off.
    pub(crate) fn enabled(&self) -> impl Iterator<Item = ControllerKind> {
        let taints = self.gates().device_taints;
        self.controllers.iter().copied().filter(move |kind| taints || *kind != ControllerKind::DeviceTaintEviction)
    }

    /// The durations of the elections.
    pub(crate) fn timing(&self) -> Timing {
        Timing {
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
        }
    }

    /// The features of the ResourceClaim controller.
    pub(crate) fn features(&self) -> Features {
        self.gates().claims
    }

    /// The settings of the device taint eviction controller.
    pub(crate) fn taint_settings(&self) -> Settings {
        Settings { max_evictions_per_rule: self.max_evictions_per_rule, ..self.gates().taint_settings() }
    }

    fn gates(&self) -> ControllerGates {
        FeatureGate::features(&self.feature_gates)
    }
}

/// The states of the feature gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControllerGates {
    claims: Features,
    /// The device taint eviction controller runs.
    device_taints: bool,
    /// DeviceTaintRules evict.
    device_taint_rules: bool,
}

impl Default for ControllerGates {
    fn default() -> Self {
        ControllerGates { claims: Features::default(), device_taints: true, device_taint_rules: false }
    }
}

impl ControllerGates {
    /// The settings of the device taint eviction controller, without a limit.
    pub(crate) fn taint_settings(self) -> Settings {
        Settings { rules: self.device_taint_rules, pod_groups: self.claims.pod_groups, max_evictions_per_rule: None }
    }
}

impl Gated for ControllerGates {
    const GATES: &'static [Gate<Self>] = &[
        ("DRAAdminAccess", |gates| &mut gates.claims.admin_access),
        ("DRAPrioritizedList", |gates| &mut gates.claims.prioritized_list),
        ("DRAWorkloadResourceClaims", |gates| &mut gates.claims.pod_groups),
        ("DRADeviceTaints", |gates| &mut gates.device_taints),
        ("DRADeviceTaintRules", |gates| &mut gates.device_taint_rules),
    ];
    const COMMAND: &'static str = "the controllers";
}

#[cfg(test)]
mod tests {
    use super::super::{Command, parse};
    use super::*;

    fn args(flags: &[&str]) -> Result<Box<ControllersArgs>, String> {
        let words = ["podwright", "controllers", "--kubeconfig", "/k"];
        let cli = parse(words.iter().chain(flags)).map_err(|error| error.to_string())?;
        let Command::Controllers(args) = cli.command else { panic!("the command is controllers") };
        Ok(args)
    }

    #[test]
    fn defaults_are_those_of_upstream() {
        let args = args(&[]).unwrap();
        assert_eq!((args.timing(), args.features()), (Timing::default(), Features::default()));
        assert_eq!((args.controllers.len(), args.concurrent_resourceclaim_syncs.get()), (1, 50));
        assert_eq!(args.concurrent_device_taint_eviction_syncs.get(), 8);
        assert_eq!(args.taint_settings(), Settings { rules: false, ..Settings::default() });
        assert!(args.leader_elect);
    }

    #[test]
    fn bad_flags_are_refused_with_the_remedy() {
        for (flag, part) in [
            ("--controllers=resourceclaims", "'resourceclaim'"),
            ("--controllers=resourceclaim,resourceclaim", "name each controller once"),
            ("--concurrent-resourceclaim-syncs=0", "concurrent-resourceclaim-syncs"),
            ("--concurrent-device-taint-eviction-syncs=0", "write a whole number of at least 1"),
            ("--concurrent-device-taint-eviction-syncs=-3", "write a whole number of at least 1"),
            ("--max-evictions-per-rule=0", "or leave the flag out for no limit"),
            ("--leader-elect-lease-duration=9s", "correct --leader-elect-lease-duration"),
            ("--leader-elect-lease-duration=15500ms", "whole number of seconds"),
            (
                "--feature-gates=DRAAdmin=true",
                "\"DRAAdmin\" is no feature gate of the controllers; known gates: DRAAdminAccess, ",
            ),
            ("--feature-gates=DRAAdminAccess", "use NAME=true or NAME=false"),
            ("--admin=0.0.0.0:1", "--admin-tls-cert"),
            ("--advertise-address=https://node:1", "--admin-tls-cert"),
            ("--advertise-address=10.0.0.5:1", "write https://10.0.0.5:1"),
            ("--advertise-address=https://node:1/path", "write https://NODE:PORT"),
            ("--advertise-address=127.0.0.1:1", "other machines cannot reach this address: write https://NODE:PORT"),
        ] {
            let error = args(&[flag]).unwrap_err();
            assert!(error.contains(part), "{flag}: {error}");
        }
        let serves = ["--admin-tls-cert=/c", "--admin-tls-key=/k", "--admin-token-file=/t"];
        for host in [
            "0.0.0.0:1",
            "127.0.0.1:1",
            "127.1.2.3:1",
            "[::]:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
            "localhost:1",
            "node:0",
        ] {
            let flag = format!("--advertise-address=https://{host}");
            let error = args(&[&serves[..], &[&*flag]].concat()).unwrap_err();
            assert!(
                error.contains("other machines cannot reach this address: write https://NODE:PORT"),
                "{flag}: {error}"
            );
        }
        let advertises = [&serves[..], &["--advertise-address=https://node:1"]].concat();
        assert_eq!(args(&advertises).unwrap().advertise_address.unwrap().to_string(), "https://node:1");
        let error = args(&[&advertises[..], &["--leader-elect=false"]].concat()).unwrap_err();
        assert!(error.contains("--advertise-address has no effect without an election"), "{error}");
        let found = args(&["--leader-elect=false", "--leader-elect-lease-duration=9s"]).unwrap();
        assert!(!found.leader_elect, "the durations do not count without an election");
        let found = args(&["--feature-gates=DRAWorkloadResourceClaims=true,DRAAdminAccess=false"]).unwrap().features();
        assert_eq!((found.pod_groups, found.admin_access, found.prioritized_list), (true, false, true));
    }

    #[test]
    fn a_limit_that_has_no_effect_is_refused_with_the_remedy() {
        let limit = "--max-evictions-per-rule=5";
        let (both, taints) =
            ("--controllers=resourceclaim,device-taint-eviction", "--controllers=device-taint-eviction");
        let rules = "--feature-gates=DRADeviceTaintRules=true";
        let off = "--feature-gates=DRADeviceTaints=false,DRADeviceTaintRules=true";
        for (flags, part) in [
            (vec![limit], "without the device taint eviction controller: add device-taint-eviction to --controllers"),
            (vec![limit, rules], "add device-taint-eviction to --controllers, or leave the flag out"),
            (vec![limit, both, off], "turn on the feature gate DRADeviceTaints, or leave the flag out"),
            (vec![limit, taints], "without rules: add --feature-gates=DRADeviceTaintRules=true"),
        ] {
            let error = args(&flags).unwrap_err();
            assert!(error.contains(part), "{flags:?}: {error}");
        }
        args(&[limit, both, rules]).unwrap();
        args(&[both]).unwrap();
    }

    #[test]
    fn gates_choose_what_the_device_taint_eviction_controller_does() {
        let gates = "--feature-gates=DRADeviceTaintRules=true,DRAWorkloadResourceClaims=true";
        let found = args(&["--controllers=device-taint-eviction", gates, "--max-evictions-per-rule=5"]).unwrap();
        let expected = Settings { rules: true, pod_groups: true, max_evictions_per_rule: NonZeroU64::new(5) };
        assert_eq!(found.taint_settings(), expected);
        let off = "--feature-gates=DRADeviceTaints=false,DRADeviceTaintRules=true";
        let found = args(&["--controllers=resourceclaim,device-taint-eviction", off]).unwrap();
        assert_eq!(found.enabled().collect::<Vec<_>>(), [ControllerKind::Resourceclaim]);
        let error = args(&["--controllers=device-taint-eviction", off]).unwrap_err();
        assert!(error.contains("there is no controller to run: turn it on"), "{error}");
    }
}
