//! A container runtime's end of the interface, which does as it is told.

mod images;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use parking_lot::Mutex;
use podwright_actors::ids::SandboxId;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{EventRecorder, NamedRuntimeClasses, NoPullSecrets, PodEvent, RuntimeName};
use podwright_metrics::Metrics;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::{Notify, mpsc};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::super::v1::image_service_server::ImageServiceServer;
use super::super::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use super::super::{CriConfig, CriRuntime, NodeSettings, v1};

/// What becomes of a creation. Where nothing is told, it is made.
pub(super) enum Answer {
    Made,
    /// It is made, and the answer says otherwise.
    MadeBut(Status),
    /// It is made and does not work, and the answer says otherwise.
    BrokenBut(Status),
    Refused(Status),
}

#[derive(Default)]
struct State {
    script: VecDeque<Answer>,
    attempts: Vec<u32>,
    sandboxes: Vec<v1::PodSandbox>,
    containers: Vec<v1::Container>,
    made: usize,
    removed: Vec<String>,
    images: Vec<String>,
    /// What a list of images shows beside those.
    listed: Vec<v1::Image>,
    looks_fail: bool,
    /// Where containers log and which mounts they have, by id.
    places: HashMap<String, (String, Vec<v1::Mount>)>,
    /// A sandbox that cannot be described, and why.
    broken: Option<(String, Status)>,
    /// Containers that were stopped, with the time they were given, in seconds.
    stops: Vec<(String, i64)>,
    /// As whom was pulled, by name.
    pulled_as: Vec<String>,
    /// For which pod, and with what annotations, was pulled last.
    pulled_for: String,
    pulls: usize,
    event_calls: usize,
    ended_early: usize,
    features: v1::RuntimeFeatures,
}

#[derive(Clone)]
struct Service {
    state: Arc<Mutex<State>>,
    news: Arc<Notify>,
    events: Arc<Mutex<Option<mpsc::Receiver<v1::ContainerEventResponse>>>>,
}

/// The events, as they came.
#[derive(Default)]
pub(super) struct Told(Mutex<Vec<PodEvent>>);

impl Told {
    pub(super) fn reasons(&self) -> Vec<String> {
        self.0.lock().iter().map(|event| event.reason.to_string()).collect()
    }

    /// Takes them.
    pub(super) fn take(&self) -> Vec<PodEvent> {
        std::mem::take(&mut self.0.lock())
    }
}

impl EventRecorder for Told {
    fn record(&self, _: &Arc<PodObject>, event: PodEvent) {
        self.0.lock().push(event);
    }
}

/// The server and a runtime that talks to it.
pub(super) struct Fake {
    pub(super) runtime: CriRuntime,
    service: Service,
    pub(super) told: Arc<Told>,
    events: Mutex<Option<mpsc::Sender<v1::ContainerEventResponse>>>,
    root: TempDir,
}

impl Fake {
    pub(super) async fn start(parallel_pulls: usize) -> Self {
        Fake::with(parallel_pulls, |_| {}).await
    }

    pub(super) async fn with(parallel_pulls: usize, edit: impl FnOnce(&mut CriConfig)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("c.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (events, receiver) = mpsc::channel(1);
        let service =
            Service { state: Arc::default(), news: Arc::default(), events: Arc::new(Mutex::new(Some(receiver))) };
        let incoming = stream::unfold(listener, |listener| async {
            let accepted = listener.accept().await.map(|(connection, _)| connection);
            Some((accepted, listener))
        });
        let server = Server::builder()
            .add_service(RuntimeServiceServer::new(service.clone()))
            .add_service(ImageServiceServer::new(service.clone()));
        tokio::spawn(server.serve_with_incoming(incoming));
        let told = Arc::new(Told::default());
        let mut config = CriConfig {
            endpoint: socket.to_str().unwrap().parse().unwrap(),
            root: root.path().to_owned(),
            logs: root.path().join("log"),
            log_links: root.path().join("links"),
            registry_config: None,
            pull_secrets: Arc::new(NoPullSecrets),
            parallel_pulls: parallel_pulls.try_into().unwrap(),
            name: RuntimeName::default(),
            metrics: Metrics::new(),
            settings: NodeSettings::default(),
            runtime_classes: Arc::new(NamedRuntimeClasses::default()),
            events: told.clone(),
        };
        edit(&mut config);
        let runtime = CriRuntime::open(config).unwrap();
        Fake { runtime, service, told, events: Mutex::new(Some(events)), root }
    }

    pub(super) fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        self.service.state.lock().script = answers.into_iter().collect();
    }

    pub(super) fn attempts(&self) -> Vec<u32> {
        self.service.state.lock().attempts.clone()
    }

