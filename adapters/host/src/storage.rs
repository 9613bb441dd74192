//! Pod directories and volumes on the file system.
//!
//! The directory `pods/UID/` below the root belongs to one pod. Its layout is that of a kubelet:
//!
//! ```text
//! pods/UID/volumes/kubernetes.io~empty-dir/NAME      an emptyDir
//! pods/UID/volumes/kubernetes.io~downward-api/NAME   a downward API volume
//! pods/UID/volumes/kubernetes.io~configmap/NAME      a config map
//! pods/UID/volumes/kubernetes.io~secret/NAME         a secret
//! pods/UID/volumes/kubernetes.io~projected/NAME      a projected volume
//! pods/UID/volume-subpaths/NAME/CONTAINER/N          the subPath of volume NAME that is the container's Nth mount
//! pods/UID/logs/CONTAINER/N.log                      the output of run N, written by the runtime
//! pods/UID/...                                       other files of the runtime for the pod
//! ```
//!
//! An emptyDir with medium `Memory`, a secret and a projected volume with API objects are a tmpfs, or a plain directory if the agent
//! may not mount. An emptyDir on huge pages is a hugetlbfs.
//!
//! If the runtime mounts the volumes, a pod's directory has mode 0750, the mode that the kubelet uses. Containers without a
//! mount namespace reach their volumes by path. Their pod's directory has mode 0700. If the agent runs as root and the pod
//! sets a user or group, the directory has mode 0710 and a group that only the pod's containers are in
//! (`pod_group`). The directories above and below a pod's directory have mode 0751, so that a user who may pass the pod's
//! directory can reach a file whose path it knows.
//!
//! The directory also marks the pod as a pod of this agent. Logs outside the pod's directory may share a directory with the
//! logs of other agents. This agent removes such logs only if their pod has a directory here, so the pod's directory is
//! created before the logs and removed after them.

mod calls;
mod empty_dir;
mod fs_group;
mod huge_pages;
mod payload;
mod remove;
mod usage;
mod volume;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_core::containers::definition::Definition;
use podwright_model::ids::{FullName, PodUid};
use podwright_model::pod::PodObject;
use podwright_ports::{PodStorage, StorageError, Unused, VolumeFiles, VolumeMounts, VolumesSetUp};
use rustix::fs::{Mode, fchmod, fstat};

use super::log::LogDir;
use super::{POD_DIR, pod_group, regular, trusted_dir};
use calls::{CallProgress, PodLocks, Progress};
use empty_dir::Memory;
pub use usage::{PodSpace, VolumeSpace};

/// The size limit of a file that the agent reads from a volume, in bytes. A file of variables is much smaller.
const MAX_VOLUME_FILE: u64 = 1 << 20;
/// The mode of a directory that other users may enter but not list.
const PASSABLE: u32 = 0o751;
/// The mode of a pod's directory if the pod's containers run as the agent's user. Other users in the agent's group, which may
/// be a group of many users, have no access.
const PRIVATE: u32 = 0o700;

/// [`PodStorage`] in one directory. Clones share their state.
#[derive(Clone, Debug)]
pub struct FileStorage {
    disk: Arc<Disk>,
    /// The calls for one pod run one after another. A call whose future was dropped still finishes before the next call
    /// starts.
    locks: PodLocks,
    progress: Progress,
}

/// The directories for the logs of pods, if the logs are not in the pods' own directories. The layout is that of a kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLogs {
    /// The directory with one log directory `NAMESPACE_NAME_UID` per pod.
    pub pods: PathBuf,
    /// The directory with one link `NAME_NAMESPACE_CONTAINER-ID.log` per log.
    pub links: PathBuf,
}

#[derive(Clone, Debug)]
struct Disk {
    pods: PathBuf,
    /// The log directories, if pods do not log in their own directories.
    logs: Option<PodLogs>,
    /// The runtime mounts the volumes into the containers, which do not use the paths on the host.
    mounted: bool,
    allocatable: BTreeMap<String, Quantity>,
    memory: Memory,
}

impl FileStorage {
    /// Storage in `root`, which is created when it is needed. `allocatable` holds the resource limits that the downward API
    /// reports for containers without limits.
    pub fn new(root: &Path, allocatable: BTreeMap<String, Quantity>) -> Self {
        FileStorage {
            disk: Arc::new(Disk {
                pods: root.join("pods"),
                logs: None,
                mounted: false,
                allocatable,
                memory: Memory::default(),
            }),
            locks: PodLocks::default(),
            progress: Progress::default(),
        }
    }

    /// The same storage for a runtime that mounts the volumes into the containers: pods' directories have mode 0750.
    pub fn for_mounted_volumes(self) -> Self {
        self.with(|disk| Disk { mounted: true, ..disk })
    }

