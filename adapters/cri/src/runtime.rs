//! [`CriRuntime`]: implements the ports of the engine.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_host::cdi::SpecCache;
use podwright_host::changed_pods::ChangedPods;
use podwright_host::log::{OpenLog, WritesLogs};
use podwright_host::stats::{Depth, FileSystemUsage, PodNetwork, RuntimeStats, RuntimeUsage};
use podwright_host::streaming::{Opened, StreamError, StreamRequest, StreamingRuntime};
use podwright_model::ids::{ContainerId, ContainerName, ImageId, PodUid, SandboxId};
use podwright_model::pod::PodObject;
use podwright_ports::{
    CgroupError, CgroupLimits, ContainerConfig, ContainerProcess, ContainerRuntime, ContainerUpdate, DiskUsage,
    ExecOutput, FileSystemSpace, ImageError, ImageRequest, ImageStore, NamedImage, PodCgroups, PodRuntimeStatus,
    ProcessUsage, RuntimeCapabilities, RuntimeError, RuntimeFuture, RuntimeName, RuntimePod, SandboxConfig,
    StoredImage, Unready, Unused, WritableLayer,
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::cgroups::CgroupTrees;
use super::client::{Client, OpenError};
use super::conditions::RuntimeConditions;
use super::config::NodeFacts;
use super::container_stops::ContainerStops;
use super::create::{self, CreatedContainer};
use super::events::EventStream;
use super::id_ranges::IdRanges;
use super::images::Images;
use super::inner::CriRuntimeInner;
use super::inspect::PodFilter;
use super::layout::{KUBELET_ROOT, KubeletDirectories, Layout};
use super::logins::LoginSources;
use super::node_facts::NodeFactsCache;
use super::pull_records::PullRecords;
use super::registry_config::RegistryConfig;
use super::remove::ignore_not_found;
use super::settings::CriConfig;
use super::stats::NetworkImages;
use super::tasks::{SharedTasks, blocking};
use super::{files, read, v1};
use crate::adoption::{KubeletPod, KubeletPods};

/// How many bytes of a command's output are kept ([`ExecOutput`]).
const MAX_OUTPUT: usize = 10 << 10;
/// How long [`CriRuntime::check`] waits for the runtime.
const CHECK_LIMIT: Duration = Duration::from_secs(10);

/// The container runtime port over the CRI; see the [crate](crate). Dropping the value stops no pod: containers keep running,
/// and the next `CriRuntime` finds them by their labels.
pub struct CriRuntime {
    inner: Arc<CriRuntimeInner>,
    name: RuntimeName,
    /// Sandbox creations, by pod: a pod has at most one sandbox at a time.
    sandboxes: SharedTasks<PodUid, SandboxId>,
    containers: SharedTasks<(SandboxId, ContainerName), CreatedContainer>,
    images: Images,
    changed_pods: Arc<ChangedPods>,
    has_events: Arc<AtomicBool>,
    conditions: Arc<RuntimeConditions>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl fmt::Debug for CriRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CriRuntime").field(&self.inner.client).finish()
    }
}

impl CriRuntime {
    /// Whether the runtime supports strict supplemental groups, by its last report.
    pub fn supports_strict_groups(&self) -> bool {
        self.conditions.supports_strict_groups()
    }

