//! The command line.

mod admin;
mod admission;
mod certificates;
mod configuration;
mod controllers;
mod events;
mod eviction;
mod explain;
mod features;
mod gates;
pub(super) mod images;
mod kubelet;
mod machine;
mod names;
mod node_api;
mod node_settings;
mod parse;
mod pod_resources;
mod queries;
mod registration;
pub(super) mod shutdown;
mod size;
mod time;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use podwright_model::names::is_subdomain;
use podwright_sources::Origin;
use podwright_sources::manifest::UnknownFields;

pub(crate) use admin::{AdminAddress, AdminArgs, AgentArgs};
pub(crate) use admission::AdmissionArgs;
pub(crate) use certificates::CertificateArgs;
pub(crate) use controllers::{ControllerKind, ControllersArgs, PreviewArgs};
pub(crate) use eviction::EvictionArgs;
pub(crate) use explain::{ExplainArgs, ExplainedObject};
pub(crate) use names::ObjectName;
pub(crate) use node_api::NodeApiArgs;
pub(crate) use parse::parse;
pub(crate) use pod_resources::PodResourcesSocket;
pub(crate) use queries::{ExplainOutput, GetArgs, GetOutput, GiveUpArgs, HealthArgs, HealthCheck, LinkArgs, LogsArgs};
pub(crate) use size::{LogSize, RecordingSize};

use super::runtime::{Runtime, SimulatedDefault};
use node_settings::NodeSettingsArgs;
use time::whole_seconds;

/// The heading in `run --help` of flags that `--runtime cri=ENDPOINT` needs.
const CRI_ONLY: &str = "Options for a container runtime (--runtime cri=ENDPOINT)";

/// Run the pods of manifests on this machine, and query a running agent.
#[derive(Debug, Parser)]
#[command(name = "podwright", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the agent: start the pods of its manifests, until SIGINT or SIGTERM.
    Run(Box<RunArgs>),
    /// Run controllers of the control plane against the API server of a kubeconfig, until SIGINT or SIGTERM.
    Controllers(Box<ControllersArgs>),
    /// List the pods of a running agent.
    Get(GetArgs),
    /// Explain the state of a pod of a running agent: what it waits for, its transitions and events. With running controllers: explain
    /// a ResourceClaim, and which device taints evict a pod or which pods a DeviceTaintRule evicts.
    Explain(ExplainArgs),
    /// Check whether a running agent or running controllers are ready or live. The exit code is 0 if they are, and 1 if not.
    Health(HealthArgs),
    /// Print the log of a container of a running agent.
    Logs(LogsArgs),
    /// Print the link to the page of a running agent. The link contains the page's token.
    Link(LinkArgs),
    /// Give up a DRA driver that does not answer: release a ResourceClaim without it, so that its pods can end. The devices of the
    /// driver may stay prepared.
    GiveUp(GiveUpArgs),
    /// Show which devices and pods a DeviceTaintRule of a file would hit, and when the pods would be evicted. Changes nothing.
    Preview(PreviewArgs),
    /// Check manifests without running them.
    Validate(ValidateArgs),
    /// Replay a recording of the flight recorder, and print the timeline of a pod.
    Replay(ReplayArgs),
    /// Print a script that completes commands and flags in a shell, such as `source <(podwright completion bash)`.
    Completion(CompletionArgs),
    /// Print the version, as --version does.
    Version,
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The directory, file or http(s) URL to read manifests from. May be repeated [default: /etc/kubernetes/manifests as
    /// root, else podwright/manifests in the user's configuration directory].
    #[arg(long, value_name = "DIR|FILE|URL")]
    pub(crate) manifests: Vec<Origin>,
    /// Read no manifests, not even those of the default directory. Then only pods of an API server run.
    #[arg(long, conflicts_with = "manifests")]
    pub(crate) no_manifests: bool,
    /// A file with headers for the requests of manifest URLs, such as `Authorization: Bearer TOKEN`: one in each line. Other users may
    /// not be able to read it. The agent reads it once, when it starts.
    #[arg(long, value_name = "FILE", requires = "manifests")]
    pub(crate) manifest_url_header_file: Option<PathBuf>,
    /// How the agent handles an unknown field of a manifest: warn (it ignores the field and runs the pod, as a kubelet does) or
    /// strict (it refuses the pod).
    #[arg(long, value_enum, default_value_t)]
    pub(crate) manifest_fields: ManifestFields,
    /// The runtime for containers: process (processes of this machine), cri=ENDPOINT (a container runtime such as
    /// cri=unix:///run/containerd/containerd.sock) or simulated (nothing runs, pods exist only in memory).
    #[arg(long, value_name = "RUNTIME", default_value = "process")]
    pub(crate) runtime: Runtime,
    /// The directory for the agent's state [default: /var/lib/podwright as root, else podwright in the user's state
    /// directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// The name of this node. It is appended to the names of static pods [default: the host name].
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<NodeName>,
    /// Also be a node of the cluster of this kubeconfig: register the node, run the pods that the API server binds to it, and
    /// write their statuses. The credentials need the rights of the node and no more (user system:node:NAME, group
    /// system:nodes).
    #[arg(long, value_name = "FILE", conflicts_with = "until_finished")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Exit once all pods have finished: with exit code 0 if all succeeded, 1 if any failed.
    #[arg(long)]
    pub(crate) until_finished: bool,
    /// The format of log lines.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
    /// The maximum number of pods that run at a time; further pods are rejected.
    #[arg(long, value_name = "N", default_value_t = 110)]
    pub(crate) max_pods: usize,
    /// The maximum number of pods for each CPU of the machine; 0 for no such limit. The lower of this limit and --max-pods applies.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) pods_per_core: u32,
    /// The directories with the specifications of CDI devices. A device in a later directory replaces one of the same name in an
    /// earlier directory. Only root and the agent's user may be able to change them.
    #[arg(long, value_name = "DIR,...", value_delimiter = ',', default_values = podwright_host::cdi::DIRECTORIES)]
    pub(crate) cdi_spec_dirs: Vec<PathBuf>,
    /// The socket on which monitoring agents read the devices of pods, or `off` [default: pod-resources/kubelet.sock in the root
    /// directory].
    #[arg(long, value_name = "PATH|off")]
    pub(crate) pod_resources: Option<PodResourcesSocket>,
    /// The seconds after the start at which the agent deletes the ResourceSlices of DRA drivers that are not connected. With 0, the
    /// agent deletes all ResourceSlices of this node at the start.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = whole_seconds, requires = "kubeconfig")]
    pub(crate) startup_wipe_delay: Duration,
    /// Publish an event when a pod has waited this many seconds; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = whole_seconds)]
    pub(crate) explain_event_after: Duration,
    #[command(flatten)]
    pub(crate) shutdown: shutdown::ShutdownArgs,
    /// Rotate a container's log when it reaches this size in bytes, such as 10Mi; 0 for never. Simulated pods have no logs.
    #[arg(long, value_name = "SIZE", default_value_t)]
    pub(crate) container_log_max_size: LogSize,
    /// The maximum number of log files that are kept for each run of a container, at least 2.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) container_log_max_files: u32,
    /// The memory of the flight recorder in bytes, such as 16Mi; 0 turns it off. /recording of the socket serves the recording.
    #[arg(long, value_name = "SIZE", default_value_t)]
    pub(crate) recording_size: RecordingSize,
    /// A default for simulated pods, such as run-for=5s..10s; a pod's annotation simulated.podwright.dev/KEY overrides it.
    /// May be repeated. Keys: sandbox-latency, sandbox-failures, network-failures, pull-latency, pull-failures,
    /// start-latency, start-failures, run-for, exits, exit-code, stop-latency, exec-exit-code and seed.
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Options for simulated pods (--runtime simulated)")]
    pub(crate) simulate: Vec<SimulatedDefault>,
    #[command(flatten)]
    pub(crate) features: features::FeatureArgs,
    #[command(flatten)]
    pub(crate) configuration: configuration::ConfigurationArgs,
    // These groups come last, because their heading would also cover the flags after them.
    #[command(flatten)]
    pub(crate) machine: machine::MachineArgs,
    #[command(flatten)]
    pub(crate) eviction: EvictionArgs,
    #[command(flatten)]
    pub(crate) admission: AdmissionArgs,
    #[command(flatten)]
    pub(crate) registration: registration::RegistrationArgs,
    #[command(flatten)]
    pub(crate) events: events::EventArgs,
    #[command(flatten)]
    pub(crate) certificates: Box<certificates::CertificateArgs>,
    #[command(flatten)]
    pub(crate) node_api: NodeApiArgs,
    #[command(flatten)]
    pub(crate) images: images::ImageArgs,
    #[command(flatten)]
    pub(crate) node_settings: Box<NodeSettingsArgs>,
}

