//! The flags for the end of the agent and for the shutdown of the machine.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::time::{time_span, whole_seconds};
use podwright_actors::shutdown::ShutdownConfig;

/// Twice the default grace period of a pod (30 s).
const GRACE: Duration = Duration::from_secs(60);
/// A sixth of the time.
const CRITICAL_GRACE: Duration = Duration::from_secs(10);

/// What happens to pods when the agent ends, and when the machine shuts down.
#[derive(Args, Clone, Debug)]
pub(crate) struct ShutdownArgs {
    /// What happens to the pods when a signal ends the agent: keep (they keep running, and the next agent adopts them) or stop
    /// [default: stop with --until-finished, and for a process runtime whose standard output is a terminal; else keep].
    #[arg(long, value_enum, value_name = "WHAT", hide_possible_values = true)]
    pods_on_exit: Option<PodsOnExit>,
    /// With --pods-on-exit stop: the grace period of pods in seconds, and the part of it that is reserved for critical pods
    /// [without CRITICAL: a sixth; default: the times for a shutdown of the machine, else 60,10]. 0 keeps pods running.
    #[arg(long, value_name = "SECONDS[,CRITICAL]")]
    shutdown_grace: Option<ShutdownGrace>,
    /// The seconds by which the agent delays a shutdown of the machine, so that pods can stop. 0 does not delay it.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    shutdown_grace_period: Duration,
    /// How many of the seconds of --shutdown-grace-period are reserved for critical pods, which stop last.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    shutdown_grace_period_critical_pods: Duration,
    /// The seconds for the pods of each priority when the machine shuts down, such as 0=20,100000=30,2000000000=10, instead
    /// of --shutdown-grace-period. A pod belongs to the highest of these priorities that is not above its own.
    #[arg(
        long,
        value_name = "PRIORITY=SECONDS,...",
        conflicts_with_all = ["shutdown_grace_period", "shutdown_grace_period_critical_pods"]
    )]
    shutdown_grace_period_by_pod_priority: Option<PriorityPeriods>,
}

/// The values of `--pods-on-exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PodsOnExit {
    /// The pods keep running.
    Keep,
    /// The agent stops the pods.
    Stop,
}

impl ShutdownArgs {
    /// The times for pods when a signal ends the agent. Without `--pods-on-exit`, pods are stopped if `stops_by_default`.
    pub(crate) fn on_exit(&self, stops_by_default: bool) -> ShutdownConfig {
        let default = if stops_by_default { PodsOnExit::Stop } else { PodsOnExit::Keep };
        match self.pods_on_exit.unwrap_or(default) {
            PodsOnExit::Keep => ShutdownConfig::default(),
            PodsOnExit::Stop => match &self.shutdown_grace {
                Some(ShutdownGrace(config)) => config.clone(),
                None => Some(self.of_machine())
                    .filter(|config| !config.is_disabled())
                    .unwrap_or_else(|| ShutdownConfig::new(GRACE, CRITICAL_GRACE)),
            },
        }
    }

    /// The times for pods when the machine shuts down. Disabled unless a flag gives them, as with a kubelet.
    pub(crate) fn of_machine(&self) -> ShutdownConfig {
        match &self.shutdown_grace_period_by_pod_priority {
            Some(PriorityPeriods(periods)) => ShutdownConfig::by_priority(periods.clone()),
            None => ShutdownConfig::new(self.shutdown_grace_period, self.shutdown_grace_period_critical_pods),
        }
    }

    /// The fields of `KubeletConfiguration`.
    pub(crate) fn configuration(&self) -> serde_json::Value {
        use podwright_model::texts::format::duration;
        let group = |(priority, time): (&i32, &Duration)| serde_json::json!({"priority": priority, "shutdownGracePeriodSeconds": time.as_secs()});
        let groups = self.shutdown_grace_period_by_pod_priority.as_ref();
        serde_json::json!({
            "shutdownGracePeriod": duration(self.shutdown_grace_period),
            "shutdownGracePeriodCriticalPods": duration(self.shutdown_grace_period_critical_pods),
            "shutdownGracePeriodByPodPriority":
                groups.map(|PriorityPeriods(groups)| groups.iter().map(group).collect::<Vec<_>>()),
        })
    }

    /// What is wrong with flags that depend on each other, with the remedy.
    pub(super) fn fault(&self) -> Option<String> {
        let (total, critical) = (self.shutdown_grace_period, self.shutdown_grace_period_critical_pods);
        (critical > total).then(|| not_enough(total, critical, "with --shutdown-grace-period"))
    }
}

fn not_enough(total: Duration, critical: Duration, flag: &str) -> String {
    let (total, critical) = (total.as_secs(), critical.as_secs());
    format!("cannot reserve {critical} s of {total} s for critical pods: give more seconds {flag}, or reserve fewer")
}

