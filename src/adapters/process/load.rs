//! Loads the records of an earlier agent: adopts the containers that run and records the exits of those that ended.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::container::{Container, RunState, Shim};
use super::files::{ContainerFiles, Layout, STATE, remove_file};
use super::record::{self, ContainerRecord, Durability, ExitRecord, SandboxRecord, ShimRecord, StartedRecord};
use super::shared::ProcessRuntimeState;
use super::start;
use crate::adapters::tree;

/// Fills the table from the records on disk and watches the containers that run.
pub(super) async fn load(shared: &Arc<ProcessRuntimeState>) -> Result<(), (PathBuf, io::Error)> {
    let (layout, boot_id) = (shared.layout.clone(), shared.boot_id.clone());
    let (sandboxes, containers) = shared.blocking(move || read(&layout, &boot_id)).await?;
    for sandbox in sandboxes {
        shared.table.put_sandbox(sandbox);
    }
    for (record, files, found) in containers {
        let container = Container::new(record, files, RunState::Starting);
        match found {
            LoadedState::Created => container.set(RunState::Created),
            LoadedState::Ended(started, exit) => container.set(RunState::Exited { started, exit: Box::new(exit) }),
            LoadedState::Alive => adopt(shared, &container).await,
        }
        shared.table.mark_changed(&container.uid);
        shared.table.put_container(container);
    }
    Ok(())
}

type Records = (Vec<SandboxRecord>, Vec<LoadedContainer>);

fn read(layout: &Layout, boot_id: &str) -> Result<Records, (PathBuf, io::Error)> {
    let sandboxes = read_sandboxes(layout)?;
    let containers = read_containers(layout, boot_id, &sandboxes)?;
    Ok((sandboxes, containers))
}

/// The state of a container according to its files.
enum LoadedState {
    /// No shim was ever started for it.
    Created,
    /// Its shim lives.
    Alive,
    /// Its shim has ended.
    Ended(Option<StartedRecord>, ExitRecord),
}

type LoadedContainer = (ContainerRecord, ContainerFiles, LoadedState);

fn read_sandboxes(layout: &Layout) -> Result<Vec<SandboxRecord>, (PathBuf, io::Error)> {
    let mut sandboxes = Vec::new();
    for dir in directories(&layout.sandboxes())? {
        match record::read::<SandboxRecord>(&dir.join(STATE)) {
            Ok(record) => sandboxes.push(record),
            Err(error) if error.is_missing() => drop_unfinished(&dir),
            Err(error) => {
                let aside = move_aside(&dir);
                warn!(%error, %aside, "sandbox record is unusable, its pod gets a new sandbox; no action is needed");
            }
        }
    }
    Ok(sandboxes)
}

fn read_containers(
    layout: &Layout,
    boot_id: &str,
    sandboxes: &[SandboxRecord],
) -> Result<Vec<LoadedContainer>, (PathBuf, io::Error)> {
    let earlier: HashSet<&str> =
        sandboxes.iter().filter(|sandbox| sandbox.boot_id != boot_id).map(|sandbox| sandbox.id.as_str()).collect();
    let mut containers = Vec::new();
    for dir in directories(&layout.containers())? {
        let files = ContainerFiles::new(dir.clone());
        match record::read::<ContainerRecord>(&files.state()) {
            Ok(record) => {
                let is_earlier = earlier.contains(record.sandbox.as_str());
                let found = container_state(&files, &record.id, boot_id, is_earlier).map_err(|error| (dir, error))?;
                containers.push((record, files, found));
            }
            Err(error) if error.is_missing() => drop_unfinished(&dir),
            Err(error) => {
                let id = dir.file_name().and_then(OsStr::to_str).unwrap_or_default();
                // Without the record, the agent cannot assign these processes to their pod, and the pod would start them a
                // second time. The shim has the same variable in its environment, so it is killed too.
                let killed = start::kill_survivors(&files, id);
                let aside = move_aside(&dir);
                warn!(
                    %error, %aside, ?killed,
                    "container record is unusable and its processes are killed, its pod starts a new container; no action is needed"
                );
            }
        }
    }
    Ok(containers)
}

