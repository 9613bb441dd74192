//! Plans a container: turns its definition into the record of the command that the shim runs. Pure.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Lifecycle, PodSpec, ResourceRequirements};
use podwright_core::admission::NoRootPods;
use podwright_core::config::oom_score::oom_score_adj;
use podwright_core::containers::definition::Definition;
use podwright_model::pod::ContainerKind;
use podwright_model::quantity::Amount;
use podwright_ports::{ContainerConfig, RuntimeError};
use rustix::process::Signal;

use super::files::Layout;
use super::identity::{self, Identity};
use super::record::{Cgroup, ContainerRecord, Input, RunRecord};
use super::rootfs::{self, Link};
use super::security::{self, AgentRights};
use super::view;
use super::{CONTAINER_ENV, ROOTFS_ENV, TERMINATION_LOG_ENV};

/// The settings of the runtime and the node that a plan depends on.
pub(super) struct PlanContext<'a> {
    pub(super) layout: &'a Layout,
    pub(super) shim: &'a [String],
    /// The parent of the containers' cgroups; `None` if containers run without cgroups.
    pub(super) cgroups: Option<&'a Path>,
    pub(super) node: identity::NodeAccounts<'a>,
    pub(super) rights: AgentRights,
    /// Whether the ephemeral containers of an API server's pods that are or can become root of the node are refused.
    pub(super) refuse_ephemeral_root: bool,
    /// The soft limit on open files that containers get; `None` keeps the agent's limit.
    pub(super) open_files: Option<u64>,
    /// The machine's memory in bytes.
    pub(super) memory: i64,
}

/// A container that is about to be created.
#[derive(Debug)]
pub(super) struct ContainerPlan {
    pub(super) record: ContainerRecord,
    pub(super) run: RunRecord,
    pub(super) links: Vec<Link>,
    /// Whether the container's primary group is the pod's own group. The group is known once the pod has its directory.
    pub(super) in_pod_group: bool,
}

/// Decides how a container is run.
///
/// # Errors
/// [`RuntimeError::Config`], with the remedy, if the container requires a feature that this runtime does not have.
pub(super) fn plan(
    config: &ContainerConfig,
    context: &PlanContext<'_>,
    id: &str,
    created_at: u64,
) -> Result<ContainerPlan, RuntimeError> {
    let (pod, name) = (&*config.pod, config.name.as_str());
    let spec = Definition::find_in(pod, config.kind, name)
        .ok_or_else(|| RuntimeError::config(format!("pod {} has no container {name:?}", pod.full_name())))?;
    // The admission of the node has checked the other containers of a new pod. A pod that was admitted earlier keeps running.
    if context.refuse_ephemeral_root && config.kind == ContainerKind::Ephemeral {
        let rule = NoRootPods { agent: context.node.user };
        rule.check(pod, name, spec.security()).map_err(RuntimeError::config)?;
    }
    let command: Vec<String> = config.command.iter().chain(&config.args).cloned().collect();
    if command.is_empty() {
        return Err(no_command(name));
    }
    without_nul(name, &command, config.env.iter().map(|(key, value)| (key.as_str(), value.as_str())))?;
    let uid = pod.uid().to_string();
    for part in [uid.as_str(), name] {
        if part.contains('/') || matches!(part, "" | "." | "..") {
            return Err(RuntimeError::config(format!("{part:?} cannot be part of a path: use another UID or name")));
        }
    }
    let root = context.layout.rootfs(&uid, name, id);
    let mut links = rootfs::links(name, &config.mounts)?;
    let termination_log = termination_log(name, spec.message_path())?;
    let own = limits(name, spec.resources())?;
    // If a container has no limit of its own, the limit of the whole pod applies (KEP-2837).
    let whole = limits(name, pod.spec().resources.as_ref())?;
    let (memory, cpu) = (own.0.or(whole.0), own.1.or(whole.1));
    let confinement = security::confinement(name, pod.spec(), spec.security(), context.rights)?;
    let pods = context.layout.pods();
    let request = view::ViewRequest {
        uid: &uid,
        name,
        mounts: &config.mounts,
        read_only_root: spec.security().and_then(|it| it.read_only_root_filesystem) == Some(true),
        privileged: spec.security().and_then(|it| it.privileged) == Some(true),
        node_processes: pod.spec().host_pid == Some(true),
        pods: &pods,
        volume_mounts: spec.mounts(),
        // The volume of a log in a mount is a mount itself.
        termination_log: Some(root.join(&termination_log)).filter(|_| !rootfs::is_in_mount(&termination_log, &links)),
    };
    let confinement = view::confine(&request, context.rights, confinement)?;
    if confinement.view.is_some() {
        let mounted =
            |(number, link): (usize, Link)| Link { target: link.target.mounted(request.place(number)), ..link };
        links = links.into_iter().enumerate().map(mounted).collect();
    }
    let Identity { user, in_pod_group } =
        identity::resolve(name, pod.spec().security_context.as_ref(), spec.security(), &context.node)?;
    let input = Input { stdin: spec.stdin(), once: spec.stdin_once(), terminal: spec.tty() };
    let run = RunRecord {
        id: id.into(),
        shim: context.shim.to_vec(),
        env: environment(config, id, &links, &root, &root.join(&termination_log)),
        command,
        cwd: rootfs::working_dir(&root, spec.working_dir(), &links),
        user,
        log: context.layout.log(&uid, name, config.restart_count),
        stop_signal: stop_signal(name, spec.lifecycle())?.as_raw(),
        cgroup: context.cgroups.map(|base| Cgroup { path: base.join(id), memory, cpu }),
        message_from_log: spec.message_policy() == Some("FallbackToLogsOnError"),
        open_files: context.open_files,
        oom_score_adj: oom_score_adj(pod, config.kind, name, context.memory)
            .map_err(|error| RuntimeError::config(format!("container {name}: {error}")))?,
        confinement,
        rootfs: root,
        termination_log,
        input,
    };
    let record = ContainerRecord {
        id: id.into(),
        sandbox: config.sandbox.as_str().into(),
        uid,
        name: pod.full_name().name().into(),
        namespace: pod.full_name().namespace().into(),
        container: name.into(),
        restart_count: config.restart_count,
        created_at,
        spec_hash: config.spec_hash,
        image: spec.image().into(),
        image_id: config.image_id.clone(),
        user: None,
        input,
    };
    Ok(ContainerPlan { record, run, links, in_pod_group })
}

