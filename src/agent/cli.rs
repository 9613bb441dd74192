//! The command line.

#[cfg(feature = "cri")]
pub(super) mod images;
#[cfg(feature = "cri")]
mod node_settings;
mod parse;
mod size;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::actors::ids::FullName;
use crate::actors::shutdown::ShutdownConfig;
use crate::adapters::sources::Origin;
use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use parse::parse;
pub(crate) use size::{LogSize, RecordingSize};

use super::runtime::Runtime;
#[cfg(feature = "simulated")]
use super::runtime::Simulate;
#[cfg(feature = "cri")]
use node_settings::NodeSettingsArgs;

/// Runs pods on this machine, and tells what they wait for.
#[derive(Debug, Parser)]
#[command(name = "podwright", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the pods of manifests until a signal comes.
    Run(Box<RunArgs>),
    /// Show what a running agent has.
    Get(GetArgs),
    /// Tell why a pod of a running agent is where it is, and what it waits for.
    Explain(ExplainArgs),
    /// Print what a container of a running agent wrote.
    Logs(LogsArgs),
    /// Check manifests without running them.
    Validate(ValidateArgs),
    /// Run a recording again, and tell what happened to a pod.
    Replay(ReplayArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Where manifests are: a directory, a file or an http(s) URL; may be given several times [default:
    /// /etc/kubernetes/manifests as root, else podwright/manifests in the user's configuration directory].
    #[arg(long, value_name = "DIR|FILE|URL")]
    pub(crate) manifests: Vec<Origin>,
    /// What runs containers: process (processes of this machine), cri=ENDPOINT (a container runtime, like
    /// cri=unix:///run/containerd/containerd.sock) or simulated (nothing; pods live in memory).
    #[arg(long, value_name = "RUNTIME", default_value = "process")]
    pub(crate) runtime: Runtime,
    #[cfg(feature = "cri")]
    #[command(flatten)]
    pub(crate) images: images::ImageArgs,
    /// How containers of a container runtime find names, and where their cgroups are.
    #[cfg(feature = "cri")]
    #[command(flatten)]
    pub(crate) node_settings: Box<NodeSettingsArgs>,
    /// What simulated pods do unless their annotations simulated.podwright.dev/KEY say otherwise, like run-for=5s..10s; may
    /// be given several times. Keys: sandbox-latency, sandbox-failures, network-failures, pull-latency, pull-failures,
    /// start-latency, start-failures, run-for, exits, exit-code, stop-latency, exec-exit-code, and seed.
    #[cfg(feature = "simulated")]
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) simulate: Vec<Simulate>,
    /// The agent's directory [default: /var/lib/podwright as root, else podwright in the user's state directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Where the page, /healthz, /readyz, /metrics, /pods, /explain and /recording are served.
    #[arg(long, value_name = "ADDR:PORT", default_value_t)]
    pub(crate) admin: AdminAddress,
    /// The name of this node, which static pods' names end in [default: the host's name].
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<NodeName>,
    /// End once every pod has finished: with code 0 if all succeeded, with 1 if one failed.
    #[arg(long)]
    pub(crate) until_finished: bool,
    /// The form of log lines.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
    /// How many pods may run at a time.
    #[arg(long, value_name = "N", default_value_t = 110)]
    pub(crate) max_pods: usize,
    /// After how many seconds a pod's wait becomes an event; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = whole_seconds)]
    pub(crate) explain_event_after: Duration,
    /// How long pods have to stop when the agent is asked to end, and how much of that is kept for critical ones; 0
    /// leaves them running for the next agent, as those of a container runtime always are.
    #[arg(long, value_name = "SECONDS[,CRITICAL]", default_value_t)]
    pub(crate) shutdown_grace: ShutdownGrace,
    /// From which size on the log of a container is moved away and a new one begun, such as 10Mi; 0 for never. Not for
    /// simulated pods, which have none.
    #[arg(long, value_name = "SIZE", default_value_t)]
    pub(crate) container_log_max_size: LogSize,
    /// How many files of each run of a container there are at the most.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) container_log_max_files: u32,
    /// How much memory the flight recorder may take, such as 16Mi; 0 turns it off. Get the recording at /recording.
    #[arg(long, value_name = "SIZE", default_value_t)]
    pub(crate) recording_size: RecordingSize,
}

#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// What to show.
    #[arg(value_enum)]
    pub(crate) what: Resource,
    /// The form of the answer.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: GetOutput,
    /// Where the agent answers.
    #[arg(long, value_name = "ADDR:PORT", default_value_t)]
    pub(crate) admin: AdminAddress,
}

#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// Which pod; a line for each of them if none is named.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) pod: Option<FullName>,
    /// Which of the pods of that name, if an earlier one is still known [default: the one that is wanted].
    #[arg(long, requires = "pod")]
    pub(crate) uid: Option<String>,
    /// The form of the answer.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: ExplainOutput,
    /// Where the agent answers.
    #[arg(long, value_name = "ADDR:PORT", default_value_t)]
    pub(crate) admin: AdminAddress,
}

