//! Seccomp and AppArmor profiles, SELinux labels.

use std::path::Path;

use k8s_openapi::api::core::v1::{AppArmorProfile, SELinuxOptions, SeccompProfile};
use podwright_core::containers::definition::Definition;
use podwright_model::pod::PodObject;
use podwright_model::texts::containers::config as texts;

use super::error::ConfigError;
use super::inputs::NodeFacts;
use crate::v1;
use v1::security_profile::ProfileType;

/// The annotation that selected an AppArmor profile before the API had a field for it, followed by the container's name. An API
/// server sets both; a static pod may have the annotation alone.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The seccomp profile of a sandbox: the runtime's default, which allows everything that a sandbox needs.
pub(super) fn seccomp_of_sandbox() -> v1::SecurityProfile {
    profile(ProfileType::RuntimeDefault)
}

/// The seccomp profile of a container: its own profile, else the pod's, else that of the node (upstream `getSeccompProfile`, kubelet
/// 1.36).
pub(super) fn seccomp(
    facts: &NodeFacts,
    pod: &PodObject,
    container: Definition<'_>,
) -> Result<v1::SecurityProfile, ConfigError> {
    let own = container.security().and_then(|context| context.seccomp_profile.as_ref());
    let of_pod = pod.spec().security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref());
    let Some(SeccompProfile { type_, localhost_profile }) = own.or(of_pod) else {
        return Ok(profile(if facts.seccomp_default { ProfileType::RuntimeDefault } else { ProfileType::Unconfined }));
    };
    match type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault)),
        "Unconfined" => Ok(profile(ProfileType::Unconfined)),
        "Localhost" => {
            let name = profile_name(localhost_profile.as_deref(), texts::NO_SECCOMP_PROFILE)?;
            let is_below = Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
            if !is_below {
                return Err(ConfigError::Value {
                    field: field(container, "seccompProfile.localhostProfile"),
                    value: name.to_owned(),
                    allowed: "the paths relative to the node's seccomp profile directory, without \"..\"",
                });
            }
            Ok(localhost(facts.seccomp_profiles.join(name).display().to_string()))
        }
        other => Err(ConfigError::Value {
            field: field(container, "seccompProfile.type"),
            value: other.to_owned(),
            allowed: "RuntimeDefault, Unconfined, Localhost",
        }),
    }
}

/// The AppArmor profile of a container: its own field, else the annotation, else the pod's field (upstream
/// `apparmor.GetProfile`, kubelet 1.36). With `None` the runtime's default applies.
pub(super) fn apparmor(pod: &PodObject, container: Definition<'_>) -> Result<Option<v1::SecurityProfile>, ConfigError> {
    let own = container.security().and_then(|context| context.app_armor_profile.as_ref());
    if let Some(own) = own {
        return apparmor_field(own).map(Some);
    }
    match pod.annotation(&format!("{APPARMOR_ANNOTATION}{}", container.name())) {
        None | Some("") => {}
        Some("runtime/default") => return Ok(Some(profile(ProfileType::RuntimeDefault))),
        Some("unconfined") => return Ok(Some(profile(ProfileType::Unconfined))),
        Some(value) => match value.strip_prefix("localhost/").filter(|name| !name.is_empty()) {
            Some(name) => return Ok(Some(localhost(name.to_owned()))),
            None => {
                return Err(ConfigError::Value {
                    field: format!("annotation {APPARMOR_ANNOTATION}{}", container.name()),
                    value: value.to_owned(),
                    allowed: "runtime/default, unconfined, localhost/PROFILE",
                });
            }
        },
    }
    let of_pod = pod.spec().security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    of_pod.map(apparmor_field).transpose()
}

fn apparmor_field(requested: &AppArmorProfile) -> Result<v1::SecurityProfile, ConfigError> {
    match requested.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault)),
        "Unconfined" => Ok(profile(ProfileType::Unconfined)),
        "Localhost" => {
            let name = profile_name(requested.localhost_profile.as_deref(), texts::NO_APP_ARMOR_PROFILE)?;
            Ok(localhost(name.to_owned()))
        }
        other => Err(ConfigError::OfKubelet(texts::unknown_app_armor_type(other))),
    }
}

/// The name of a profile of the node. `missing` is the error text if there is none.
fn profile_name<'a>(name: Option<&'a str>, missing: &str) -> Result<&'a str, ConfigError> {
    name.filter(|name| !name.is_empty()).ok_or_else(|| ConfigError::OfKubelet(missing.to_owned()))
}

fn field(container: Definition<'_>, name: &str) -> String {
    format!("container {:?}: securityContext.{name}", container.name())
}

fn profile(kind: ProfileType) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref: String::new() }
}

fn localhost(reference: String) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: ProfileType::Localhost.into(), localhost_ref: reference }
}

/// The SELinux labels.
pub(super) fn selinux(options: &SELinuxOptions) -> v1::SeLinuxOption {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    v1::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}
