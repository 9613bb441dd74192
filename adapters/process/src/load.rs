//! Loads the records of an earlier agent: adopts the containers that run and records the exits of those that ended.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use podwright_host::dir_watch::DirWatch;
use podwright_host::tree;
use podwright_model::ids::PodUid;
use podwright_model::text::error_chain;
use rustix::io::Errno;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::{info, warn};

use super::container::{Container, RunState, Shim};
use super::files::{ContainerFiles, Layout, STATE, is_id, remove_file};
use super::record::{
    self, ContainerRecord, Durability, ExitRecord, ReadError, RunRecord, SandboxRecord, ShimRecord, StartedRecord,
};
use super::shared::ProcessRuntimeState;
use super::start;

/// Fills the table from the records on disk and watches the containers that run.
pub(super) async fn load(shared: &Arc<ProcessRuntimeState>) -> Result<(), (PathBuf, io::Error)> {
    let (layout, boot_id) = (shared.layout.clone(), shared.boot_id.clone());
    let Records { sandboxes, containers, outdated, damaged } = shared.blocking(move || read(&layout, &boot_id)).await?;
    for sandbox in sandboxes {
        shared.table.put_sandbox(sandbox);
    }
    join_all(outdated.into_iter().map(|found| remove_outdated(shared, found))).await;
    let damaged = damaged.into_iter().map(|record| shared.blocking(move || remove_damaged(record)));
    let adoptions: Vec<_> = containers.into_iter().filter_map(|found| put(shared, found)).collect();
    // The processes of a damaged record must end before the pod gets another container.
    join_all(damaged).await;
    // A container whose start is unfinished is adopted in the background, and only its own pod waits for it.
    let _ = timeout(INSPECTED_WITHIN, join_all(adoptions)).await;
    Ok(())
}

/// Adds a container to the table. If the container was started, its adoption begins. The receiver closes when the container is
/// adopted, or when the adoption has to wait for the shim.
fn put(shared: &Arc<ProcessRuntimeState>, found: LoadedContainer) -> Option<oneshot::Receiver<()>> {
    let (record, files, state) = found;
    let container = Container::new(record, files, state.unwrap_or(RunState::Adopting));
    shared.table.mark_changed(&container.uid);
    shared.table.put_container(Arc::clone(&container));
    matches!(*container.run.lock(), RunState::Adopting).then(|| {
        let (shared_too, container) = (Arc::clone(shared), Arc::clone(&container));
        let (inspecting, inspected) = oneshot::channel();
        shared.spawn(async move { adopt(&shared_too, &container, inspecting).await });
        inspected
    })
}

/// Removes a container whose start would fail. Its pod creates another one.
async fn remove_outdated(shared: &Arc<ProcessRuntimeState>, (record, files, _): LoadedContainer) {
    let container = Container::new(record, files, RunState::Created);
    let (id, uid) = (&container.id, &container.uid);
    match Arc::clone(shared).remove_container(Arc::clone(&container), false).await {
        Ok(()) => {
            info!(container.id = %id, pod.uid = %uid, "a container that an older agent did not start is created again")
        }
        Err(error) => {
            let error = error_chain(&error);
            warn!(container.id = %id, pod.uid = %uid, %error, "cannot remove a container that an older agent did not start");
            shared.table.put_container(Arc::clone(&container));
        }
    }
}

/// Waits until the containers of a pod are adopted. The caller reads the status of the pod after that, because the engine stops a
/// container whose state is unknown. The wait has a limit, because some shims cannot be killed.
pub(super) async fn adopted(shared: &ProcessRuntimeState, uid: &PodUid) {
    for container in shared.table.adopting(uid) {
        let done = container.wait_for(|run| (!matches!(run, RunState::Adopting)).then_some(()));
        if timeout_at(shared.opened + ADOPTED_WITHIN, done).await.is_err() {
            warn!(container.id = %container.id, pod.uid = %uid, "a container is not adopted yet, its state is unknown");
        }
    }
}

