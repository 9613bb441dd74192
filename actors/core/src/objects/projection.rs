//! The files that a volume gets from API objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, Secret,
    ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::references::{ObjectRef, of_volume};
use crate::config::fields::{self, FieldFacts};
use crate::config::linux_id::linux_id;
use crate::pod::PodObject;
use crate::ports::{Confidential, ObjectError, ObjectKind, TokenNeed, TrustBundleNeed, VolumeFile};
use crate::text::error_chain;
use crate::texts::{format, objects as texts};

/// The mode of a file if neither its item nor its volume sets one (core/v1).
const DEFAULT_MODE: i32 = 0o644;
/// The lifetime of a token if the source sets none, in seconds (core/v1).
const DEFAULT_EXPIRATION: i64 = 3600;

/// The objects that volumes are made of, each as the node read it.
#[derive(Clone, Debug, Default)]
pub struct VolumeObjects {
    /// The config maps, by name.
    pub config_maps: BTreeMap<String, Result<Arc<ConfigMap>, ObjectError>>,
    /// The secrets, by name.
    pub secrets: BTreeMap<String, Result<Arc<Secret>, ObjectError>>,
    /// The tokens.
    pub tokens: BTreeMap<TokenNeed, Result<Confidential, ObjectError>>,
    /// The trust bundles.
    pub bundles: Vec<(TrustBundleNeed, Result<String, ObjectError>)>,
}

/// The objects that a volume is made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeNeeds {
    /// The config maps and secrets.
    pub objects: BTreeSet<ObjectRef>,
    /// The tokens.
    pub tokens: BTreeSet<TokenNeed>,
    /// The trust bundles.
    pub bundles: Vec<TrustBundleNeed>,
}

/// The files of a volume cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectionError {
    /// An object cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The API server issues no token.
    #[error("{}", texts::no_token(&error_chain(.0).to_string()))]
    Token(ObjectError),
    /// The secret does not have the key of an item.
    #[error("{}", texts::no_secret_key(.0))]
    NoSecretKey(String),
    /// The config map does not have the key of an item.
    #[error("{}", texts::no_config_map_key(.0))]
    NoConfigMapKey(String),
    /// A field of the pod cannot be used.
    #[error("{0}")]
    Field(String),
    /// Several sources of a projected volume failed.
    #[error("{}", format::aggregate(.0))]
    Many(Vec<String>),
}

/// The objects that a volume is made of; `None` if the volume is not made of API objects.
pub fn needs(volume: &Volume) -> Option<VolumeNeeds> {
    let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    let mut needs = VolumeNeeds::default();
    of_volume(volume, &mut needs.objects);
    let mut is_made_of_objects = volume.config_map.is_some() || volume.secret.is_some();
    for source in sources {
        is_made_of_objects |= source.downward_api.is_none();
        needs.tokens.extend(source.service_account_token.as_ref().map(token_need));
        needs.bundles.extend(source.cluster_trust_bundle.as_ref().map(bundle_need));
    }
    is_made_of_objects.then_some(needs)
}

fn token_need(source: &ServiceAccountTokenProjection) -> TokenNeed {
    TokenNeed {
        audience: source.audience.clone().unwrap_or_default(),
        expiration_seconds: source.expiration_seconds.unwrap_or(DEFAULT_EXPIRATION),
    }
}

fn bundle_need(source: &ClusterTrustBundleProjection) -> TrustBundleNeed {
    match &source.name {
        Some(name) => TrustBundleNeed::Name(name.clone()),
        None => TrustBundleNeed::Signer {
            signer: source.signer_name.clone().unwrap_or_default(),
            labels: source.label_selector.clone(),
        },
    }
}

