//! The files beside the runtime's: logs and links to them, `/etc/hosts`, termination messages. Everything here blocks.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use podwright_actors::pod::PodObject;
use podwright_actors::ports::{ContainerConfig, RuntimeError};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use super::config::{Facts, Layout, hosts, labels};
use super::v1;
use crate::adapters::log::{end_of_log, remove_run};
use crate::adapters::{POD_DIR, sub_path, tree};

/// Where a node keeps what its pods inherit.
const NODE_HOSTS: &str = "/etc/hosts";

/// How much of a termination message is read (upstream `MaxContainerTerminationMessageLength`, kubelet 1.36).
const MAX_MESSAGE: u64 = 4096;

/// Makes the directory that a sandbox's containers log to.
pub(super) fn make_log_dir(layout: &Layout, pod: &PodObject) -> Result<(), RuntimeError> {
    make_dir(&layout.log_dir(pod))
}

/// Makes what a container's mounts and its log need: its log's directory, the pod's `/etc/hosts`, an empty file for the
/// termination message, and what it sees of volumes by a `subPath`.
pub(super) fn prepare(facts: &Facts, config: &ContainerConfig, ips: &[IpAddr]) -> Result<(), RuntimeError> {
    let layout = &facts.layout;
    let (pod, name) = (&*config.pod, config.name.as_str());
    let uid = pod.uid().to_string();
    make_dir(&layout.log_dir(pod).join(name))?;

    let path = layout.hosts(&uid);
    path.parent().map_or(Ok(()), make_dir)?;
    let of_node =
        if pod.is_host_network() { fs::read_to_string(NODE_HOSTS).unwrap_or_default() } else { String::new() };
    write(&path, &hosts(facts, pod, ips, &of_node)?, 0o644)?;

    make_dir(&layout.messages(&uid, name))?;
    // Whoever the container runs as may write it.
    write(&layout.message(&uid, name, config.restart_count), "", 0o666)?;

    for (number, mount) in config.mounts.iter().enumerate().filter(|(_, mount)| !mount.sub_path.as_os_str().is_empty())
    {
        let place = layout.sub_path(&uid, &mount.volume, name, number);
        sub_path::bind(sub_path::volume(&mount.host_path, &mount.sub_path), &mount.sub_path, &place)
            .map_err(|error| RuntimeError::Config(format!("volume {:?}: {error}", mount.volume)))?;
    }
    Ok(())
}

/// Writes a file in place, because containers hold the file itself and not its name.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), RuntimeError> {
    let write = || {
        let mut options = OpenOptions::new();
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let mut file = options.create(true).truncate(true).write(true).mode(mode).custom_flags(flags).open(path)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        io::Write::write_all(&mut file, text.as_bytes())
    };
    write().map_err(|error| failed(path, &error))
}

fn make_dir(path: &Path) -> Result<(), RuntimeError> {
    make_dir_with_mode(path, 0o755)
}

/// Makes the directory of a pod, as the storage does.
pub(super) fn make_pod_dir(layout: &Layout, uid: &str) -> Result<(), RuntimeError> {
    make_dir_with_mode(&layout.pods.join(uid), POD_DIR)
}

