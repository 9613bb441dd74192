//! Variables from config maps, secrets and services.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, ConfigMapKeySelector, EnvFromSource, Secret, SecretKeySelector};

use super::{ConfigError, Environment};
use crate::containers::definition::Definition;
use crate::objects::{ObjectRef, of_variables, service_variables};
use crate::pod::{ContainerKind, PodObject};
use crate::ports::{ObjectError, ObjectKind, ServiceAddress};

/// The objects that the variables of a container are taken from, each as the node read it. `Debug` prints their names.
#[derive(Clone, PartialEq)]
pub struct EnvObjects {
    /// The config maps, by name.
    pub config_maps: BTreeMap<String, Result<Arc<ConfigMap>, ObjectError>>,
    /// The secrets, by name.
    pub secrets: BTreeMap<String, Result<Arc<Secret>, ObjectError>>,
    /// The services that the pod may see.
    pub services: Result<Vec<Arc<ServiceAddress>>, ObjectError>,
}

impl fmt::Debug for EnvObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (config_maps, secrets): (Vec<&String>, Vec<&String>) =
            (self.config_maps.keys().collect(), self.secrets.keys().collect());
        f.debug_struct("EnvObjects")
            .field("config_maps", &config_maps)
            .field("secrets", &secrets)
            .finish_non_exhaustive()
    }
}

/// The config maps and secrets that the variables of a container are taken from.
pub fn env_objects(pod: &PodObject, kind: ContainerKind, name: &str) -> BTreeSet<ObjectRef> {
    let mut found = BTreeSet::new();
    if let Some(container) = Definition::find_in(pod, kind, name) {
        of_variables(Some(container.env()), Some(container.env_from()), &mut found);
    }
    found
}

/// The variables of services. A static pod starts without them if they are not known, because it must not depend on an API server.
pub(super) fn services(pod: &PodObject, objects: &EnvObjects) -> Result<BTreeMap<String, String>, ConfigError> {
    let services = match &objects.services {
        Ok(services) => services,
        Err(_) if pod.is_static() => return Ok(BTreeMap::new()),
        Err(_) => return Err(ConfigError::NoServices),
    };
    let links = pod.spec().enable_service_links != Some(false);
    Ok(service_variables(pod.full_name().namespace(), links, services.iter().map(|service| &**service)))
}

/// Sets a variable for each key of the object of an `envFrom` entry. Every key of an object can be the name of a variable (upstream
/// `makeEnvironmentVariables`, kubelet 1.36). A value that is not UTF-8 gets replacement characters.
pub(super) fn set_all(
    pod: &PodObject,
    from: &EnvFromSource,
    objects: Option<&EnvObjects>,
    env: &mut Environment,
) -> Result<(), ConfigError> {
    let prefix = from.prefix.as_deref().unwrap_or_default();
    if let Some(source) = &from.config_map_ref {
        let found = config_map(pod, &source.name, source.optional, objects)?;
        for (key, text) in found.iter().flat_map(|map| map.data.iter().flatten()) {
            env.set(&format!("{prefix}{key}"), text.clone());
        }
    } else if let Some(source) = &from.secret_ref {
        let found = secret(pod, &source.name, source.optional, objects)?;
        for (key, bytes) in found.iter().flat_map(|secret| secret.data.iter().flatten()) {
            env.set(&format!("{prefix}{key}"), String::from_utf8_lossy(&bytes.0).into_owned());
        }
    }
    Ok(())
}

/// The value of a key of a config map; `None` if the key is optional and missing.
pub(super) fn config_map_key(
    pod: &PodObject,
    from: &ConfigMapKeySelector,
    objects: Option<&EnvObjects>,
) -> Result<Option<String>, ConfigError> {
    let Some(found) = config_map(pod, &from.name, from.optional, objects)? else { return Ok(None) };
    let value = found.data.as_ref().and_then(|data| data.get(&from.key)).cloned();
    unless_optional(pod, value, "ConfigMap", &from.name, &from.key, from.optional)
}

/// The value of a key of a secret; `None` if the key is optional and missing.
pub(super) fn secret_key(
    pod: &PodObject,
    from: &SecretKeySelector,
    objects: Option<&EnvObjects>,
) -> Result<Option<String>, ConfigError> {
    let Some(found) = secret(pod, &from.name, from.optional, objects)? else { return Ok(None) };
    let value = found.data.as_ref().and_then(|data| data.get(&from.key));
    let value = value.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
    unless_optional(pod, value, "Secret", &from.name, &from.key, from.optional)
}