/// The sandboxes and containers that the files of an earlier agent describe.
struct Records {
    sandboxes: Vec<SandboxRecord>,
    containers: Vec<LoadedContainer>,
    /// The containers that an older agent created and did not start, and that the shim of this agent refuses to start.
    outdated: Vec<LoadedContainer>,
    damaged: Vec<DamagedRecord>,
}

/// A container and its state; `None` if its shim was started in this boot and left no exit record, or still runs.
type LoadedContainer = (ContainerRecord, ContainerFiles, Option<RunState>);

/// The directory of a container whose record cannot be read, and the reason.
type DamagedRecord = (PathBuf, ReadError);

fn read(layout: &Layout, boot_id: &str) -> Result<Records, (PathBuf, io::Error)> {
    let sandboxes = read_sandboxes(layout)?;
    let mut records = Records { sandboxes, containers: Vec::new(), outdated: Vec::new(), damaged: Vec::new() };
    read_containers(layout, boot_id, &mut records)?;
    Ok(records)
}

fn read_sandboxes(layout: &Layout) -> Result<Vec<SandboxRecord>, (PathBuf, io::Error)> {
    let mut sandboxes = Vec::new();
    for dir in directories(&layout.sandboxes())? {
        match record::read::<SandboxRecord>(&dir.join(STATE)) {
            Ok(record) => sandboxes.push(record),
            Err(error) if error.is_missing() => drop_unfinished(&dir),
            Err(error) if record::is_exhausted(&error) => return Err((dir, io::Error::other(error))),
            Err(error) => {
                let aside = move_aside(&dir);
                warn!(%error, %aside, "sandbox record is unusable, its pod gets a new sandbox; no action is needed");
            }
        }
    }
    Ok(sandboxes)
}

fn read_containers(layout: &Layout, boot_id: &str, records: &mut Records) -> Result<(), (PathBuf, io::Error)> {
    let Records { sandboxes, containers, outdated, damaged } = records;
    let earlier: HashSet<&str> =
        sandboxes.iter().filter(|sandbox| sandbox.boot_id != boot_id).map(|sandbox| sandbox.id.as_str()).collect();
    for dir in directories(&layout.containers())? {
        let files = ContainerFiles::new(dir.clone());
        match record::read::<ContainerRecord>(&files.state()) {
            Ok(record) if dir.file_name() != Some(OsStr::new(&record.id)) => {
                // A copy of a directory must not end the container of the original.
                let error = io::Error::other("the record belongs to another container");
                damaged.push((dir, ReadError::Io { path: files.state(), error }));
            }
            Ok(record) => {
                let is_earlier = earlier.contains(record.sandbox.as_str());
                let found = container_state(&files, boot_id, is_earlier).map_err(|error| (dir, error))?;
                let is_outdated = matches!(found, Some(RunState::Created)) && is_outdated(&files);
                let list = if is_outdated { &mut *outdated } else { &mut *containers };
                list.push((record, files, found));
            }
            Err(error) if error.is_missing() => drop_unfinished(&dir),
            Err(error) if record::is_exhausted(&error) => return Err((dir, io::Error::other(error))),
            Err(error) => damaged.push((dir, error)),
        }
    }
    Ok(())
}

/// Whether the shim refuses to start the container.
fn is_outdated(files: &ContainerFiles) -> bool {
    let view = record::read::<RunRecord>(&files.run()).ok().and_then(|run| run.confinement.view);
    view.is_some_and(|view| view.sub_path_in_volume().is_some())
}

/// Kills the processes of a container whose record is damaged, and moves the record away.
///
/// Without the record, the agent cannot assign these processes to their pod, and the pod would start them a second time. The
/// shim has the same variable in its environment, so it is killed too. A directory whose name is not an id is that of no container.
fn remove_damaged((dir, error): DamagedRecord) {
    let Some(id) = dir.file_name().and_then(OsStr::to_str).filter(|name| is_id(name)) else {
        let aside = move_aside(&dir);
        return warn!(%error, %aside, "a directory in place of a container's records is unusable; no action is needed");
    };
    let killed = start::kill_survivors(&ContainerFiles::new(dir.clone()), id);
    let aside = move_aside(&dir);
    warn!(
        %error, %aside, ?killed,
        "container record is unusable and its processes are killed, its pod starts a new container; no action is needed"
    );
}

