//! Resolves a container's command, environment and mounts from its spec. Pure.

mod expand;
mod file;
mod objects;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, Volume, VolumeMount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub(crate) use expand::expand_all;
pub use expand::{MissingValues, expand};
pub use file::{EnvFiles, env_files};
pub use objects::{EnvObjects, env_objects};

use crate::config::fields::{FieldFacts, FieldUse, allowed, field, resource};
use crate::containers::definition::Definition;
use crate::pod::{ContainerKind, PodObject};
use crate::ports::{Mount, ObjectError, VolumeImage, VolumeMounts};
use crate::texts::containers::config as texts;
use crate::texts::objects as object_texts;

/// The files, images and API objects that were read or pulled before a container is resolved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeContents {
    /// The files that [`env_files`] lists.
    pub files: EnvFiles,
    /// The images of image volumes, by volume name.
    pub images: BTreeMap<String, VolumeImage>,
    /// The API objects that [`env_objects`] lists; `None` without an API server.
    pub objects: Option<Box<EnvObjects>>,
}

/// The resolved settings of a container. `Debug` prints neither the command nor the values of variables, which may be those of Secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ResolvedContainer {
    /// The entry point with `$(VAR)` expanded; empty for the image's own.
    pub command: Vec<String>,
    /// The arguments, expanded.
    pub args: Vec<String>,
    /// The environment. Each name occurs once, at the position where it was first set, with its last value.
    pub env: Vec<(String, String)>,
    /// The mounts, in spec order.
    pub mounts: Vec<Mount>,
}

impl fmt::Debug for ResolvedContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variables: Vec<&str> = self.env.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("ResolvedContainer")
            .field("variables", &variables)
            .field("mounts", &self.mounts)
            .finish_non_exhaustive()
    }
}

/// The resources that a node offers to pods, by name. They replace limits that a container does not set.
pub type Allocatable = BTreeMap<String, Quantity>;

