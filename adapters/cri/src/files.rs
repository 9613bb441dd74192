//! The files of a pod that the adapter creates, reads and removes: logs and links to logs, `/etc/hosts`, termination messages.
//! Everything here blocks.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use podwright_host::log::{end_of_log, remove_run};
use podwright_host::step_error::StepError;
use podwright_host::{POD_DIR, regular, sub_path, tree};
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_model::texts::containers::{config as texts, termination};
use podwright_ports::{ContainerConfig, Mount, RuntimeError};
use rustix::fs::OFlags;

use super::config::{NodeFacts, hosts, labels};
use super::layout::Layout;
use super::node_facts::text_of;
use super::v1;

/// The node's hosts file. Pods on the node's network get a copy of it.
const NODE_HOSTS: &str = "/etc/hosts";

/// The mode of the directory of all logs: other users cannot list the pods of the node (upstream `setupDataDirs`, kubelet 1.36).
const LOGS_DIR: u32 = 0o750;

/// How many bytes of a termination message are read (upstream `MaxContainerTerminationMessageLength`, kubelet 1.36).
const MAX_MESSAGE: u64 = 4096;

/// Creates the log directory of a pod.
pub(super) fn make_log_dir(layout: &Layout, pod: &PodObject) -> Result<(), RuntimeError> {
    make_below_logs(layout, &layout.log_dir(pod))
}

fn make_below_logs(layout: &Layout, dir: &Path) -> Result<(), RuntimeError> {
    layout.logs.parent().map_or(Ok(()), make_dir)?;
    make_dir_with_mode(&layout.logs, LOGS_DIR)?;
    make_dir(dir)
}

/// Creates what a container needs before the runtime creates it: its log directory, the pod's `/etc/hosts`, an empty
/// termination message file, and the mounts of its `subPath`s.
pub(super) fn prepare(facts: &NodeFacts, config: &ContainerConfig, ips: &[IpAddr]) -> Result<(), RuntimeError> {
    let layout = &facts.layout;
    let (pod, name) = (&*config.pod, config.name.as_str());
    let uid = pod.uid().to_string();
    let log_dir = layout.log_dir(pod).join(name);
    make_below_logs(layout, &log_dir)
        .map_err(|error| RuntimeError::config(texts::no_log_dir(name, &format!("mkdir {}", error_chain(&error)))))?;

    let path = layout.hosts(&uid);
    path.parent().map_or(Ok(()), make_dir)?;
    let of_node = if pod.is_host_network() { node_hosts(Path::new(NODE_HOSTS))? } else { String::new() };
    write(&path, &hosts(facts, pod, ips, &of_node)?, 0o644)?;

    make_dir(&layout.messages(&uid, name))?;
    // The file is writable for every user, because the container may run as any user.
    write(&layout.message(&uid, name, config.restart_count), "", 0o666)?;

    let is_part = |mount: &Mount| mount.image.is_none() && !mount.sub_path.as_os_str().is_empty();
    for (number, mount) in config.mounts.iter().enumerate().filter(|(_, mount)| is_part(mount)) {
        let mount_point = layout.sub_path(&uid, &mount.volume, name, number);
        sub_path::bind(sub_path::volume(&mount.host_path, &mount.sub_path), &mount.sub_path, &mount_point)
            .map_err(|error| error.of_container(&uid, name, &mount.volume))?;
    }
    Ok(())
}

/// The node's hosts file. If it cannot be read, the container is not created: it would have no host names for its whole life.
fn node_hosts(path: &Path) -> Result<String, RuntimeError> {
    text_of(path).map_err(|error| {
        let step = format!("cannot read the node's host names, make {} readable", path.display());
        RuntimeError::config(StepError::new(step, error))
    })
}

/// Overwrites a file in place. A replaced file would not appear in running containers, because their mounts keep the old inode.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), RuntimeError> {
    let write = || {
        let mut options = OpenOptions::new();
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).expect("both flags are low bits");
        let mut file = options.create(true).truncate(true).write(true).mode(mode).custom_flags(flags).open(path)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        io::Write::write_all(&mut file, text.as_bytes())
    };
    write().map_err(|error| failed(path, error))
}

fn make_dir(path: &Path) -> Result<(), RuntimeError> {
    make_dir_with_mode(path, 0o755)
}

/// Creates the directory of a pod, with the mode that the storage uses too.
pub(super) fn make_pod_dir(layout: &Layout, uid: &str) -> Result<(), RuntimeError> {
    make_dir_with_mode(&layout.pods.join(uid), POD_DIR)
}

/// Creates the directory of checkpoints. They contain the memory of containers, so other users have no access.
pub(super) fn make_checkpoint_dir(path: &Path) -> Result<(), RuntimeError> {
    make_dir_with_mode(path, 0o700)
}

fn make_dir_with_mode(path: &Path, mode: u32) -> Result<(), RuntimeError> {
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(|error| failed(path, error))
}

fn failed(path: &Path, error: io::Error) -> RuntimeError {
    RuntimeError::failed(StepError::new(path.display().to_string(), error))
}

/// Creates the link to the log of a run, for log collectors that expect one. A failure is only logged.
pub(super) fn link_log(layout: &Layout, config: &ContainerConfig, id: &str) {
    let pod = &*config.pod;
    let name = config.name.as_str();
    let log = layout.log_dir(pod).join(Layout::log_path(name, config.restart_count));
    let link = layout.log_link(pod.full_name().namespace(), pod.full_name().name(), name, id);
    let linked = make_dir(&layout.links)
        .and_then(|()| remove_file(&link).and_then(|()| symlink(log, &link)).map_err(|error| failed(&link, error)));
    if let Err(error) = linked {
        tracing::warn!(error = %error_chain(&error), "cannot link a container log");
    }
}