/// The state of a container; `None` if its shim was started in this boot and left no exit record, or still runs. `is_earlier`
/// means that the container's sandbox is of an earlier boot.
fn container_state(files: &ContainerFiles, boot_id: &str, is_earlier: bool) -> io::Result<Option<RunState>> {
    let exited = |exit| RunState::Exited { started: record::read(&files.started()).ok(), exit: Box::new(exit) };
    let was_started = files.lock().exists();
    match record::read::<ExitRecord>(&files.exit()) {
        // The shim writes the record before it kills the remaining processes.
        Ok(_) if was_started && files.try_lock()?.is_none() => return Ok(None),
        Ok(exit) => return Ok(Some(exited(exit))),
        Err(error) if record::is_exhausted(&error) => return Err(io::Error::other(error)),
        Err(_) => {}
    }
    if !was_started {
        return Ok(Some(RunState::Created));
    }
    let Some(_lock) = files.try_lock()? else { return Ok(None) };
    match record::read::<ShimRecord>(&files.shim()) {
        Err(error) if record::is_exhausted(&error) => Err(io::Error::other(error)),
        Err(error) if error.is_missing() && !is_earlier => {
            // A start was attempted, but the shim ended before it wrote its first record.
            remove_file(&files.lock())?;
            Ok(Some(RunState::Created))
        }
        // The command may have run even without a record: the machine may have stopped before the shim's records reached the
        // disk.
        shim if is_earlier || shim.as_ref().is_ok_and(|shim| shim.boot_id != boot_id) => {
            let exit = ExitRecord::unknown("the node restarted: the container's exit code is unknown".into());
            if let Err(error) = record::write(&files.exit(), &exit, Durability::Disk) {
                // A later agent comes to the same result.
                warn!(%error, path = %files.exit().display(), "cannot record the container's exit");
            }
            Ok(Some(exited(exit)))
        }
        _ => Ok(None),
    }
}

/// Adopts a container that an earlier agent started. The container must be in the state running or exited afterwards. If it were
/// listed as created, the engine would start it a second time.
///
/// `inspecting` is dropped when the adoption has ended, or has to wait for the shim.
async fn adopt(shared: &Arc<ProcessRuntimeState>, container: &Arc<Container>, inspecting: oneshot::Sender<()>) {
    let mut inspecting = Some(inspecting);
    let mut limit = Instant::now() + MAX_START_TIME;
    let mut changes = Changes::default();
    let mut logged = false;
    let shim = loop {
        // Each wait ends at a change of the files, or at `until`. No file changes when a lack of resources ends, so the wait after such an error is short.
        let mut until = limit;
        match holder(&container.files) {
            Ok(LockHolder::None) => return start::settle(shared, container, Vec::new()).await,
            Ok(LockHolder::Shim(shim)) => break shim,
            // The shim was spawned just before the earlier agent died, and has written no record yet.
            Ok(LockHolder::Unknown) if Instant::now() < limit => {}
            Ok(LockHolder::Unknown) => {
                warn!(container.id = %container.id, "a container's shim is stuck without a record, killing it");
                let (files, id) = (container.files.clone(), container.id.clone());
                if let Err(error) = shared.blocking(move || start::kill_survivors(&files, id.as_str())).await {
                    warn!(%error, container.id = %container.id, "cannot kill a container's shim, trying again");
                }
                limit = Instant::now() + MAX_START_TIME;
                until = limit;
            }
            Err(error) if !logged => {
                warn!(%error, container.id = %container.id, "cannot open a container's shim, trying again");
                (logged, until) = (true, Instant::now());
            }
            Err(_) => until = Instant::now(),
        }
        if changes.next(&container.files, until).await {
            inspecting = None;
        }
    };
    let started = loop {
        let mut until = limit;
        match record::read::<StartedRecord>(&container.files.started()) {
            Ok(started) => break started,
            Err(error) if record::is_exhausted(&error) => until = Instant::now(),
            Err(_) if shim.has_ended() => return start::watch(shared, container, shim, Vec::new()).await,
            Err(_) if Instant::now() < limit => {}
            Err(_) => shim.kill(),
        }
        // The shim may end without a record.
        tokio::select! {
            waited = changes.next(&container.files, until) => if waited {
                inspecting = None;
            },
            () = start::ended(&shim) => {}
        }
    };
    info!(container.id = %container.id, pod.uid = %container.uid, container.name = %container.name, "container adopted");
    container.set(RunState::Running { started, shim: shim.clone() });
    shared.table.mark_changed(&container.uid);
    drop(inspecting);
    let (shared_too, container) = (Arc::clone(shared), Arc::clone(container));
    shared.spawn(async move { start::watch(&shared_too, &container, shim, Vec::new()).await });
}