    /// Lets a container have ended.
    pub(super) fn ends(&self, id: &str) {
        self.is_in(id, v1::ContainerState::ContainerExited);
    }

    fn is_in(&self, id: &str, stands: v1::ContainerState) {
        self.service.change(|state| {
            let container = state.containers.iter_mut().find(|container| container.id == id).unwrap();
            container.set_state(stands);
        });
    }

    /// Where a container logs and leaves its message: the log, and what is mounted from its pod's directory.
    pub(super) fn writes_to(&self, id: &str) -> Vec<PathBuf> {
        let (log, mounts) = self.service.state.lock().places[id].clone();
        let messages = mounts.into_iter().map(|mount| mount.host_path).filter(|path| path.ends_with(".message"));
        std::iter::once(log).chain(messages).map(PathBuf::from).collect()
    }

    /// The links to logs that there are.
    pub(super) fn links(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.path().join("links")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    /// Lets nobody describe a sandbox, or everybody all of them again.
    pub(super) fn breaks(&self, sandbox: Option<(&SandboxId, Status)>) {
        self.service.change(|state| state.broken = sandbox.map(|(id, why)| (id.to_string(), why)));
    }

    /// Lets nothing be known of a container but what is written on it.
    pub(super) fn loses(&self, id: &str) {
        self.is_in(id, v1::ContainerState::ContainerUnknown);
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

    pub(super) fn ended_early(&self) -> usize {
        self.service.state.lock().ended_early
    }

    /// Waits until so many pulls have begun.
    pub(super) async fn pulls(&self, count: usize) {
        self.service.until(|state| state.pulls >= count).await;
    }

    /// Waits until events were asked for so often.
    pub(super) async fn event_calls(&self, count: usize) {
        self.service.until(|state| state.event_calls >= count).await;
    }

    /// Lets an image be there.
    pub(super) fn pulled(&self, image: &str) {
        self.service.change(|state| state.images.push(image.to_owned()));
    }

    /// Lets lists show an image.
    pub(super) fn lists(&self, image: v1::Image) {
        self.service.change(|state| state.listed.push(image));
    }

    /// Lets there be a container that no agent of ours made.
    pub(super) fn runs_for_another(&self, image_ref: &str) {
        let container = v1::Container { id: "theirs".into(), image_ref: image_ref.into(), ..Default::default() };
        self.service.change(|state| state.containers.push(container));
    }

    /// Lets nobody look at an image.
    pub(super) fn hides_images(&self) {
        self.service.change(|state| state.looks_fail = true);
    }

    /// For which pod, and with what annotations, was pulled last.
    pub(super) fn pulled_for(&self) -> String {
        self.service.state.lock().pulled_for.clone()
    }

    /// As whom was pulled since the last time, by name.
    pub(super) fn pulled_as(&self) -> Vec<String> {
        self.service.change(|state| std::mem::take(&mut state.pulled_as))
    }

    pub(super) async fn tell(&self, event: v1::ContainerEventResponse) {
        let events = self.events.lock().clone().unwrap();
        events.send(event).await.unwrap();
    }

    /// Lets a runtime answer that can do this.
    pub(super) fn renew(&self, features: v1::RuntimeFeatures) {
        self.service.change(|state| state.features = features);
    }

    pub(super) fn end_events(&self) {
        self.events.lock().take();
    }
}

impl Service {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock());
        self.news.notify_waiters();
        changed
    }

    async fn until(&self, wanted: impl Fn(&State) -> bool) {
        loop {
            let news = self.news.notified();
            if wanted(&self.state.lock()) {
                return;
            }
            news.await;
        }
    }

