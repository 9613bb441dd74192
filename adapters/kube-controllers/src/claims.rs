//! Performs the calls of the ResourceClaim controller, and records its events.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request as HttpRequest, StatusCode};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::client::Body;
use kube::core::{Request as ApiRequest, Status};
use kube::{Api, Client, Resource};
use podwright_controllers::ports::resource_claims::{
    Answer, ApiError, ApiErrorKind, COMPONENT, ClaimChange, ClaimEdit, EVENT_REASON, FIELD_MANAGER, ListedClaims,
    ObjectKey, OwnerKind, OwnerWarning, Request, ResourceClaimApi, StatusApply,
};
use podwright_metrics::EventMetrics;
use podwright_model::text::plain;
use podwright_ports::{Clock, PodEvent};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

use super::calls::perform;
use super::claim_bytes;
use super::term_events::TermEvents;

/// How many lists of claims run at once. After a failure of the API server, each namespace may need a list, and may have many claims.
const LISTS: usize = 4;
/// The number of claims in a page of a list.
const PAGE_SIZE: u32 = 500;

/// The [`ResourceClaimApi`] of an API server with `resource.k8s.io/v1` (Kubernetes 1.34 and later).
pub struct KubeResourceClaims {
    client: Client,
    events: TermEvents,
    lists: Semaphore,
}

/// The metadata of an object. The other fields are ignored.
#[derive(Debug, Deserialize)]
struct StoredObject {
    metadata: ObjectMeta,
}

impl KubeResourceClaims {
    /// Performs calls with this client. The tasks that write events end when the events are closed, or when this value is dropped.
    pub fn new(client: Client, clock: Arc<dyn Clock>, metrics: EventMetrics) -> Self {
        let events = TermEvents::new(client.clone(), COMPONENT, clock, metrics);
        KubeResourceClaims { client, events, lists: Semaphore::new(LISTS) }
    }

    fn claims(&self, namespace: &str) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Lists the metadata of the claims of a namespace. A claim whose spec or status this program cannot decode is listed too.
    async fn list(&self, namespace: &str) -> Result<Answer, ApiError> {
        let _seat = self.lists.acquire().await;
        // Without a resource version, the server reads from its storage.
        let (api, mut page) = (self.claims(namespace), ListParams::default().limit(PAGE_SIZE));
        let mut claims = ListedClaims::default();
        loop {
            let list = perform(api.list_metadata(&page)).await?;
            claims.extend(list.items.into_iter().map(|claim| ObjectMeta { managed_fields: None, ..claim.metadata }));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(Answer::Claims(Arc::new(claims))),
            }
        }
    }

    /// Changes a claim without decoding it. A server encodes the objects of a JSON request anew and compares opaque parameters by their
    /// bytes, so it refuses JSON requests for many claims, also patches that do not name the parameters.
    async fn change(&self, change: &ClaimChange) -> kube::Result<ResourceClaim> {
        let read = self.encoded(&change.claim).await?;
        let Some(version) = read.as_deref().and_then(claim_bytes::resource_version) else {
            return self.patch(change).await;
        };
        if change.claim.metadata.resource_version.as_deref() != Some(version) {
            let status = Status::failure("the claim has changed since the controller read it", "Conflict");
            return Err(kube::Error::Api(status.with_code(409).boxed()));
        }
        let Some(body) = read.as_deref().and_then(|read| claim_bytes::edited(read, &change.edit)) else {
            return self.patch(change).await;
        };
        let (path, params, name) = (claims_path(&change.claim), post_params(), name(&change.claim));
        let request = if change.edit.is_of_status() {
            path.replace_subresource("status", name, &params, body)
        } else {
            path.replace(name, &params, body)
        };
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(claim_bytes::MEDIA_TYPE));
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        match self.client.request(request).await {
            Err(kube::Error::Api(status)) if status.code == 415 => self.patch(change).await,
            answer => answer,
        }
    }

    /// The newest version of a claim, as the server encodes it. `None` if the server does not serve the encoding, or if the user has no
    /// permission to read claims.
    async fn encoded(&self, claim: &ResourceClaim) -> kube::Result<Option<Vec<u8>>> {
        let request = claims_path(claim).get(name(claim), &GetParams::default());
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(claim_bytes::MEDIA_TYPE));
        let (head, body) = self.client.send(request.map(Body::from)).await?.into_parts();
        let body = body.collect_bytes().await?;
        match head.status {
            StatusCode::FORBIDDEN | StatusCode::NOT_ACCEPTABLE | StatusCode::UNSUPPORTED_MEDIA_TYPE => Ok(None),
            code if code.is_success() => Ok(Some(body.to_vec())),
            code => Err(failure(code, &head.headers, &body)),
        }
    }

    /// Changes a claim with a patch that names only the fields of the edit.
    async fn patch(&self, change: &ClaimChange) -> kube::Result<ResourceClaim> {
        let changed = change.changed_claim();
        let consumers = changed.status.and_then(|status| status.reserved_for);
        let mut body = json!({"metadata": {"resourceVersion": change.claim.metadata.resource_version}});
        match &change.edit {
            ClaimEdit::RemoveFinalizer => body["metadata"]["finalizers"] = json!(changed.metadata.finalizers),
            ClaimEdit::Release { deallocate: true, .. } => {
                body["status"] = json!({"allocation": null, "reservedFor": consumers});
            }
            ClaimEdit::Release { deallocate: false, .. } | ClaimEdit::Reserve(_) => {
                body["status"] = json!({"reservedFor": consumers});
            }
        }
        let (api, name) = (self.claims(namespace(&change.claim)), name(&change.claim));
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        if change.edit.is_of_status() {
            api.patch_status(name, &params, &Patch::Merge(body)).await
        } else {
            api.patch(name, &params, &Patch::Merge(body)).await
        }
    }

    async fn apply_status(&self, apply: &StatusApply) -> Result<Answer, ApiError> {
        let path = match apply.kind {
            OwnerKind::Pod => Pod::url_path(&(), Some(&apply.owner.namespace)),
            OwnerKind::PodGroup => PodGroup::url_path(&(), Some(&apply.owner.namespace)),
        };
        let (params, patch) = (PatchParams::apply(FIELD_MANAGER).force(), Patch::Apply(apply.body()));
        let request = ApiRequest::new(path).patch_subresource("status", &apply.owner.name, &params, &patch);
        let resource_version = perform(self.send(request)).await?.metadata.resource_version.unwrap_or_default();
        Ok(Answer::Written { resource_version })
    }

    /// Reads the newest version of an object, and returns its UID.
    async fn uid<K: Resource<DynamicType = ()>>(&self, object: &ObjectKey) -> Result<Answer, ApiError> {
        let path = K::url_path(&(), Some(&object.namespace));
        if object.name.contains(['/', '?', '#', '%']) || matches!(&*object.name, "." | "..") {
            // The name would change the path of the request. No object can have such a name, but a consumer in a claim may have it.
            let message = format!("{:?} cannot be the name of an object", plain(&object.name, 256));
            return Err(ApiError::new(ApiErrorKind::Refused, message));
        }
        let get = ApiRequest::new(path).get(&object.name, &GetParams::default());
        let uid = perform(self.send(get)).await?.metadata.uid;
        uid.map(Answer::Uid).ok_or_else(|| ApiError::new(ApiErrorKind::Unknown, "the answer has no UID"))
    }

    async fn send(
        &self,
        request: Result<HttpRequest<Vec<u8>>, kube::core::request::Error>,
    ) -> kube::Result<StoredObject> {
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }
}

