//! The security contexts of sandboxes and containers: users, groups, capabilities and masked paths.

use k8s_openapi::api::core::v1::{PodSecurityContext, SecurityContext};
use podwright_core::config::linux_id::linux_id;
use podwright_core::containers::definition::Definition;
use podwright_model::pod::PodObject;
use podwright_model::texts::containers::non_root;
use podwright_ports::ContainerConfig;

use super::error::ConfigError;
use super::inputs::{ContainerLookups, ImageUser, NodeFacts, PodAssignments};
use super::{namespaces, profiles};
use crate::v1;

/// Paths in `/proc` and `/sys` that expose the node. They are masked unless the container's `procMount` is `Unmasked`
/// (upstream `securitycontext.ConvertToRuntimeMaskedPaths`, kubelet 1.36).
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
/// Paths in `/proc` that are read-only unless `procMount` is `Unmasked` (upstream `ConvertToRuntimeReadonlyPaths`, kubelet
/// 1.36).
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

const WINDOWS: &str = "is set, and this node runs Linux";

/// The security context of a pod's sandbox.
pub(super) fn of_sandbox(
    facts: &NodeFacts,
    assignments: &PodAssignments,
    pod: &PodObject,
) -> Result<v1::LinuxSandboxSecurityContext, ConfigError> {
    let none = PodSecurityContext::default();
    let context = pod_context(pod)?.unwrap_or(&none);
    Ok(v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces::of_pod(facts, assignments, pod)?),
        selinux_options: context.se_linux_options.as_ref().map(profiles::selinux),
        run_as_user: id("spec.securityContext.runAsUser", context.run_as_user)?,
        run_as_group: id("spec.securityContext.runAsGroup", context.run_as_group)?,
        supplemental_groups: groups(context)?,
        supplemental_groups_policy: groups_policy(facts, context)?.into(),
        privileged: Definition::all(pod)
            .any(|container| container.security().and_then(|own| own.privileged) == Some(true)),
        seccomp: Some(profiles::seccomp_of_sandbox()),
        ..Default::default()
    })
}

/// The security context of a container. The container's own settings take precedence over the pod's, and the pod's over the
/// image's (upstream `determineEffectiveSecurityContext`, kubelet 1.36).
pub(super) fn of_container(
    facts: &NodeFacts,
    assignments: &PodAssignments,
    config: &ContainerConfig,
    container: Definition<'_>,
    lookups: &ContainerLookups,
) -> Result<v1::LinuxContainerSecurityContext, ConfigError> {
    let pod = &*config.pod;
    let (none, none_of_pod) = (SecurityContext::default(), PodSecurityContext::default());
    let own = container.security().unwrap_or(&none);
    let of_pod = pod_context(pod)?.unwrap_or(&none_of_pod);
    if own.windows_options.is_some() {
        let field = format!("container {:?}: securityContext.windowsOptions", container.name());
        return Err(ConfigError::Unsupported { field, reason: WINDOWS, remedy: "remove it" });
    }
    if own.privileged == Some(true) && own.allow_privilege_escalation == Some(false) {
        let field = format!("container {:?}: securityContext.allowPrivilegeEscalation", container.name());
        let (reason, remedy) = ("is false, and privileged is true", "remove one of the two");
        return Err(ConfigError::Unsupported { field, reason, remedy });
    }
    let field = |name: &str, own: Option<i64>| match own {
        Some(_) => format!("container {:?}: securityContext.{name}", container.name()),
        None => format!("spec.securityContext.{name}"),
    };
    let user = own.run_as_user.or(of_pod.run_as_user);
    let group = own.run_as_group.or(of_pod.run_as_group);
    let non_root = own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true);
    if non_root {
        check_not_root(pod, container.name(), user, &lookups.user)?;
    }
    let (run_as_user, run_as_username) = match (user, &lookups.user) {
        (Some(_), _) => (id(&field("runAsUser", own.run_as_user), user)?, String::new()),
        (None, ImageUser::Id(user)) => (Some(v1::Int64Value { value: *user }), String::new()),
        (None, ImageUser::Name(name)) => (None, name.clone()),
    };
    let host_users = pod.spec().host_users != Some(false);
    let (masked_paths, readonly_paths) = proc_paths(facts, own, container.name(), host_users)?;
    let capabilities = own.capabilities.as_ref().map(|capabilities| v1::Capability {
        add_capabilities: capabilities.add.clone().unwrap_or_default(),
        drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
        add_ambient_capabilities: vec![],
    });
    let selinux = own.se_linux_options.as_ref().or(of_pod.se_linux_options.as_ref());
    Ok(v1::LinuxContainerSecurityContext {
        capabilities,
        privileged: own.privileged == Some(true),
        namespace_options: Some(namespaces::of_container(facts, assignments, config, lookups)?),
        selinux_options: selinux.map(profiles::selinux),
        run_as_user,
        run_as_username,
        run_as_group: id(&field("runAsGroup", own.run_as_group), group)?,
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: groups(of_pod)?,
        supplemental_groups_policy: groups_policy(facts, of_pod)?.into(),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: Some(profiles::seccomp(facts, pod, container)?),
        apparmor: profiles::apparmor(pod, container)?,
        ..Default::default()
    })
}

