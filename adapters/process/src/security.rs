//! Decides how a container's process is confined, and refuses settings that this runtime cannot apply. Pure.
//!
//! Every field of a security context is applied or refused. If the runtime ignored a field, the container would have
//! more rights than its manifest permits.

use k8s_openapi::api::core::v1::{Capabilities, PodSecurityContext, PodSpec, SecurityContext};
use podwright_ports::RuntimeError;
use rustix::thread::CapabilitySet;

use super::record::{Confinement, Seccomp};
use super::shim::HAS_DEFAULT_PROFILE;

/// The agent's rights, which bound those of the containers.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgentRights {
    pub(super) is_root: bool,
    /// The capabilities that the agent may give to a container.
    pub(super) capabilities: CapabilitySet,
    /// The namespaces that the agent may give to a container.
    pub(super) namespaces: Namespaces,
}

/// The namespaces that the kernel lets the agent create, in a user namespace of their own if the agent is not root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Namespaces {
    /// Whether a container can have its own view of the file system.
    pub(super) mounts: bool,
    /// Whether a container can have a PID namespace of its own and a `/proc` that shows only the container's processes.
    pub(super) processes: bool,
}

/// The confinement of a container, without its view of the file system and of the processes ([`view`](super::view)).
///
/// # Errors
/// [`RuntimeError::Config`] with the field and the remedy, if the container requires a confinement or a right that this
/// runtime cannot give.
pub(super) fn confinement(
    name: &str,
    spec: &PodSpec,
    security: Option<&SecurityContext>,
    agent: AgentRights,
) -> Result<Confinement, RuntimeError> {
    let (add, drop) = supported(name, spec, security)?;
    let denied = security.and_then(|it| it.allow_privilege_escalation) == Some(false);
    if is_privileged(security) {
        if !agent.is_root {
            return Err(RuntimeError::config(format!(
                "container {name}: `privileged` needs an agent that runs as root: remove it, or run the agent as root"
            )));
        }
        // As under a container runtime, a privileged container has no seccomp profile.
        return Ok(Confinement { no_new_privs: denied, ..Confinement::default() });
    }
    let seccomp = match seccomp_profile(spec.security_context.as_ref(), security) {
        Some(RUNTIME_DEFAULT) => Seccomp::RuntimeDefault,
        _ => Seccomp::Unconfined,
    };
    // The profile comes with this setting: see `shim::seccomp`.
    let no_new_privs = denied || seccomp == Seccomp::RuntimeDefault;
    if let Some(missing) = add.names.iter().find(|(_, one)| !agent.is_root || !agent.capabilities.contains(*one)) {
        return Err(RuntimeError::config(format!(
            "container {name}: `capabilities.add` has {}, which the agent does not have: remove it, or run the agent with that \
             capability",
            missing.0
        )));
    }
    if agent.is_root && (add.all || add.set().contains(CapabilitySet::SYS_PTRACE)) {
        return Err(RuntimeError::config(format!(
            "container {name}: `capabilities.add` has SYS_PTRACE or ALL, with which a container takes over the processes of the agent \
             that start its exec commands: remove it, or set `privileged`"
        )));
    }
    if !agent.is_root {
        // Only root can change the bounding set. The processes have no capabilities, and without new privileges they get none.
        let drops = drop.all || !drop.names.is_empty();
        return Ok(Confinement { no_new_privs: no_new_privs || drops, seccomp, ..Confinement::default() });
    }
    let mut kept = if drop.all { CapabilitySet::empty() } else { DEFAULT };
    kept |= add.set();
    kept &= !drop.set();
    let capabilities = Some((kept & agent.capabilities).bits());
    Ok(Confinement { no_new_privs, capabilities, seccomp, ..Confinement::default() })
}

