//! The runtime itself: the port's calls.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, try_join};
use parking_lot::Mutex;
use podwright_actors::containers::stop::SHORTEST_STOP;
use podwright_actors::ids::{ContainerId, ContainerName, ImageId, PodUid, SandboxId};
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{
    CgroupError, ContainerConfig, ContainerRuntime, ContainerState, ContainerStatus, DiskUsage, ExecOutput, ImageError,
    ImageStore, PodCgroups, PodRuntimeStatus, RuntimeError, RuntimeFuture, RuntimeName, RuntimePod, SandboxConfig,
    SandboxStatus, StoredImage, Unready, Unused,
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::cgroups::Trees;
use super::client::Client;
use super::conditions::Conditions;
use super::config::{Facts, Layout, labels};
use super::create::{self, Made};
use super::events::Events;
use super::flights::Flights;
use super::images::Images;
use super::inner::{Inner, Whose, blocking, gone_is_fine};
use super::logins::Logins;
use super::pull_records::PullRecords;
use super::registry_config::RegistryConfig;
use super::stop::Stops;
use super::users::Users;
use super::{CriConfig, OpenError, files, read, v1};
use crate::adapters::changed_pods::ChangedPods;
use crate::adapters::log::{OpenLog, WritesLogs};

/// How much of a command's output is kept ([`ExecOutput`]).
const MAX_OUTPUT: usize = 10 << 10;

/// Containers by a container runtime; see the [module](super). Dropping it stops nothing: what runs goes on, and the next
/// one finds it by its labels.
pub struct CriRuntime {
    inner: Arc<Inner>,
    name: RuntimeName,
    /// By pod: whichever attempt it is, a pod has one sandbox.
    sandboxes: Flights<PodUid, SandboxId>,
    containers: Flights<(SandboxId, ContainerName), Made>,
    stops: Stops,
    images: Images,
    news: Arc<ChangedPods>,
    flowing: Arc<AtomicBool>,
    conditions: Arc<Conditions>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl fmt::Debug for CriRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CriRuntime").field(&self.inner.client).finish()
    }
}

impl CriRuntime {
    /// A runtime at an endpoint, where nobody needs to listen yet. Must be called on a tokio runtime with I/O and time; its
    /// own work stays on that one.
    ///
    /// # Errors
    /// [`OpenError`] if the endpoint cannot be used at all.
    pub fn open(config: CriConfig) -> Result<Self, OpenError> {
        let handle = Handle::current();
        let client = Client::new(config.endpoint, config.metrics.clone())?;
        let layout = Layout { pods: config.root.join("pods"), logs: config.logs, links: config.log_links };
        let inner = Arc::new(Inner {
            client: client.clone(),
            layout,
            seccomp_profiles: config.root.join("seccomp"),
            settings: config.settings,
            runtime_classes: config.runtime_classes,
            users: Users::default(),
            cgroups: Trees::default(),
            events: config.events,
            stopped: Mutex::default(),
            image_users: Mutex::default(),
            told_limits: Once::new(),
            facts: Mutex::default(),
            reading: Flights::new(handle.clone()),
        });
        let conditions = Arc::new(Conditions::default());
        let watch = Arc::clone(&conditions).watch(client.clone());
        let node = config.registry_config.map(|path| Arc::new(RegistryConfig::new(path)));
        if let Some(node) = node.clone() {
            // What is wrong with it is told now and not at the first pull.
            handle.spawn_blocking(move || node.look());
        }
        let (news, flowing) = (Arc::new(ChangedPods::default()), Arc::new(AtomicBool::new(false)));
        let events = Events {
            client: client.clone(),
            inner: Arc::clone(&inner),
            name: config.name.clone(),
            news: Arc::clone(&news),
            flowing: Arc::clone(&flowing),
            metrics: config.metrics.clone(),
        };
        Ok(CriRuntime {
            name: config.name,
            sandboxes: Flights::new(handle.clone()),
            containers: Flights::new(handle.clone()),
            stops: Stops::new(client.clone(), handle.clone()),
            images: Images::new(
                Arc::clone(&inner),
                config.metrics,
                config.parallel_pulls,
                handle.clone(),
                Logins { secrets: config.pull_secrets, node, events: Arc::clone(&inner.events) },
                PullRecords::new(&config.root),
            ),
            news,
            flowing,
            conditions,
            _tasks: [AbortOnDropHandle::new(handle.spawn(events.run())), AbortOnDropHandle::new(handle.spawn(watch))],
            inner,
        })
    }

    async fn list(&self) -> Result<Vec<RuntimePod>, RuntimeError> {
        // Nothing is told of containers before the name of who runs them is known.
        if !self.name.is_known() {
            self.inner.client.greet(&self.name).await?;
        }
        let (sandboxes, containers) =
            try_join(self.inner.sandboxes(Whose::Own), self.inner.containers(Whose::Own)).await?;
        Ok(read::pods(sandboxes, containers))
    }

