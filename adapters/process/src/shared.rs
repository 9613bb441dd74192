//! The state that the runtime's tasks share, and the calls that create, stop and remove sandboxes and containers.

use std::fs::File;
use std::future::Future;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use podwright_host::cdi::SpecCache;
use podwright_host::log::remove_run;
use podwright_host::pod_group;
use podwright_host::step_error::StepError;
use podwright_host::tree;
use podwright_host::trusted_dir;
use podwright_model::ids::{ContainerId, PodUid, SandboxId};
use podwright_ports::HostIps;
use podwright_ports::{ContainerConfig, RuntimeError, SandboxConfig};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::container::{Container, RunState};
use super::create::{self, ContainerPlan, PlanContext};
use super::files::{Layout, STATE, make_dir};
use super::record::{self, ContainerRecord, Durability, RunRecord, SandboxRecord};
use super::security::{AgentRights, Namespaces};
use super::table::PodTable;
use super::{ProcessConfig, cgroup, devices, identity, load, probe, rootfs, stop};

/// The state that the runtime's tasks share.
#[derive(Debug)]
pub(super) struct ProcessRuntimeState {
    pub(super) layout: Layout,
    pub(super) boot_id: String,
    pub(super) table: PodTable,
    shim: Vec<String>,
    /// The parent of the containers' cgroups; `None` if containers run without cgroups. Detected before the first container is created.
    cgroups: OnceCell<Option<PathBuf>>,
    addresses: HostIps,
    refuse_ephemeral_root: bool,
    open_files: Option<u64>,
    cdi: Arc<SpecCache>,
    /// The machine's memory in bytes.
    memory: i64,
    /// The namespaces that the agent may give to containers. Tested in the background, until a test has a result.
    namespaces: OnceCell<Namespaces>,
    /// The tokio runtime on which the process runtime was opened. Callers may run on another tokio runtime, which may end
    /// earlier.
    handle: Handle,
    open: CancellationToken,
    /// When the runtime was opened.
    pub(super) opened: Instant,
    /// Bounds the number of threads that block on the disk.
    gate: Semaphore,
}

impl ProcessRuntimeState {
    /// State without pods, whose tasks run on the current tokio runtime.
    pub(super) fn new(
        layout: Layout,
        boot_id: String,
        shim: Vec<String>,
        config: ProcessConfig,
        memory: i64,
    ) -> Arc<Self> {
        Arc::new(ProcessRuntimeState {
            layout,
            boot_id,
            table: PodTable::default(),
            shim,
            cgroups: if config.cgroups { OnceCell::new() } else { OnceCell::new_with(Some(None)) },
            addresses: config.addresses,
            refuse_ephemeral_root: config.refuse_ephemeral_root,
            open_files: config.open_files,
            cdi: Arc::new(SpecCache::new(config.cdi_directories)),
            memory,
            namespaces: OnceCell::new(),
            handle: Handle::current(),
            open: CancellationToken::new(),
            opened: Instant::now(),
            gate: Semaphore::new(BLOCKING_AT_ONCE),
        })
    }

    /// Ends all tasks.
    pub(super) fn close(&self) {
        self.open.cancel();
    }

