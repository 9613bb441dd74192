//! The flags for the events of a node.

use std::num::NonZeroU32;

use clap::Args;

use crate::adapters::kube::EventRate;

/// How fast the events of a node are written to the API server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options for a node of a cluster (--kubeconfig FILE)")]
pub(crate) struct EventArgs {
    /// The requests for events that the agent sends to the API server in each second; 0 for no limit.
    #[arg(long, value_name = "N", default_value_t = 50, requires = "kubeconfig")]
    event_qps: u32,
    /// The requests for events that the agent sends at once after a pause.
    #[arg(long, value_name = "N", default_value = "100", requires = "kubeconfig")]
    event_burst: NonZeroU32,
}

impl EventArgs {
    /// The rate of the flags. `None` for no limit.
    pub(crate) fn rate(&self) -> Option<EventRate> {
        NonZeroU32::new(self.event_qps).map(|per_second| EventRate { per_second, burst: self.event_burst })
    }

    /// The fields of `KubeletConfiguration`.
    pub(crate) fn configuration(&self) -> serde_json::Value {
        serde_json::json!({"eventRecordQPS": self.event_qps, "eventBurst": self.event_burst})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::cli::{self, Command};

    fn rate(flags: &[&str]) -> Result<Option<(u32, u32)>, String> {
        match cli::parse(["podwright", "run"].iter().chain(flags)).map(|cli| cli.command) {
            Ok(Command::Run(args)) => {
                Ok(args.events.rate().map(|EventRate { per_second, burst }| (per_second.get(), burst.get())))
            }
            Ok(_) => panic!("run is parsed"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn events_have_the_rate_of_a_kubelet_unless_a_flag_says_otherwise() {
        assert_eq!(rate(&[]), Ok(Some((50, 100))));
        assert_eq!(rate(&["--kubeconfig=k", "--event-qps=5", "--event-burst=10"]), Ok(Some((5, 10))));
        assert_eq!(rate(&["--kubeconfig=k", "--event-qps=0"]), Ok(None));
        for (flags, says) in [
            (&["--event-qps=5"][..], "--kubeconfig"),
            (&["--kubeconfig=k", "--event-qps=-1"], "--event-qps"),
            (&["--kubeconfig=k", "--event-burst=0"], "--event-burst"),
        ] {
            let error = rate(flags).unwrap_err();
            assert!(error.contains(says), "{flags:?}: {error}");
        }
    }
}
