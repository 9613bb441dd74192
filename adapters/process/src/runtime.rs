//! The process runtime's implementation of the [`ContainerRuntime`] port.

use std::fs::File;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_host::disk_usage;
use podwright_host::log::{OpenLog, WritesLogs};
use podwright_host::stats::{Depth, RuntimeStats, RuntimeUsage};
use podwright_host::streaming::{Opened, StreamError, StreamRequest, StreamingRuntime};
use podwright_model::ids::{ContainerId, PodUid, SandboxId};
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_ports::{
    ContainerConfig, ContainerProcesses, ContainerRuntime, ContainerUpdate, ExecOutput, ImageError, ImageRequest,
    PodRuntimeStatus, ProcessUsage, RuntimeCapabilities, RuntimeError, RuntimeFuture, RuntimePod, SandboxConfig,
    WritableLayer,
};
use rustix::process::Pid;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::container::Container;
use super::files::{Layout, Request, make_dir, try_lock};
use super::record::{self, Cgroup, ReadError, RunRecord, ShimRecord};
use super::shared::{ProcessRuntimeState, failed};
use super::shim::SHIM_OOM_SCORE;
use super::{CONTAINER_ENV, OpenError, ProcessConfig, create, exec, load, procfs, start, stats, stop, streams};

/// The embedded process runtime; see the [crate](crate). Dropping it stops no container. The containers keep running, and
/// the next runtime that is opened on the same root adopts them.
#[derive(Debug)]
pub struct ProcessRuntime {
    shared: Arc<ProcessRuntimeState>,
    /// The agent's lock on the root directory. It may be released before the last tasks have ended, because those tasks are
    /// cancelled already and change nothing.
    _lock: File,
}

impl ProcessRuntime {
    /// Opens the runtime on a directory. It adopts the containers that an earlier agent left running there and records the
    /// exits of the containers that ended without an agent. Must be called on a tokio runtime with I/O and time. All tasks
    /// of the process runtime run on that tokio runtime. The process must not ignore SIGCHLD, because the runtime waits for the ends of
    /// its children.
    ///
    /// # Errors
    /// [`OpenError`] if the directory cannot be used, or if another user could replace its content. A damaged record is not an
    /// error: it is moved aside and logged.
    pub async fn open(config: ProcessConfig) -> Result<Self, OpenError> {
        let io = |path: PathBuf| move |error: io::Error| OpenError::Io { path, source: error };
        make_dir(&config.root, 0o751).map_err(io(config.root.clone()))?;
        // A shim has another working directory, so it could not use a relative path.
        let root = config.root.canonicalize().map_err(io(config.root.clone()))?;
        if root.to_str().is_none() {
            return Err(OpenError::NotUtf8(root));
        }
        let layout = Layout::new(root.clone());
        layout.make(&config.root)?;
        let lock = lock_root(&layout, root).await?;
        let shim: Vec<String> = config.shim.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        if shim.is_empty() {
            return Err(OpenError::NoShim);
        }
        let boot_id = procfs::boot_id().map_err(io("/proc/sys/kernel/random/boot_id".into()))?;
        let meminfo = std::fs::read_to_string("/proc/meminfo").map_err(io("/proc/meminfo".into()))?;
        let memory = procfs::total_memory(&meminfo);
        warn_if_unprotected();
        let shared = ProcessRuntimeState::new(layout, boot_id, shim, config, memory);
        let runtime = ProcessRuntime { shared, _lock: lock };
        // The test starts now, because the creation of the first container waits for its result.
        let probing = Arc::clone(&runtime.shared);
        runtime.shared.spawn(async move {
            if let Err(error) = probing.namespaces().await {
                warn!(error = %error_chain(&error), "the namespaces are tested again when a container is created");
            }
        });
        load::load(&runtime.shared).await.map_err(|(path, error)| OpenError::Io { path, source: error })?;
        Ok(runtime)
    }

    /// Makes the container's shim open its log file again after the old file was moved away.
    ///
    /// # Errors
    /// [`RuntimeError::NotFound`] if there is no such container, [`RuntimeError::Failed`] if the container is not running.
    pub fn reopen_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let container = self.shared.container(id)?;
        container.files.request(Request::Reopen).map_err(failed("cannot reopen the log"))
    }

    /// The log file of a container; `None` if there is no such container.
    pub fn log_path(&self, id: &ContainerId) -> Option<PathBuf> {
        let container = self.shared.table.container(id)?;
        Some(create::rootfs_and_log(&self.shared.layout, &container.record).1)
    }
}