    /// Runs a future on the runtime of this state, even after the caller drops the handle. The result is `None` if the
    /// process runtime was closed first.
    pub(super) fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        let open = self.open.clone();
        self.handle.spawn(async move { open.run_until_cancelled(work).await })
    }

    /// Runs `work`, which may block on the disk or on processes, on a blocking thread.
    pub(super) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let _permit = self.gate.acquire().await.expect("the semaphore is never closed");
        match self.handle.spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The tokio runtime is shutting down and will drop this task too.
            Err(_) => std::future::pending().await,
        }
    }

    /// The program that runs a shim, and its first arguments. The program in a container's record is not used, because an
    /// earlier agent wrote it.
    pub(super) fn shim(&self) -> (String, Vec<String>) {
        let (program, args) = self.shim.split_first().expect("`ProcessRuntime::open` refuses an empty command");
        (program.clone(), args.to_vec())
    }

    /// The namespaces that the agent may give to containers.
    ///
    /// # Errors
    /// [`RuntimeError::Failed`] if the test had no result, because the node lacks a resource. The next call tests again.
    pub(super) async fn namespaces(&self) -> Result<Namespaces, RuntimeError> {
        let shim = self.shim();
        let test = || self.blocking(move || probe::probe_namespaces(shim));
        let found = self.namespaces.get_or_try_init(test).await;
        found.copied().map_err(failed("cannot test which namespaces the node allows"))
    }

    /// The parent of the containers' cgroups; `None` if containers run without cgroups.
    ///
    /// # Errors
    /// [`RuntimeError::Failed`] if the node lacks a resource. The next call detects the parent again: without a cgroup, a container
    /// would run without its limits.
    async fn cgroups(&self) -> Result<Option<&Path>, RuntimeError> {
        let found = self.cgroups.get_or_try_init(|| self.blocking(cgroup::detect)).await;
        found.map(Option::as_deref).map_err(failed("cannot find out whether the node allows cgroups"))
    }

    pub(super) async fn closed(&self) {
        self.open.cancelled().await;
    }

    pub(super) fn closed_error(&self) -> RuntimeError {
        RuntimeError::unreachable("the process runtime was closed")
    }

    pub(super) fn container(&self, id: &ContainerId) -> Result<Arc<Container>, RuntimeError> {
        self.table.container(id).ok_or_else(|| RuntimeError::NotFound(format!("container {id}")))
    }

    pub(super) async fn finish<T>(&self, task: JoinHandle<Option<Result<T, RuntimeError>>>) -> Result<T, RuntimeError> {
        match task.await {
            Ok(Some(result)) => result,
            Ok(None) => Err(self.closed_error()),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(self.closed_error()),
        }
    }

    pub(super) async fn run_sandbox(self: Arc<Self>, config: SandboxConfig) -> Result<SandboxId, RuntimeError> {
        let name = config.pod.full_name();
        let record = SandboxRecord {
            id: new_id().map_err(failed("cannot create an id"))?,
            uid: config.pod.uid().to_string(),
            name: name.name().into(),
            namespace: name.namespace().into(),
            attempt: config.attempt,
            created_at: self.table.creation_time(record::now()),
            boot_id: self.boot_id.clone(),
            stopped: false,
            host_network: config.pod.is_host_network(),
            ips: self.addresses.get(),
            is_static: config.pod.is_static(),
            grace: config.pod.spec_grace(),
        };
        if let Err(error) = self.write_sandbox(record.clone()).await {
            let dir = self.layout.sandbox(&record.id);
            let _ = self.blocking(move || tree::remove(&dir)).await;
            return Err(error);
        }
        let id = record.id.as_str().into();
        self.table.put_sandbox(record);
        self.table.mark_changed(config.pod.uid());
        Ok(id)
    }

    /// Whether containers may start in a sandbox.
    pub(super) fn is_ready(&self, id: &SandboxId) -> bool {
        self.table.sandbox(id).is_some_and(|sandbox| !sandbox.stopped && sandbox.boot_id == self.boot_id)
    }

    async fn write_sandbox(&self, record: SandboxRecord) -> Result<(), RuntimeError> {
        let dir = self.layout.sandbox(&record.id);
        let write = move || {
            make_dir(&dir, 0o700)?;
            record::write(&dir.join(STATE), &record, Durability::Disk)
        };
        self.blocking(write).await.map_err(failed("cannot write the sandbox's record"))
    }

    pub(super) async fn stop_sandbox(self: Arc<Self>, id: SandboxId) -> Result<(), RuntimeError> {
        let Some(mut record) = self.table.sandbox(&id) else { return Ok(()) };
        let uid = PodUid::new(&record.uid);
        if !record.stopped {
            // The record is written before the containers are stopped, so that no container starts after its stop.
            record.stopped = true;
            self.write_sandbox(record.clone()).await?;
            self.table.put_sandbox(record);
        }
        let stops =
            self.table.containers_of(&id).into_iter().map(|container| stop::stop(&self, container, SANDBOX_GRACE));
        join_all(stops).await.into_iter().collect::<Result<(), _>>()?;
        self.table.mark_changed(&uid);
        Ok(())
    }

    pub(super) async fn remove_sandbox(self: Arc<Self>, id: SandboxId) -> Result<(), RuntimeError> {
        let Some(record) = self.table.sandbox(&id) else { return Ok(()) };
        if !record.stopped && record.boot_id == self.boot_id {
            return Err(RuntimeError::failed(format!("sandbox {id} is not stopped: stop it first")));
        }
        for container in self.table.containers_of(&id) {
            Arc::clone(&self).remove_container(container, false).await?;
        }
        let dir = self.layout.sandbox(id.as_str());
        self.blocking(move || remove_whole(&dir)).await.map_err(failed("cannot remove the sandbox"))?;
        self.table.remove_sandbox(&id);
        self.table.mark_changed(&PodUid::new(&record.uid));
        Ok(())
    }

    pub(super) async fn create_container(
        self: Arc<Self>,
        config: ContainerConfig,
    ) -> Result<ContainerId, RuntimeError> {
        let not_ready = || RuntimeError::NotFound(format!("ready sandbox {}", config.sandbox));
        if !self.is_ready(&config.sandbox) {
            return Err(not_ready());
        }
        let specs = self.cdi.clone();
        let applied = self.blocking(move || devices::apply(config, &specs)).await;
        let (config, devices) = applied?;
        let id = new_id().map_err(failed("cannot create an id"))?;
        let Accounts { passwd, group_file, groups } =
            self.blocking(read_accounts).await.map_err(failed("cannot read the node's users and groups"))?;
        let namespaces = self.namespaces().await?;
        let cgroups = self.cgroups().await?;
        let agent = rustix::process::geteuid();
        let own = rustix::thread::capabilities(None)
            .map_err(|error| failed("cannot read the agent's capabilities")(error.into()))?;
        let context = PlanContext {
            layout: &self.layout,
            shim: &self.shim,
            cgroups,
            node: identity::NodeAccounts {
                user: agent.as_raw(),
                group: rustix::process::getegid().as_raw(),
                groups: &groups,
                passwd: &passwd,
                group_file: &group_file,
            },
            rights: AgentRights { is_root: agent.is_root(), capabilities: own.permitted, namespaces },
            refuse_ephemeral_root: self.refuse_ephemeral_root,
            open_files: self.open_files,
            memory: self.memory,
        };
        let mut plan = create::plan(&config, &context, &id, self.table.creation_time(record::now()))?;
        devices.join(&mut plan, &context.node)?;
        let ContainerPlan { mut record, mut run, links, in_pod_group } = plan;
        let (pods, uid) = (self.layout.pods(), record.uid.clone());
        let pod = uid.clone();
        let files = self.layout.container(&id);
        let (written, unfinished) = (files.clone(), files.clone());
        let root = run.rootfs.clone();
        let mut write = move || {
            make_dir(written.dir(), 0o700)?;
            if agent.is_root() && run.user.uid != 0 {
                let group = pod_group::make(&pods, &uid)?;
                if in_pod_group {
                    run.user.gid = group;
                }
                run.user.groups.push(group);
            } else {
                make_dir(&pods.join(&uid), 0o700)?;
                trusted_dir::open(&pods.join(&uid)).map_err(io::Error::from)?;
            }
            let root = rootfs::make(&mut run, &links)?;
            devices.make(&root)?;
            root.hand_over()?;
            run.log.parent().map_or(Ok(()), |dir| make_dir(dir, 0o755))?;
            record::write(&written.run(), &run, Durability::Boot)?;
            // This file is written last, because a container exists only if it has this file.
            record.user = Some(run.user.clone());
            record::write(&written.state(), &record, Durability::Disk)?;
            Ok(record.clone())
        };
        let write_or_remove = move || {
            let written: Result<ContainerRecord, rootfs::MakeError> = write();
            written.inspect_err(|_| {
                // The next attempt makes other directories, and the disk may be full.
                let _ = tree::remove(unfinished.dir()).and(rootfs::remove(&root));
            })
        };
        let record = self.blocking(write_or_remove).await.map_err(|error| match error {
            rootfs::MakeError::Io(error) => failed("cannot create the container's files")(error),
            rootfs::MakeError::SubPath { volume, source } => source.of_container(&pod, config.name.as_str(), &volume),
            rootfs::MakeError::Device(error) => error.into(),
        })?;
        let container = Container::new(record, files, RunState::Created);
        self.table.mark_changed(&container.uid);
        self.table.put_container(container);
        Ok(id.into())
    }

    pub(super) async fn remove_container(
        self: Arc<Self>,
        container: Arc<Container>,
        keep_log: bool,
    ) -> Result<(), RuntimeError> {
        if !matches!(*container.run.lock(), RunState::Created | RunState::Exited { .. }) {
            return Err(RuntimeError::failed(format!("container {} is running: stop it first", container.id)));
        }
        let (root, log) = create::rootfs_and_log(&self.layout, &container.record);
        let dir = container.files.dir().to_owned();
        let files = container.files.clone();
        let remove = move || {
            if let Ok(RunRecord { cgroup: Some(cgroup), .. }) = record::read::<RunRecord>(&files.run()) {
                cgroup.remove()?;
            }
            rootfs::remove(&root)?;
            if !keep_log {
                let (dir, file) = Layout::split_log(&log);
                remove_run(&dir, &file)?;
                let _ = dir.remove_if_empty();
            }
            remove_whole(&dir)
        };
        self.blocking(remove).await.map_err(failed("cannot remove the container"))?;
        self.table.remove_container(&container);
        self.table.mark_changed(&container.uid);
        Ok(())
    }
}

