//! Validates security contexts: IDs, profiles, kernel parameters, and settings that exclude each other.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext, Sysctl,
};

use super::report::Report;
use crate::config::sysctl::{SysctlNamespace, dotted_sysctl_name, is_sysctl_name, sysctl_namespace};

/// The types of seccomp and AppArmor profiles.
const PROFILE_TYPES: [&str; 3] = ["RuntimeDefault", "Unconfined", "Localhost"];
/// The longest name of an AppArmor profile, in bytes: the longest path of the kernel.
const MAX_PROFILE: usize = 4095;

/// Validates the security settings of the whole pod.
pub(super) fn of_pod(spec: &PodSpec, report: &mut Report) {
    host_users(spec, report);
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        let remedy = "remove one of the two: all processes of the node are visible with hostPID";
        report.add("spec.shareProcessNamespace", "is set beside hostPID", remedy);
    }
    let none = PodSecurityContext::default();
    let context = spec.security_context.as_ref().unwrap_or(&none);
    let field = |name: &str| format!("spec.securityContext.{name}");
    report.id(field("runAsUser"), context.run_as_user);
    report.id(field("runAsGroup"), context.run_as_group);
    report.id(field("fsGroup"), context.fs_group);
    for (i, group) in context.supplemental_groups.iter().flatten().enumerate() {
        report.id(field(&format!("supplementalGroups[{i}]")), Some(*group));
    }
    for (name, value, allowed) in [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, ["OnRootMismatch", "Always"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, ["Merge", "Strict"]),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, ["Recursive", "MountOption"]),
    ] {
        report.one_of(field(name), value.as_deref(), &allowed);
    }
    seccomp(&field("seccompProfile"), context.seccomp_profile.as_ref(), report);
    apparmor(&field("appArmorProfile"), context.app_armor_profile.as_ref(), report);
    sysctls(spec, context.sysctls.as_deref().unwrap_or_default(), report);
    match os(spec) {
        Some("linux") => windows_options("spec.securityContext", context.windows_options.is_some(), report),
        Some("windows") => linux_pod_settings(spec, context, report),
        _ => {}
    }
}

/// Validates the security context of a container.
pub(super) fn of_container(path: &str, spec: &PodSpec, own: Option<&SecurityContext>, report: &mut Report) {
    let Some(own) = own else { return };
    let path = format!("{path}.securityContext");
    let field = |name: &str| format!("{path}.{name}");
    report.id(field("runAsUser"), own.run_as_user);
    report.id(field("runAsGroup"), own.run_as_group);
    report.one_of(field("procMount"), own.proc_mount.as_deref(), &["Default", "Unmasked"]);
    if own.proc_mount.as_deref() == Some("Unmasked") && spec.host_users != Some(false) {
        let message = "is Unmasked although the pod uses the node's user IDs";
        report.add(field("procMount"), message, "set spec.hostUsers to false, or remove procMount");
    }
    if own.allow_privilege_escalation == Some(false) {
        let escalation = field("allowPrivilegeEscalation");
        let added = own.capabilities.as_ref().and_then(|capabilities| capabilities.add.as_ref());
        if own.privileged == Some(true) {
            report.add(&escalation, "is false although privileged is true", "remove one of the two");
        }
        if added.is_some_and(|added| added.iter().any(|capability| capability == "CAP_SYS_ADMIN")) {
            report.add(&escalation, "is false although capabilities.add has CAP_SYS_ADMIN", "remove one of the two");
        }
    }
    seccomp(&field("seccompProfile"), own.seccomp_profile.as_ref(), report);
    apparmor(&field("appArmorProfile"), own.app_armor_profile.as_ref(), report);
    match os(spec) {
        Some("linux") => windows_options(&path, own.windows_options.is_some(), report),
        Some("windows") => linux_container_settings(&path, own, report),
        _ => {}
    }
}

fn os(spec: &PodSpec) -> Option<&str> {
    spec.os.as_ref().map(|os| os.name.as_str())
}

/// A pod with a user namespace of its own cannot share other namespaces of the node, because the node's objects have no
/// owner in the pod's namespace.
fn host_users(spec: &PodSpec, report: &mut Report) {
    if spec.host_users != Some(false) {
        return;
    }
    for (name, value) in [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)] {
        if value == Some(true) {
            report.add(format!("spec.{name}"), "is true although hostUsers is false", "remove one of the two");
        }
    }
    let regular = spec.containers.iter().map(|container| container.volume_devices.as_ref());
    let init = spec.init_containers.iter().flatten().map(|container| container.volume_devices.as_ref());
    for (list, i, devices) in regular
        .enumerate()
        .map(|(i, devices)| ("containers", i, devices))
        .chain(init.enumerate().map(|(i, devices)| ("initContainers", i, devices)))
    {
        if devices.is_some_and(|devices| !devices.is_empty()) {
            let path = format!("spec.{list}[{i}].volumeDevices");
            report.add(path, "is set although hostUsers is false", "remove one of the two");
        }
    }
}

fn seccomp(path: &str, profile: Option<&SeccompProfile>, report: &mut Report) {
    let Some(profile) = profile else { return };
    profile_type(path, &profile.type_, profile.localhost_profile.as_deref(), report);
    if profile.type_ == "Localhost"
        && let Some(name) = profile.localhost_profile.as_deref()
    {
        report.relative_path(format!("{path}.localhostProfile"), name, "the directory of the profiles");
    }
}