#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// Which pod.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) pod: FullName,
    /// Which of its containers, if it has several [default: the one that its annotation
    /// kubectl.kubernetes.io/default-container names].
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
    /// Go on until the container has ended.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// The run before this one.
    #[arg(short, long, conflicts_with = "follow")]
    pub(crate) previous: bool,
    /// Only the last so many lines.
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    /// Only lines that are no older, like 90s, 5m or 1h30m.
    #[arg(long, value_name = "TIME", value_parser = time_span)]
    pub(crate) since: Option<Duration>,
    /// Each line with the time when it was written.
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// Where the agent answers.
    #[arg(long, value_name = "ADDR:PORT", default_value_t)]
    pub(crate) admin: AdminAddress,
}

#[derive(Args, Debug)]
pub(crate) struct ValidateArgs {
    /// Manifests, or directories of them.
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) paths: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// A recording, saved from /recording of a running agent.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Tell what happened to this pod.
    #[arg(long, value_name = "NAMESPACE/NAME|UID")]
    pub(crate) pod: Option<String>,
    /// The form of the answer.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: ExplainOutput,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Resource {
    #[value(alias = "pod", alias = "po")]
    Pods,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum GetOutput {
    #[default]
    Table,
    Wide,
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplainOutput {
    #[default]
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Where the admin endpoints are: a loopback address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdminAddress(pub(crate) SocketAddr);

impl Default for AdminAddress {
    fn default() -> Self {
        AdminAddress(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 10255))
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numeric = match text.strip_prefix("localhost:") {
            Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
            None => text.to_owned(),
        };
        let address: SocketAddr = numeric
            .parse()
            .map_err(|_| "not an address with a port: write 127.0.0.1:10255 or [::1]:10255".to_owned())?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "{} can be reached from other machines, which would need TLS and a token, and this version has neither: \
                 use an address of 127.0.0.0/8 or [::1]",
                show(address.ip())
            ));
        }
        Ok(AdminAddress(address))
    }
}

fn show(ip: IpAddr) -> String {
    if ip.is_unspecified() { format!("{ip}, which means every address,") } else { ip.to_string() }
}

/// A name that a node may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeName(pub(crate) String);

impl FromStr for NodeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let label = |label: &str| {
            label.starts_with(letter) && label.ends_with(letter) && label.chars().all(|c| letter(c) || c == '-')
        };
        if text.len() > 253 || !text.split('.').all(label) {
            return Err(
                "a node's name has lower case letters, digits, '-' and '.', and starts and ends with a letter or \
                        digit"
                    .into(),
            );
        }
        Ok(NodeName(text.to_owned()))
    }
}

fn whole_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse::<u32>().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Ok(Duration::from_secs(seconds.into()))
}

/// A time such as `90s`, `5m` or `1h30m`, or a number of seconds.
fn time_span(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    let span = text.parse::<jiff::SignedDuration>().ok().and_then(|span| Duration::try_from(span).ok());
    span.ok_or_else(|| format!("{text:?} is no time: write one as in 90s, 5m or 1h30m"))
}

/// `SECONDS[,CRITICAL]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShutdownGrace(pub(crate) ShutdownConfig);

impl Default for ShutdownGrace {
    /// Twice the grace that pods have by default, and a sixth of it for critical ones.
    fn default() -> Self {
        ShutdownGrace(ShutdownConfig { total: Duration::from_secs(60), critical: Duration::from_secs(10) })
    }
}

impl fmt::Display for ShutdownGrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.0.total.as_secs(), self.0.critical.as_secs())
    }
}

impl FromStr for ShutdownGrace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (total, critical) = match text.split_once(',') {
            Some((total, critical)) => (whole_seconds(total)?, whole_seconds(critical)?),
            None => {
                let total = whole_seconds(text)?;
                (total, total / 6)
            }
        };
        if critical > total {
            return Err(format!(
                "{} s of {} s cannot be kept for critical pods: give more in all, or keep less",
                critical.as_secs(),
                total.as_secs()
            ));
        }
        Ok(ShutdownGrace(ShutdownConfig { total, critical }))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_loopback_addresses_are_taken_for_admin() {
        for good in ["127.0.0.1:1", "127.9.9.9:80", "[::1]:80", "localhost:80"] {
            assert!(good.parse::<AdminAddress>().is_ok(), "{good}");
        }
        for (bad, says) in [
            ("0.0.0.0:80", "TLS"),
            ("10.0.0.1:80", "TLS"),
            ("127.0.0.1", "with a port"),
            ("localhost:", "with a port"),
            (":80", "with a port"),
        ] {
            let error = bad.parse::<AdminAddress>().unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    #[test]
    fn a_shutdown_grace_has_a_total_and_a_part_of_it() {
        let parse = |text: &str| text.parse::<ShutdownGrace>().map(|grace| grace.to_string());
        assert_eq!(parse("60,10").as_deref(), Ok("60,10"));
        assert_eq!(parse("30").as_deref(), Ok("30,5"));
        assert_eq!(parse("0").as_deref(), Ok("0,0"));
        assert!(parse("5,10").unwrap_err().contains("critical"));
        assert!(parse("soon").unwrap_err().contains("seconds"));
    }

    #[test]
    fn times_have_a_unit() {
        for (text, seconds) in [("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("7", 7.0), ("1500ms", 1.5)] {
            assert_eq!(time_span(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["soon", "-5s", "", "5 parsecs"] {
            assert!(time_span(text).unwrap_err().contains("1h30m"), "{text}");
        }
    }

    #[test]
    fn node_names_are_dns_names() {
        for good in ["node-1", "a.b", "1"] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        for bad in ["", "Node", "a_b", "-a", "a..b", "a."] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
    }
}