    /// Opens the runtime at an endpoint. Does not wait for a connection: the runtime may start later. Must be called on a tokio
    /// runtime with I/O and time enabled; the background tasks run on it.
    ///
    /// # Errors
    /// [`OpenError`] if the path of the socket cannot be part of a URI.
    pub fn open(config: CriConfig) -> Result<Self, OpenError> {
        let handle = Handle::current();
        let client = Client::new(config.endpoint, config.metrics.clone())?;
        let layout = Layout {
            pods: config.root.join("pods"),
            logs: config.logs,
            links: config.log_links,
            kubelet: KubeletDirectories::default(),
        };
        let seccomp_profiles = config.root.join("seccomp");
        let kubelet = config.adopted.is_used().then(|| KUBELET_ROOT.into());
        let facts =
            Arc::new(NodeFactsCache::new(client.clone(), layout, seccomp_profiles, config.settings, handle.clone()));
        let inner = Arc::new(CriRuntimeInner {
            client: client.clone(),
            facts: Arc::clone(&facts),
            runtime_classes: config.runtime_classes,
            id_ranges: IdRanges::of_machine(),
            cgroups: CgroupTrees::default(),
            adopted: config.adopted,
            cdi: Arc::new(SpecCache::new(config.cdi_directories)),
            events: config.events,
            checkpoints: config.root.join("checkpoints"),
            stops: ContainerStops::new(client.clone(), handle.clone()),
            stopped: Mutex::default(),
            image_users: Mutex::default(),
            network_images: NetworkImages::default(),
        });
        let conditions = Arc::new(RuntimeConditions::default());
        let watch = Arc::clone(&conditions).watch(client.clone());
        let node = config.registry_config.map(|path| Arc::new(RegistryConfig::new(path)));
        if let Some(node) = node.clone() {
            // The file is read now, so that an error in it is logged at the start and not at the first pull.
            handle.spawn_blocking(move || node.current());
        }
        let (changed_pods, has_events) = (Arc::new(ChangedPods::default()), Arc::new(AtomicBool::new(false)));
        let events = EventStream {
            client,
            facts,
            name: config.name.clone(),
            changed_pods: Arc::clone(&changed_pods),
            has_events: Arc::clone(&has_events),
            metrics: config.metrics.clone(),
        };
        Ok(CriRuntime {
            name: config.name,
            sandboxes: SharedTasks::new(handle.clone()),
            containers: SharedTasks::new(handle.clone()),
            images: Images::new(
                Arc::clone(&inner),
                config.metrics,
                config.parallel_pulls,
                handle.clone(),
                LoginSources {
                    secrets: config.pull_secrets,
                    node,
                    providers: config.credential_providers,
                    events: Arc::clone(&inner.events),
                },
                PullRecords::new(&config.root, config.verification, kubelet),
            ),
            changed_pods,
            has_events,
            conditions,
            _tasks: [AbortOnDropHandle::new(handle.spawn(events.run())), AbortOnDropHandle::new(handle.spawn(watch))],
            inner,
        })
    }

    /// Checks the settings against the runtime. Succeeds if the runtime does not answer within `CHECK_LIMIT`: it may start
    /// later, and pods then report the error.
    ///
    /// # Errors
    /// [`RuntimeError::Config`] if the runtime uses another cgroup driver than
    /// [`NodeSettings::cgroup_driver`](super::NodeSettings::cgroup_driver).
    pub async fn check(&self) -> Result<(), RuntimeError> {
        match tokio::time::timeout(CHECK_LIMIT, self.inner.facts.cached()).await {
            Ok(Err(error @ RuntimeError::Config(_))) => Err(error),
            Ok(Ok(_) | Err(_)) | Err(_) => Ok(()),
        }
    }

    /// Writes a checkpoint of a container that runs to a file of this name in the directory `checkpoints` of the root directory, and
    /// returns its path. The container keeps running. The runtime gives up after `timeout`, but not before 120 s.
    ///
    /// Cancel safe: the runtime may still write the file.
    ///
    /// # Errors
    /// The errors of the runtime. [`RuntimeError::Unsupported`] if it writes no checkpoints.
    pub async fn checkpoint(
        &self,
        container: &ContainerId,
        file: &str,
        timeout: Duration,
    ) -> Result<PathBuf, RuntimeError> {
        self.inner.checkpoint(container, file, timeout).await
    }

    async fn list(&self) -> Result<Vec<RuntimePod>, RuntimeError> {
        // The runtime's name is a part of each container ID in a pod status, so it must be known first.
        if !self.name.is_known() {
            self.inner.client.report_name(&self.name).await?;
        }
        self.inner.pods().await
    }

    /// Creates a container. If a concurrent call created a container of another definition, removes that container and
    /// retries.
    async fn create(&self, config: ContainerConfig) -> Result<ContainerId, RuntimeError> {
        let key = (config.sandbox.clone(), config.name.clone());
        loop {
            let creation = create::container(Arc::clone(&self.inner), config.clone());
            let created = self.containers.join(key.clone(), creation).await?;
            if created.spec_hash == config.spec_hash {
                return Ok(created.id);
            }
            self.inner.remove_container(created.id.as_str().to_owned()).await?;
        }
    }