/// Removes the log of a run with its rotated files, the link to the log, the termination message file, and the directories
/// that become empty.
pub(super) fn remove_log(layout: &Layout, status: &v1::ContainerStatus) {
    unlink_log(layout, status);
    let label = |name: &str| status.labels.get(name).map(String::as_str);
    let (Some(uid), Some(container)) = (label(labels::POD_UID), label(labels::CONTAINER_NAME)) else { return };
    if let Some(message) = message_file(layout, status) {
        let _ = remove_file(&message);
        let _ = fs::remove_dir(layout.messages(uid, container));
    }
    if let Some((dir, file)) = layout.log_at(Path::new(&status.log_path)) {
        let _ = remove_run(&dir, &file);
        let _ = dir.remove_if_empty();
    }
}

/// Removes the link to the log of a run.
pub(super) fn unlink_log(layout: &Layout, status: &v1::ContainerStatus) {
    let label = |name: &str| status.labels.get(name).map(String::as_str);
    if let (Some(namespace), Some(pod), Some(container)) =
        (label(labels::POD_NAMESPACE), label(labels::POD_NAME), label(labels::CONTAINER_NAME))
    {
        let name = Layout::log_link_name(namespace, pod, container, &status.id);
        for links in layout.all_links() {
            let _ = remove_file(&links.join(&name));
        }
    }
}

/// Removes the log directory of a removed pod with all logs in it.
pub(super) fn remove_log_dir(layout: &Layout, labels: &HashMap<String, String>) {
    let label = |name: &str| labels.get(name).filter(|text| !text.is_empty() && !text.contains('/'));
    if let (Some(uid), Some(namespace), Some(pod)) =
        (label(labels::POD_UID), label(labels::POD_NAMESPACE), label(labels::POD_NAME))
    {
        for dir in layout.all_logs().map(|logs| logs.join(format!("{namespace}_{pod}_{uid}"))) {
            if let Err(error) = tree::remove(&dir) {
                tracing::warn!(path = %dir.display(), %error, "cannot remove the logs of a removed pod");
            }
        }
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The termination message of a container that has ended. It is the content of the message file. If the file is empty or missing,
/// it is the end of the log, provided that the container failed and its policy is `FallbackToLogsOnError`. A file or log that
/// cannot be read is an error that becomes the message (upstream `getTerminationMessage`, kubelet 1.36).
pub(super) fn termination_message(layout: &Layout, status: &v1::ContainerStatus) -> Option<String> {
    let file = message_file(layout, status);
    let mut bytes = match file.as_ref().map(|path| (path, read_end(layout, path))) {
        Some((path, Err(error))) if error.kind() != ErrorKind::NotFound => {
            return Some(termination::no_file(path, &error.to_string()));
        }
        Some((_, read)) => read.unwrap_or_default(),
        None => vec![],
    };
    let from_log = status.annotations.get(labels::MESSAGE_POLICY).is_some_and(|it| it == labels::MESSAGE_FROM_LOG);
    // If the container could not be started, the runtime's own message gives the reason.
    if bytes.is_empty() && from_log && status.exit_code != 0 && status.reason != "ContainerCannotRun" {
        let log = layout.log_at(Path::new(&status.log_path));
        bytes = match log.map(|(dir, file)| end_of_log(&dir, &file)).transpose() {
            Err(error) => return Some(termination::no_log(&error.to_string())),
            Ok(read) => read.unwrap_or_default(),
        };
    }
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The node's file that was mounted at the message path of a run.
fn message_file(layout: &Layout, status: &v1::ContainerStatus) -> Option<PathBuf> {
    let at = status.annotations.get(labels::MESSAGE_PATH)?;
    let mount = status.mounts.iter().find(|mount| mount.container_path == *at)?;
    Some(PathBuf::from(&mount.host_path)).filter(|path| layout.pods_above(path).is_some())
}

/// Reads the end of a file in a pod's directory. The container may have replaced the file: a link could lead to a file that the
/// container may not read.
fn read_end(layout: &Layout, path: &Path) -> io::Result<Vec<u8>> {
    let pods = layout.pods_above(path).ok_or(ErrorKind::InvalidInput)?;
    let below = path.strip_prefix(pods).map_err(io::Error::other)?;
    let mut file = regular::open(regular::open_dir(pods, Path::new("."))?, below)?;
    let size = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(size.saturating_sub(MAX_MESSAGE)))?;
    file.take(MAX_MESSAGE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::KubeletDirectories;

    #[test]
    fn other_users_cannot_list_the_logs_of_pods() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (pods, logs, links) = (path("pods"), path("log/pods"), path("log/containers"));
        let layout = Layout { pods, logs: logs.clone(), links, kubelet: KubeletDirectories::default() };
        let pod =
            serde_json::json!({"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": {"containers": []}});
        let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
        make_log_dir(&layout, &pod).unwrap();
        assert!(layout.log_dir(&pod).is_dir());
        assert_eq!(fs::metadata(&logs).unwrap().permissions().mode() & 0o027, 0);
    }

    #[test]
    fn unreadable_hosts_file_of_the_node_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        let error = node_hosts(&path).unwrap_err();
        let text = podwright_model::text::error_chain(&error).to_string();
        assert!(matches!(error, RuntimeError::Config(_)) && text.contains("hosts readable: No such file"), "{text}");
        fs::write(&path, b"10.0.0.1 a # caf\xe9\n").unwrap();
        assert!(node_hosts(&path).unwrap().starts_with("10.0.0.1 a # caf"));
    }
}
