//! The answers, from the pods of the node and their claims.

use std::sync::Arc;

use podwright_dra_api::pod_resources::{
    CdiDevice, ClaimResource, ContainerResources, DynamicResource, GetPodResourcesResponse, ListPodResourcesResponse,
    PodResources,
};
use tonic::Status;

use crate::agent::view::NodeView;
use podwright_actors::claims::ContainerClaim;
use podwright_actors::explain::PodFacts;
use podwright_core::admission::{PodActivity, is_active};
use podwright_core::pod_worker::Lifecycle;
use podwright_http_server::MAX_ECHO_BYTES;
use podwright_model::pod::{PodObject, is_sidecar};
use podwright_model::text::{error_chain, plain};

/// Answers with all active pods, including those without devices.
pub(super) fn list(view: &NodeView) -> ListPodResourcesResponse {
    let pods = active_pods(view.pods());
    ListPodResourcesResponse { pod_resources: pods.map(|pod| resources(&pod, view)).collect() }
}

/// Answers with one active pod.
pub(super) fn get(view: &NodeView, namespace: &str, name: &str) -> Result<GetPodResourcesResponse, Status> {
    let is_it = |pod: &PodFacts| pod.full_name.namespace() == namespace && pod.full_name.name() == name;
    let pods = view.pods().into_iter().filter(is_it).collect();
    let Some(pod) = active_pods(pods).next() else {
        let name = format!("{namespace}/{name}");
        let name = plain(&name, MAX_ECHO_BYTES);
        return Err(Status::not_found(format!("pod {name} does not run on this node")));
    };
    Ok(GetPodResourcesResponse { pod_resources: Some(resources(&pod, view)) })
}

/// The pods that may use devices: those that count for admission, and those that are stopping and no longer desired.
fn active_pods(pods: Vec<PodFacts>) -> impl Iterator<Item = Arc<PodObject>> {
    pods.into_iter().filter_map(|pod| {
        let lifecycle = pod.snapshot.as_ref().map(|snapshot| snapshot.lifecycle);
        let activity = PodActivity {
            known_terminated: lifecycle.is_some_and(|lifecycle| lifecycle >= Lifecycle::Terminated),
            termination_requested: lifecycle.is_some_and(|lifecycle| lifecycle >= Lifecycle::Terminating),
            cached_phase: Some(pod.phase()),
        };
        pod.object.filter(|object| is_active(object, activity))
    })
}

/// The resources of sidecars and regular containers, in the order of upstream. Other init containers have ended when the pod runs.
fn resources(pod: &PodObject, view: &NodeView) -> PodResources {
    let sidecars = pod.init_containers().iter().filter(|container| is_sidecar(container));
    let containers = sidecars.chain(pod.containers()).map(|container| ContainerResources {
        name: container.name.clone(),
        dynamic_resources: dynamic_resources(pod, &container.name, view),
        ..ContainerResources::default()
    });
    let name = pod.full_name();
    PodResources {
        name: name.name().to_owned(),
        namespace: name.namespace().to_owned(),
        containers: containers.collect(),
    }
}

/// The claims of a container. Empty while one of them is not prepared.
fn dynamic_resources(pod: &PodObject, container: &str, view: &NodeView) -> Vec<DynamicResource> {
    match view.container_claims(pod, container).unwrap_or_else(|| Ok(Vec::new())) {
        Ok(claims) => claims.into_iter().map(dynamic_resource).collect(),
        Err(error) => {
            let error = error_chain(&error);
            tracing::debug!(pod.uid = %pod.uid(), container, %error, "the devices of a container are not known");
            Vec::new()
        }
    }
}

fn dynamic_resource(used: ContainerClaim) -> DynamicResource {
    let resources = used.devices.into_iter().map(|(driver, device)| ClaimResource {
        cdi_devices: device.cdi_devices.into_iter().map(|name| CdiDevice { name }).collect(),
        driver_name: driver.to_string(),
        pool_name: device.pool,
        device_name: device.device,
        share_id: device.share_id,
    });
    DynamicResource {
        claim_name: used.claim.name().to_owned(),
        claim_namespace: used.claim.namespace().to_owned(),
        claim_resources: resources.collect(),
    }
}
