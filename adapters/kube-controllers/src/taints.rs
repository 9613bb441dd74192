//! Performs the calls of the device taint eviction controller, and records its events.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use podwright_controllers::ports::device_taints::{
    Answer, ApiError, COMPONENT, DeviceTaintApi, EVENT_REASON, EvictionEvent, PodId, Request,
};
use podwright_metrics::EventMetrics;
use podwright_ports::{Clock, PodEvent};

use super::calls::perform;
use super::term_events::TermEvents;

/// The [`DeviceTaintApi`] of an API server with `resource.k8s.io/v1` (Kubernetes 1.34 and later). Rules need
/// `resource.k8s.io/v1beta2` too.
pub struct KubeDeviceTaints {
    client: Client,
    events: TermEvents,
}

impl KubeDeviceTaints {
    /// Performs calls with this client. The tasks that write events end when the events are closed, or when this value is dropped.
    pub fn new(client: Client, clock: Arc<dyn Clock>, metrics: EventMetrics) -> Self {
        let events = TermEvents::new(client.clone(), COMPONENT, clock, metrics);
        KubeDeviceTaints { client, events }
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn delete(&self, PodId { key, uid }: &PodId) -> Result<Answer, ApiError> {
        let preconditions = Preconditions { uid: Some(uid.to_string()), ..Preconditions::default() };
        let delete = DeleteParams::default().preconditions(preconditions);
        perform(self.pods(&key.namespace).delete(&key.name, &delete)).await.map(|_| Answer::Done)
    }
}

impl DeviceTaintApi for KubeDeviceTaints {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Answer, ApiError>> {
        async move {
            match request {
                Request::GetPod(pod) => {
                    // Without a resource version, the server reads from its storage.
                    perform(self.pods(&pod.namespace).get(&pod.name)).await.map(|pod| Answer::Pod(Box::new(pod)))
                }
                Request::PatchPodStatus(condition) => {
                    let api = self.pods(&condition.pod.key.namespace);
                    let params = PatchParams { field_manager: Some(COMPONENT.to_owned()), ..PatchParams::default() };
                    let patch = Patch::Strategic(condition.body());
                    perform(api.patch_status(&condition.pod.key.name, &params, &patch)).await.map(|_| Answer::Done)
                }
                Request::DeletePod(pod) => self.delete(&pod).await,
                Request::ApplyRuleStatus(conditions) => {
                    let api = Api::<DeviceTaintRule>::all(self.client.clone());
                    let (params, patch) = (PatchParams::apply(COMPONENT).force(), Patch::Apply(conditions.body()));
                    perform(api.patch_status(&conditions.rule.name, &params, &patch)).await.map(|_| Answer::Done)
                }
            }
        }
        .boxed()
    }

    fn record(&self, event: EvictionEvent) {
        let EvictionEvent { pod, kind } = event;
        let reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.key.namespace),
            name: Some(pod.key.name),
            uid: Some(pod.uid.to_string()),
            ..ObjectReference::default()
        };
        self.events.record(reference, PodEvent::normal(EVENT_REASON, kind.message()));
    }

    fn close_events(&self, limit: Duration) -> BoxFuture<'_, usize> {
        self.events.close(limit).boxed()
    }
}