/// Waits for changes of a container's files. A shim writes its records there, and it closes the lock when it ends.
#[derive(Default)]
struct Changes {
    /// `None` before the first wait.
    watch: Option<io::Result<DirWatch>>,
}

impl Changes {
    /// Waits for a change of the files, at most until `limit`. The first call only starts the watch and returns false: the caller
    /// must read the files again, because they may have changed before. Later calls return true. Without a watch, for example
    /// because the user has too many watches, each call waits for a fixed interval.
    async fn next(&mut self, files: &ContainerFiles, limit: Instant) -> bool {
        let Some(watch) = &self.watch else {
            self.watch = Some(DirWatch::new(files.dir()));
            return false;
        };
        let shortest = Instant::now() + start::RETRY_INTERVAL;
        match watch {
            Ok(watch) => {
                if let Ok(Err(_)) = timeout_at(limit.max(shortest), watch.changed()).await {
                    sleep_until(shortest).await;
                }
            }
            Err(_) => sleep_until(shortest).await,
        }
        true
    }
}

/// The process that holds a container's lock.
enum LockHolder {
    None,
    Shim(Shim),
    /// A shim that has not written its record, or whose record cannot be used.
    Unknown,
}

/// # Errors
/// An error if the system lacks the resources to inspect the lock.
fn holder(files: &ContainerFiles) -> io::Result<LockHolder> {
    let shim = match record::read::<ShimRecord>(&files.shim()) {
        Ok(shim) => match Shim::open(shim.pid) {
            Ok(shim) => Some(shim),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => None,
            Err(error) => return Err(error),
        },
        Err(error) if record::is_exhausted(&error) => return Err(io::Error::other(error)),
        Err(_) => None,
    };
    // The pid belongs to the shim if the lock is still held after the process was opened.
    Ok(match files.is_locked()? {
        false => LockHolder::None,
        true => shim.map_or(LockHolder::Unknown, LockHolder::Shim),
    })
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
/// How long the status of a pod waits for the adoption of its containers: until a stuck start was killed.
const ADOPTED_WITHIN: Duration = Duration::from_secs(6);
/// How long an opening runtime waits until the files of all containers were read once. This usually takes milliseconds.
const INSPECTED_WITHIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_with_an_exit_record_has_ended_when_its_shim_has() {
        let dir = tempfile::tempdir().unwrap();
        let files = ContainerFiles::new(dir.path().to_owned());
        let lock = files.try_lock().unwrap().unwrap();
        let written = ExitRecord::start_error("x".into());
        record::write(&files.exit(), &written, Durability::Boot).unwrap();
        // The shim still kills the remaining processes.
        assert!(container_state(&files, "boot", false).unwrap().is_none());
        drop(lock);
        let found = container_state(&files, "boot", false).unwrap();
        assert!(matches!(found, Some(RunState::Exited { started: None, exit }) if *exit == written));
    }
}
