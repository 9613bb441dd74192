//! The flags of the commands that query a running agent.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;

use super::AgentArgs;
use super::names::{ObjectName, namespace};
use super::time::{point_in_time, span_with_unit};
use podwright_model::ids::FullName;

#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// The kind of objects to list.
    #[arg(value_enum)]
    pub(crate) what: Resource,
    /// List only pods of these names. The name of a static pod may omit the node name at its end.
    #[arg(value_name = "[NAMESPACE/]NAME")]
    pub(crate) names: Vec<ObjectName>,
    /// List only the pods of this namespace.
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace)]
    namespace: Option<String>,
    /// List the pods of all namespaces. This is the default.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// After the list, print each pod that changes, until the agent ends.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// The output format. With one name, `json` and `yaml` print the pod without a list.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: GetOutput,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

impl GetArgs {
    /// The namespace of the pods to list; `None` for all namespaces.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|_| !self.all_namespaces)
    }

    /// The error text if flags exclude each other.
    pub(super) fn fault(&self) -> Option<String> {
        if self.watch && matches!(self.output, GetOutput::Json | GetOutput::Yaml) {
            return Some("--watch prints rows of a table: leave out --output, or use --output wide".to_owned());
        }
        self.names.iter().find_map(|name| name.fault(self.namespace()))
    }
}

#[derive(Args, Debug)]
pub(crate) struct HealthArgs {
    /// ready (/readyz) or live (/healthz).
    #[arg(value_enum)]
    pub(crate) check: HealthCheck,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// The pod. The name of a static pod may omit the node name at its end.
    #[arg(value_name = "[NAMESPACE/]NAME")]
    pod: ObjectName,
    /// The container, as with --container.
    #[arg(value_name = "CONTAINER", conflicts_with = "container")]
    positional_container: Option<String>,
    /// The namespace of the pod [default: default].
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace)]
    namespace: Option<String>,
    /// The UID of the pod, if several pods have the name [default: the pod that a source desires].
    #[arg(long)]
    pub(crate) uid: Option<String>,
    /// The container [default: the one that the pod's annotation kubectl.kubernetes.io/default-container names, or the
    /// only one].
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// Print the logs of all containers, one after the other. With --follow, their lines are printed as they are written.
    #[arg(long, conflicts_with_all = ["container", "positional_container"])]
    pub(crate) all_containers: bool,
    /// Print new lines as they are written, until the container ends.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print the log of the container's previous run.
    #[arg(short, long, conflicts_with = "follow")]
    pub(crate) previous: bool,
    /// Print only the last LINES lines; -1 for all lines.
    #[arg(long, value_name = "LINES", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    tail: Option<i64>,
    /// Print only lines that are newer than this, such as 90s, 5m or 1h30m.
    #[arg(long, value_name = "SPAN", value_parser = span_with_unit)]
    pub(crate) since: Option<Duration>,
    /// Print only lines from this time on, such as 2026-11-21T20:30:00Z.
    #[arg(long, value_name = "TIME", value_parser = point_in_time, conflicts_with = "since")]
    pub(crate) since_time: Option<Timestamp>,
    /// Print the time before each line.
    #[arg(long)]
    pub(crate) timestamps: bool,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

impl LogsArgs {
    /// The full name of the pod.
    pub(crate) fn pod(&self) -> FullName {
        self.pod.in_namespace(self.namespace.as_deref())
    }

    /// The container that the flags name.
    pub(crate) fn container(&self) -> Option<&str> {
        self.container.as_deref().or(self.positional_container.as_deref())
    }

    /// The number of lines from the end of the log; `None` for all lines.
    pub(crate) fn tail(&self) -> Option<u64> {
        self.tail.and_then(|lines| u64::try_from(lines).ok())
    }

    /// The error text if flags exclude each other.
    pub(super) fn fault(&self) -> Option<String> {
        self.pod.fault(self.namespace.as_deref())
    }
}

#[derive(Args, Debug)]
pub(crate) struct GiveUpArgs {
    /// The ResourceClaim.
    #[arg(value_name = "[NAMESPACE/]NAME", value_parser = super::names::full_name)]
    pub(crate) claim: FullName,
    /// The name of the driver.
    #[arg(long, value_name = "NAME")]
    pub(crate) driver: String,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

#[derive(Args, Debug)]
pub(crate) struct LinkArgs {
    /// The root directory of the agent [default: the one of `podwright run` for this user].
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Resource {
    #[value(alias = "pod", alias = "po")]
    Pods,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HealthCheck {
    Ready,
    Live,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum GetOutput {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplainOutput {
    #[default]
    Text,
    Json,
}

#[cfg(test)]
mod tests {
    use crate::agent::cli::{Command, parse};

    fn refusal(args: &[&str]) -> String {
        parse(["podwright"].iter().chain(args)).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn pod_and_container_of_a_log_have_several_forms() {
        let logs = |args: &[&str]| match parse(["podwright", "logs"].iter().chain(args)).unwrap().command {
            Command::Logs(args) => (args.pod().to_string(), args.container().map(str::to_owned), args.tail()),
            other => panic!("{other:?}"),
        };
        let expected = |pod: &str, container: Option<&str>, tail| (pod.to_owned(), container.map(str::to_owned), tail);
        assert_eq!(logs(&["web"]), expected("default/web", None, None));
        assert_eq!(logs(&["web", "main", "-n", "shop"]), expected("shop/web", Some("main"), None));
        assert_eq!(logs(&["shop/web", "-c", "main", "--tail", "-1"]), expected("shop/web", Some("main"), None));
        assert_eq!(logs(&["web", "--tail=0"]), expected("default/web", None, Some(0)));
    }

    #[test]
    fn flags_that_exclude_each_other_are_refused() {
        for (args, says) in [
            (&["logs", "a/web", "-n", "b"][..], "a/web is not in the namespace b"),
            (&["logs", "web", "main", "-c", "side"], "cannot be used with"),
            (&["logs", "web", "main", "--all-containers"], "cannot be used with"),
            (&["logs", "web", "--tail", "-2"], "-2 is not in -1.."),
            (&["logs", "web", "--since", "5"], "write 5s"),
            (&["logs", "web", "-n", "a/b"], "not a namespace name"),
            (&["explain", "a/web", "-n", "b"], "a/web is not in the namespace b"),
            (&["get", "pods", "a/web", "-n", "b"], "a/web is not in the namespace b"),
            (&["get", "pods", "-n", "b", "-A"], "cannot be used with"),
            (&["get", "pods", "-w", "-o", "yaml"], "--watch prints rows of a table"),
        ] {
            assert!(refusal(args).contains(says), "{args:?}: {}", refusal(args));
        }
        for args in [&["get", "po", "-A", "-w"][..], &["get", "pods", "web", "shop/web", "-o", "yaml"], &["version"]] {
            assert_eq!(refusal(args), "", "{args:?}");
        }
    }
}