/// The faults for which this runtime refuses the containers of a pod, whatever the rights of the agent are. Empty if there are none.
pub fn unsupported(spec: &PodSpec) -> Vec<String> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers.flat_map(|container| faults(spec, container)).map(|error| error.to_string()).collect()
}

fn faults(spec: &PodSpec, container: &Container) -> Vec<RuntimeError> {
    let name = container.name.as_str();
    let security = container.security_context.as_ref();
    let command = || container.command.iter().chain(&container.args).flatten();
    let variables = container.env.iter().flatten();
    let variables = variables.filter_map(|variable| Some((variable.name.as_str(), variable.value.as_deref()?)));
    let mounts = container.volume_mounts.iter().flatten();
    let mounts = mounts.map(|mount| (mount.name.as_str(), mount.mount_path.as_str()));
    let checks = [
        command().next().map(drop).ok_or_else(|| no_command(name)),
        without_nul(name, command(), variables),
        security::supported(name, spec, security).map(drop),
        rootfs::mount_points(name, mounts).map(drop),
        termination_log(name, container.termination_message_path.as_deref()).map(drop),
        stop_signal(name, container.lifecycle.as_ref()).map(drop),
        identity::requested(name, spec.security_context.as_ref(), security).map(drop),
    ];
    checks.into_iter().filter_map(Result::err).collect()
}

/// No program gets a text with a NUL character. The error names the setting and not the text, because the text may be that of a Secret.
fn without_nul<'a>(
    name: &str,
    command: impl IntoIterator<Item = &'a String>,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<(), RuntimeError> {
    if command.into_iter().any(|text| text.contains('\0')) {
        return Err(RuntimeError::config(format!(
            "container {name}: `command` or `args` contains a NUL character: remove it, or remove it from the variable that \
             they refer to"
        )));
    }
    match env.into_iter().find(|(key, value)| key.contains('\0') || value.contains('\0')) {
        Some((key, _)) => Err(RuntimeError::config(format!(
            "container {name}: the variable {key:?} contains a NUL character: remove it from `env`, or from the object or \
             file that has the value"
        ))),
        None => Ok(()),
    }
}

/// The path of the termination log, relative to the container's root.
fn termination_log(name: &str, path: Option<&str>) -> Result<PathBuf, RuntimeError> {
    let Some(path) = path.filter(|path| !path.is_empty()) else { return Ok("dev/termination-log".into()) };
    rootfs::relative(path).ok_or_else(|| {
        RuntimeError::config(format!(
            "container {name}: `terminationMessagePath` {path:?} leaves the container's root: use the path of a file without `..`"
        ))
    })
}

