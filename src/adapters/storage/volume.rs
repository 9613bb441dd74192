//! The volumes of a pod: which of them are made here, and how.

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, EmptyDirVolumeSource, Volume};
use podwright_actors::config::fields::{self, FieldFacts};
use podwright_actors::pod::PodObject;
use podwright_actors::ports::StorageError;

use super::group::Group;
use super::payload::Payload;
use super::progress::Step;
use super::{Disk, PASSABLE, component, empty_dir, host_path, io_error, is_dir, make_dir};

pub(super) const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
const DOWNWARD_API: &str = "kubernetes.io~downward-api";
const PROJECTED: &str = "kubernetes.io~projected";
/// What is made here, and so may be taken down here.
pub(super) const PLUGINS: &[&str] = &[EMPTY_DIR, DOWNWARD_API, PROJECTED];

impl Disk {
    /// Makes one volume of a pod, or finds it, and answers where it is.
    pub(super) fn volume(
        &self,
        dir: &Path,
        pod: &PodObject,
        volume: &Volume,
        step: &Step,
    ) -> Result<PathBuf, StorageError> {
        let name = component(&volume.name)?;
        let at = |plugin: &str| {
            let path = dir.join("volumes").join(plugin).join(name);
            step.at(&path);
            path
        };
        if let Some(host_path) = &volume.host_path {
            step.at(Path::new(&host_path.path));
            return host_path::set_up(&volume.name, host_path);
        }
        if let Some(source) = &volume.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            let path = at(DOWNWARD_API);
            self.downward(&path, pod, volume, items, source.default_mode)?;
            return Ok(path);
        }
        let projected = volume.projected.as_ref().map(|projected| {
            let sources = projected.sources.as_deref().unwrap_or_default();
            let items = sources.iter().map(|part| part.downward_api.as_ref().map(|it| it.items.clone()));
            (items.collect::<Option<Vec<_>>>(), projected.default_mode)
        });
        if let Some((Some(items), mode)) = projected {
            let items: Vec<_> = items.into_iter().flatten().flatten().collect();
            let path = at(PROJECTED);
            self.downward(&path, pod, volume, &items, mode)?;
            return Ok(path);
        }
        let group = Group::of(pod);
        let kind = kind(volume);
        if !matches!(kind.as_deref(), None | Some("emptyDir")) {
            return Err(StorageError::Unsupported {
                volume: volume.name.clone(),
                kind: kind.unwrap_or_default(),
                remedy: "use emptyDir, hostPath or downwardAPI".into(),
            });
        }
        let path = at(EMPTY_DIR);
        make_volume(&path, group)?;
        let source = volume.empty_dir.clone().unwrap_or_default();
        self.medium(&path, pod, volume, &source, group)?;
        Ok(path)
    }

    /// Has what a volume shows of its pod where its spec wants it.
    fn downward(
        &self,
        path: &Path,
        pod: &PodObject,
        volume: &Volume,
        items: &[DownwardAPIVolumeFile],
        default_mode: Option<i32>,
    ) -> Result<(), StorageError> {
        let group = Group::of(pod);
        let mut payload = Payload::of(group);
        for item in items {
            let refused = |reason: String| StorageError::Volume { volume: volume.name.clone(), reason };
            let text = if let Some(field) = &item.field_ref {
                fields::field(pod, &field.field_path, &FieldFacts::default())
                    .ok_or_else(|| refused(format!("{:?} is no field of a pod: correct fieldPath", field.field_path)))?
            } else if let Some(field) = &item.resource_field_ref {
                let wanted = field.container_name.as_deref().unwrap_or_default();
                let container = pod.init_containers().iter().chain(pod.containers()).find(|one| one.name == wanted);
                let container = container.ok_or_else(|| refused(format!("no container {wanted:?} in the pod")))?;
                fields::resource(container, &field.resource, field.divisor.as_ref(), &self.allocatable)
                    .ok_or_else(|| refused(format!("{:?} is no resource: correct it", field.resource)))?
            } else {
                return Err(refused(format!("item {:?} says nothing: set fieldRef or resourceFieldRef", item.path)));
            };
            let mode = item.mode.or(default_mode).and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644);
            payload.add(&item.path, text, mode).map_err(refused)?;
        }
        make_volume(path, group)?;
        payload.write(path).map_err(|error| io_error(path, &error))
    }

    /// Has an emptyDir where its spec wants it.
    fn medium(
        &self,
        path: &Path,
        pod: &PodObject,
        volume: &Volume,
        source: &EmptyDirVolumeSource,
        group: Option<Group>,
    ) -> Result<(), StorageError> {
        match source.medium.as_deref().unwrap_or_default() {
            "" => Ok(()),
            "Memory" => {
                let limit = empty_dir::limit(source, pod, self.allocatable.get("memory"));
                self.memory.set_up(path, limit, group).map_err(|error| io_error(path, &error))
            }
            medium => Err(StorageError::Unsupported {
                volume: volume.name.clone(),
                kind: format!("emptyDir (medium {medium})"),
                remedy: "use the medium Memory, or none".into(),
            }),
        }
    }
}

/// The source that a volume sets, as the API names it.
fn kind(volume: &Volume) -> Option<String> {
    match serde_json::to_value(volume) {
        Ok(serde_json::Value::Object(fields)) => fields.into_iter().map(|(key, _)| key).find(|key| key != "name"),
        _ => None,
    }
}

/// The mode of a new volume: who may write is for the containers to agree on. What they make in it is of the pod's group, if
/// that has one.
pub(super) fn mode_of_volume(group: Option<Group>) -> u32 {
    group.map_or(0o777, |group| group.of_dir(0o777))
}

/// Makes the directory of a volume. One that is there is the containers', mode and group too. So it has its name only once it
/// is whole.
fn make_volume(path: &Path, group: Option<Group>) -> Result<(), StorageError> {
    if is_dir(path) {
        return Ok(());
    }
    path.parent().map_or(Ok(()), |plugin| make_dir(plugin, PASSABLE))?;
    // No volume can have a dot in its name.
    let new = path.with_extension("new");
    make_dir(&new, mode_of_volume(group))?;
    if let Some(group) = group {
        group.own(&new).map_err(|error| io_error(&new, &error))?;
        // Whoever is not root loses the group's bit with a change of the group.
        make_dir(&new, mode_of_volume(Some(group)))?;
    }
    fs::rename(&new, path).map_err(|error| io_error(path, &error))
}