/// Logs if the kernel will not let shims and guaranteed containers have the `oom_score_adj` that they have under a kubelet.
fn warn_if_unprotected() {
    let own = procfs::oom_score_adj().unwrap_or(0);
    let may_lower = rustix::thread::capabilities(None)
        .is_ok_and(|own| own.effective.contains(rustix::thread::CapabilitySet::SYS_RESOURCE));
    if own <= SHIM_OOM_SCORE || may_lower {
        return;
    }
    let text = "shims and guaranteed containers keep the agent's oom_score_adj: the agent has no CAP_SYS_RESOURCE";
    if rustix::process::geteuid().is_root() {
        warn!(oom_score_adj = own, "{text}");
    } else {
        debug!(oom_score_adj = own, "{text}");
    }
}

/// Takes the agent's lock on the root directory. An earlier agent may hold it until it has exited, so this waits up to a
/// second.
async fn lock_root(layout: &Layout, root: PathBuf) -> Result<File, OpenError> {
    let path = layout.agent_lock();
    for _ in 0..20 {
        match try_lock(&path) {
            Ok(Some(lock)) => return Ok(lock),
            Ok(None) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(error) => return Err(OpenError::Io { path, source: error }),
        }
    }
    Err(OpenError::InUse(root))
}

impl Drop for ProcessRuntime {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl ContainerRuntime for ProcessRuntime {
    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>> {
        async { Ok(self.shared.table.list(&self.shared.boot_id)) }.boxed()
    }

    fn pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus> {
        async {
            load::adopted(&self.shared, uid).await;
            Ok(self.shared.table.status(uid, &self.shared.boot_id))
        }
        .boxed()
    }

    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId> {
        self.call(|shared| shared.run_sandbox(config))
    }

    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        self.call(|shared| shared.stop_sandbox(id.clone()))
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        self.call(|shared| shared.remove_sandbox(id.clone()))
    }

    /// Succeeds at once: the process runtime does not use images.
    fn ensure_image<'a>(
        &'a self,
        _: ImageRequest<'a>,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>> {
        async { Ok(String::new()) }.boxed()
    }

    fn create_container(&self, config: ContainerConfig) -> RuntimeFuture<'_, ContainerId> {
        self.call(|shared| shared.create_container(config))
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        match self.shared.container(id) {
            Ok(container) => self.call(|shared| start::start(shared, container)),
            Err(error) => async { Err(error) }.boxed(),
        }
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeFuture<'a, ()> {
        match self.shared.table.container(id) {
            Some(container) => self.call(move |shared| async move { stop::stop(&shared, container, grace).await }),
            None => async { Ok(()) }.boxed(),
        }
    }

    /// A container without a cgroup has no limits that could change.
    fn update_container<'a>(&'a self, id: &'a ContainerId, update: ContainerUpdate) -> RuntimeFuture<'a, ()> {
        let container = self.shared.container(id);
        async move {
            let container = container?;
            let limits = create::limits(update.name.as_str(), Some(&update.resources))?;
            let resize = move || {
                let run: RunRecord = record::read(&container.files.run()).map_err(io::Error::other)?;
                let resized = run.cgroup.map(|old| old.with_limits(limits));
                resized.map_or(Ok(()), |cgroup| cgroup.limit())
            };
            disk_usage::blocking(resize).await.map_err(failed("cannot change the limits of a container"))
        }
        .boxed()
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, keep_log: bool) -> RuntimeFuture<'a, ()> {
        match self.shared.table.container(id) {
            Some(container) => self.call(move |shared| shared.remove_container(container, keep_log)),
            None => async { Ok(()) }.boxed(),
        }
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Duration,
    ) -> RuntimeFuture<'a, ExecOutput> {
        let container = self.shared.container(id);
        async move {
            let (shared, command) = (Arc::clone(&self.shared), command.to_vec());
            let task = self.shared.spawn(exec::exec(shared, container?, command, timeout));
            // If the caller drops this future, the command is killed.
            let _abort = AbortOnDrop(task.abort_handle());
            self.shared.finish(task).await
        }
        .boxed()
    }

    /// Scans the root directories of the newest runs. The links to volumes in them are not followed.
    fn writable_layers<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, Vec<WritableLayer>> {
        async move {
            let status = self.shared.table.status(uid, &self.shared.boot_id);
            let mut layers: Vec<WritableLayer> = Vec::new();
            for run in status.containers {
                let container = run.name.to_string();
                let Some(found) = self.shared.table.container(&run.id) else { continue };
                if layers.iter().any(|layer| layer.container == container) {
                    continue;
                }
                let (root, _) = create::rootfs_and_log(&self.shared.layout, &found.record);
                let used = disk_usage::of_tree(root).await.map_err(failed("cannot measure the root of a container"))?;
                layers.push(WritableLayer { container, used });
            }
            Ok(layers)
        }
        .boxed()
    }

    /// The processes in the container's cgroup. Without one, those that belong to the container by their PID namespace, their mark or
    /// their parent.
    fn process_usage<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, ProcessUsage> {
        let running = self.shared.table.running();
        let containers: Vec<_> = running.into_iter().filter(|container| container.uid == *uid).collect();
        async move {
            let measure = move || -> io::Result<ProcessUsage> {
                containers.iter().filter_map(|container| usage_of_container(container).transpose()).collect()
            };
            disk_usage::blocking(measure).await.map_err(failed("cannot measure the processes of a pod"))
        }
        .boxed()
    }

    fn next_event(&self) -> BoxFuture<'_, PodUid> {
        self.shared.table.next_changed().boxed()
    }

    fn capabilities(&self) -> RuntimeCapabilities {
        RuntimeCapabilities::of_version(env!("CARGO_PKG_VERSION"))
    }

    fn has_events(&self) -> bool {
        true
    }
}

