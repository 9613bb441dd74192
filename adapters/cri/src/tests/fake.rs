//! A fake container runtime: a gRPC server whose answers the tests set.

mod images;
mod runtime;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::stream;
use parking_lot::Mutex;
use podwright_metrics::Metrics;
use podwright_model::ids::SandboxId;
use podwright_model::pod::PodObject;
use podwright_ports::{
    EventRecorder, NamedRuntimeClasses, NoCredentialProviders, NoPullSecrets, PodEvent, RuntimeName,
};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::{Notify, mpsc};
use tonic::Status;
use tonic::transport::Server;

use super::super::v1::image_service_server::ImageServiceServer;
use super::super::v1::runtime_service_server::RuntimeServiceServer;
use super::super::{CriConfig, CriRuntime, NodeSettings, VerificationPolicy, v1};
use crate::adoption::AdoptedPods;
use crate::client::Client;
use crate::config::labels;

/// The answer to a create call. The default is `Created`.
pub(super) enum CreateAnswer {
    Created,
    /// The object is created, but the answer is this error.
    CreatedWithError(Status),
    /// The object is created and not ready, and the answer is this error.
    NotReadyWithError(Status),
    /// The object is not created, and the answer is this error.
    Refused(Status),
}

#[derive(Default)]
struct FakeState {
    script: VecDeque<CreateAnswer>,
    attempts: Vec<u32>,
    /// The requests to change the resources of containers.
    updates: Vec<v1::UpdateContainerResourcesRequest>,
    /// The requests for checkpoints.
    checkpoints: Vec<v1::CheckpointContainerRequest>,
    /// The parent cgroup in each request to create a sandbox.
    cgroup_parents: Vec<String>,
    sandboxes: Vec<v1::PodSandbox>,
    containers: Vec<v1::Container>,
    made: usize,
    removed: Vec<String>,
    images: Vec<String>,
    /// The images in the answers to list calls.
    listed: Vec<v1::Image>,
    image_status_fails: bool,
    /// The log path and the mounts of each container, by ID.
    files: HashMap<String, (String, Vec<v1::Mount>)>,
    /// The first process of each container, in the verbose answer to `ContainerStatus`.
    pid: Option<u32>,
    /// The names of CDI devices and the variables in the last request to create a container.
    cdi: (Vec<String>, Vec<String>),
    /// A sandbox whose status call fails, and the error.
    failing_sandbox: Option<(String, Status)>,
    /// The stopped containers with their grace periods in seconds.
    stops: Vec<(String, i64)>,
    /// The user names of the pulls.
    pull_users: Vec<String>,
    /// The pod and the annotations in the last pull request.
    last_pull_pod: String,
    pulls: usize,
    event_calls: usize,
    cancelled_pulls: usize,
    features: v1::RuntimeFeatures,
    /// The configuration in the verbose answer to `Status`.
    verbose_config: Option<String>,
}

#[derive(Clone)]
struct FakeService {
    state: Arc<Mutex<FakeState>>,
    changed: Arc<Notify>,
    events: Arc<Mutex<Option<mpsc::Receiver<v1::ContainerEventResponse>>>>,
}

/// The pod events that the adapter recorded.
#[derive(Default)]
pub(super) struct RecordedEvents(Mutex<Vec<PodEvent>>);

impl RecordedEvents {
    pub(super) fn reasons(&self) -> Vec<String> {
        self.0.lock().iter().map(|event| event.reason.to_string()).collect()
    }

    /// Returns and removes the events.
    pub(super) fn take(&self) -> Vec<PodEvent> {
        std::mem::take(&mut self.0.lock())
    }
}

impl EventRecorder for RecordedEvents {
    fn record(&self, _: &Arc<PodObject>, event: PodEvent) {
        self.0.lock().push(event);
    }
}

/// The fake server, and a `CriRuntime` that is connected to it.
pub(super) struct FakeRuntime {
    pub(super) runtime: CriRuntime,
    service: FakeService,
    pub(super) recorded_events: Arc<RecordedEvents>,
    events: Mutex<Option<mpsc::Sender<v1::ContainerEventResponse>>>,
    root: TempDir,
}

impl FakeRuntime {
    /// The container, the file and the time limit in seconds of each request for a checkpoint.
    pub(super) fn checkpoints(&self) -> Vec<(String, PathBuf, i64)> {
        let requests = self.service.state.lock().checkpoints.clone();
        requests.into_iter().map(|it| (it.container_id, PathBuf::from(it.location), it.timeout)).collect()
    }

