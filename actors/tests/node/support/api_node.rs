//! A node of an API server, in paused time.

use std::sync::Arc;

use podwright_model::pod::PodObject;
use podwright_ports::{ApiError, SourceKind};

use super::fake_pod_api::FakePodApi;
use super::test_node::{Setup, TestNode};

/// A node of an API server, whose pods the test delivers with [`watch`](ApiNode::watch).
pub(crate) struct ApiNode {
    pub(crate) node: TestNode,
    pub(crate) api: Arc<FakePodApi>,
}

impl ApiNode {
    pub(crate) async fn start() -> Self {
        tokio::time::pause();
        Self::again().await
    }

    /// Another node with another API server, after time was paused.
    pub(crate) async fn again() -> Self {
        let setup = Setup::again(true);
        let api = Arc::new(FakePodApi::new(setup.clock));
        Self::of(Setup { api: Some(api.clone()), sources: vec![SourceKind::Api], ..setup }, api).await
    }

    pub(crate) async fn of(setup: Setup, api: Arc<FakePodApi>) -> Self {
        let this = ApiNode { node: setup.start(), api };
        this.watch().await;
        this.node.pass().await;
        this
    }

    /// Kills the agent, and starts the next one over the same runtime, the same disk and the same API server.
    pub(crate) async fn crash(self) -> Self {
        let next = self.next_setup();
        let api = self.api.clone();
        drop(self);
        Self::of(next, api).await
    }

    /// The setup of the next agent.
    pub(crate) fn next_setup(&self) -> Setup {
        let TestNode { runtime, storage, final_statuses, clock, .. } = &self.node;
        Setup {
            runtime: runtime.clone(),
            storage: storage.clone(),
            final_statuses: final_statuses.clone(),
            clock: *clock,
            api: Some(self.api.clone()),
            sources: vec![SourceKind::Api],
            ..Setup::again(true)
        }
    }

    /// The UID of the pod that has this name in the API server.
    pub(crate) fn uid(&self, name: &str) -> String {
        self.api.pod(name).unwrap().uid().to_string()
    }

    /// How often containers of a pod were started.
    pub(crate) fn starts(&self, uid: &str) -> usize {
        self.node.runtime.calls_of(uid).iter().filter(|call| call.starts_with("start ")).count()
    }

    /// Delivers the pods that the API server has now, as a watch does.
    pub(crate) async fn watch(&self) {
        self.deliver(self.api.pods()).await;
    }

    pub(crate) async fn deliver(&self, pods: Vec<Arc<PodObject>>) {
        self.node.deliver_set(SourceKind::Api, pods, Vec::new()).await;
        self.node.settled().await;
    }

    /// Lets time pass while the watch delivers each change.
    pub(crate) async fn wait(&self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.node.wait(0.1).await;
            self.watch().await;
        }
    }

    pub(crate) fn condition(&self, name: &str, condition: &str) -> Option<String> {
        let conditions = self.api.status(name).conditions.unwrap_or_default();
        conditions.into_iter().find(|have| have.type_ == condition).map(|have| have.status)
    }
}

/// The failure of every call while the API server is away.
pub(crate) fn unavailable() -> Option<ApiError> {
    Some(ApiError::unavailable("connection refused", None))
}