    /// The same storage for pods whose logs are outside their own directories.
    pub fn with_logs(self, logs: PodLogs) -> Self {
        self.with(|disk| Disk { logs: Some(logs), ..disk })
    }

    /// The same storage for simulated pods: volumes in memory are plain directories.
    pub fn without_mounts(self) -> Self {
        self.with(|disk| Disk { memory: Memory::directories(), ..disk })
    }

    fn with(self, change: impl FnOnce(Disk) -> Disk) -> Self {
        let disk = Arc::unwrap_or_clone(self.disk);
        FileStorage { disk: Arc::new(change(disk)), ..self }
    }

    /// The directory of a pod.
    pub fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.disk.pods.join(uid.to_string())
    }

    /// The directory with the logs of all runs of a container.
    ///
    /// # Errors
    /// [`StorageError::Io`] if a name cannot be the name of a directory.
    pub fn log_dir(&self, pod: &FullName, uid: &PodUid, container: &str) -> Result<LogDir, StorageError> {
        let (root, logs) = match &self.disk.logs {
            Some(logs) => {
                let name = format!("{}_{}_{uid}", pod.namespace(), pod.name());
                (&logs.pods, PathBuf::from(component(&name)?))
            }
            None => (&self.disk.pods, Path::new(component(&uid.to_string())?).join("logs")),
        };
        Ok(LogDir::new(root, logs.join(component(container)?)))
    }

    fn run<'a, T: Send + 'static>(
        &'a self,
        uid: &'a PodUid,
        work: impl FnOnce(&Disk, &Path, &CallProgress) -> Result<T, StorageError> + Send + 'static,
    ) -> BoxFuture<'a, Result<T, StorageError>> {
        let disk = self.disk.clone();
        async move {
            let dir = disk.pod_dir(uid)?;
            let lock = self.locks.lock(uid).await;
            let (path, step) = (dir.clone(), self.progress.begin(uid, &dir));
            let done = tokio::task::spawn_blocking(move || {
                // The lock is held until the work has finished, even if the caller drops the future.
                let (_lock, step) = (lock, step);
                work(&disk, &path, &step)
            });
            done.await.unwrap_or_else(|error| Err(StorageError::io(dir, error)))
        }
        .boxed()
    }
}

impl PodStorage for FileStorage {
    fn set_up<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<VolumeMounts, StorageError>> {
        let set_up = self.set_up_with(pod, VolumeFiles::new());
        async move { set_up.await.map(|volumes| volumes.mounts) }.boxed()
    }

    fn set_up_with<'a>(
        &'a self,
        pod: &'a Arc<PodObject>,
        files: VolumeFiles,
    ) -> BoxFuture<'a, Result<VolumesSetUp, StorageError>> {
        let object = pod.clone();
        self.run(pod.uid(), move |disk, dir, step| disk.set_up(dir, &object, files, step))
    }

    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), StorageError>> {
        self.run(uid, |_, dir, step| remove::volumes(dir, step))
    }

    fn remove_pod<'a>(&'a self, uid: &'a PodUid, unused: Unused) -> BoxFuture<'a, Result<(), StorageError>> {
        let of = uid.clone();
        self.run(uid, move |disk, dir, step| {
            if !unused() {
                return Ok(());
            }
            remove::volumes(dir, step)?;
            step.at(dir);
            remove::empty_volumes(dir)?;
            // The logs are removed before the pod's directory, because that directory marks them as logs of this agent.
            disk.logs.as_ref().map_or(Ok(()), |logs| remove::logs(logs, &of))?;
            remove::pod(dir)
        })
    }

    fn pods(&self) -> BoxFuture<'_, Result<Vec<PodUid>, StorageError>> {
        let disk = self.disk.clone();
        async move {
            let done = tokio::task::spawn_blocking(move || {
                let names = directories(&disk.pods)?;
                Ok(names.iter().filter_map(|name| Some(PodUid::new(name.to_str()?))).collect())
            });
            done.await.unwrap_or_else(|error| Err(StorageError::io(&self.disk.pods, error)))
        }
        .boxed()
    }

    fn under_way(&self, uid: &PodUid) -> Option<PathBuf> {
        self.progress.of(uid)
    }

    fn read_volume_file<'a>(&'a self, volume: &'a Path, path: &'a str) -> BoxFuture<'a, Result<Vec<u8>, StorageError>> {
        let (volume, path) = (volume.to_owned(), PathBuf::from(path));
        let name = volume.join(&path);
        let read = tokio::task::spawn_blocking(move || regular::read_in_root(&volume, &path, MAX_VOLUME_FILE));
        async move {
            let read = read.await.map_err(io::Error::other).and_then(|read| read);
            read.map_err(|error| StorageError::io(name, error))
        }
        .boxed()
    }

    fn restarts_by_log<'a>(&'a self, pod: &'a PodObject, container: &'a str) -> BoxFuture<'a, Option<u32>> {
        let logs = self.log_dir(pod.full_name(), pod.uid(), container);
        let runs = self.run(pod.uid(), move |_, _, _| {
            let runs = entries(&logs?.path())?;
            // A rotated log has a suffix after `.log`.
            let number = |path: PathBuf| path.file_name()?.to_str()?.split_once(".log")?.0.parse::<u32>().ok();
            Ok(runs.into_iter().filter_map(number).max())
        });
        async move { runs.await.ok().flatten().map(|last| last.saturating_add(1)) }.boxed()
    }
}