    pub(super) async fn start(parallel_pulls: usize) -> Self {
        FakeRuntime::with(parallel_pulls, |_| {}).await
    }

    pub(super) async fn with(parallel_pulls: usize, edit: impl FnOnce(&mut CriConfig)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("c.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (events, receiver) = mpsc::channel(1);
        let service = FakeService {
            state: Arc::default(),
            changed: Arc::default(),
            events: Arc::new(Mutex::new(Some(receiver))),
        };
        let incoming = stream::unfold(listener, |listener| async {
            let accepted = listener.accept().await.map(|(connection, _)| connection);
            Some((accepted, listener))
        });
        let server = Server::builder()
            .add_service(RuntimeServiceServer::new(service.clone()))
            .add_service(ImageServiceServer::new(service.clone()));
        tokio::spawn(server.serve_with_incoming(incoming));
        let recorded_events = Arc::new(RecordedEvents::default());
        let mut config = CriConfig {
            endpoint: socket.to_str().unwrap().parse().unwrap(),
            root: root.path().to_owned(),
            logs: root.path().join("log"),
            log_links: root.path().join("links"),
            registry_config: None,
            pull_secrets: Arc::new(NoPullSecrets),
            credential_providers: Arc::new(NoCredentialProviders),
            parallel_pulls: parallel_pulls.try_into().unwrap(),
            name: RuntimeName::default(),
            metrics: Metrics::new(),
            settings: NodeSettings::default(),
            runtime_classes: Arc::new(NamedRuntimeClasses::default()),
            events: recorded_events.clone(),
            verification: VerificationPolicy::default(),
            adopted: Arc::new(AdoptedPods::none()),
            cdi_directories: vec![],
        };
        edit(&mut config);
        let runtime = CriRuntime::open(config).unwrap();
        FakeRuntime { runtime, service, recorded_events, events: Mutex::new(Some(events)), root }
    }

    /// Another client of the server.
    pub(super) fn client(&self) -> Client {
        let socket = self.root.path().join("c.sock");
        Client::new(socket.to_str().unwrap().parse().unwrap(), Metrics::new()).unwrap()
    }

    pub(super) fn script(&self, answers: impl IntoIterator<Item = CreateAnswer>) {
        self.service.state.lock().script = answers.into_iter().collect();
    }

    /// Sets the first process of every container.
    pub(super) fn has_process(&self, pid: u32) {
        self.service.state.lock().pid = Some(pid);
    }

    pub(super) fn attempts(&self) -> Vec<u32> {
        self.service.state.lock().attempts.clone()
    }

    pub(super) fn updates(&self) -> Vec<v1::UpdateContainerResourcesRequest> {
        self.service.state.lock().updates.clone()
    }

    pub(super) fn cgroup_parents(&self) -> Vec<String> {
        self.service.state.lock().cgroup_parents.clone()
    }

    /// Sets the state of a container to exited.
    pub(super) fn set_exited(&self, id: &str) {
        self.set_state(id, v1::ContainerState::ContainerExited);
    }

    fn set_state(&self, id: &str, container_state: v1::ContainerState) {
        self.service.change(|state| {
            let container = state.containers.iter_mut().find(|container| container.id == id).unwrap();
            container.set_state(container_state);
        });
    }

    /// The log file and the termination message file of a container.
    /// The names of CDI devices and the variables in the last request to create a container.
    pub(super) fn cdi_devices_and_variables(&self) -> (Vec<String>, Vec<String>) {
        self.service.state.lock().cdi.clone()
    }

    pub(super) fn log_and_message_files(&self, id: &str) -> Vec<PathBuf> {
        let (log, mounts) = self.service.state.lock().files[id].clone();
        let messages = mounts.into_iter().map(|mount| mount.host_path).filter(|path| path.ends_with(".message"));
        std::iter::once(log).chain(messages).map(PathBuf::from).collect()
    }

    /// The file names of the links to logs.
    pub(super) fn links(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.path().join("links")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    /// Makes the status call of a sandbox fail. `None` ends the failure.
    pub(super) fn fail_sandbox_status(&self, sandbox: Option<(&SandboxId, Status)>) {
        self.service.change(|state| state.failing_sandbox = sandbox.map(|(id, why)| (id.to_string(), why)));
    }

    /// Sets the state of a container to unknown.
    pub(super) fn set_unknown(&self, id: &str) {
        self.set_state(id, v1::ContainerState::ContainerUnknown);
    }

    pub(super) fn stops(&self) -> Vec<(String, i64)> {
        self.service.state.lock().stops.clone()
    }

    pub(super) fn removed(&self) -> Vec<String> {
        self.service.state.lock().removed.clone()
    }

    pub(super) fn pull_count(&self) -> usize {
        self.service.state.lock().pulls
    }

    pub(super) fn cancelled_pulls(&self) -> usize {
        self.service.state.lock().cancelled_pulls
    }

    /// Waits until this number of pulls has started.
    pub(super) async fn wait_for_pulls(&self, count: usize) {
        self.service.until(|state| state.pulls >= count).await;
    }

    /// Waits until the event stream was requested this number of times.
    pub(super) async fn wait_for_event_calls(&self, count: usize) {
        self.service.until(|state| state.event_calls >= count).await;
    }

    /// Makes an image present. Pulls of the image succeed from then on.
    pub(super) fn add_image(&self, image: &str) {
        self.service.change(|state| state.images.push(image.to_owned()));
    }

    /// Adds an image to the answers to list calls.
    pub(super) fn add_listed_image(&self, image: v1::Image) {
        self.service.change(|state| state.listed.push(image));
    }

    /// Adds a container that another user of the runtime created.
    pub(super) fn add_container_of_another_agent(&self, image_ref: &str) {
        let container = v1::Container { id: "theirs".into(), image_ref: image_ref.into(), ..Default::default() };
        self.service.change(|state| state.containers.push(container));
    }

    /// Adds a sandbox `s-UID` and a container `c-UID` of a pod that a kubelet started.
    pub(super) fn add_pod_of_a_kubelet(&self, uid: &str) {
        let labels = v1::entries([(labels::POD_UID.to_owned(), uid.to_owned())]);
        let metadata = Some(v1::PodSandboxMetadata { uid: uid.into(), ..Default::default() });
        let sandbox = v1::PodSandbox { id: format!("s-{uid}"), metadata, labels: labels.clone(), ..Default::default() };
        let metadata = Some(v1::ContainerMetadata { name: "main".into(), attempt: 0 });
        let container = v1::Container { id: format!("c-{uid}"), metadata, labels, ..Default::default() };
        self.service.change(|state| {
            state.sandboxes.push(sandbox);
            state.containers.push(container);
        });
    }

    /// Makes image status calls fail.
    pub(super) fn fail_image_status(&self) {
        self.service.change(|state| state.image_status_fails = true);
    }

    /// The pod and the annotations in the last pull request.
    pub(super) fn last_pull_pod(&self) -> String {
        self.service.state.lock().last_pull_pod.clone()
    }

    /// The user names of the pulls since the last call.
    pub(super) fn take_pull_users(&self) -> Vec<String> {
        self.service.change(|state| std::mem::take(&mut state.pull_users))
    }

    pub(super) async fn send_event(&self, event: v1::ContainerEventResponse) {
        let events = self.events.lock().clone().unwrap();
        events.send(event).await.unwrap();
    }

    /// Sets the features that the runtime reports.
    pub(super) fn set_features(&self, features: v1::RuntimeFeatures) {
        self.service.change(|state| state.features = features);
    }

    /// Sets the configuration that the runtime reports in the verbose answer to `Status`.
    pub(super) fn set_verbose_config(&self, config: &serde_json::Value) {
        self.service.change(|state| state.verbose_config = Some(config.to_string()));
    }

    pub(super) fn end_events(&self) {
        self.events.lock().take();
    }
}

impl FakeService {
    fn change<T>(&self, change: impl FnOnce(&mut FakeState) -> T) -> T {
        let changed = change(&mut self.state.lock());
        self.changed.notify_waiters();
        changed
    }

    async fn until(&self, condition: impl Fn(&FakeState) -> bool) {
        loop {
            let changed = self.changed.notified();
            if condition(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// The outcome of the next create call: the new object's ID, whether it is ready, and the error to answer.
    fn answer(&self, kind: &str) -> (Option<(String, bool)>, Option<Status>) {
        self.change(|state| {
            let id = || format!("{kind}{}", state.made);
            let answer = match state.script.pop_front().unwrap_or(CreateAnswer::Created) {
                CreateAnswer::Created => (Some((id(), true)), None),
                CreateAnswer::CreatedWithError(status) => (Some((id(), true)), Some(status)),
                CreateAnswer::NotReadyWithError(status) => (Some((id(), false)), Some(status)),
                CreateAnswer::Refused(status) => (None, Some(status)),
            };
            state.made += 1;
            answer
        })
    }
}