/// Parses whole seconds, with or without a unit. The API of the kubelet counts in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = time_span(text)?;
    if time.subsec_nanos() > 0 {
        return Err(format!("{text:?} is not a whole number of seconds: write one such as 30 or 30s"));
    }
    Ok(time)
}

/// The value of `--shutdown-grace`: `SECONDS[,CRITICAL]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShutdownGrace(ShutdownConfig);

impl FromStr for ShutdownGrace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (total, critical) = match text.split_once(',') {
            Some((total, critical)) => (whole_seconds(total)?, whole_seconds(critical)?),
            None => {
                let total = whole_seconds(text)?;
                (total, Duration::from_secs(total.as_secs() / 6))
            }
        };
        if critical > total {
            return Err(not_enough(total, critical, "in total"));
        }
        Ok(ShutdownGrace(ShutdownConfig::new(total, critical)))
    }
}

/// The value of `--shutdown-grace-period-by-pod-priority`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PriorityPeriods(BTreeMap<i32, Duration>);

impl FromStr for PriorityPeriods {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut periods = BTreeMap::new();
        for group in text.split(',') {
            let (priority, time) = group
                .split_once('=')
                .ok_or_else(|| format!("{group:?} is not of the form PRIORITY=SECONDS: write it like 0=30"))?;
            let priority = priority.trim().parse::<i32>().map_err(|_| {
                format!("{:?} is not a priority: write a whole number from {} to {}", priority, i32::MIN, i32::MAX)
            })?;
            match periods.entry(priority) {
                Entry::Vacant(entry) => entry.insert(seconds(time.trim())?),
                Entry::Occupied(_) => {
                    return Err(format!("priority {priority} appears twice: name each priority once"));
                }
            };
        }
        Ok(PriorityPeriods(periods))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::cli::{Command, parse};

    fn args(args: &[&str]) -> Result<ShutdownArgs, String> {
        let cli = parse(["podwright", "run"].iter().chain(args)).map_err(|error| error.to_string())?;
        let Command::Run(args) = cli.command else { panic!() };
        Ok(args.shutdown)
    }

    fn periods(config: &ShutdownConfig) -> Vec<(i32, u64)> {
        config.periods().iter().map(|(priority, time)| (*priority, time.as_secs())).collect()
    }

    #[test]
    fn pods_stop_on_exit_only_by_default_or_on_request() {
        let on_exit = |flags: &[&str], default| periods(&args(flags).unwrap().on_exit(default));
        let default = vec![(0, 50), (2_000_000_000, 10)];
        assert_eq!(on_exit(&[], true), default);
        assert_eq!(on_exit(&[], false), []);
        assert_eq!(on_exit(&["--pods-on-exit", "stop"], false), default);
        assert_eq!(on_exit(&["--pods-on-exit", "keep"], true), []);
        assert_eq!(on_exit(&["--shutdown-grace", "0"], true), []);
        assert_eq!(on_exit(&["--shutdown-grace", "30"], true), [(0, 25), (2_000_000_000, 5)]);
        assert_eq!(on_exit(&["--shutdown-grace-period", "7"], true), [(0, 7), (2_000_000_000, 0)]);
        assert_eq!(on_exit(&["--shutdown-grace-period", "7", "--shutdown-grace", "6,2"], true)[0], (0, 4));
        assert!(args(&["--shutdown-grace", "5,10"]).unwrap_err().contains("critical"));
        assert!(args(&["--shutdown-grace", "soon"]).unwrap_err().contains("seconds"));
    }

    #[test]
    fn a_shutdown_of_the_machine_is_delayed_only_on_request() {
        let of_machine = |flags: &[&str]| args(flags).map(|args| periods(&args.of_machine()));
        assert_eq!(of_machine(&[]), Ok(vec![]));
        assert_eq!(of_machine(&["--shutdown-grace", "60"]), Ok(vec![]));
        let critical = "--shutdown-grace-period-critical-pods";
        let two = of_machine(&["--shutdown-grace-period", "1m", critical, "10s"]);
        assert_eq!(two, Ok(vec![(0, 50), (2_000_000_000, 10)]));
        let flag = "--shutdown-grace-period-by-pod-priority";
        assert_eq!(of_machine(&[flag, "10=5,-1=2s"]), Ok(vec![(-1, 2), (10, 5)]));
        for (flags, says) in [
            (vec!["--shutdown-grace-period", "5", critical, "10"], "cannot reserve 10 s of 5 s"),
            (vec!["--shutdown-grace-period", "1500ms"], "whole number of seconds"),
            (vec![flag, "10"], "PRIORITY=SECONDS"),
            (vec![flag, "high=5"], "not a priority"),
            (vec![flag, "1=5,1=6"], "appears twice"),
            (vec![flag, "1=5", "--shutdown-grace-period", "10"], "cannot be used with"),
        ] {
            let error = of_machine(&flags).unwrap_err();
            assert!(error.contains(says), "{flags:?}: {error}");
        }
    }
}
