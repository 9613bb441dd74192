//! Seccomp and AppArmor profiles, SELinux labels.

use std::path::Path;

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, SELinuxOptions, SeccompProfile};
use podwright_actors::pod::PodObject;

use super::error::ConfigError;
use super::facts::Facts;
use crate::adapters::cri::v1;
use v1::security_profile::ProfileType;

/// The annotation that asked for AppArmor before the field did, followed by the container's name. Pods that no API server
/// completed may have it alone.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const TYPES: &str = "RuntimeDefault, Unconfined, Localhost";

/// What a sandbox runs under: it needs nothing that the runtime's own profile forbids.
pub(super) fn seccomp_of_sandbox() -> v1::SecurityProfile {
    profile(ProfileType::RuntimeDefault)
}

/// The seccomp profile of a container: its own, else the pod's, else none.
pub(super) fn seccomp(
    facts: &Facts,
    pod: &PodObject,
    container: &Container,
) -> Result<v1::SecurityProfile, ConfigError> {
    let own = container.security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref());
    let of_pod = pod.spec().security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref());
    let Some(SeccompProfile { type_, localhost_profile }) = own.or(of_pod) else {
        return Ok(profile(ProfileType::Unconfined));
    };
    match type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault)),
        "Unconfined" => Ok(profile(ProfileType::Unconfined)),
        "Localhost" => {
            let name = named(localhost_profile.as_deref(), container, "seccompProfile")?;
            let stays = Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
            if !stays {
                return Err(ConfigError::Value {
                    field: field(container, "seccompProfile.localhostProfile"),
                    value: name.to_owned(),
                    allowed: "the paths below the node's directory of seccomp profiles, without \"..\"",
                });
            }
            Ok(localhost(facts.seccomp_profiles.join(name).display().to_string()))
        }
        other => Err(unknown(container, "seccompProfile.type", other)),
    }
}

/// The AppArmor profile of a container: its field, else the annotation, else the pod's field (upstream
/// `apparmor.GetProfile`, kubelet 1.36). `None` leaves it to the runtime.
pub(super) fn apparmor(pod: &PodObject, container: &Container) -> Result<Option<v1::SecurityProfile>, ConfigError> {
    let own = container.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    if let Some(own) = own {
        return apparmor_field(own, container).map(Some);
    }
    match pod.annotation(&format!("{APPARMOR_ANNOTATION}{}", container.name)) {
        None | Some("") => {}
        Some("runtime/default") => return Ok(Some(profile(ProfileType::RuntimeDefault))),
        Some("unconfined") => return Ok(Some(profile(ProfileType::Unconfined))),
        Some(value) => match value.strip_prefix("localhost/").filter(|name| !name.is_empty()) {
            Some(name) => return Ok(Some(localhost(name.to_owned()))),
            None => {
                return Err(ConfigError::Value {
                    field: format!("annotation {APPARMOR_ANNOTATION}{}", container.name),
                    value: value.to_owned(),
                    allowed: "runtime/default, unconfined, localhost/PROFILE",
                });
            }
        },
    }
    let of_pod = pod.spec().security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    of_pod.map(|of_pod| apparmor_field(of_pod, container)).transpose()
}

fn apparmor_field(wanted: &AppArmorProfile, container: &Container) -> Result<v1::SecurityProfile, ConfigError> {
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault)),
        "Unconfined" => Ok(profile(ProfileType::Unconfined)),
        "Localhost" => {
            let name = named(wanted.localhost_profile.as_deref(), container, "appArmorProfile")?;
            Ok(localhost(name.to_owned()))
        }
        other => Err(unknown(container, "appArmorProfile.type", other)),
    }
}

fn named<'a>(name: Option<&'a str>, container: &Container, of: &str) -> Result<&'a str, ConfigError> {
    name.filter(|name| !name.is_empty()).ok_or_else(|| ConfigError::Value {
        field: field(container, &format!("{of}.localhostProfile")),
        value: String::new(),
        allowed: "the profiles of the node, or another type",
    })
}

fn unknown(container: &Container, of: &str, value: &str) -> ConfigError {
    ConfigError::Value { field: field(container, of), value: value.to_owned(), allowed: TYPES }
}

fn field(container: &Container, name: &str) -> String {
    format!("container {:?}: securityContext.{name}", container.name)
}

fn profile(kind: ProfileType) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref: String::new() }
}

fn localhost(reference: String) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: ProfileType::Localhost.into(), localhost_ref: reference }
}

/// The labels that SELinux checks.
pub(super) fn selinux(options: &SELinuxOptions) -> v1::SeLinuxOption {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    v1::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}
