//! Checks whether the node can enforce the AppArmor profiles of a pod.

use super::{AdmissionHandler, Admitted, Rejection};
use crate::pod::PodObject;
use crate::texts::admission as texts;

/// The annotations that set a container's profile before Kubernetes 1.30.
const ANNOTATIONS: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Whether the kernel has AppArmor. As an admission handler, it rejects pods with a profile that cannot be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppArmor {
    /// Whether AppArmor is enabled on the host.
    pub is_enabled: bool,
}

impl AdmissionHandler for AppArmor {
    fn admit(&self, pod: &PodObject, _: &Admitted) -> Result<(), Rejection> {
        let refuse = |why: &str| Err(Rejection::new(texts::APP_ARMOR, texts::app_armor(why)));
        let profiles = profiles(pod);
        if profiles.iter().all(|profile| profile.kind == "Unconfined") {
            return Ok(());
        }
        if !self.is_enabled {
            return refuse(texts::APP_ARMOR_NOT_ENABLED);
        }
        match profiles.iter().find(|profile| profile.kind == "Localhost" && profile.name.trim().is_empty()) {
            Some(profile) => refuse(&texts::app_armor_profile_empty(profile.name)),
            None => Ok(()),
        }
    }
}

struct Profile<'a> {
    /// `Localhost`, `RuntimeDefault` or `Unconfined`.
    kind: &'a str,
    /// The name of a local profile.
    name: &'a str,
}

/// The profiles of the pod, of its containers and of its annotations.
fn profiles(pod: &PodObject) -> Vec<Profile<'_>> {
    let spec = pod.spec();
    let of_pod = spec.security_context.iter().filter_map(|context| context.app_armor_profile.as_ref());
    let containers = pod.init_containers().iter().chain(pod.containers()).map(|it| &it.security_context);
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|it| &it.security_context);
    let of_containers = containers.chain(ephemeral).flatten().filter_map(|context| context.app_armor_profile.as_ref());
    let in_spec = of_pod.chain(of_containers).map(|profile| Profile {
        kind: &profile.type_,
        name: profile.localhost_profile.as_deref().unwrap_or_default(),
    });
    let annotations = pod.metadata().annotations.iter().flatten().filter(|(key, _)| key.starts_with(ANNOTATIONS));
    let annotated = annotations.map(|(_, value)| match value.strip_prefix("localhost/") {
        Some(name) => Profile { kind: "Localhost", name },
        None if value == "unconfined" => Profile { kind: "Unconfined", name: "" },
        None => Profile { kind: "RuntimeDefault", name: "" },
    });
    in_spec.chain(annotated).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::PodObject;

    #[test]
    fn profiles_other_than_unconfined_need_apparmor_on_the_host() {
        let pod = |annotations: Value, spec: Value| {
            let metadata = json!({"name": "p", "namespace": "test", "uid": "p", "annotations": annotations});
            PodObject::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()).unwrap()
        };
        let of_pod = |profile: Value| json!({"containers": [], "securityContext": {"appArmorProfile": profile}});
        let of_container =
            |profile: Value| json!({"containers": [{"name": "a", "securityContext": {"appArmorProfile": profile}}]});
        let annotated = |value: &str| json!({"container.apparmor.security.beta.kubernetes.io/a": value});
        let disabled = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        let empty = "Cannot enforce AppArmor: invalid empty AppArmor profile name: \" \"";
        let none = json!({"containers": []});
        // Rows: annotations, spec; the refusal without AppArmor, and with it.
        for (annotations, spec, without, with) in [
            (json!({}), none.clone(), None, None),
            (json!({}), of_pod(json!({"type": "Unconfined"})), None, None),
            (json!({}), of_pod(json!({"type": "RuntimeDefault"})), Some(disabled), None),
            (json!({}), of_container(json!({"type": "Localhost", "localhostProfile": "x"})), Some(disabled), None),
            (
                json!({}),
                of_container(json!({"type": "Localhost", "localhostProfile": " "})),
                Some(disabled),
                Some(empty),
            ),
            (annotated("runtime/default"), none.clone(), Some(disabled), None),
            (annotated("unconfined"), none.clone(), None, None),
            (annotated("localhost/x"), none, Some(disabled), None),
        ] {
            let pod = pod(annotations.clone(), spec.clone());
            for (is_enabled, expected) in [(false, without), (true, with)] {
                let refusal = AppArmor { is_enabled }.admit(&pod, &Admitted::default()).err();
                let refusal = refusal.map(|it| (it.reason, it.message));
                let expected = expected.map(|text| ("AppArmor".to_owned(), text.to_owned()));
                assert_eq!(refusal, expected, "{annotations} {spec} {is_enabled}");
            }
        }
    }
}
