//! Who pods and containers run as, and what they may do.

use k8s_openapi::api::core::v1::{Container, PodSecurityContext, SecurityContext};
use podwright_actors::pod::PodObject;
use podwright_actors::ports::ContainerConfig;

use super::assigned::Assigned;
use super::container::{ImageUser, Seen};
use super::error::ConfigError;
use super::facts::Facts;
use super::{definition, namespaces, profiles};
use crate::adapters::cri::v1;

/// Parts of `/proc` and `/sys` that tell of or act on the node, hidden unless a container asks otherwise (upstream
/// `securitycontext.ConvertToRuntimeMaskedPaths`, kubelet 1.36).
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Those that can be looked at only (upstream `ConvertToRuntimeReadonlyPaths`, kubelet 1.36).
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

const WINDOWS: &str = "is set, and this node runs Linux";

/// What a pod's sandbox runs as.
pub(super) fn of_sandbox(
    facts: &Facts,
    assigned: &Assigned,
    pod: &PodObject,
) -> Result<v1::LinuxSandboxSecurityContext, ConfigError> {
    let none = PodSecurityContext::default();
    let context = pod_context(pod)?.unwrap_or(&none);
    Ok(v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces::of_pod(facts, assigned, pod)?),
        selinux_options: context.se_linux_options.as_ref().map(profiles::selinux),
        run_as_user: context.run_as_user.map(id),
        run_as_group: context.run_as_group.map(id),
        supplemental_groups: groups(context),
        supplemental_groups_policy: groups_policy(facts, context)?.into(),
        privileged: definition::all(pod)
            .any(|container| container.security_context.as_ref().and_then(|own| own.privileged) == Some(true)),
        seccomp: Some(profiles::seccomp_of_sandbox()),
        ..Default::default()
    })
}

/// What a container runs as: what it says itself, else what the pod says, else what the image says (upstream
/// `determineEffectiveSecurityContext`, kubelet 1.36).
pub(super) fn of_container(
    facts: &Facts,
    assigned: &Assigned,
    config: &ContainerConfig,
    container: &Container,
    seen: &Seen,
) -> Result<v1::LinuxContainerSecurityContext, ConfigError> {
    let pod = &*config.pod;
    let (none, none_of_pod) = (SecurityContext::default(), PodSecurityContext::default());
    let own = container.security_context.as_ref().unwrap_or(&none);
    let of_pod = pod_context(pod)?.unwrap_or(&none_of_pod);
    if own.windows_options.is_some() {
        let field = format!("container {:?}: securityContext.windowsOptions", container.name);
        return Err(ConfigError::Unsupported { field, reason: WINDOWS, remedy: "remove it" });
    }
    let user = own.run_as_user.or(of_pod.run_as_user);
    let non_root = own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true);
    if non_root {
        check_not_root(&container.name, user, &seen.user)?;
    }
    let (run_as_user, run_as_username) = match (user, &seen.user) {
        (Some(user), _) => (Some(user), String::new()),
        (None, ImageUser::Id(user)) => (Some(*user), String::new()),
        (None, ImageUser::Name(name)) => (None, name.clone()),
    };
    let (masked_paths, readonly_paths) = proc_paths(facts, own, &container.name)?;
    let capabilities = own.capabilities.as_ref().map(|capabilities| v1::Capability {
        add_capabilities: capabilities.add.clone().unwrap_or_default(),
        drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
        add_ambient_capabilities: vec![],
    });
    let selinux = own.se_linux_options.as_ref().or(of_pod.se_linux_options.as_ref());
    Ok(v1::LinuxContainerSecurityContext {
        capabilities,
        privileged: own.privileged == Some(true),
        namespace_options: Some(namespaces::of_container(facts, assigned, config, seen)?),
        selinux_options: selinux.map(profiles::selinux),
        run_as_user: run_as_user.map(id),
        run_as_username,
        run_as_group: own.run_as_group.or(of_pod.run_as_group).map(id),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: groups(of_pod),
        supplemental_groups_policy: groups_policy(facts, of_pod)?.into(),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: Some(profiles::seccomp(facts, pod, container)?),
        apparmor: profiles::apparmor(pod, container)?,
        ..Default::default()
    })
}

/// The pod's own settings, unless they are for another system.
fn pod_context(pod: &PodObject) -> Result<Option<&PodSecurityContext>, ConfigError> {
    let spec = pod.spec();
    let foreign = match (&spec.os, &spec.security_context) {
        (Some(os), _) if os.name == "windows" => Some("spec.os"),
        (_, Some(context)) if context.windows_options.is_some() => Some("spec.securityContext.windowsOptions"),
        _ => None,
    };
    match foreign {
        Some(field) => {
            let remedy = "remove it, or let the pod be scheduled to another node";
            Err(ConfigError::Unsupported { field: field.into(), reason: WINDOWS, remedy })
        }
        None => Ok(spec.security_context.as_ref()),
    }
}

/// That a container which must not run as root does not. A user that the image names only is no proof (upstream
/// `verifyRunAsNonRoot`, kubelet 1.36).
fn check_not_root(container: &str, user: Option<i64>, of_image: &ImageUser) -> Result<(), ConfigError> {
    let root = |remedy| Err(ConfigError::Root { container: container.to_owned(), remedy });
    match (user, of_image) {
        (Some(0), _) => root("set runAsUser to another one than 0, or remove runAsNonRoot"),
        (None, ImageUser::Id(0)) => root("set runAsUser, or use an image that names a user"),
        (None, ImageUser::Name(user)) => {
            Err(ConfigError::NamedUser { container: container.to_owned(), user: user.clone() })
        }
        (Some(_), _) | (None, ImageUser::Id(_)) => Ok(()),
    }
}

/// What is hidden of `/proc` and `/sys`, and what can be looked at only.
fn proc_paths(
    facts: &Facts,
    own: &SecurityContext,
    container: &str,
) -> Result<(Vec<String>, Vec<String>), ConfigError> {
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    match own.proc_mount.as_deref() {
        None | Some("" | "Default") => Ok(([owned(&MASKED), facts.masked_paths.clone()].concat(), owned(&READ_ONLY))),
        Some("Unmasked") => Ok((vec![], vec![])),
        Some(other) => Err(ConfigError::Value {
            field: format!("container {container:?}: securityContext.procMount"),
            value: other.to_owned(),
            allowed: "Default, Unmasked",
        }),
    }
}

/// The groups that own the pod's volumes, and those that the pod names.
fn groups(context: &PodSecurityContext) -> Vec<i64> {
    context.fs_group.into_iter().chain(context.supplemental_groups.iter().flatten().copied()).collect()
}

fn groups_policy(facts: &Facts, context: &PodSecurityContext) -> Result<v1::SupplementalGroupsPolicy, ConfigError> {
    let field = || "spec.securityContext.supplementalGroupsPolicy".to_owned();
    match context.supplemental_groups_policy.as_deref() {
        None | Some("" | "Merge") => Ok(v1::SupplementalGroupsPolicy::Merge),
        Some("Strict") if facts.groups_policy => Ok(v1::SupplementalGroupsPolicy::Strict),
        // The runtime would give the groups of the image too.
        Some("Strict") => Err(ConfigError::Unsupported {
            field: field(),
            reason: "is Strict, which the container runtime does not know",
            remedy: "set it to Merge, or use a newer runtime",
        }),
        Some(other) => Err(ConfigError::Value { field: field(), value: other.to_owned(), allowed: "Merge, Strict" }),
    }
}

fn id(value: i64) -> v1::Int64Value {
    v1::Int64Value { value }
}