/// The capabilities that a container adds and drops, if this runtime can apply its settings with enough rights.
///
/// # Errors
/// [`RuntimeError::Config`] with the field and the remedy, if it cannot.
pub(super) fn supported(
    name: &str,
    spec: &PodSpec,
    security: Option<&SecurityContext>,
) -> Result<(Listed, Listed), RuntimeError> {
    refuse_unsupported(name, spec, spec.security_context.as_ref(), security)?;
    let capabilities = requested(name, security.and_then(|it| it.capabilities.as_ref()))?;
    if !is_privileged(security) && spec.share_process_namespace == Some(true) {
        return Err(RuntimeError::config(format!(
            "container {name}: the process runtime cannot apply `shareProcessNamespace`, because containers of a pod have no PID \
             namespace in common: remove it, set `hostPID` so that the containers see all processes of the node, or use \
             `--runtime cri=SOCKET`"
        )));
    }
    Ok(capabilities)
}

fn is_privileged(security: Option<&SecurityContext>) -> bool {
    security.and_then(|it| it.privileged) == Some(true)
}

/// The capabilities that a container has if its manifest names none: those that containerd 1.7 and CRI-O give to a container.
const DEFAULT: CapabilitySet = CapabilitySet::AUDIT_WRITE
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SYS_CHROOT);

/// A list of capabilities of a manifest.
#[derive(Default)]
pub(super) struct Listed {
    all: bool,
    names: Vec<(String, CapabilitySet)>,
}

impl Listed {
    fn set(&self) -> CapabilitySet {
        self.names.iter().fold(CapabilitySet::empty(), |set, (_, one)| set | *one)
    }
}

/// The capabilities that a container adds and drops. A name may have the prefix `CAP_`, and its case does not matter, as under
/// a container runtime.
fn requested(name: &str, capabilities: Option<&Capabilities>) -> Result<(Listed, Listed), RuntimeError> {
    let read = |field: &str, names: Option<&Vec<String>>| {
        let mut listed = Listed::default();
        for text in names.into_iter().flatten() {
            let upper = text.to_ascii_uppercase();
            let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
            if short == "ALL" {
                listed.all = true;
                continue;
            }
            let known = CapabilitySet::from_name(short).ok_or_else(|| {
                RuntimeError::config(format!(
                    "container {name}: `capabilities.{field}` has {text:?}, which is not a capability of Linux: correct it"
                ))
            })?;
            listed.names.push((short.to_owned(), known));
        }
        Ok::<_, RuntimeError>(listed)
    };
    let of = |pick: fn(&Capabilities) -> Option<&Vec<String>>| capabilities.and_then(pick);
    Ok((read("add", of(|it| it.add.as_ref()))?, read("drop", of(|it| it.drop.as_ref()))?))
}

/// Refuses the settings that need a container runtime.
fn refuse_unsupported(
    name: &str,
    spec: &PodSpec,
    of_pod: Option<&PodSecurityContext>,
    security: Option<&SecurityContext>,
) -> Result<(), RuntimeError> {
    let refuse = |field: &str, value: &str, why: &str| {
        Err(RuntimeError::config(format!(
            "container {name}: the process runtime cannot apply `{field}` {value}: {why}; remove it, or use \
             `--runtime cri=SOCKET`"
        )))
    };
    match seccomp_profile(of_pod, security) {
        None | Some(UNCONFINED) => {}
        Some(RUNTIME_DEFAULT) if HAS_DEFAULT_PROFILE => {}
        Some(kind) => {
            let why = if HAS_DEFAULT_PROFILE {
                "its only profile is RuntimeDefault"
            } else {
                "it has no profile for this architecture"
            };
            return refuse("seccompProfile.type", kind, why);
        }
    }
    let app_armor = security
        .and_then(|it| it.app_armor_profile.as_ref())
        .or(of_pod.and_then(|it| it.app_armor_profile.as_ref()))
        .map(|profile| profile.type_.as_str());
    if let Some(kind) = app_armor.filter(|kind| *kind != UNCONFINED) {
        return refuse("appArmorProfile.type", kind, "it has no AppArmor profiles");
    }
    let se_linux = security.and_then(|it| it.se_linux_options.as_ref());
    if let Some(options) = se_linux.or(of_pod.and_then(|it| it.se_linux_options.as_ref())) {
        let label = options.type_.as_deref().or(options.level.as_deref()).unwrap_or_default();
        return refuse("seLinuxOptions", label, "it sets no SELinux labels");
    }
    if let Some(kind) = security.and_then(|it| it.proc_mount.as_deref()).filter(|kind| *kind != "Default") {
        return refuse("procMount", kind, "it masks no path of `/proc`, so there is none to show");
    }
    if spec.host_users == Some(false) {
        return refuse("hostUsers", "false", "containers have the users of the node");
    }
    if let Some(sysctl) = of_pod.and_then(|it| it.sysctls.as_ref()).and_then(|list| list.first()) {
        return refuse("sysctls", &sysctl.name, "it would change the node's setting");
    }
    Ok(())
}