/// The files of a volume that is made of API objects. `allocatable` gives the value of a `resourceFieldRef` to a limit that is not
/// set. A later source replaces a file of an earlier source with the same path.
///
/// An optional object that is missing gives no files. An optional item whose key is missing gives no file (upstream `MakePayload` of
/// `pkg/volume/configmap` and `pkg/volume/secret`, `collectData` of `pkg/volume/projected`, 1.36).
///
/// # Errors
/// [`ProjectionError`] for the first object that failed; for a projected volume, of all sources that failed.
pub fn files(
    pod: &PodObject,
    volume: &Volume,
    objects: &VolumeObjects,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<Vec<VolumeFile>, ProjectionError> {
    if let Some(source) = &volume.config_map {
        let items = Items { list: source.items.as_deref(), optional: source.optional, mode: source.default_mode };
        return config_map(&source.name, items, objects);
    }
    if let Some(source) = &volume.secret {
        let items = Items { list: source.items.as_deref(), optional: source.optional, mode: source.default_mode };
        return secret(source.secret_name.as_deref().unwrap_or_default(), items, objects);
    }
    let Some(projected) = &volume.projected else { return Ok(Vec::new()) };
    let (mut files, mut failures) = (Vec::new(), Vec::new());
    for source in projected.sources.iter().flatten() {
        match part(pod, source, projected.default_mode, objects, allocatable) {
            Ok(part) => files.extend(part),
            Err(error) => failures.push(error),
        }
    }
    match failures.len() {
        0 => Ok(files),
        1 => Err(failures.swap_remove(0)),
        _ => Err(ProjectionError::Many(failures.iter().map(|error| error_chain(error).to_string()).collect())),
    }
}

/// The files of one source of a projected volume.
fn part(
    pod: &PodObject,
    source: &VolumeProjection,
    mode: Option<i32>,
    objects: &VolumeObjects,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<Vec<VolumeFile>, ProjectionError> {
    if let Some(source) = &source.config_map {
        let items = Items { list: source.items.as_deref(), optional: source.optional, mode };
        return config_map(&source.name, items, objects);
    }
    if let Some(source) = &source.secret {
        let items = Items { list: source.items.as_deref(), optional: source.optional, mode };
        return secret(&source.name, items, objects);
    }
    if let Some(source) = &source.downward_api {
        let items = source.items.as_deref().unwrap_or_default();
        return downward_files(pod, items, mode, allocatable).map_err(ProjectionError::Field);
    }
    if let Some(source) = &source.service_account_token {
        let token = objects.tokens.get(&token_need(source)).cloned();
        let token = token.unwrap_or(Err(ObjectError::NotYet(ObjectKind::Token))).map_err(ProjectionError::Token)?;
        return Ok(vec![restricted_file(pod, &source.path, token.expose().to_vec(), mode)?]);
    }
    if let Some(source) = &source.cluster_trust_bundle {
        let need = bundle_need(source);
        let bundle = objects.bundles.iter().find(|(of, _)| *of == need).map(|(_, bundle)| bundle.clone());
        let content = match bundle.unwrap_or(Err(ObjectError::NotYet(ObjectKind::TrustBundle))) {
            Err(error) if error.is_missing() && source.optional == Some(true) => String::new(),
            bundle => bundle?,
        };
        return Ok(vec![restricted_file(pod, &source.path, content.into_bytes(), mode)?]);
    }
    Err(ProjectionError::Field(
        "a source of the projected volume is not supported: use serviceAccountToken, configMap, secret, downwardAPI or \
         clusterTrustBundle"
            .to_owned(),
    ))
}

/// The file of a token or a trust bundle. If the pod has a user or a group of its own, no other user may read the file (upstream
/// `collectData` of `pkg/volume/projected`, 1.36).
fn restricted_file(
    pod: &PodObject,
    path: &str,
    content: Vec<u8>,
    mode: Option<i32>,
) -> Result<VolumeFile, ProjectionError> {
    let owner = user_of_all_containers(pod);
    let has_group = pod.spec().security_context.as_ref().is_some_and(|context| context.fs_group.is_some());
    let mode = if owner.is_some() || has_group { 0o600 } else { valid(path, mode)? };
    Ok(VolumeFile { path: path.to_owned(), content, mode, owner })
}

/// The user that all containers of the pod run as; `None` if there is no such user, or if a container runs as the user of its image
/// (upstream `FsUserFrom`, `pkg/volume/util`, 1.36).
fn user_of_all_containers(pod: &PodObject) -> Option<u32> {
    let of_pod = pod.spec().security_context.as_ref().and_then(|context| context.run_as_user);
    let user = |container: &Container| {
        let own = container.security_context.as_ref().and_then(|context| context.run_as_user);
        own.or(of_pod).and_then(|user| linux_id(user).ok())
    };
    let mut users = pod.init_containers().iter().chain(pod.containers()).map(user);
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

/// The keys of an object that become files.
#[derive(Clone, Copy)]
struct Items<'a> {
    /// The keys that become files. `None`: all.
    list: Option<&'a [KeyToPath]>,
    optional: Option<bool>,
    mode: Option<i32>,
}

fn config_map(name: &str, items: Items<'_>, objects: &VolumeObjects) -> Result<Vec<VolumeFile>, ProjectionError> {
    let found = objects.config_maps.get(name).cloned().unwrap_or(Err(ObjectError::NotYet(ObjectKind::ConfigMap)));
    let Some(object) = unless_optional(found, items)? else { return Ok(Vec::new()) };
    let texts = object.data.iter().flatten().map(|(key, text)| (key.as_str(), text.as_bytes()));
    let binary = object.binary_data.iter().flatten().map(|(key, bytes)| (key.as_str(), bytes.0.as_slice()));
    keys(&texts.chain(binary).collect(), items, ProjectionError::NoConfigMapKey)
}

fn secret(name: &str, items: Items<'_>, objects: &VolumeObjects) -> Result<Vec<VolumeFile>, ProjectionError> {
    let found = objects.secrets.get(name).cloned().unwrap_or(Err(ObjectError::NotYet(ObjectKind::Secret)));
    let Some(object) = unless_optional(found, items)? else { return Ok(Vec::new()) };
    let data = object.data.iter().flatten().map(|(key, bytes)| (key.as_str(), bytes.0.as_slice()));
    keys(&data.collect(), items, ProjectionError::NoSecretKey)
}

fn unless_optional<T>(found: Result<T, ObjectError>, items: Items<'_>) -> Result<Option<T>, ObjectError> {
    match found {
        Err(error) if error.is_missing() && items.optional == Some(true) => Ok(None),
        found => found.map(Some),
    }
}

fn keys(
    data: &BTreeMap<&str, &[u8]>,
    items: Items<'_>,
    no_key: impl Fn(String) -> ProjectionError,
) -> Result<Vec<VolumeFile>, ProjectionError> {
    let file = |path: &str, content: &[u8], mode: Option<i32>| {
        Ok(VolumeFile { path: path.to_owned(), content: content.to_vec(), mode: valid(path, mode)?, owner: None })
    };
    let Some(list) = items.list.filter(|list| !list.is_empty()) else {
        return data.iter().map(|(key, content)| file(key, content, items.mode)).collect();
    };
    let mut files = Vec::new();
    for item in list {
        match data.get(item.key.as_str()) {
            Some(content) => files.push(file(&item.path, content, item.mode.or(items.mode))?),
            None if items.optional == Some(true) => {}
            None => return Err(no_key(item.key.clone())),
        }
    }
    Ok(files)
}

fn valid(path: &str, mode: Option<i32>) -> Result<u32, ProjectionError> {
    file_mode(path, mode).map_err(ProjectionError::Field)
}

fn file_mode(path: &str, mode: Option<i32>) -> Result<u32, String> {
    let mode = mode.unwrap_or(DEFAULT_MODE);
    let valid = u32::try_from(mode).ok().filter(|mode| *mode <= 0o777);
    valid.ok_or_else(|| format!("item {path:?} has mode {mode}: use a mode from 0 to 0777 (511)"))
}

/// The files of downward API items.
///
/// # Errors
/// The reason, for the first item that cannot be used.
pub fn downward_files(
    pod: &PodObject,
    items: &[DownwardAPIVolumeFile],
    default_mode: Option<i32>,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<Vec<VolumeFile>, String> {
    let file = |item: &DownwardAPIVolumeFile| {
        let text = if let Some(field) = &item.field_ref {
            fields::field(pod, &field.field_path, &FieldFacts::default())
                .ok_or_else(|| format!("{:?} is not a field of a pod: correct fieldPath", field.field_path))?
        } else if let Some(field) = &item.resource_field_ref {
            let name = field.container_name.as_deref().unwrap_or_default();
            let container = pod.init_containers().iter().chain(pod.containers()).find(|one| one.name == name);
            let container =
                container.ok_or_else(|| format!("the pod has no container {name:?}: correct containerName"))?;
            fields::resource(
                pod.spec(),
                container.resources.as_ref(),
                &field.resource,
                field.divisor.as_ref(),
                allocatable,
            )
            .ok_or_else(|| format!("{:?} is not a resource: correct resource", field.resource))?
        } else {
            return Err(format!("item {:?} has no source: set fieldRef or resourceFieldRef", item.path));
        };
        let mode = file_mode(&item.path, item.mode.or(default_mode))?;
        Ok(VolumeFile { path: item.path.clone(), content: text.into_bytes(), mode, owner: None })
    };
    items.iter().map(file).collect()
}

#[cfg(test)]
mod tests;