    async fn status(&self, uid: &PodUid) -> Result<PodRuntimeStatus, RuntimeError> {
        let uid = uid.to_string();
        let listed = try_join(self.inner.sandboxes(Whose::Pod(&uid)), self.inner.containers(Whose::Pod(&uid)));
        let (sandboxes, containers) = listed.await?;
        let sandboxes = join_all(sandboxes.into_iter().map(|sandbox| self.sandbox_status(sandbox.id)));
        let containers = join_all(containers.into_iter().map(|container| self.container_status(container)));
        let (sandboxes, containers) = futures_util::future::join(sandboxes, containers).await;
        Ok(read::status(present(sandboxes)?, present(containers)?))
    }

    async fn sandbox_status(&self, pod_sandbox_id: String) -> Result<Option<SandboxStatus>, RuntimeError> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id, verbose: false };
        Ok(self.inner.client.pod_sandbox_status(request).await?.status.as_ref().map(read::sandbox))
    }

    async fn container_status(&self, listed: v1::Container) -> Result<Option<ContainerStatus>, RuntimeError> {
        let request = v1::ContainerStatusRequest { container_id: listed.id, verbose: false };
        let Some(status) = self.inner.container_status(request).await? else { return Ok(None) };
        let mut run = read::container(&status, listed.pod_sandbox_id.into());
        if run.state == ContainerState::Exited {
            let layout = self.inner.layout.clone();
            if let Some(words) = blocking(move || Ok(files::last_words(&layout, &status))).await? {
                // What the runtime says comes first, as upstream has it.
                run.message = if run.message.is_empty() { words } else { format!("{}: {words}", run.message) };
            }
        }
        Ok(Some(run))
    }

    async fn remove_sandbox_with_logs(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.as_str().to_owned(), verbose: false };
        let status = match self.inner.client.pod_sandbox_status(request).await {
            Err(RuntimeError::NotFound(_)) => return Ok(()),
            answer => answer?.status.unwrap_or_default(),
        };
        self.inner.remove_sandbox(id).await?;
        // Other sandboxes of the pod may have logs of theirs there.
        let Some(uid) = status.labels.get(labels::POD_UID).cloned() else { return Ok(()) };
        if !self.inner.sandboxes(Whose::Pod(&uid)).await?.is_empty() {
            return Ok(());
        }
        let facts = self.inner.facts().await?;
        let inner = Arc::clone(&self.inner);
        blocking(move || {
            files::remove_log_dir(&facts.layout, &status.labels);
            inner.cgroups.remove_empty(&facts.cgroups, &uid);
            Ok(())
        })
        .await
    }

    async fn remove_ended(&self, id: &ContainerId, keep_log: bool) -> Result<(), RuntimeError> {
        let request = v1::ContainerStatusRequest { container_id: id.as_str().to_owned(), verbose: false };
        let status = match self.inner.client.container_status(request).await {
            Err(RuntimeError::NotFound(_)) => return Ok(()),
            answer => answer?.status.unwrap_or_default(),
        };
        match status.state() {
            // The runtime would kill it.
            v1::ContainerState::ContainerRunning => {
                return Err(RuntimeError::Failed(format!("container {id} runs: stop it first")));
            }
            // It may run. Nobody has its spec, so what is written on it counts; whether it could run its pre-stop hook
            // nobody knows either.
            v1::ContainerState::ContainerUnknown => {
                let grace = labels::grace(&status.annotations).map_or(SHORTEST_STOP, Duration::from_secs);
                gone_is_fine(self.stops.stop(id, grace.max(SHORTEST_STOP)).await)?;
            }
            v1::ContainerState::ContainerCreated | v1::ContainerState::ContainerExited => {}
        }
        self.inner.remove_container(id.as_str().to_owned()).await.map_err(|error| with_remedy(error, id))?;
        if keep_log {
            return Ok(());
        }
        let layout = self.inner.layout.clone();
        blocking(move || {
            match status.state() {
                // It never ran, so what is there was written by another of the same run: one was made in its place when its
                // own creation did not end in time, and may be running.
                v1::ContainerState::ContainerCreated => files::unlink_log(&layout, &status),
                _ => files::remove_log(&layout, &status),
            }
            Ok(())
        })
        .await
    }

    /// Two that differ in their definition are never mixed up: the one that is not wanted any more is removed.
    async fn create(&self, config: ContainerConfig) -> Result<ContainerId, RuntimeError> {
        let key = (config.sandbox.clone(), config.name.clone());
        loop {
            let made = create::container(Arc::clone(&self.inner), config.clone());
            let (id, hash) = self.containers.join(key.clone(), made).await?;
            if hash == config.spec_hash {
                return Ok(id);
            }
            self.inner.remove_container(id.as_str().to_owned()).await?;
        }
    }
}