/// A container cannot run as its spec says. Its reason is `CreateContainerConfigError` until the spec changes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The pod has no such container.
    #[error("the pod has no container {0:?}")]
    NoContainer(String),
    /// The environment refers to a secret or a config map, and the node has no API server. The remedy is a variable with a `value`.
    #[error("{}", texts::no_client(.kind, .namespace, .name))]
    NeedsApiServer {
        /// The kind of the object: `configMap` or `secret`.
        kind: &'static str,
        /// The pod's namespace.
        namespace: String,
        /// The name of the object.
        name: String,
    },
    /// The devices of the container cannot be determined.
    #[error("{0}")]
    Devices(String),
    /// The source of a variable cannot be used.
    #[error("variable {variable:?}: {reason}")]
    Variable {
        /// The variable's name.
        variable: String,
        /// Why not, and the remedy.
        reason: String,
    },
    /// An API object that the environment needs cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The object of a variable does not have the variable's key.
    #[error("{}", object_texts::no_key(.key, .kind, .namespace, .name))]
    NoKey {
        /// The key.
        key: String,
        /// The kind of the object: `ConfigMap` or `Secret`.
        kind: &'static str,
        /// The pod's namespace.
        namespace: String,
        /// The name of the object.
        name: String,
    },
    /// The services are not known yet.
    #[error("{}", object_texts::NO_SERVICES)]
    NoServices,
    /// The source of a variable in a file cannot be used.
    #[error(transparent)]
    File(#[from] file::FileKeyError),
    /// A mount names a volume that the pod does not have.
    #[error("{}", texts::no_volume(.volume, .container))]
    NoVolume {
        /// The volume's name.
        volume: String,
        /// The container's name.
        container: String,
    },
    /// A mount has a `subPath` and a `subPathExpr`.
    #[error("mount of volume {volume:?} at {path}: subPath and subPathExpr exclude each other: remove one")]
    TwoSubPaths {
        /// The volume's name.
        volume: String,
        /// The mount path.
        path: String,
    },
    /// A `subPath` is absolute. It has to be a path in the volume. It is named as the pod has it, with references to variables.
    #[error("{}", texts::absolute_sub_path(.0))]
    AbsoluteSubPath(String),
    /// A `subPath` has the part `..`. It is named as the pod has it, with references to variables.
    #[error("{}", texts::sub_path_leads_out(.0))]
    SubPathLeadsOut(String),
    /// A `subPathExpr` refers to variables without a value. An empty value would mount the whole volume.
    #[error(transparent)]
    SubPath(#[from] MissingValues),
}

/// Resolves one container of a pod.
///
/// Variables are set in order, those of `envFrom` first. A plain value may refer to variables that were set before it.
/// The command, the arguments and `subPathExpr` may refer to all variables (the kubelet's `makeEnvironmentVariables`,
/// 1.36). The variables of services come last, and replace no others. `HOSTNAME` is not set here.
///
/// A link inside the volume can lead a `subPath` out of the volume. Only the runtime can detect that, at the mount.
///
/// `contents` has the files that [`env_files`] lists, the images of the image volumes that the container mounts, and the objects that
/// [`env_objects`] lists.
///
/// `allocatable` gives the value of a `resourceFieldRef` to a limit that is not set.
///
/// # Errors
/// [`ConfigError`] for the first setting that cannot be resolved.
pub fn resolve(
    pod: &PodObject,
    kind: ContainerKind,
    name: &str,
    volumes: &VolumeMounts,
    facts: &FieldFacts,
    allocatable: &Allocatable,
    contents: &VolumeContents,
) -> Result<ResolvedContainer, ConfigError> {
    let spec = Definition::find_in(pod, kind, name).ok_or_else(|| ConfigError::NoContainer(name.to_owned()))?;
    let objects = contents.objects.as_deref();
    let services = objects.map_or_else(|| Ok(BTreeMap::new()), |objects| objects::services(pod, objects))?;
    let mut env = Environment { services, ..Environment::default() };
    for from in spec.env_from() {
        objects::set_all(pod, from, objects, &mut env)?;
    }
    for variable in spec.env() {
        let value = match (&variable.value, &variable.value_from) {
            (_, Some(EnvVarSource { file_key_ref: Some(selector), .. })) => {
                file::value_of(selector, volumes, &contents.files)?
            }
            (_, Some(EnvVarSource { config_map_key_ref: Some(key), .. })) => {
                objects::config_map_key(pod, key, objects)?
            }
            (_, Some(EnvVarSource { secret_key_ref: Some(key), .. })) => objects::secret_key(pod, key, objects)?,
            (_, Some(source)) => value_from(pod, spec, variable, source, facts, allocatable)?,
            (Some(text), None) => Some(expand(text, |name| env.get(name))),
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            env.set(&variable.name, value);
        }
    }
    let expanded =
        |texts: &[String]| texts.iter().map(|text| expand(text, |name| env.get(name))).collect::<Vec<String>>();
    Ok(ResolvedContainer {
        command: expanded(spec.command()),
        args: expanded(spec.args()),
        mounts: spec
            .mounts()
            .iter()
            .map(|volume_mount| mount(pod, name, volume_mount, volumes, &contents.images, &env))
            .collect::<Result<_, _>>()?,
        env: env.into_list(),
    })
}

/// The variables that were set so far.
#[derive(Default)]
struct Environment {
    list: Vec<(String, String)>,
    index: BTreeMap<String, usize>,
    /// The variables of services. Other variables may refer to them, and replace them.
    services: BTreeMap<String, String>,
}

impl Environment {
    fn get(&self, name: &str) -> Option<&str> {
        let set = self.index.get(name).map(|index| &self.list[*index].1);
        set.or_else(|| self.services.get(name)).map(String::as_str)
    }

    fn into_list(mut self) -> Vec<(String, String)> {
        self.list.extend(self.services.into_iter().filter(|(name, _)| !self.index.contains_key(name)));
        self.list
    }

    fn set(&mut self, name: &str, value: String) {
        match self.index.get(name) {
            Some(index) => self.list[*index].1 = value,
            None => {
                self.index.insert(name.to_owned(), self.list.len());
                self.list.push((name.to_owned(), value));
            }
        }
    }
}

/// The value of a variable with `valueFrom`; `None` if the variable is not set.
fn value_from(
    pod: &PodObject,
    spec: Definition<'_>,
    variable: &EnvVar,
    source: &EnvVarSource,
    facts: &FieldFacts,
    allocatable: &Allocatable,
) -> Result<Option<String>, ConfigError> {
    let refuse = |reason: String| ConfigError::Variable { variable: variable.name.clone(), reason };
    if let Some(from) = &source.field_ref {
        let path = &from.field_path;
        let value = if allowed(path, FieldUse::Env) { field(pod, path, facts) } else { None };
        return value.map(Some).ok_or_else(|| refuse(format!("fieldRef {path:?} names no supported field")));
    }
    if let Some(from) = &source.resource_field_ref {
        let named = from.container_name.as_deref().unwrap_or_default();
        let container = resources_of(pod, spec, named).ok_or_else(|| {
            refuse(format!("resourceFieldRef names container {named:?}, which the pod does not have"))
        })?;
        let value = resource(pod.spec(), container.resources(), &from.resource, from.divisor.as_ref(), allocatable);
        return value.map(Some).ok_or_else(|| {
            refuse(format!("resourceFieldRef {:?} names no resource with a valid quantity", from.resource))
        });
    }
    let supported = "fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef or fileKeyRef";
    Err(refuse(format!("valueFrom names no supported source: use {supported}")))
}

/// The container whose resources are used: the named one, or the container of the variable.
fn resources_of<'a>(pod: &'a PodObject, spec: Definition<'a>, named: &str) -> Option<Definition<'a>> {
    if named.is_empty() || named == spec.name() {
        return Some(spec);
    }
    Definition::find(pod, named).filter(|container| container.kind() != ContainerKind::Ephemeral)
}

fn mount(
    pod: &PodObject,
    container: &str,
    volume_mount: &VolumeMount,
    volumes: &VolumeMounts,
    images: &BTreeMap<String, VolumeImage>,
    env: &Environment,
) -> Result<Mount, ConfigError> {
    let image = images.get(&volume_mount.name);
    let volume = match volumes.get(&volume_mount.name) {
        Some(path) => path.as_path(),
        None if image.is_some() => Path::new(""),
        None => {
            return Err(ConfigError::NoVolume { volume: volume_mount.name.clone(), container: container.to_owned() });
        }
    };
    // What the pod's author wrote is named in errors: the value of a variable may be that of a Secret.
    let (written, sub_path) = match (text(&volume_mount.sub_path), text(&volume_mount.sub_path_expr)) {
        (Some(_), Some(_)) => {
            let (volume, path) = (volume_mount.name.clone(), volume_mount.mount_path.clone());
            return Err(ConfigError::TwoSubPaths { volume, path });
        }
        (Some(path), None) => (path, Some(path.to_owned())),
        (None, Some(template)) => (template, Some(expand_all(template, |name| env.get(name))?)),
        (None, None) => ("", None),
    };
    let host_path = match &sub_path {
        Some(path) if path.starts_with('/') => return Err(ConfigError::AbsoluteSubPath(written.to_owned())),
        Some(path) if !stays_inside(Path::new(path)) => return Err(ConfigError::SubPathLeadsOut(written.to_owned())),
        Some(path) if image.is_none() => volume.join(path),
        Some(_) | None => volume.to_owned(),
    };
    Ok(Mount {
        volume: volume_mount.name.clone(),
        host_path,
        sub_path: sub_path.unwrap_or_default().into(),
        container_path: if volume_mount.mount_path.starts_with('/') {
            volume_mount.mount_path.clone()
        } else {
            format!("/{}", volume_mount.mount_path)
        },
        read_only: volume_mount.read_only == Some(true)
            || pod_volume(pod, &volume_mount.name).is_some_and(is_read_only),
        image: image.cloned(),
    })
}

fn text(value: &Option<String>) -> Option<&str> {
    value.as_deref().filter(|text| !text.is_empty())
}

/// Whether the path is relative and has no `..`.
fn stays_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

fn pod_volume<'a>(pod: &'a PodObject, name: &str) -> Option<&'a Volume> {
    pod.spec().volumes.as_deref().unwrap_or_default().iter().find(|volume| volume.name == name)
}

/// Whether the node writes the volume's content. Changes by a container would be lost at the next refresh.
fn is_read_only(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
        || volume.image.is_some()
}