fn apparmor(path: &str, profile: Option<&AppArmorProfile>, report: &mut Report) {
    let Some(profile) = profile else { return };
    profile_type(path, &profile.type_, profile.localhost_profile.as_deref(), report);
    let name = profile.localhost_profile.as_deref().unwrap_or_default();
    if name.trim() != name {
        report.add(format!("{path}.localhostProfile"), format!("{name:?} has spaces around it"), "remove them");
    }
    if name.len() > MAX_PROFILE {
        let message = format!("has {} bytes", name.len());
        report.add(format!("{path}.localhostProfile"), message, format!("use at most {MAX_PROFILE}"));
    }
}

fn profile_type(path: &str, kind: &str, localhost: Option<&str>, report: &mut Report) {
    if kind.is_empty() {
        let remedy = format!("use one of {}", PROFILE_TYPES.join(", "));
        return report.add(format!("{path}.type"), "is missing", remedy);
    }
    report.one_of(format!("{path}.type"), Some(kind), &PROFILE_TYPES);
    let field = format!("{path}.localhostProfile");
    match (kind, localhost) {
        ("Localhost", None | Some("")) => report.add(field, "is missing", "name a profile of the node"),
        ("Localhost", Some(_)) | (_, None) => {}
        (_, Some(_)) => report.add(field, format!("is set beside type {kind}"), "remove it, or use type Localhost"),
    }
}

fn sysctls(spec: &PodSpec, list: &[Sysctl], report: &mut Report) {
    let mut names = BTreeSet::new();
    for (i, sysctl) in list.iter().enumerate() {
        let path = format!("spec.securityContext.sysctls[{i}].name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            report.add(path, "is missing", "name a kernel parameter, such as net.ipv4.tcp_syncookies");
            continue;
        }
        if !is_sysctl_name(name) {
            report.add(
                path,
                format!("{name:?} is not the name of a kernel parameter"),
                "use at most 253 lower-case letters, digits, '-' and '_', with dots or slashes between the parts",
            );
            continue;
        }
        // Both forms of a name mean the same parameter.
        if !names.insert(dotted_sysctl_name(name)) {
            report.add(&path, format!("{name:?} is used twice"), "remove one of the two");
        }
        let shared = match sysctl_namespace(name) {
            Some(SysctlNamespace::Net) if spec.host_network == Some(true) => "hostNetwork",
            Some(SysctlNamespace::Ipc) if spec.host_ipc == Some(true) => "hostIPC",
            _ => continue,
        };
        let message = format!("{name:?} would change the node, because {shared} is true");
        report.add(path, message, format!("remove it or {shared}"));
    }
}

fn windows_options(path: &str, set: bool, report: &mut Report) {
    if set {
        report.add(format!("{path}.windowsOptions"), "is set although spec.os.name is linux", "remove it");
    }
}

fn linux_pod_settings(spec: &PodSpec, context: &PodSecurityContext, report: &mut Report) {
    let own = |name: &str| format!("securityContext.{name}");
    let settings = [
        ("hostUsers".to_owned(), spec.host_users.is_some()),
        ("hostPID".to_owned(), spec.host_pid == Some(true)),
        ("hostIPC".to_owned(), spec.host_ipc == Some(true)),
        ("shareProcessNamespace".to_owned(), spec.share_process_namespace.is_some()),
        (own("appArmorProfile"), context.app_armor_profile.is_some()),
        (own("seLinuxOptions"), context.se_linux_options.is_some()),
        (own("seccompProfile"), context.seccomp_profile.is_some()),
        (own("fsGroup"), context.fs_group.is_some()),
        (own("fsGroupChangePolicy"), context.fs_group_change_policy.is_some()),
        (own("sysctls"), context.sysctls.as_ref().is_some_and(|list| !list.is_empty())),
        (own("runAsUser"), context.run_as_user.is_some()),
        (own("runAsGroup"), context.run_as_group.is_some()),
        (own("supplementalGroups"), context.supplemental_groups.is_some()),
        (own("supplementalGroupsPolicy"), context.supplemental_groups_policy.is_some()),
        (own("seLinuxChangePolicy"), context.se_linux_change_policy.is_some()),
    ];
    for (name, _) in settings.into_iter().filter(|(_, set)| *set) {
        linux_only(format!("spec.{name}"), report);
    }
}

fn linux_container_settings(path: &str, own: &SecurityContext, report: &mut Report) {
    let settings = [
        ("appArmorProfile", own.app_armor_profile.is_some()),
        ("seLinuxOptions", own.se_linux_options.is_some()),
        ("seccompProfile", own.seccomp_profile.is_some()),
        ("capabilities", own.capabilities.is_some()),
        ("readOnlyRootFilesystem", own.read_only_root_filesystem.is_some()),
        ("privileged", own.privileged.is_some()),
        ("allowPrivilegeEscalation", own.allow_privilege_escalation.is_some()),
        ("procMount", own.proc_mount.is_some()),
        ("runAsUser", own.run_as_user.is_some()),
        ("runAsGroup", own.run_as_group.is_some()),
    ];
    for (name, _) in settings.into_iter().filter(|(_, set)| *set) {
        linux_only(format!("{path}.{name}"), report);
    }
}

fn linux_only(path: String, report: &mut Report) {
    report.add(path, "is set although spec.os.name is windows", "remove it");
}