    /// Calls `work` with the node's cgroups, on a blocking thread.
    async fn with_cgroups<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CgroupTrees, &NodeFacts) -> Result<T, CgroupError> + Send + 'static,
    ) -> Result<T, CgroupError> {
        let unknown = |error: RuntimeError| CgroupError::unknown(error);
        let facts = self.inner.facts.cached().await.map_err(unknown)?;
        let inner = Arc::clone(&self.inner);
        blocking(move || Ok(work(&inner.cgroups, &facts))).await.map_err(unknown)?
    }
}

impl KubeletPods for CriRuntime {
    fn kubelet_pods(&self) -> RuntimeFuture<'_, Vec<KubeletPod>> {
        self.inner.kubelet_pods().boxed()
    }
}

impl WritesLogs for CriRuntime {
    fn open_logs(&self) -> RuntimeFuture<'_, Vec<OpenLog>> {
        async move {
            let containers = self.inner.containers(PodFilter::Owned).await?;
            Ok(containers.iter().filter_map(|container| read::open_log(self.inner.facts.layout(), container)).collect())
        }
        .boxed()
    }

    fn reopen_log<'a>(&'a self, container: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        let request = v1::ReopenContainerLogRequest { container_id: container.as_str().to_owned() };
        async move { self.inner.client.reopen_container_log(request).await.map(|_| ()) }.boxed()
    }
}

impl StreamingRuntime for CriRuntime {
    fn open(&self, stream: StreamRequest) -> BoxFuture<'_, Result<Opened, StreamError>> {
        async move { Ok(Opened::Url(self.inner.streaming_url(stream).await?)) }.boxed()
    }
}

impl RuntimeStats for CriRuntime {
    fn usage<'a>(
        &'a self,
        pods: &'a [Arc<PodObject>],
        depth: Depth,
    ) -> BoxFuture<'a, Result<RuntimeUsage, RuntimeError>> {
        self.inner.usage(pods, depth).boxed()
    }

    fn networks(&self) -> BoxFuture<'_, Result<Vec<PodNetwork>, RuntimeError>> {
        self.inner.networks().boxed()
    }

    fn image_file_system(&self) -> BoxFuture<'_, Result<Option<FileSystemUsage>, RuntimeError>> {
        async move { self.images.file_system_usage().await.map(Some) }.boxed()
    }
}

impl ContainerRuntime for CriRuntime {
    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>> {
        self.list().boxed()
    }

    fn pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus> {
        self.inner.pod_status(uid).boxed()
    }

    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId> {
        let uid = config.pod.uid().clone();
        self.sandboxes.join(uid, create::sandbox(Arc::clone(&self.inner), config)).boxed()
    }

    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        self.inner.stop_sandbox(id).boxed()
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        self.inner.remove_sandbox_with_logs(id).boxed()
    }

    fn ensure_image<'a>(
        &'a self,
        request: ImageRequest<'a>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>> {
        self.images.ensure(request, cancel).boxed()
    }

    fn create_container(&self, config: ContainerConfig) -> RuntimeFuture<'_, ContainerId> {
        self.create(config).boxed()
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        let request = v1::StartContainerRequest { container_id: id.as_str().to_owned() };
        async move { self.inner.client.start_container(request).await.map(|_| ()) }.boxed()
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeFuture<'a, ()> {
        async move {
            self.inner.stopped.lock().insert(id.as_str().to_owned());
            ignore_not_found(self.inner.stops.stop(id, grace).await)
        }
        .boxed()
    }

    fn update_container<'a>(&'a self, id: &'a ContainerId, update: ContainerUpdate) -> RuntimeFuture<'a, ()> {
        async move { self.inner.update_container(id, &update).await }.boxed()
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, keep_log: bool) -> RuntimeFuture<'a, ()> {
        self.inner.remove_stopped_container(id, keep_log).boxed()
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Duration,
    ) -> RuntimeFuture<'a, ExecOutput> {
        async move {
            let answer = self.inner.client.exec_sync(id.as_str().to_owned(), command.to_vec(), timeout).await?;
            let stderr_from = answer.stdout.len().min(MAX_OUTPUT);
            let output: Vec<u8> = answer.stdout.into_iter().chain(answer.stderr).take(MAX_OUTPUT).collect();
            Ok(ExecOutput { exit_code: answer.exit_code, output, stderr_from })
        }
        .boxed()
    }

    fn process_of<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, Option<ContainerProcess>> {
        self.inner.process_of(id).boxed()
    }

    fn writable_layers<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, Vec<WritableLayer>> {
        self.inner.writable_layers(uid).boxed()
    }

    fn process_usage<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, ProcessUsage> {
        self.inner.process_usage(uid).boxed()
    }

    fn next_event(&self) -> BoxFuture<'_, PodUid> {
        self.changed_pods.next().boxed()
    }

    fn has_events(&self) -> bool {
        self.has_events.load(Ordering::Relaxed)
    }

    fn capabilities(&self) -> RuntimeCapabilities {
        self.conditions.capabilities()
    }

    fn unready(&self) -> Unready {
        self.conditions.unready()
    }

    fn supports_recursive_read_only<'a>(&'a self, pod: &'a PodObject) -> BoxFuture<'a, bool> {
        async move {
            // Without an answer the mount counts as not recursive. The creation of the container waits for the answer.
            let Ok(facts) = self.inner.facts.cached().await else { return false };
            let handler = self.inner.handler(pod).await;
            handler.is_ok_and(|handler| facts.recursive_read_only.contains(&handler))
        }
        .boxed()
    }

    fn counts_its_calls(&self) -> bool {
        true
    }
}