impl ResourceClaimApi for KubeResourceClaims {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Answer, ApiError>> {
        async move {
            match request {
                Request::CreateClaim(claim) => {
                    let api = self.claims(namespace(&claim));
                    perform(api.create(&post_params(), &claim)).await.map(stored)
                }
                Request::ApplyStatus(apply) => self.apply_status(&apply).await,
                Request::ChangeClaim(change) => perform(self.change(&change)).await.map(stored),
                Request::DeleteClaim { claim, uid } => {
                    let preconditions = Preconditions { uid: Some(uid), ..Preconditions::default() };
                    let delete = DeleteParams::default().preconditions(preconditions);
                    let api = self.claims(&claim.namespace);
                    perform(api.delete(&claim.name, &delete)).await.map(|_| Answer::Done)
                }
                Request::GetClaim(claim) => self.uid::<ResourceClaim>(&claim).await,
                Request::GetPod(pod) => self.uid::<Pod>(&pod).await,
                Request::GetPodGroup(group) => self.uid::<PodGroup>(&group).await,
                Request::ListClaims { namespace } => self.list(&namespace).await,
            }
        }
        .boxed()
    }

    fn record(&self, warning: OwnerWarning) {
        let OwnerWarning { kind, owner, uid, message } = warning;
        let reference = ObjectReference {
            api_version: Some(kind.api_version().to_owned()),
            kind: Some(kind.as_str().to_owned()),
            namespace: Some(owner.namespace),
            name: Some(owner.name),
            uid: Some(uid),
            ..ObjectReference::default()
        };
        self.events.record(reference, PodEvent::warning(EVENT_REASON, message));
    }

    fn close_events(&self, limit: Duration) -> BoxFuture<'_, usize> {
        self.events.close(limit).boxed()
    }
}

fn stored(claim: ResourceClaim) -> Answer {
    Answer::Claim(Box::new(claim))
}

/// The error of a failed read. The server encodes the status of a failure as it encodes objects; a proxy may answer otherwise.
fn failure(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> kube::Error {
    let status = serde_json::from_slice(body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(body);
        let reason = code.canonical_reason().unwrap_or_default();
        let (message, reason) = claim_bytes::failure(body).unwrap_or((text.trim(), reason));
        let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
        let details = json!({"retryAfterSeconds": seconds.unwrap_or_default()});
        let status = json!({"message": message, "reason": reason, "details": details});
        serde_json::from_value::<Status>(status).unwrap_or_default()
    });
    kube::Error::Api(status.with_code(code.as_u16()).boxed())
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

fn claims_path(claim: &ResourceClaim) -> ApiRequest {
    ApiRequest::new(ResourceClaim::url_path(&(), Some(namespace(claim))))
}

fn namespace(claim: &ResourceClaim) -> &str {
    claim.metadata.namespace.as_deref().unwrap_or_default()
}

fn name(claim: &ResourceClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}
