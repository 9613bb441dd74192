//! The flags for the configuration of a kubelet, and the words that its fields add to a command line.

use std::error::Error as _;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, Args, Error};

use super::gates::Gated;
use super::node_api::NodeApiAddress;
use super::{RunArgs, kubelet};
use crate::agent::kubelet_config::{self, Context, Layer, Needs, Notice, Setting};
use crate::agent::runtime::Runtime;
use podwright_actors::claims::ClaimFeatures;

/// The configuration of a kubelet.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ConfigurationArgs {
    /// Read settings from this KubeletConfiguration (kubelet.config.k8s.io/v1beta1). Flags win over its fields.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Read more settings from the files *.conf below this directory, in the lexical order of their names. A later file wins over an
    /// earlier one and over --config.
    #[arg(long, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// The values that have no effect.
    #[arg(skip)]
    pub(crate) notices: Vec<Notice>,
}

/// The flags with which a flag from a configuration contradicts the user. The user's flag wins.
const REPLACED_BY: [(&str, &[&str]); 7] = [
    ("shutdown-grace-period", &["shutdown-grace-period-by-pod-priority"]),
    ("shutdown-grace-period-critical-pods", &["shutdown-grace-period-by-pod-priority"]),
    ("shutdown-grace-period-by-pod-priority", &["shutdown-grace-period", "shutdown-grace-period-critical-pods"]),
    ("tls-cert-file", &["rotate-server-certificates"]),
    ("tls-private-key-file", &["rotate-server-certificates"]),
    ("rotate-server-certificates", &["tls-cert-file"]),
    ("manifests", &["no-manifests"]),
];

/// What a kubelet does without a flag or a field (kubelet 1.36), as flags of `run`.
const KUBELET_DEFAULTS: [(&str, &str); 6] = [
    ("root", "--root=/var/lib/kubelet"),
    ("runtime", "--runtime=cri=unix:///run/containerd/containerd.sock"),
    ("admin", "--admin=127.0.0.1:10248"),
    ("cgroup-root", "--cgroup-root=/"),
    ("manifests", "--no-manifests"),
    ("fail-swap-on", "--fail-swap-on=true"),
];

/// A command line of `run` with the settings of a configuration.
#[derive(Debug)]
pub(super) struct Configured {
    pub(super) words: Vec<OsString>,
    pub(super) notices: Vec<Notice>,
    settings: Vec<Setting>,
}

impl Configured {
    /// The command line `words` of `run` with the settings of its files. `given` says whether the user gave the flag of an argument.
    ///
    /// # Errors
    /// The faults of the files, with their remedies.
    pub(super) fn of_run(run: &RunArgs, words: &[OsString], given: impl Fn(&str) -> bool) -> Result<Self, String> {
        let ConfigurationArgs { config, config_dir, .. } = &run.configuration;
        let layers =
            kubelet_config::read(config.as_deref(), config_dir.as_deref()).map_err(|error| error.to_string())?;
        let given = |flag: &str| given(&flag.replace('-', "_"));
        let kubeconfig = run.kubeconfig.as_ref().filter(|_| !given("bootstrap-kubeconfig"));
        let (settings, mut notices) = settings(layers, kubeconfig.and_then(|path| path.to_str()))?;
        let mut kept = Vec::new();
        for setting in settings {
            // Feature gates are merged by their names.
            let own = (setting.flag != "feature-gates").then_some(setting.flag);
            match own.into_iter().chain(contrary(setting.flag)).find(|flag| given(flag)) {
                Some(flag) => notices.push(setting.notice(format!("the flag --{flag} applies"))),
                None => kept.push(setting),
            }
        }
        let has = Has {
            cluster: run.kubeconfig.is_some(),
            node_api: run.node_api.node_api != NodeApiAddress::Off && !turn_off_node_api(&kept),
            container_runtime: if given("runtime") {
                matches!(run.runtime, Runtime::Cri(_))
            } else {
                kept.iter().any(|setting| setting.flag == "runtime")
            },
        };
        let kept = effective(kept, has, &mut notices);
        let (program, own) = words.split_at(words.len().min(2));
        let added = kept.iter().map(|setting| OsString::from(setting.word()));
        let words = program.iter().cloned().chain(added).chain(own.iter().cloned()).collect();
        Ok(Configured { words, notices, settings: kept })
    }

