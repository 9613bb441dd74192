//! The flags of `podwright controllers`.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use super::gates::{FeatureGate, Gate, Gated};
use super::time::time_span;
use super::{AdminArgs, LogFormat};
use crate::actors::controllers::leader_election::Timing;
use crate::actors::controllers::resource_claim::{CONTROLLER_NAME, Features};

#[derive(Args, Debug)]
pub(crate) struct ControllersArgs {
    /// The kubeconfig of the cluster. The credentials need the permissions of examples/deploy/controllers.yaml.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,
    /// The controllers to run.
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',', default_value = "resourceclaim")]
    pub(crate) controllers: Vec<ControllerKind>,
    /// The directory for the admin socket [default: controllers in the root directory of an agent of this user].
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// The format of log lines.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
    /// The largest number of pods, pod groups and claims that the ResourceClaim controller works on at one time.
    #[arg(long, value_name = "N", default_value = "50", allow_negative_numbers = true, value_parser = workers)]
    pub(crate) concurrent_resourceclaim_syncs: NonZeroUsize,
    /// Turn optional behaviour on or off. The names are those of upstream's feature gates: DRAAdminAccess (true),
    /// DRAPrioritizedList (true) and DRAWorkloadResourceClaims (false). If a name appears twice, the last value applies.
    #[arg(long, value_name = "NAME=BOOL,...", value_delimiter = ',')]
    feature_gates: Vec<FeatureGate<Features>>,
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

fn workers(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "write a whole number of at least 1".to_owned())
}

/// A controller of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum ControllerKind {
    /// Generates, reserves, releases and deletes ResourceClaims.
    Resourceclaim,
}

impl fmt::Display for ControllerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ControllerKind::Resourceclaim => CONTROLLER_NAME,
        })
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
        let fraction = (timing.lease_duration.subsec_nanos() > 0)
            .then(|| "--leader-elect-lease-duration must be a whole number of seconds".to_owned());
        self.admin.fault().or(fault).or(repeated).or(fraction)
    }

    /// The durations of the elections.
    pub(crate) fn timing(&self) -> Timing {
        Timing {
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
        }
    }

    /// The feature gates.
    pub(crate) fn features(&self) -> Features {
        FeatureGate::features(&self.feature_gates)
    }
}

impl Gated for Features {
    const GATES: &'static [Gate<Self>] = &[
        ("DRAAdminAccess", |features| &mut features.admin_access),
        ("DRAPrioritizedList", |features| &mut features.prioritized_list),
        ("DRAWorkloadResourceClaims", |features| &mut features.pod_groups),
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
        assert!(args.leader_elect);
    }

    #[test]
    fn bad_flags_are_refused_with_the_remedy() {
        for (flag, part) in [
            ("--controllers=resourceclaims", "'resourceclaim'"),
            ("--controllers=resourceclaim,resourceclaim", "name each controller once"),
            ("--concurrent-resourceclaim-syncs=0", "concurrent-resourceclaim-syncs"),
            ("--leader-elect-lease-duration=9s", "correct --leader-elect-lease-duration"),
            ("--leader-elect-lease-duration=15500ms", "whole number of seconds"),
            (
                "--feature-gates=DRAAdmin=true",
                "\"DRAAdmin\" is no feature gate of the controllers; known gates: DRAAdminAccess, ",
            ),
            ("--feature-gates=DRAAdminAccess", "use NAME=true or NAME=false"),
            ("--admin=0.0.0.0:1", "--admin-tls-cert"),
        ] {
            let error = args(&[flag]).unwrap_err();
            assert!(error.contains(part), "{flag}: {error}");
        }
        let found = args(&["--leader-elect=false", "--leader-elect-lease-duration=9s"]).unwrap();
        assert!(!found.leader_elect, "the durations do not count without an election");
        let found = args(&["--feature-gates=DRAWorkloadResourceClaims=true,DRAAdminAccess=false"]).unwrap().features();
        assert_eq!((found.pod_groups, found.admin_access, found.prioritized_list), (true, false, true));
    }
}