impl Disk {
    fn pod_dir(&self, uid: &PodUid) -> Result<PathBuf, StorageError> {
        Ok(self.pods.join(component(&uid.to_string())?))
    }

    fn set_up(
        &self,
        dir: &Path,
        pod: &PodObject,
        mut files: VolumeFiles,
        step: &CallProgress,
    ) -> Result<VolumesSetUp, StorageError> {
        make_dir(&self.pods, PASSABLE)?;
        if self.mounted {
            make_dir(dir, POD_DIR)?;
        } else if sets_a_user(pod) && rustix::process::geteuid().is_root() {
            let uid = pod.uid().to_string();
            pod_group::make(&self.pods, &uid).map_err(|error| io_error(dir, error))?;
        } else {
            make_dir(dir, PRIVATE)?;
        }
        make_dir(&dir.join("volumes"), PASSABLE)?;
        let volumes = pod.spec().volumes.as_deref().unwrap_or_default();
        let mut done = VolumesSetUp::default();
        // A runtime that mounts volumes also mounts images. They have no directory.
        for volume in volumes.iter().filter(|volume| !(self.mounted && volume.image.is_some())) {
            let path = match files.remove(&volume.name) {
                Some(files) => self.object_volume(dir, pod, volume, files, &mut done.outdated, step),
                None => self.volume(dir, pod, volume, step),
            };
            let path = path.map_err(|error| for_volume(&volume.name, error))?;
            done.mounts.insert(volume.name.clone(), path);
        }
        Ok(done)
    }
}

/// Checks that a text can be the name of one file or directory.
fn component(text: &str) -> Result<&str, StorageError> {
    if text.is_empty() || text == "." || text == ".." || text.contains(['/', '\0']) {
        let error = format!("{text:?} cannot be the name of a directory: use a name without '/'");
        return Err(StorageError::io(text, error));
    }
    Ok(text)
}

/// Whether the pod or one of its containers sets a user or group.
fn sets_a_user(pod: &PodObject) -> bool {
    let of_pod = pod.spec().security_context.as_ref().map(|it| (it.run_as_user, it.run_as_group));
    let of_containers =
        Definition::all(pod).filter_map(Definition::security).map(|it| (it.run_as_user, it.run_as_group));
    of_pod.into_iter().chain(of_containers).any(|ids| ids != (None, None))
}

/// Creates a directory and its parents. The process's umask does not reduce the directory's mode. A directory that another user
/// owns or may write to is an error, because its content may lead anywhere.
fn make_dir(path: &Path, mode: u32) -> Result<(), StorageError> {
    let make = || -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(POD_DIR).create(path)?;
        let dir = trusted_dir::open(path)?;
        if fstat(&dir)?.st_mode & 0o7777 != mode {
            fchmod(&dir, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    };
    make().map_err(|error| io_error(path, error))
}

/// The paths of the entries of a directory; none if the directory does not exist.
fn entries(path: &Path) -> Result<Vec<PathBuf>, StorageError> {
    let list = || -> io::Result<Vec<PathBuf>> { fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect() };
    absent_is_empty(path, list())
}

fn absent_is_empty<T>(path: &Path, found: io::Result<Vec<T>>) -> Result<Vec<T>, StorageError> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(vec![]),
        found => found.map_err(|error| io_error(path, error)),
    }
}

/// The names of the subdirectories of a directory.
fn directories(path: &Path) -> Result<Vec<OsString>, StorageError> {
    // If the type of an entry cannot be read, the entry may have been removed after it was listed.
    let name = |entry: fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| entry.file_name());
    let list = || fs::read_dir(path)?.filter_map(|entry| entry.map(name).transpose()).collect();
    absent_is_empty(path, list())
}

/// Whether the path is a directory, and not a link to one.
fn is_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// Adds the volume's name to an error of the file system.
fn for_volume(name: &str, error: StorageError) -> StorageError {
    match error {
        StorageError::Io { .. } => StorageError::volume(name, error),
        error => error,
    }
}

fn io_error(path: &Path, error: io::Error) -> StorageError {
    StorageError::io(path, error)
}

#[cfg(test)]
mod tests;
