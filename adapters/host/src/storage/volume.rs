//! Creates the volumes of a pod.

use std::fs::{self, DirBuilder, FileType, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::step_error::StepError;
use crate::tree;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, EmptyDirVolumeSource, HostPathVolumeSource, Volume};
use podwright_core::objects::downward_files;
use podwright_model::pod::PodObject;
use podwright_model::texts::volumes;
use podwright_ports::{ErrorSource, StorageError, VolumeFile};
use serde::Serialize;

use super::calls::CallProgress;
use super::fs_group::{FsGroup, volume_mode};
use super::payload::{self, Payload};
use super::{Disk, PASSABLE, PRIVATE, component, empty_dir, huge_pages, io_error, is_dir, make_dir};

const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
const DOWNWARD_API: &str = "kubernetes.io~downward-api";
const PROJECTED: &str = "kubernetes.io~projected";
const CONFIG_MAP: &str = "kubernetes.io~configmap";
const SECRET: &str = "kubernetes.io~secret";
/// The directories of the volumes that this module creates. Only these volumes are removed with their content.
pub(super) const PLUGINS: &[&str] = &[EMPTY_DIR, DOWNWARD_API, PROJECTED, CONFIG_MAP, SECRET];
/// The directories of the volumes that may be in memory.
pub(super) const IN_MEMORY: &[&str] = &[EMPTY_DIR, PROJECTED, SECRET];