    /// What becomes of the next creation: its id, and whether it works.
    fn answer(&self, kind: &str) -> (Option<(String, bool)>, Option<Status>) {
        self.change(|state| {
            let id = || format!("{kind}{}", state.made);
            let answer = match state.script.pop_front().unwrap_or(Answer::Made) {
                Answer::Made => (Some((id(), true)), None),
                Answer::MadeBut(status) => (Some((id(), true)), Some(status)),
                Answer::BrokenBut(status) => (Some((id(), false)), Some(status)),
                Answer::Refused(status) => (None, Some(status)),
            };
            state.made += 1;
            answer
        })
    }
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        let version = v1::VersionResponse {
            runtime_name: "containerd".into(),
            runtime_version: "v2.0.0".into(),
            ..Default::default()
        };
        Ok(Response::new(version))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let features = Some(self.state.lock().features);
        Ok(Response::new(v1::StatusResponse { features, ..Default::default() }))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Result<Response<v1::RunPodSandboxResponse>, Status> {
        let config = request.into_inner().config.unwrap();
        let metadata = config.metadata.unwrap();
        self.change(|state| state.attempts.push(metadata.attempt));
        let (made, status) = self.answer("s");
        let id = made.as_ref().map(|(id, _)| id.clone()).unwrap_or_default();
        if let Some((id, works)) = made {
            let state = i32::from(!works);
            let labels = v1::entries(config.labels);
            let sandbox = v1::PodSandbox { id, metadata: Some(metadata), state, labels, ..Default::default() };
            self.change(|state| state.sandboxes.push(sandbox));
        }
        status.map_or(Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id: id })), Err)
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<v1::ListPodSandboxRequest>,
    ) -> Result<Response<v1::ListPodSandboxResponse>, Status> {
        Ok(Response::new(v1::ListPodSandboxResponse { items: self.state.lock().sandboxes.clone() }))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Result<Response<v1::PodSandboxStatusResponse>, Status> {
        let request = request.into_inner();
        if let Some((id, why)) = &self.state.lock().broken
            && *id == request.pod_sandbox_id
        {
            return Err(why.clone());
        }
        let status = Some(v1::PodSandboxStatus::default());
        let mut answer = v1::PodSandboxStatusResponse { status, ..Default::default() };
        if request.verbose {
            answer.info.insert("info".to_owned(), r#"{"image": "pause.example/pause:1"}"#.to_owned());
        }
        Ok(Response::new(answer))
    }

    async fn stop_pod_sandbox(
        &self,
        _: Request<v1::StopPodSandboxRequest>,
    ) -> Result<Response<v1::StopPodSandboxResponse>, Status> {
        Ok(Response::new(v1::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Result<Response<v1::RemovePodSandboxResponse>, Status> {
        self.change(|state| state.removed.push(request.into_inner().pod_sandbox_id));
        Ok(Response::new(v1::RemovePodSandboxResponse {}))
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Result<Response<v1::CreateContainerResponse>, Status> {
        let request = request.into_inner();
        let (made, status) = self.answer("c");
        let config = request.config.unwrap();
        let logs = request.sandbox_config.unwrap().log_directory;
        let id = made.as_ref().map(|(id, _)| id.clone()).unwrap_or_default();
        if made.is_some() {
            let container = v1::Container {
                id: id.clone(),
                pod_sandbox_id: request.pod_sandbox_id,
                metadata: config.metadata,
                annotations: v1::entries(config.annotations),
                labels: v1::entries(config.labels),
                ..Default::default()
            };
            let places = (format!("{logs}/{}", config.log_path), config.mounts);
            self.change(|state| {
                state.places.insert(id.clone(), places);
                state.containers.push(container);
            });
        }
        status.map_or(Ok(Response::new(v1::CreateContainerResponse { container_id: id })), Err)
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        let (found, places) = {
            let state = self.state.lock();
            let found = state.containers.iter().find(|container| container.id == id).cloned();
            (found, state.places.get(&id).cloned())
        };
        let v1::Container { id, state, labels, annotations, .. } = found.ok_or_else(|| Status::not_found(id))?;
        let (labels, annotations) = (map(labels), map(annotations));
        let (log_path, mounts) = places.unwrap_or_default();
        let status = v1::ContainerStatus { id, state, labels, annotations, log_path, mounts, ..Default::default() };
        let status = Some(status);
        Ok(Response::new(v1::ContainerStatusResponse { status, ..Default::default() }))
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Result<Response<v1::StopContainerResponse>, Status> {
        let v1::StopContainerRequest { container_id, timeout } = request.into_inner();
        if !self.state.lock().containers.iter().any(|container| container.id == container_id) {
            return Err(Status::unknown("it cannot be stopped"));
        }
        self.change(|state| state.stops.push((container_id, timeout)));
        Ok(Response::new(v1::StopContainerResponse {}))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        let wanted = request.into_inner().filter.unwrap_or_default().label_selector;
        let mut containers = self.state.lock().containers.clone();
        containers
            .retain(|container| wanted.iter().all(|(key, value)| v1::value(&container.labels, key) == Some(value)));
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Result<Response<v1::RemoveContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        self.change(|state| {
            state.containers.retain(|container| container.id != id);
            state.removed.push(id);
        });
        Ok(Response::new(v1::RemoveContainerResponse {}))
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Result<Response<BoxStream<'static, Result<v1::ContainerEventResponse, Status>>>, Status> {
        self.change(|state| state.event_calls += 1);
        let Some(events) = self.events.lock().take() else { return Err(Status::unimplemented("no more")) };
        let events = stream::unfold(events, |mut events| async { Some((Ok(events.recv().await?), events)) });
        Ok(Response::new(events.boxed()))
    }
}

fn map(entries: Vec<v1::Entry>) -> HashMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    entries.iter().map(|entry| (text(&entry.key), text(&entry.value))).collect()
}