/// The pod's security context.
///
/// # Errors
/// [`ConfigError::Unsupported`] if the pod is for Windows.
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

/// Checks that a container with `runAsNonRoot` does not run as root. An image that names its user by name instead of ID fails
/// the check (upstream `verifyRunAsNonRoot`, kubelet 1.36).
fn check_not_root(
    pod: &PodObject,
    container: &str,
    user: Option<i64>,
    of_image: &ImageUser,
) -> Result<(), ConfigError> {
    let text = match (user, of_image) {
        (Some(0), _) => non_root::user_is_root(pod, container),
        (None, ImageUser::Id(0)) => non_root::image_is_root(pod, container),
        (None, ImageUser::Name(user)) => non_root::named_user(pod, container, user),
        (None, ImageUser::Id(user)) if linux_id(*user).is_err() => non_root::invalid_user(pod, container, *user),
        (Some(_), _) | (None, ImageUser::Id(_)) => return Ok(()),
    };
    Err(ConfigError::OfKubelet(text))
}

/// The masked paths and the read-only paths.
fn proc_paths(
    facts: &NodeFacts,
    own: &SecurityContext,
    container: &str,
    host_users: bool,
) -> Result<(Vec<String>, Vec<String>), ConfigError> {
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    match own.proc_mount.as_deref() {
        None | Some("" | "Default") => Ok(([owned(&MASKED), facts.masked_paths.clone()].concat(), owned(&READ_ONLY))),
        Some("Unmasked") if host_users => Err(ConfigError::Unsupported {
            field: format!("container {container:?}: securityContext.procMount"),
            reason: "is Unmasked, and the pod uses the node's user IDs",
            remedy: "set spec.hostUsers to false, or remove procMount",
        }),
        Some("Unmasked") => Ok((vec![], vec![])),
        Some(other) => Err(ConfigError::Value {
            field: format!("container {container:?}: securityContext.procMount"),
            value: other.to_owned(),
            allowed: "Default, Unmasked",
        }),
    }
}

/// The supplemental groups: `fsGroup`, which owns the pod's volumes, and `supplementalGroups`.
fn groups(context: &PodSecurityContext) -> Result<Vec<i64>, ConfigError> {
    let fs_group = context.fs_group.map(|group| ("spec.securityContext.fsGroup", group));
    let more = context.supplemental_groups.iter().flatten();
    let more = more.map(|group| ("spec.securityContext.supplementalGroups", *group));
    fs_group.into_iter().chain(more).map(|(field, group)| checked(field, group)).collect()
}

fn groups_policy(facts: &NodeFacts, context: &PodSecurityContext) -> Result<v1::SupplementalGroupsPolicy, ConfigError> {
    let field = || "spec.securityContext.supplementalGroupsPolicy".to_owned();
    match context.supplemental_groups_policy.as_deref() {
        None | Some("" | "Merge") => Ok(v1::SupplementalGroupsPolicy::Merge),
        Some("Strict") if facts.groups_policy => Ok(v1::SupplementalGroupsPolicy::Strict),
        // A runtime without support for the policy would add the image's groups.
        Some("Strict") => Err(ConfigError::Unsupported {
            field: field(),
            reason: "is Strict, which the container runtime does not support",
            remedy: "set it to Merge, or use a newer runtime",
        }),
        Some(other) => Err(ConfigError::Value { field: field(), value: other.to_owned(), allowed: "Merge, Strict" }),
    }
}

/// Checks a user or group ID. Runtimes would cut an ID to 32 bits, and a cut ID may be that of root.
fn checked(field: &str, value: i64) -> Result<i64, ConfigError> {
    linux_id(value).map(i64::from).map_err(|invalid| ConfigError::Id { field: field.to_owned(), invalid })
}

fn id(field: &str, value: Option<i64>) -> Result<Option<v1::Int64Value>, ConfigError> {
    value.map(|value| Ok(v1::Int64Value { value: checked(field, value)? })).transpose()
}