#[derive(Args, Debug)]
pub(crate) struct ValidateArgs {
    /// Manifest files, or directories of manifest files; - for standard input.
    #[arg(required = true, value_name = "FILE|DIR|-")]
    pub(crate) paths: Vec<PathBuf>,
    /// Also check what this runtime of `podwright run` refuses. Only `process` refuses settings before a pod runs; a container runtime
    /// judges them itself. Without this flag, only faults for every runtime are printed.
    #[arg(long, value_name = "RUNTIME")]
    pub(crate) runtime: Option<Runtime>,
}

#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// A recording, downloaded from /recording of a running agent.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print the timeline of this pod.
    #[arg(long, value_name = "NAMESPACE/NAME|UID")]
    pub(crate) pod: Option<String>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: ExplainOutput,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ManifestFields {
    #[default]
    Warn,
    Strict,
}

impl From<ManifestFields> for UnknownFields {
    fn from(fields: ManifestFields) -> Self {
        match fields {
            ManifestFields::Warn => UnknownFields::Warn,
            ManifestFields::Strict => UnknownFields::Refuse,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Args, Debug)]
pub(crate) struct CompletionArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl CompletionArgs {
    /// The script.
    pub(crate) fn script(&self) -> String {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program(), "podwright", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }
}

/// The program with all its commands. `kubelet` becomes `run` before a command line is used.
fn program() -> clap::Command {
    Cli::command().subcommand(kubelet::command())
}

/// The name of the program and its version.
pub(crate) fn version() -> String {
    Cli::command().render_version().trim_end().to_owned()
}

/// A valid node name: a DNS subdomain (RFC 1123).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeName(pub(crate) String);

impl FromStr for NodeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        subdomain("a node", text).map(NodeName)
    }
}

/// Checks the name of an object.
fn subdomain(of: &str, text: &str) -> Result<String, String> {
    if !is_subdomain(text) {
        return Err(format!(
            "not {of} name: use lower case letters, digits, '-' and '.', begin and end each part with a letter or digit, and use at \
             most 253 characters"
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        program().debug_assert();
    }

    #[test]
    fn every_shell_has_a_completion_script() {
        for shell in Shell::value_variants() {
            let script = CompletionArgs { shell: *shell }.script();
            assert!(["podwright", "explain", "all-containers"].iter().all(|word| script.contains(word)), "{shell}");
        }
        assert_eq!(version(), concat!("podwright ", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn node_names_must_be_dns_subdomains() {
        for good in ["node-1", "a.b", "1"] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        for bad in ["", "Node", "a_b", "-a", "a..b", "a."] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
    }
}