/// The users and groups of the node and of the agent.
struct Accounts {
    /// The content of the node's passwd file.
    passwd: String,
    /// The content of the node's group file.
    group_file: String,
    /// The agent's supplementary groups.
    groups: Vec<u32>,
}

/// Reads the users and groups. A node without the files has none by name.
fn read_accounts() -> io::Result<Accounts> {
    let text = |path| match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => Ok::<_, io::Error>(String::from_utf8_lossy(&read?).into_owned()),
    };
    let groups = rustix::process::getgroups()?.into_iter().map(rustix::fs::Gid::as_raw).collect();
    Ok(Accounts { passwd: text("/etc/passwd")?, group_file: text("/etc/group")?, groups })
}

/// Removes a directory of records. The directory is renamed first: if the agent dies during the removal, the next agent
/// finishes it, and never reads a directory with some of its records missing.
fn remove_whole(dir: &Path) -> io::Result<()> {
    let renamed = dir.with_extension(load::REMOVING);
    match std::fs::rename(dir, &renamed) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }?;
    tree::remove(&renamed)
}

pub(super) fn failed(step: &'static str) -> impl Fn(io::Error) -> RuntimeError {
    move |error| RuntimeError::failed(StepError::new(step, error))
}

/// A random id of 128 bits, unique over all agents and boots.
fn new_id() -> io::Result<String> {
    use std::fmt::Write;
    let mut bytes = [0u8; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// The grace period of containers that still run when their sandbox is stopped: the kubelet's shortest grace period.
const SANDBOX_GRACE: Duration = Duration::from_secs(2);
/// How many threads may block on the disk at once. More threads would only queue for the same disk.
const BLOCKING_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests {
    use podwright_model::text::error_chain;
    use rustix::io::Errno;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::testing::is_alone;

    #[tokio::test]
    async fn cgroups_are_detected_again_after_a_lack_of_descriptors() {
        if !is_alone(concat!(module_path!(), "::cgroups_are_detected_again_after_a_lack_of_descriptors")) {
            return;
        }
        let shim = vec![String::new()];
        let config = ProcessConfig::new("/root");
        let state = ProcessRuntimeState::new(Layout::new("/root".into()), String::new(), shim, config, 0);
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        let lacking = state.cgroups().await.map(|found| found.is_some());
        setrlimit(Resource::Nofile, limit).unwrap();
        let error = error_chain(&lacking.unwrap_err()).to_string();
        assert!(error.contains(&Errno::MFILE.to_string()), "{error}");
        assert_eq!(state.cgroups().await.unwrap(), cgroup::detect().unwrap().as_deref());
    }
}