impl WritesLogs for CriRuntime {
    fn open_logs(&self) -> RuntimeFuture<'_, Vec<OpenLog>> {
        async move {
            let containers = self.inner.containers(Whose::Own).await?;
            Ok(containers.iter().filter_map(|container| read::open_log(&self.inner.layout, container)).collect())
        }
        .boxed()
    }

    fn reopen_log<'a>(&'a self, container: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        let request = v1::ReopenContainerLogRequest { container_id: container.as_str().to_owned() };
        async move { self.inner.client.reopen_container_log(request).await.map(|_| ()) }.boxed()
    }
}

/// containerd keeps the task of a container if the caller died while it was made (1.6), and removes no container that has one.
fn with_remedy(error: RuntimeError, id: &ContainerId) -> RuntimeError {
    match error {
        RuntimeError::Failed(why) if why.contains("cannot delete running task") => {
            RuntimeError::Failed(format!("{why}: end it with `ctr --namespace k8s.io tasks delete --force {id}`"))
        }
        error => error,
    }
}

/// What went away between a list and a look is not there.
fn present<T>(looks: Vec<Result<Option<T>, RuntimeError>>) -> Result<Vec<T>, RuntimeError> {
    let looks = looks.into_iter().map(|look| match look {
        Err(RuntimeError::NotFound(_)) => Ok(None),
        look => look,
    });
    looks.filter_map(Result::transpose).collect()
}

impl ContainerRuntime for CriRuntime {
    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>> {
        self.list().boxed()
    }

    fn pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus> {
        self.status(uid).boxed()
    }

    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId> {
        let uid = config.pod.uid().clone();
        self.sandboxes.join(uid, create::sandbox(Arc::clone(&self.inner), config)).boxed()
    }

    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        self.inner.stop_sandbox(id).boxed()
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        self.remove_sandbox_with_logs(id).boxed()
    }

    fn ensure_image<'a>(
        &'a self,
        pod: &'a Arc<PodObject>,
        image: &'a str,
        pull_policy: Option<&'a str>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>> {
        self.images.ensure(pod, image, pull_policy, cancel).boxed()
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
            gone_is_fine(self.stops.stop(id, grace).await)
        }
        .boxed()
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, keep_log: bool) -> RuntimeFuture<'a, ()> {
        self.remove_ended(id, keep_log).boxed()
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Duration,
    ) -> RuntimeFuture<'a, ExecOutput> {
        async move {
            let answer = self.inner.client.exec(id.as_str().to_owned(), command.to_vec(), timeout).await?;
            let output: Vec<u8> = answer.stdout.into_iter().chain(answer.stderr).take(MAX_OUTPUT).collect();
            Ok(ExecOutput { exit_code: answer.exit_code, output })
        }
        .boxed()
    }

    fn next_event(&self) -> BoxFuture<'_, PodUid> {
        self.news.next().boxed()
    }

    fn has_events(&self) -> bool {
        self.flowing.load(Ordering::Relaxed)
    }

    fn unready(&self) -> Unready {
        self.conditions.unready()
    }

    fn counts_its_calls(&self) -> bool {
        true
    }
}

impl CriRuntime {
    /// Does something with the cgroups as they are kept now.
    async fn in_cgroups<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Trees, &Facts) -> Result<T, CgroupError> + Send + 'static,
    ) -> Result<T, CgroupError> {
        let unknown = |error: RuntimeError| CgroupError::Unknown(error.to_string());
        let facts = self.inner.known_facts().await.map_err(unknown)?;
        let inner = Arc::clone(&self.inner);
        blocking(move || Ok(work(&inner.cgroups, &facts))).await.map_err(unknown)?
    }
}

impl PodCgroups for CriRuntime {
    fn exists<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<bool, CgroupError>> {
        let pod = Arc::clone(pod);
        self.in_cgroups(move |trees, facts| Ok(trees.exists(&facts.cgroups, &pod))).boxed()
    }

    fn make<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<(), CgroupError>> {
        let pod = Arc::clone(pod);
        let make = move |trees: &Trees, facts: &Facts| {
            // Whose a cgroup is shows by the directory of its pod, which is there before.
            files::make_pod_dir(&facts.layout, &pod.uid().to_string())
                .map_err(|error| CgroupError::Unknown(error.to_string()))?;
            trees.make(&facts.cgroups, facts.cpu_millis, &pod)
        };
        self.in_cgroups(make).boxed()
    }

    fn remove<'a>(&'a self, uid: &'a PodUid, unused: Unused) -> BoxFuture<'a, Result<(), CgroupError>> {
        let uid = uid.clone();
        let remove = move |trees: &Trees, facts: &Facts| match unused() {
            true => trees.remove(&facts.cgroups, &uid),
            false => Ok(()),
        };
        self.in_cgroups(remove).boxed()
    }
}

impl ImageStore for CriRuntime {
    fn images(&self) -> RuntimeFuture<'_, Vec<StoredImage>> {
        self.images.list().boxed()
    }

    fn disk(&self) -> RuntimeFuture<'_, DiskUsage> {
        self.images.disk().boxed()
    }

    fn remove_image<'a>(&'a self, id: &'a ImageId) -> RuntimeFuture<'a, ()> {
        self.images.remove(id).boxed()
    }
}