/// The name of a container and the usage of its processes; `None` if the container was removed. Blocks.
fn usage_of_container(container: &Container) -> io::Result<Option<(String, ContainerProcesses)>> {
    let run: RunRecord = match record::read(&container.files.run()) {
        Ok(run) => run,
        Err(ReadError::Missing(_)) => return Ok(None),
        Err(error) => return Err(io::Error::other(error)),
    };
    let in_cgroup = run.cgroup.as_ref().map_or(Ok(None), Cgroup::processes)?;
    let processes = match in_cgroup {
        Some(processes) => processes.into_iter().filter_map(Pid::from_raw).collect(),
        None => {
            let shim = record::read::<ShimRecord>(&container.files.shim()).ok().map(|shim| shim.pid);
            procfs::of_container(CONTAINER_ENV, &run.id, run.user.uid, shim, container.init())
        }
    };
    let mut used = procfs::usage_of(&processes);
    if let Some(bytes) = run.cgroup.as_ref().and_then(|cgroup| cgroup.files().memory().working_set) {
        used.memory = bytes;
    }
    Ok(Some((container.name.to_string(), used)))
}

impl ProcessRuntime {
    /// Runs the work of a call on the state's tokio runtime, where the work continues if the caller drops the call.
    fn call<'a, T, F>(&'a self, work: impl FnOnce(Arc<ProcessRuntimeState>) -> F + Send + 'a) -> RuntimeFuture<'a, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RuntimeError>> + Send + 'static,
    {
        async move {
            let task = self.shared.spawn(work(Arc::clone(&self.shared)));
            self.shared.finish(task).await
        }
        .boxed()
    }
}

impl RuntimeStats for ProcessRuntime {
    fn usage<'a>(&'a self, _: &'a [Arc<PodObject>], depth: Depth) -> BoxFuture<'a, Result<RuntimeUsage, RuntimeError>> {
        let running = self.shared.table.running();
        async move {
            let measured = disk_usage::blocking(move || Ok(stats::usage_of(&running, depth))).await;
            measured.map_err(failed("cannot measure the containers"))
        }
        .boxed()
    }
}

impl StreamingRuntime for ProcessRuntime {
    fn open(&self, stream: StreamRequest) -> BoxFuture<'_, Result<Opened, StreamError>> {
        async { streams::open(&self.shared, stream).map(Opened::Local) }.boxed()
    }
}

impl WritesLogs for ProcessRuntime {
    fn open_logs(&self) -> RuntimeFuture<'_, Vec<OpenLog>> {
        let log = |container: &Arc<Container>| {
            let (dir, file) = Layout::split_log(&create::rootfs_and_log(&self.shared.layout, &container.record).1);
            OpenLog { container: container.id.clone(), dir, file }
        };
        let logs = self.shared.table.running().iter().map(log).collect();
        async { Ok(logs) }.boxed()
    }

    fn reopen_log<'a>(&'a self, container: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        let done = ProcessRuntime::reopen_log(self, container);
        async { done }.boxed()
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
