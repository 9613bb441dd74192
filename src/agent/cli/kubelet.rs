//! The command `kubelet`: the flags of a kubelet. They become flags of `run`.

use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::agent::kubelet_config::{self, Field, Given, Kind, Layer, Meaning, Place};
use crate::agent::machine::KUBELET_VERSION;

/// The name of the command, and of a kubelet's binary.
pub(super) const NAME: &str = "kubelet";
/// The files of the configuration, which are no fields.
const FILES: [(&str, &str, &str); 2] = [
    ("config", "FILE", "The KubeletConfiguration (kubelet.config.k8s.io/v1beta1). Flags win over its fields"),
    (
        "config-dir",
        "DIR",
        "The directory of drop-in files *.conf, which are merged into --config in the lexical order of their names",
    ),
];
const DEFAULTS: &str = "Without a flag or a field, the values are those of a kubelet: the root directory /var/lib/kubelet, the node API on port \
                        10250, health on 127.0.0.1:10248, the cgroup root /, the container runtime unix:///run/containerd/containerd.sock \
                        and no static pods. The agent refuses a machine with swap space unless failSwapOn is false, and adopts the pods that a \
                        kubelet started.";

/// The command with its flags.
pub(super) fn command() -> Command {
    let command = Command::new(NAME)
        .about("Run the agent in the place of a kubelet, with the flags, the files and the defaults of a kubelet.")
        .after_help(DEFAULTS)
        // Tools such as kubeadm read the version from this text.
        .display_name("Kubernetes")
        .version(KUBELET_VERSION);
    let files = FILES.map(|(name, value, help)| {
        let file = Arg::new(name).long(name).value_name(value).help(help).value_parser(value_parser!(OsString));
        // A unit may have it twice. The last value counts, as with all flags.
        file.overrides_with(name)
    });
    command.args(files).args(kubelet_config::flags().map(flag))
}

/// The main file and the directory of drop-in files. An empty value is none, as for a kubelet.
pub(super) fn files(matches: &ArgMatches) -> (Option<&Path>, Option<&Path>) {
    let [file, directory] =
        FILES.map(|(name, ..)| matches.get_one::<OsString>(name).filter(|path| !path.is_empty()).map(Path::new));
    (file, directory)
}

/// The values of the flags.
///
/// # Errors
/// The flag with a value of another type, and the remedy.
pub(super) fn layer(matches: &ArgMatches) -> Result<Layer, String> {
    let mut layer = Layer::new();
    for field in kubelet_config::flags() {
        let Some(values) = matches.get_many::<String>(field.flag) else { continue };
        let values: Vec<&str> = values.map(String::as_str).collect();
        let text = match field.kind {
            Kind::Texts | Kind::TextMap(_) | Kind::BoolMap | Kind::Objects(_) => values.join(","),
            Kind::Bool | Kind::Number | Kind::Fraction | Kind::Text | Kind::Duration | Kind::Any => {
                values.last().copied().unwrap_or_default().to_owned()
            }
        };
        let value = field.kind.parse(&text).map_err(|why| format!("--{}: {why}", field.flag))?;
        layer.insert(field.key(), Given { value, place: Place::Flag(field.flag) });
    }
    Ok(layer)
}

fn flag(field: &'static Field) -> Arg {
    let flag = Arg::new(field.flag).long(field.flag).action(ArgAction::Append).help(help(field));
    let flag = if field.flag == "v" { flag.short('v') } else { flag };
    match field.kind {
        Kind::Bool => flag.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => flag.value_name("VALUE").num_args(1).allow_hyphen_values(true),
    }
}

fn help(field: &Field) -> String {
    match &field.meaning {
        Meaning::Setting(_) | Meaning::Combined if !field.path.is_empty() => format!("The field {}", field.path),
        Meaning::Setting(flag) => format!("The flag --{} of podwright run", flag.name),
        Meaning::Combined => "The flag --node-name of podwright run".to_owned(),
        Meaning::Unused(_, why) => format!("Without effect: {why}"),
        Meaning::Only(_, remedy) => format!("Refused unless it has its default: {remedy}"),
    }
}