/// The type of the seccomp profile of a container.
fn seccomp_profile<'a>(
    of_pod: Option<&'a PodSecurityContext>,
    security: Option<&'a SecurityContext>,
) -> Option<&'a str> {
    let own = security.and_then(|it| it.seccomp_profile.as_ref());
    let profile = own.or(of_pod.and_then(|it| it.seccomp_profile.as_ref()));
    profile.map(|profile| profile.type_.as_str())
}

/// The profile type that asks for no profile.
const UNCONFINED: &str = "Unconfined";
/// The profile type that asks for the profile of the runtime.
const RUNTIME_DEFAULT: &str = "RuntimeDefault";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ROOT: AgentRights = AgentRights {
        is_root: true,
        capabilities: DEFAULT.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::SYS_ADMIN),
        namespaces: Namespaces { mounts: true, processes: true },
    };
    const TRACER: AgentRights = AgentRights { capabilities: CapabilitySet::all(), ..ROOT };
    const USER: AgentRights = AgentRights {
        is_root: false,
        capabilities: CapabilitySet::empty(),
        namespaces: Namespaces { mounts: true, processes: true },
    };

    fn decide(spec: Value, security: Value, agent: AgentRights) -> Result<Confinement, RuntimeError> {
        let mut with_containers = json!({"containers": []});
        with_containers.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let spec: PodSpec = serde_json::from_value(with_containers).unwrap();
        let security: Option<SecurityContext> = serde_json::from_value(security).unwrap();
        confinement("main", &spec, security.as_ref(), agent)
    }

    fn kept(security: Value) -> Option<CapabilitySet> {
        decide(json!({}), security, ROOT).unwrap().capabilities.map(CapabilitySet::from_bits_retain)
    }

    #[test]
    fn container_of_root_has_the_capabilities_that_a_container_runtime_gives() {
        assert_eq!(kept(json!(null)), Some(DEFAULT));
        for (add, drop, expected) in [
            (json!(null), json!(["ALL"]), CapabilitySet::empty()),
            (json!(["NET_ADMIN"]), json!(["ALL"]), CapabilitySet::NET_ADMIN),
            (json!(["cap_net_admin"]), json!(null), DEFAULT | CapabilitySet::NET_ADMIN),
            (json!(null), json!(["CHOWN", "CAP_KILL"]), DEFAULT - CapabilitySet::CHOWN - CapabilitySet::KILL),
            (json!(["CHOWN"]), json!(["CHOWN"]), DEFAULT - CapabilitySet::CHOWN),
        ] {
            let found = kept(json!({"capabilities": {"add": add, "drop": drop}}));
            assert_eq!(found, Some(expected), "+{add} -{drop}");
        }
        assert_eq!(kept(json!({"privileged": true})), None);
    }

    #[test]
    fn privilege_escalation_is_denied_on_request() {
        for (security, agent, denied) in [
            (json!(null), ROOT, false),
            (json!({"allowPrivilegeEscalation": true}), ROOT, false),
            (json!({"allowPrivilegeEscalation": false}), ROOT, true),
            (json!({"allowPrivilegeEscalation": false}), USER, true),
            (json!({"capabilities": {"drop": ["ALL"]}}), ROOT, false),
            (json!({"capabilities": {"drop": ["ALL"]}}), USER, true),
            (json!(null), USER, false),
        ] {
            let found = decide(json!({}), security.clone(), agent).unwrap();
            assert_eq!(found.no_new_privs, denied, "{security}");
            assert_eq!(found.capabilities.is_some(), agent.is_root);
        }
    }

    #[test]
    fn default_seccomp_profile_is_that_of_the_container_or_of_the_pod_and_denies_escalation() {
        let default = json!({"seccompProfile": {"type": "RuntimeDefault"}});
        let unconfined = json!({"seccompProfile": {"type": "Unconfined"}});
        let none = json!({});
        for (of_pod, own, agent, expected) in [
            (&none, &default, ROOT, Seccomp::RuntimeDefault),
            (&default, &none, ROOT, Seccomp::RuntimeDefault),
            (&default, &json!(null), USER, Seccomp::RuntimeDefault),
            (&default, &unconfined, ROOT, Seccomp::Unconfined),
            (&none, &none, ROOT, Seccomp::Unconfined),
            (&default, &json!({"privileged": true}), ROOT, Seccomp::Unconfined),
        ] {
            let found = decide(json!({"securityContext": of_pod}), own.clone(), agent).unwrap();
            assert_eq!(found.seccomp, expected, "{of_pod} {own}");
            assert_eq!(found.no_new_privs, expected == Seccomp::RuntimeDefault, "{of_pod} {own}");
        }
    }

    #[test]
    fn settings_that_cannot_be_applied_are_refused_by_name() {
        let none = json!({});
        for (spec, security, agent, field) in [
            (none.clone(), json!({"seccompProfile": {"type": "Localhost"}}), ROOT, "seccompProfile.type"),
            (json!({"securityContext": {"seccompProfile": {"type": "Localhost"}}}), json!(null), ROOT, "Localhost"),
            (none.clone(), json!({"privileged": true, "seccompProfile": {"type": "Localhost"}}), ROOT, "Localhost"),
            (none.clone(), json!({"appArmorProfile": {"type": "RuntimeDefault"}}), ROOT, "appArmorProfile.type"),
            (none.clone(), json!({"seLinuxOptions": {"level": "s0"}}), ROOT, "seLinuxOptions"),
            (none.clone(), json!({"procMount": "Unmasked"}), ROOT, "`procMount` Unmasked"),
            (none.clone(), json!({"procMount": "Unmasked"}), USER, "procMount"),
            (json!({"hostUsers": false}), json!(null), ROOT, "hostUsers"),
            (json!({"shareProcessNamespace": true}), json!(null), ROOT, "`hostPID`"),
            (json!({"shareProcessNamespace": true}), json!({"privileged": false}), USER, "shareProcessNamespace"),
            (json!({"securityContext": {"sysctls": [{"name": "a.b", "value": "1"}]}}), json!(null), ROOT, "a.b"),
            (none.clone(), json!({"privileged": true}), USER, "privileged"),
            (none.clone(), json!({"capabilities": {"add": ["NET_ADMIN"]}}), USER, "NET_ADMIN"),
            (none.clone(), json!({"capabilities": {"add": ["SYS_TIME"]}}), ROOT, "SYS_TIME"),
            (none.clone(), json!({"capabilities": {"add": ["SYS_PTRACE"]}}), TRACER, "`privileged`"),
            (none.clone(), json!({"capabilities": {"add": ["all"]}}), ROOT, "`privileged`"),
            (none.clone(), json!({"capabilities": {"add": ["FLY"]}}), ROOT, "FLY"),
            (none.clone(), json!({"capabilities": {"drop": [""]}}), ROOT, "capabilities.drop"),
        ] {
            match decide(spec.clone(), security.clone(), agent) {
                Err(RuntimeError::Config(text)) => assert!(text.to_string().contains(field), "{text}"),
                other => panic!("{spec} {security} is not refused: {other:?}"),
            }
        }
        let shared = json!({"shareProcessNamespace": true});
        assert!(decide(shared, json!({"privileged": true}), ROOT).is_ok(), "a privileged container sees all processes");
        let unconfined = json!({"seccompProfile": {"type": "Unconfined"}, "appArmorProfile": {"type": "Unconfined"}});
        assert!(decide(json!({"hostUsers": true}), unconfined, ROOT).is_ok());
        assert!(decide(json!({}), json!({"procMount": "Default"}), ROOT).is_ok());
    }
}