fn make_dir_with_mode(path: &Path, mode: u32) -> Result<(), RuntimeError> {
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> RuntimeError {
    RuntimeError::Failed(format!("{}: {error}", path.display()))
}

/// Makes the link by which older collectors find a run's log. One that cannot be made is no reason not to run.
pub(super) fn link_log(layout: &Layout, config: &ContainerConfig, id: &str) {
    let pod = &*config.pod;
    let name = config.name.as_str();
    let log = layout.log_dir(pod).join(Layout::log_path(name, config.restart_count));
    let link = layout.log_link(pod.full_name().namespace(), pod.full_name().name(), name, id);
    let made = make_dir(&layout.links)
        .and_then(|()| remove_file(&link).and_then(|()| symlink(log, &link)).map_err(|error| failed(&link, &error)));
    if let Err(error) = made {
        tracing::warn!(%error, "log was not linked");
    }
}

/// Removes the log of a run with what rotation made of it, the link to it, its message file, and directories that are empty
/// then.
pub(super) fn remove_log(layout: &Layout, status: &v1::ContainerStatus) {
    unlink_log(layout, status);
    let label = |name: &str| status.labels.get(name).map(String::as_str);
    let (Some(uid), Some(container)) = (label(labels::POD_UID), label(labels::CONTAINER_NAME)) else { return };
    if let Some(message) = message_file(layout, status) {
        let _ = remove_file(&message);
        let _ = fs::remove_dir(layout.messages(uid, container));
    }
    let log = Path::new(&status.log_path);
    if let Some(dir) = log.parent().filter(|dir| dir.starts_with(&layout.logs)) {
        let _ = remove_run(log);
        let _ = fs::remove_dir(dir);
    }
}

/// Removes the link to the log of a run.
pub(super) fn unlink_log(layout: &Layout, status: &v1::ContainerStatus) {
    let label = |name: &str| status.labels.get(name).map(String::as_str);
    if let (Some(namespace), Some(pod), Some(container)) =
        (label(labels::POD_NAMESPACE), label(labels::POD_NAME), label(labels::CONTAINER_NAME))
    {
        let _ = remove_file(&layout.log_link(namespace, pod, container, &status.id));
    }
}

/// Removes the log directory of a pod that is gone, with the logs that were kept in it.
pub(super) fn remove_log_dir(layout: &Layout, labels: &HashMap<String, String>) {
    let label = |name: &str| labels.get(name).filter(|text| !text.is_empty() && !text.contains('/'));
    if let (Some(uid), Some(namespace), Some(pod)) =
        (label(labels::POD_UID), label(labels::POD_NAMESPACE), label(labels::POD_NAME))
    {
        let dir = layout.logs.join(format!("{namespace}_{pod}_{uid}"));
        if let Err(error) = tree::remove(&dir) {
            tracing::warn!(path = %dir.display(), %error, "logs of a pod that is gone were not removed");
        }
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// What a container that ended left as its message: what it wrote, else, if it failed and asked for that, the end of its
/// log.
pub(super) fn last_words(layout: &Layout, status: &v1::ContainerStatus) -> Option<String> {
    let mut bytes = message_file(layout, status).map(|path| read_end(layout, &path)).unwrap_or_default();
    let from_log = status.annotations.get(labels::MESSAGE_POLICY).is_some_and(|it| it == labels::MESSAGE_FROM_LOG);
    if bytes.is_empty() && from_log && status.exit_code != 0 {
        bytes = end_of_log(Path::new(&status.log_path));
    }
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The file that a run saw at its message path.
fn message_file(layout: &Layout, status: &v1::ContainerStatus) -> Option<PathBuf> {
    let at = status.annotations.get(labels::MESSAGE_PATH)?;
    let mount = status.mounts.iter().find(|mount| mount.container_path == *at)?;
    Some(PathBuf::from(&mount.host_path)).filter(|path| layout.is_of_a_pod(path))
}

/// Reads the end of a file below the pods' directories. A container could put anything in its place: a link must not make
/// us read what the container itself may not, and a FIFO must not make us wait.
fn read_end(layout: &Layout, path: &Path) -> Vec<u8> {
    let read = || -> io::Result<Vec<u8>> {
        let dir = openat(CWD, &layout.pods, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let below = path.strip_prefix(&layout.pods).map_err(io::Error::other)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let mut file = File::from(openat2(dir, below, flags, Mode::empty(), inside)?);
        let meta = file.metadata()?;
        let mut bytes = Vec::new();
        if meta.is_file() {
            file.seek(SeekFrom::Start(meta.len().saturating_sub(MAX_MESSAGE)))?;
            file.take(MAX_MESSAGE).read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    };
    read().unwrap_or_default()
}