impl PodCgroups for CriRuntime {
    fn exists<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<bool, CgroupError>> {
        let pod = Arc::clone(pod);
        let adopted = self.inner.adopted.uids();
        let exists = move |trees: &CgroupTrees, facts: &NodeFacts| {
            let exists = trees.exists(&facts.cgroups, &pod);
            if !exists && adopted.contains(pod.uid()) {
                // The kubelet's containers run in the kubelet's cgroup, with its limits. They are not stopped. The containers
                // that the agent starts later run in a cgroup of the agent.
                make_cgroup(trees, facts, &pod)?;
                return Ok(true);
            }
            Ok(exists)
        };
        self.with_cgroups(exists).boxed()
    }

    fn make<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<(), CgroupError>> {
        let pod = Arc::clone(pod);
        self.with_cgroups(move |trees, facts| make_cgroup(trees, facts, &pod)).boxed()
    }

    fn resize<'a>(&'a self, pod: &'a Arc<PodObject>, limits: CgroupLimits) -> BoxFuture<'a, Result<(), CgroupError>> {
        let pod = Arc::clone(pod);
        self.with_cgroups(move |trees, facts| trees.resize(&facts.cgroups, &pod, limits)).boxed()
    }

    fn remove<'a>(&'a self, uid: &'a PodUid, unused: Unused) -> BoxFuture<'a, Result<(), CgroupError>> {
        let uid = uid.clone();
        let remove = move |trees: &CgroupTrees, facts: &NodeFacts| {
            if unused() { trees.remove(&facts.cgroups, &uid) } else { Ok(()) }
        };
        self.with_cgroups(remove).boxed()
    }
}

fn make_cgroup(trees: &CgroupTrees, facts: &NodeFacts, pod: &PodObject) -> Result<(), CgroupError> {
    // A restarted agent finds the owner of a cgroup by the pod's directory, so the directory is created first.
    files::make_pod_dir(&facts.layout, &pod.uid().to_string()).map_err(CgroupError::unknown)?;
    trees.create(&facts.cgroups, facts.all_pods, pod)?;
    trees.limit_huge_pages(&facts.cgroups, &facts.huge_pages, pod)?;
    facts.pod_pids_limit.map_or(Ok(()), |most| trees.limit_processes(&facts.cgroups, most, pod))
}

impl ImageStore for CriRuntime {
    fn images(&self) -> RuntimeFuture<'_, Vec<StoredImage>> {
        self.images.list().boxed()
    }

    fn named_images(&self) -> RuntimeFuture<'_, Vec<NamedImage>> {
        self.images.named().boxed()
    }

    fn disk(&self) -> RuntimeFuture<'_, DiskUsage> {
        self.images.disk().boxed()
    }

    fn file_system(&self) -> RuntimeFuture<'_, Option<FileSystemSpace>> {
        async move { self.images.file_system().await.map(Some) }.boxed()
    }

    fn remove_image<'a>(&'a self, id: &'a ImageId) -> RuntimeFuture<'a, ()> {
        self.images.remove(id).boxed()
    }
}
