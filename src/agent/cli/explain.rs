//! The flags of `podwright explain`.

use std::str::FromStr;

use clap::{Args, Subcommand};

use super::names::{ObjectName, full_name, namespace};
use super::{AgentArgs, ExplainOutput, subdomain};
use podwright_model::ids::FullName;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    pub(crate) object: Option<ExplainedObject>,
    /// The pod. The name of a static pod may omit the node name at its end. Without a pod, one line is printed for each pod.
    /// A pod named `pod`, `claim`, `rule` or `help` needs its namespace, as in `default/pod`.
    #[arg(value_name = "[NAMESPACE/]NAME")]
    pod: Option<ObjectName>,
    /// The namespace of the pod [default: default].
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace, requires = "pod")]
    namespace: Option<String>,
    /// The UID of the pod, if several pods have the name [default: the pod that a source desires].
    #[arg(long, requires = "pod")]
    pub(crate) uid: Option<String>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: ExplainOutput,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

impl ExplainArgs {
    /// The full name of the pod.
    pub(crate) fn pod(&self) -> Option<FullName> {
        Some(self.pod.as_ref()?.in_namespace(self.namespace.as_deref()))
    }

    /// The error text if flags exclude each other.
    pub(super) fn fault(&self) -> Option<String> {
        self.pod.as_ref()?.fault(self.namespace.as_deref())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExplainedObject {
    /// Explain with running controllers why a ResourceClaim does not exist, is not allocated or is not released, and which pods
    /// hold it.
    Claim(ExplainClaimArgs),
    /// Explain with running controllers which device taints evict a pod and when, and what would keep it.
    Pod(ExplainTaintedPodArgs),
    /// Explain with running controllers which pods a DeviceTaintRule evicts and when, and what would keep them.
    Rule(ExplainRuleArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ExplainClaimArgs {
    /// The ResourceClaim. If you do not know the name of a generated claim, write POD-CLAIM, with the name of the claim in the spec
    /// of the pod, or POD for all claims of the pod.
    #[arg(value_name = "[NAMESPACE/]NAME", value_parser = full_name)]
    pub(crate) claim: FullName,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: ExplainOutput,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ExplainTaintedPodArgs {
    /// The pod.
    #[arg(value_name = "[NAMESPACE/]NAME", value_parser = full_name)]
    pub(crate) pod: FullName,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: ExplainOutput,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ExplainRuleArgs {
    /// The DeviceTaintRule.
    #[arg(value_name = "NAME")]
    pub(crate) rule: RuleName,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: ExplainOutput,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// The valid name of a DeviceTaintRule: a DNS subdomain (RFC 1123).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleName(pub(crate) String);

impl FromStr for RuleName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        subdomain("a rule", text).map(RuleName)
    }
}