fn no_command(name: &str) -> RuntimeError {
    RuntimeError::config(format!(
        "container {name} has no command: the process runtime does not run images; set `command`"
    ))
}

/// The environment of the container: the configured variables, `PATH` and `HOSTNAME` if they are not configured, and the
/// variables that this runtime sets for every container.
fn environment(
    config: &ContainerConfig,
    id: &str,
    links: &[Link],
    rootfs: &Path,
    termination_log: &Path,
) -> Vec<(String, String)> {
    let mut env = config.env.clone();
    let has = |env: &[(String, String)], name: &str| env.iter().any(|(key, _)| key == name);
    if !has(&env, "PATH") {
        env.push(("PATH".into(), DEFAULT_PATH.into()));
    }
    if !has(&env, "HOSTNAME") {
        let spec = config.pod.spec();
        let name = spec.hostname.as_deref().unwrap_or_else(|| config.pod.full_name().name());
        env.push(("HOSTNAME".into(), name.into()));
    }
    let text = |path: &Path| path.to_string_lossy().into_owned();
    for link in links {
        env.push((rootfs::mount_variable(&link.volume), text(&link.target.path())));
    }
    env.push((ROOTFS_ENV.into(), text(rootfs)));
    env.push((TERMINATION_LOG_ENV.into(), text(termination_log)));
    // The last value of a name wins, and the container must not override this one.
    env.push((CONTAINER_ENV.into(), id.into()));
    env
}

/// The `PATH` that container images commonly set.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn stop_signal(container: &str, lifecycle: Option<&Lifecycle>) -> Result<Signal, RuntimeError> {
    let Some(name) = lifecycle.and_then(|lifecycle| lifecycle.stop_signal.as_deref()) else {
        return Ok(Signal::TERM);
    };
    SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal).ok_or_else(|| {
        RuntimeError::config(format!(
            "container {container}: the process runtime cannot send stop signal {name:?}: use SIGTERM or another \
             standard signal"
        ))
    })
}

const SIGNALS: [(&str, Signal); 16] = [
    ("SIGTERM", Signal::TERM),
    ("SIGINT", Signal::INT),
    ("SIGQUIT", Signal::QUIT),
    ("SIGHUP", Signal::HUP),
    ("SIGUSR1", Signal::USR1),
    ("SIGUSR2", Signal::USR2),
    ("SIGKILL", Signal::KILL),
    ("SIGWINCH", Signal::WINCH),
    ("SIGALRM", Signal::ALARM),
    ("SIGABRT", Signal::ABORT),
    ("SIGCONT", Signal::CONT),
    ("SIGPIPE", Signal::PIPE),
    ("SIGPWR", Signal::POWER),
    ("SIGURG", Signal::URG),
    ("SIGIO", Signal::IO),
    ("SIGTSTP", Signal::TSTP),
];

/// A container's root directory and its log file.
pub(super) fn rootfs_and_log(layout: &Layout, record: &ContainerRecord) -> (PathBuf, PathBuf) {
    let rootfs = layout.rootfs(&record.uid, &record.container, &record.id);
    (rootfs, layout.log(&record.uid, &record.container, record.restart_count))
}

/// The limits of a container: memory in bytes, and CPU in thousandths of a CPU. A limit of 0 is none, as for a kubelet.
pub(super) fn limits(
    name: &str,
    resources: Option<&ResourceRequirements>,
) -> Result<(Option<u64>, Option<u64>), RuntimeError> {
    let limit = |resource: &str| {
        let quantity = resources.and_then(|own| own.limits.as_ref()?.get(resource));
        let amount = quantity.map(|quantity| match Amount::of(quantity) {
            Ok(amount) if !amount.is_negative() => Ok(amount),
            _ => Err(RuntimeError::config(format!(
                "container {name}: limits.{resource} is {:?}: use a quantity of 0 or more",
                quantity.0
            ))),
        });
        amount.transpose()
    };
    let memory = limit("memory")?.map(|bytes| bytes.units().unsigned_abs());
    let cpu = limit("cpu")?.map(|cores| cores.millis().unsigned_abs());
    Ok((memory.filter(|bytes| *bytes > 0), cpu.filter(|thousandths| *thousandths > 0)))
}

#[cfg(test)]
mod tests;