    /// The command line of `run` that does what the flags of `kubelet` request.
    ///
    /// # Errors
    /// The faults of the flags and the files, with their remedies.
    pub(super) fn of_kubelet(matches: &ArgMatches) -> Result<Self, String> {
        let (config, config_dir) = kubelet::files(matches);
        let mut layers = kubelet_config::read(config, config_dir).map_err(|error| error.to_string())?;
        layers.push(kubelet::layer(matches)?);
        let (settings, mut notices) = settings(layers, None)?;
        let has = Has {
            cluster: settings.iter().any(|setting| setting.flag == "kubeconfig"),
            node_api: !turn_off_node_api(&settings),
            container_runtime: true,
        };
        let kept = effective(settings, has, &mut notices);
        let is_default = |flag: &str| !kept.iter().any(|setting| setting.flag == flag);
        let defaults = KUBELET_DEFAULTS.iter().filter(|(flag, _)| is_default(flag)).map(|(_, word)| (*word).to_owned());
        let program = ["podwright", "run", "--adopt-kubelet-pods"].map(str::to_owned);
        let words = program.into_iter().chain(defaults).chain(kept.iter().map(Setting::word));
        let words: Vec<OsString> = words.map(OsString::from).collect();
        Ok(Configured { words, notices, settings: kept })
    }

    /// An error of the command line. If a field of the configuration has caused it, the error names the place of the field.
    pub(super) fn explain(&self, error: Error, program: &mut clap::Command) -> Error {
        let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return error };
        let Some(setting) = self.settings.iter().find(|setting| is_flag(setting, argument)) else { return error };
        let text = match error.source() {
            Some(source) => source.to_string(),
            None => {
                let text = error.to_string();
                text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
            }
        };
        let Notice { place, field, why } = setting.notice(text);
        program.error(error.kind(), format!("{place}: {field}: {why}"))
    }

    /// A fault of flags together. If a field of the configuration has set the flag that the text begins with, the place of the field
    /// comes first.
    pub(super) fn locate(&self, text: String) -> String {
        match self.settings.iter().find(|setting| is_flag(setting, &text)) {
            Some(setting) => {
                let Notice { place, field, why } = setting.notice(text);
                format!("{place}: {field}: {why}")
            }
            None => text,
        }
    }
}

impl ConfigurationArgs {
    /// Whether the flags name a configuration.
    pub(super) fn is_given(&self) -> bool {
        self.config.is_some() || self.config_dir.is_some()
    }
}

/// The flags that contradict a flag.
fn contrary(flag: &str) -> impl Iterator<Item = &'static str> {
    REPLACED_BY.into_iter().filter(move |(replaced, _)| *replaced == flag).flat_map(|(_, by)| by.iter().copied())
}

/// Whether a text begins with the flag of a setting.
fn is_flag(setting: &Setting, text: &str) -> bool {
    let rest = text.strip_prefix("--").and_then(|text| text.strip_prefix(setting.flag));
    rest.is_some_and(|rest| !rest.starts_with(|next: char| next == '-' || next.is_ascii_alphanumeric()))
}

fn settings(layers: Vec<Layer>, kubeconfig: Option<&str>) -> Result<(Vec<Setting>, Vec<Notice>), String> {
    let (layer, mut notices) = kubelet_config::merge(layers);
    let gates: Vec<&'static str> = ClaimFeatures::GATES.iter().map(|(name, _)| *name).collect();
    let context = Context { gates: &gates, kubeconfig };
    let (settings, more) = kubelet_config::convert(&layer, context).map_err(|faults| kubelet_config::lines(&faults))?;
    notices.extend(more);
    Ok((settings, notices))
}

/// What the agent has, without which some settings have no effect.
#[derive(Clone, Copy)]
struct Has {
    cluster: bool,
    node_api: bool,
    container_runtime: bool,
}

fn turn_off_node_api(settings: &[Setting]) -> bool {
    settings.iter().any(|setting| setting.flag == "node-api" && setting.value.as_deref() == Some("off"))
}

/// The settings that have an effect. The others become notices.
fn effective(settings: Vec<Setting>, has: Has, notices: &mut Vec<Notice>) -> Vec<Setting> {
    let mut kept = Vec::new();
    for setting in settings {
        let why = match setting.needs {
            Needs::Cluster | Needs::NodeApi if !has.cluster => "it has no effect without --kubeconfig",
            Needs::NodeApi if !has.node_api => "the node API is off",
            Needs::ContainerRuntime if !has.container_runtime => "it has no effect without --runtime cri=ENDPOINT",
            Needs::Nothing | Needs::Cluster | Needs::NodeApi | Needs::ContainerRuntime => {
                kept.push(setting);
                continue;
            }
        };
        notices.push(setting.notice(why.to_owned()));
    }
    kept
}

#[cfg(test)]
mod tests;