fn unless_optional(
    pod: &PodObject,
    value: Option<String>,
    kind: &'static str,
    name: &str,
    key: &str,
    optional: Option<bool>,
) -> Result<Option<String>, ConfigError> {
    if value.is_some() || optional == Some(true) {
        return Ok(value);
    }
    let namespace = pod.full_name().namespace().to_owned();
    Err(ConfigError::NoKey { key: key.to_owned(), kind, namespace, name: name.to_owned() })
}

fn config_map(
    pod: &PodObject,
    name: &str,
    optional: Option<bool>,
    objects: Option<&EnvObjects>,
) -> Result<Option<Arc<ConfigMap>>, ConfigError> {
    let found = objects.map(|objects| objects.config_maps.get(name).cloned());
    object(pod, ("configMap", ObjectKind::ConfigMap), name, optional, found)
}

fn secret(
    pod: &PodObject,
    name: &str,
    optional: Option<bool>,
    objects: Option<&EnvObjects>,
) -> Result<Option<Arc<Secret>>, ConfigError> {
    let found = objects.map(|objects| objects.secrets.get(name).cloned());
    object(pod, ("secret", ObjectKind::Secret), name, optional, found)
}

/// The object; `None` if it is optional and does not exist. `found` is `None` without an API server.
fn object<T>(
    pod: &PodObject,
    (field, kind): (&'static str, ObjectKind),
    name: &str,
    optional: Option<bool>,
    found: Option<Option<Result<T, ObjectError>>>,
) -> Result<Option<T>, ConfigError> {
    let is_optional = optional == Some(true);
    match found {
        None if is_optional => Ok(None),
        None => {
            let namespace = pod.full_name().namespace().to_owned();
            Err(ConfigError::NeedsApiServer { kind: field, namespace, name: name.to_owned() })
        }
        Some(None) => Err(ObjectError::missing(kind, name).into()),
        Some(Some(Err(error))) if error.is_missing() && is_optional => Ok(None),
        Some(Some(found)) => Ok(Some(found?)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::fields::FieldFacts;
    use crate::containers::env::{Allocatable, ResolvedContainer, VolumeContents, resolve};
    use crate::ports::{ServiceAddressPort, VolumeMounts};

    /// The config map `map`, the secret `keys` and the service of the API server. The object `none` is missing, and `away` cannot be
    /// read.
    fn objects() -> EnvObjects {
        let map = serde_json::from_value(json!({"data": {"a": "1", "b.c-d": "2"}})).unwrap();
        let keys = serde_json::from_value(json!({"data": {"word": "cHc="}})).unwrap();
        let away = |kind| ObjectError::unavailable(kind, "away", "connection refused");
        let port = ServiceAddressPort { name: "https".into(), port: 443, protocol: "TCP".into() };
        let service = ServiceAddress {
            namespace: "default".into(),
            name: "kubernetes".into(),
            cluster_ip: "10.0.0.1".into(),
            ports: vec![port],
        };
        EnvObjects {
            config_maps: [
                ("map".to_owned(), Ok(Arc::new(map))),
                ("none".to_owned(), Err(ObjectError::missing(ObjectKind::ConfigMap, "none"))),
                ("away".to_owned(), Err(away(ObjectKind::ConfigMap))),
            ]
            .into(),
            secrets: [
                ("keys".to_owned(), Ok(Arc::new(keys))),
                ("none".to_owned(), Err(ObjectError::missing(ObjectKind::Secret, "none"))),
            ]
            .into(),
            services: Ok(vec![Arc::new(service)]),
        }
    }

    fn resolved(source: &str, container: Value, objects: EnvObjects) -> Result<Vec<(String, String)>, String> {
        let mut main = json!({"name": "main"});
        main.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let pod = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "annotations": {"kubernetes.io/config.source": source}},
            "spec": {"containers": [main]},
        });
        let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
        let contents = VolumeContents { objects: Some(Box::new(objects)), ..VolumeContents::default() };
        let (kind, facts) = (ContainerKind::Regular, FieldFacts::default());
        let container = resolve(&pod, kind, "main", &VolumeMounts::new(), &facts, &Allocatable::new(), &contents);
        container.map(|container| container.env).map_err(|error| error.to_string())
    }

    /// The variables without those of the service.
    fn env(container: Value) -> Result<Vec<(String, String)>, String> {
        let env = resolved("api", container, objects())?;
        Ok(env.into_iter().filter(|(name, _)| !name.starts_with("KUBERNETES_")).collect())
    }

    fn set(variables: &[(&str, &str)]) -> Result<Vec<(String, String)>, String> {
        Ok(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn all_keys_of_an_object_become_variables() {
        let from = json!([{"configMapRef": {"name": "map"}}, {"prefix": "P_", "secretRef": {"name": "keys"}}]);
        let own = json!([{"name": "a", "value": "own"}, {"name": "S", "value": "$(P_word)$(b.c-d)"}]);
        assert_eq!(
            env(json!({"envFrom": from, "env": own})),
            set(&[("a", "own"), ("b.c-d", "2"), ("P_word", "pw"), ("S", "pw2")])
        );
    }

    #[test]
    fn debug_output_has_no_secrets() {
        let shown = format!("{:?}", objects());
        // The bytes of `pw`.
        assert!(shown.contains("keys") && !shown.contains("112, 119"), "{shown}");
        let container = ResolvedContainer {
            command: vec!["run".into(), "--password=hunter2".into()],
            env: vec![("WORD".into(), "hunter2".into())],
            ..ResolvedContainer::default()
        };
        let shown = format!("{container:?}");
        assert!(shown.contains("WORD") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn variable_has_the_value_of_a_key() {
        let key = |kind: &str, name: &str, key: &str, optional: bool| {
            let source = json!({kind: {"name": name, "key": key, "optional": optional}});
            env(json!({"env": [{"name": "V", "valueFrom": source}]}))
        };
        let (map, secret) = ("configMapKeyRef", "secretKeyRef");
        assert_eq!(key(map, "map", "a", false), set(&[("V", "1")]));
        assert_eq!(key(secret, "keys", "word", false), set(&[("V", "pw")]));
        assert_eq!(key(map, "map", "no", true), set(&[]));
        assert_eq!(key(secret, "none", "no", true), set(&[]));
        for (kind, name, of, error) in [
            (map, "map", "no", "couldn't find key no in ConfigMap shop/map"),
            (secret, "keys", "no", "couldn't find key no in Secret shop/keys"),
            (map, "none", "a", "configmap \"none\" not found"),
            (secret, "none", "a", "secret \"none\" not found"),
        ] {
            assert_eq!(key(kind, name, of, false), Err(error.to_owned()));
        }
        // An optional object that exists must be read.
        assert_eq!(key(map, "away", "a", true), Err("cannot read configmap \"away\"".to_owned()));
    }

    #[test]
    fn missing_object_is_an_error_unless_it_is_optional() {
        let from =
            |kind: &str, optional: bool| env(json!({"envFrom": [{kind: {"name": "none", "optional": optional}}]}));
        assert_eq!(from("configMapRef", false), Err("configmap \"none\" not found".to_owned()));
        assert_eq!(from("secretRef", false), Err("secret \"none\" not found".to_owned()));
        assert_eq!(from("configMapRef", true), set(&[]));
        assert_eq!(from("secretRef", true), set(&[]));
    }

    #[test]
    fn variables_of_services_replace_no_others_and_can_be_referred_to() {
        let own = json!({"env": [
            {"name": "KUBERNETES_PORT", "value": "own"}, {"name": "URL", "value": "https://$(KUBERNETES_SERVICE_HOST)"},
        ]});
        let env = resolved("api", own, objects()).unwrap();
        let value =
            |name: &str| env.iter().filter(|(other, _)| other == name).map(|(_, value)| &**value).collect::<Vec<_>>();
        assert_eq!(value("KUBERNETES_PORT"), ["own"]);
        assert_eq!(value("URL"), ["https://10.0.0.1"]);
        assert_eq!(value("KUBERNETES_SERVICE_PORT_HTTPS"), ["443"]);
    }

    #[test]
    fn only_static_pods_start_without_the_services() {
        let unknown = || EnvObjects { services: Err(ObjectError::NotYet(ObjectKind::Service)), ..objects() };
        let error = "services have not yet been read at least once, cannot construct envvars";
        assert_eq!(resolved("api", json!({}), unknown()), Err(error.to_owned()));
        assert_eq!(resolved("file", json!({}), unknown()), set(&[]));
    }
}