impl Disk {
    /// Creates one volume of a pod if it does not exist, and returns its path.
    pub(super) fn volume(
        &self,
        dir: &Path,
        pod: &PodObject,
        volume: &Volume,
        step: &CallProgress,
    ) -> Result<PathBuf, StorageError> {
        let name = component(&volume.name)?;
        let at = |plugin: &str| {
            let path = dir.join("volumes").join(plugin).join(name);
            step.at(&path);
            path
        };
        if let Some(host_path) = &volume.host_path {
            step.at(Path::new(&host_path.path));
            return set_up_host_path(&volume.name, host_path);
        }
        if let Some(source) = &volume.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            let path = at(DOWNWARD_API);
            self.write_downward_api(&path, pod, volume, items, source.default_mode)?;
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
            self.write_downward_api(&path, pod, volume, &items, mode)?;
            return Ok(path);
        }
        let group = FsGroup::of(pod).map_err(|error| StorageError::volume(&volume.name, error))?;
        if volume.image.is_some() {
            return Err(StorageError::Unsupported {
                volume: volume.name.clone(),
                kind: "image".into(),
                remedy: "run the pod with a container runtime (--runtime cri=ENDPOINT), or use emptyDir or hostPath"
                    .into(),
            });
        }
        if !matches!(kind(volume).as_deref(), None | Some("emptyDir")) {
            return Err(self.unsupported(pod, volume));
        }
        let path = at(EMPTY_DIR);
        make_volume(&path, group)?;
        let source = volume.empty_dir.clone().unwrap_or_default();
        self.set_up_medium(&path, pod, volume, &source, group)?;
        Ok(path)
    }

    /// The error of a volume that this node does not support. It names the volumes that the node supports.
    fn unsupported(&self, pod: &PodObject, volume: &Volume) -> StorageError {
        let image = if self.mounted { "image, " } else { "" };
        // A volume of API objects comes here only without an API server.
        let has_objects = plugin(volume).is_none() && !pod.is_static();
        let remedy = match has_objects {
            true => format!("use emptyDir, hostPath, {image}configMap, secret, projected or downwardAPI"),
            false => format!("use emptyDir, hostPath, {image}downwardAPI, or projected with downwardAPI sources only"),
        };
        let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        let source = sources.flat_map(set_fields).find(|source| source != "downwardAPI");
        let kind = kind(volume).unwrap_or_default();
        let kind = source.map_or_else(|| kind.clone(), |source| format!("{kind} (source {source})"));
        StorageError::Unsupported { volume: volume.name.clone(), kind, remedy }
    }

    /// Makes a volume contain these files. If there are none now, a volume that an earlier call filled keeps its files, and the reason is
    /// added to `outdated`.
    pub(super) fn object_volume(
        &self,
        dir: &Path,
        pod: &PodObject,
        volume: &Volume,
        files: Result<Vec<VolumeFile>, ErrorSource>,
        outdated: &mut Vec<StorageError>,
        step: &CallProgress,
    ) -> Result<PathBuf, StorageError> {
        let plugin = plugin(volume).unwrap_or(PROJECTED);
        let path = dir.join("volumes").join(plugin).join(component(&volume.name)?);
        step.at(&path);
        let files = match files {
            Ok(files) => files,
            Err(source) => {
                let failed = StorageError::Volume { volume: volume.name.clone(), source };
                if !payload::is_filled(&path) {
                    return Err(failed);
                }
                outdated.push(failed);
                return Ok(path);
            }
        };
        let group = FsGroup::of(pod).map_err(|error| StorageError::volume(&volume.name, error))?;
        let payload = payload(&volume.name, files, group)?;
        make_volume(&path, group)?;
        // A config map is not confidential.
        if plugin != CONFIG_MAP {
            self.memory.set_up(&path, None, group).map_err(|error| io_error(&path, error))?;
        }
        payload.write(&path).map_err(|error| io_error(&path, error))?;
        Ok(path)
    }

    /// Writes the files of a downward API volume.
    fn write_downward_api(
        &self,
        path: &Path,
        pod: &PodObject,
        volume: &Volume,
        items: &[DownwardAPIVolumeFile],
        default_mode: Option<i32>,
    ) -> Result<(), StorageError> {
        let group = FsGroup::of(pod).map_err(|error| StorageError::volume(&volume.name, error))?;
        let refused = |reason: String| StorageError::volume(&volume.name, reason);
        let files = downward_files(pod, items, default_mode, &self.allocatable).map_err(refused)?;
        let payload = payload(&volume.name, files, group)?;
        make_volume(path, group)?;
        payload.write(path).map_err(|error| io_error(path, error))
    }

    /// Puts an emptyDir on the medium that its spec names.
    fn set_up_medium(
        &self,
        path: &Path,
        pod: &PodObject,
        volume: &Volume,
        source: &EmptyDirVolumeSource,
        group: Option<FsGroup>,
    ) -> Result<(), StorageError> {
        match source.medium.as_deref().unwrap_or_default() {
            "" => Ok(()),
            "Memory" => {
                let limit = empty_dir::limit(source, pod, self.allocatable.get("memory"))
                    .map_err(|reason| StorageError::volume(&volume.name, reason))?;
                self.memory.set_up(path, limit, group).map_err(|error| io_error(path, error))
            }
            medium if huge_pages::is_medium(medium) => {
                let refused = |reason| StorageError::volume(&volume.name, reason);
                let page_size = huge_pages::page_size(medium, pod.spec()).map_err(refused)?;
                let limit = huge_pages::limit(source).map_err(refused)?;
                if self.memory.are_unused() {
                    return Ok(());
                }
                huge_pages::set_up(path, page_size, limit, group)
                    .map_err(|error| StorageError::volume(&volume.name, error))
            }
            medium => Err(StorageError::Unsupported {
                volume: volume.name.clone(),
                kind: format!("emptyDir (medium {medium})"),
                remedy: "use the medium Memory or HugePages, or no medium".into(),
            }),
        }
    }
}

/// The directory of the volumes of this kind, in the directory of a pod's volumes. `None` for a volume outside the pod's directory.
pub(super) fn plugin(volume: &Volume) -> Option<&'static str> {
    match volume {
        volume if volume.config_map.is_some() => Some(CONFIG_MAP),
        volume if volume.secret.is_some() => Some(SECRET),
        volume if volume.projected.is_some() => Some(PROJECTED),
        volume if volume.downward_api.is_some() => Some(DOWNWARD_API),
        volume => matches!(kind(volume).as_deref(), None | Some("emptyDir")).then_some(EMPTY_DIR),
    }
}

/// Whether the files of a volume count as local storage of its pod: an emptyDir on disk or a config map.
pub(super) fn is_local_storage(volume: &Volume) -> bool {
    let has_medium = |source: &EmptyDirVolumeSource| source.medium.as_ref().is_some_and(|medium| !medium.is_empty());
    match plugin(volume) {
        Some(EMPTY_DIR) => !volume.empty_dir.as_ref().is_some_and(has_medium),
        plugin => plugin == Some(CONFIG_MAP),
    }
}