/// The state of a container. `is_earlier` means that the container's sandbox is of an earlier boot.
fn container_state(files: &ContainerFiles, id: &str, boot_id: &str, is_earlier: bool) -> io::Result<LoadedState> {
    if let Ok(exit) = record::read::<ExitRecord>(&files.exit()) {
        return Ok(LoadedState::Ended(record::read(&files.started()).ok(), exit));
    }
    if !files.lock().exists() {
        return Ok(LoadedState::Created);
    }
    let Some(lock) = files.try_lock()? else { return Ok(LoadedState::Alive) };
    match record::read::<ShimRecord>(&files.shim()) {
        Err(error) if error.is_missing() && !is_earlier => {
            // A start was attempted, but the shim ended before it wrote its first record.
            remove_file(&files.lock())?;
            Ok(LoadedState::Created)
        }
        // The command may have run even without a record: the machine may have stopped before the shim's records reached the
        // disk.
        shim if is_earlier || shim.as_ref().is_ok_and(|shim| shim.boot_id != boot_id) => {
            let exit = ExitRecord::unknown("the node restarted: the container's exit code is unknown".into());
            record::write(&files.exit(), &exit, Durability::Disk)?;
            Ok(LoadedState::Ended(record::read(&files.started()).ok(), exit))
        }
        _ => {
            drop(lock);
            let (started, exit) = start::read_or_write_exit(files, id);
            Ok(LoadedState::Ended(started, exit))
        }
    }
}

/// Adopts a container whose shim held the container's lock when its files were read.
async fn adopt(shared: &Arc<ProcessRuntimeState>, container: &Arc<Container>) {
    let limit = Instant::now() + MAX_START_TIME;
    let shim = loop {
        // The pid belongs to the shim if the lock is still held after the process was opened.
        let shim = record::read::<ShimRecord>(&container.files.shim()).and_then(|shim| {
            Shim::open(shim.pid).map_err(|error| record::ReadError::Io { path: container.files.shim(), error })
        });
        if let Ok(None) = container.files.try_lock()
            && Instant::now() < limit
        {
            match shim {
                Ok(shim) => break shim,
                // The shim was spawned just before the earlier agent died, and has written no record yet.
                Err(_) => sleep(POLL_INTERVAL).await,
            }
            continue;
        }
        let (files, id) = (container.files.clone(), container.id.clone());
        let (started, exit) = shared.blocking(move || start::read_or_write_exit(&files, id.as_str())).await;
        container.set(RunState::Exited { started, exit: Box::new(exit) });
        return;
    };
    // The container must be in the state running or exited before it is listed. If it were listed as created, the engine
    // would start it a second time.
    let started = loop {
        match record::read::<StartedRecord>(&container.files.started()) {
            Ok(started) => break started,
            Err(_) if matches!(container.files.try_lock(), Ok(None)) => {
                if Instant::now() >= limit {
                    shim.kill();
                }
                sleep(POLL_INTERVAL).await;
            }
            Err(_) => return start::watch(shared, container, shim).await,
        }
    };
    info!(container.id = %container.id, pod.uid = %container.uid, container.name = %container.name, "container adopted");
    container.set(RunState::Running { started, shim: shim.clone() });
    let (shared_too, container) = (Arc::clone(shared), Arc::clone(container));
    shared.spawn(async move { start::watch(&shared_too, &container, shim).await });
}

fn directories(dir: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let named = |error| (dir.to_owned(), error);
    let mut found = Vec::new();
    for item in fs::read_dir(dir).map_err(named)? {
        let path = item.map_err(named)?.path();
        match path.extension().and_then(OsStr::to_str) {
            Some(REMOVING) => drop_unfinished(&path),
            Some(CORRUPT) => {}
            _ => found.push(path),
        }
    }
    Ok(found)
}

/// Removes a directory whose creation or removal an earlier agent did not finish.
fn drop_unfinished(dir: &Path) {
    if let Err(error) = tree::remove(dir) {
        warn!(%error, path = %dir.display(), "cannot remove an unfinished directory: remove it by hand");
    }
}

fn move_aside(dir: &Path) -> String {
    let aside = dir.with_extension(CORRUPT);
    match fs::rename(dir, &aside) {
        Ok(()) => format!("moved to {}", aside.display()),
        Err(error) => format!("cannot be moved away: {error}"),
    }
}

/// Suffix of a directory that is being removed. It is renamed before its content is removed.
pub(super) const REMOVING: &str = "removing";
/// Suffix of a directory whose record cannot be read.
const CORRUPT: &str = "corrupt";
/// How long a start may take that the earlier agent began and did not finish. A start usually takes milliseconds. A start
/// that takes longer than this is stuck.
const MAX_START_TIME: Duration = Duration::from_secs(5);
/// The interval between two reads of the files of an unfinished start.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