/// The content of a volume that has these files.
fn payload(volume: &str, files: Vec<VolumeFile>, group: Option<FsGroup>) -> Result<Payload, StorageError> {
    let mut payload = Payload::of(group);
    for VolumeFile { path, content, mode, owner } in files {
        payload.add(&path, content, mode, owner).map_err(|reason| StorageError::volume(volume, reason))?;
    }
    Ok(payload)
}

/// The name of the source that a volume sets, such as `emptyDir`.
fn kind(volume: &Volume) -> Option<String> {
    set_fields(volume).into_iter().find(|key| key != "name")
}

/// The names of the fields that are set.
fn set_fields(of: &impl Serialize) -> Vec<String> {
    match serde_json::to_value(of) {
        Ok(serde_json::Value::Object(fields)) => fields.into_iter().map(|(key, _)| key).collect(),
        _ => Vec::new(),
    }
}

/// Creates the directory of a volume. An existing directory is not changed, because containers may have changed its mode and
/// group. So a new directory gets its final name only after its mode and group are set.
fn make_volume(path: &Path, group: Option<FsGroup>) -> Result<(), StorageError> {
    if is_dir(path) {
        return Ok(());
    }
    path.parent().map_or(Ok(()), |plugin| make_dir(plugin, PASSABLE))?;
    // The name of a volume contains no dot, so this is not another volume.
    let new = path.with_extension("new");
    tree::remove(&new).map_err(|error| io_error(&new, error))?;
    make_dir(&new, PRIVATE)?;
    if let Some(group) = group {
        group.give(&new).map_err(|error| io_error(&new, error))?;
    }
    // Without root, a change of the group clears the setgid bit, so the mode is set last.
    fs::set_permissions(&new, Permissions::from_mode(volume_mode(group))).map_err(|error| io_error(&new, error))?;
    fs::rename(&new, path).map_err(|error| io_error(path, error))
}

/// Checks that a hostPath exists with the type that the volume names, and creates it if the type says so (core/v1
/// `HostPathType`). Nothing else is created, and a hostPath is never removed.
fn set_up_host_path(volume: &str, source: &HostPathVolumeSource) -> Result<PathBuf, StorageError> {
    let path = Path::new(&source.path);
    let kind = source.type_.as_deref().unwrap_or_default();
    let named = match kind {
        "" => format!("hostPath {}", path.display()),
        kind => format!("hostPath {} of type {kind}", path.display()),
    };
    let refused = |reason: String| StorageError::volume(volume, reason);
    let meta = match fs::metadata(path) {
        Ok(meta) => Some(meta),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) if kind.is_empty() => None,
        Err(error) => {
            return Err(StorageError::volume(volume, StepError::new(format!("{named} cannot be checked"), error)));
        }
    };
    let made = |result: io::Result<()>| {
        let failed = |error| StorageError::volume(volume, StepError::new(format!("{named} cannot be created"), error));
        result.map_err(failed)
    };
    let is = |what: &str, check: fn(&FileType) -> bool, meta: Option<&Metadata>| match meta {
        Some(meta) if check(&meta.file_type()) => Ok(()),
        Some(_) | None => Err(refused(volumes::host_path_is_not(path, what))),
    };
    match (kind, &meta) {
        ("", _) => {}
        ("DirectoryOrCreate", None) => made(DirBuilder::new().recursive(true).mode(0o755).create(path))?,
        ("FileOrCreate", None) => {
            let made_file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path);
            made(made_file.map(drop))?;
        }
        ("DirectoryOrCreate" | "Directory", meta) => is("directory", FileType::is_dir, meta.as_ref())?,
        ("FileOrCreate" | "File", meta) => is("file", FileType::is_file, meta.as_ref())?,
        ("Socket", meta) => is("socket file", FileType::is_socket, meta.as_ref())?,
        ("CharDevice", meta) => is("character device", FileType::is_char_device, meta.as_ref())?,
        ("BlockDevice", meta) => is("block device", FileType::is_block_device, meta.as_ref())?,
        (_, _) => return Err(refused(volumes::unknown_host_path_type(kind))),
    }
    Ok(path.to_owned())
}
