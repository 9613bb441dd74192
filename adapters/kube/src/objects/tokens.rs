//! The tokens of service accounts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use podwright_core::objects::{MAX_JITTER, RenewalTimes};
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{Clock, Confidential, ObjectError, ObjectKind, TokenNeed};
use tokio::time::timeout;

use super::changes::Changes;
use super::object_error;
use super::renewed::{Answer, Renewed};
use crate::node_authorizer::until_related;

/// How long one request may take, with its repetitions.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Requests tokens, and keeps them until they are renewed or their pod is removed. Tokens are never written to the agent's disk.
pub(super) struct Tokens {
    client: Client,
    clock: Arc<dyn Clock>,
    changes: Arc<Changes>,
    tokens: Mutex<HashMap<PodUid, PodTokens>>,
}

/// The tokens of one pod.
type PodTokens = HashMap<TokenNeed, Arc<Renewed<Confidential>>>;

impl Tokens {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>, changes: Arc<Changes>) -> Self {
        Tokens { client, clock, changes, tokens: Mutex::default() }
    }

    /// A valid token of the pod's service account.
    pub(super) async fn get(&self, pod: &PodObject, need: &TokenNeed) -> Result<Confidential, ObjectError> {
        let (uid, changes) = (pod.uid().clone(), self.changes.clone());
        let changed = move || changes.add([uid]);
        let token = self.token(pod.uid(), need);
        token.get(pod.uid(), || request(self.client.clone(), self.clock.clone(), pod, need), changed).await
    }

    fn token(&self, uid: &PodUid, need: &TokenNeed) -> Arc<Renewed<Confidential>> {
        let mut tokens = self.tokens.lock();
        let of_pod = tokens.entry(uid.clone()).or_default();
        let new = || Arc::new(Renewed::new(ObjectKind::Token, self.clock.clone()));
        of_pod.entry(need.clone()).or_insert_with(new).clone()
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        self.tokens.lock().remove(uid);
    }

    pub(super) fn retain(&self, keep: &dyn Fn(&PodUid) -> bool) {
        self.tokens.lock().retain(|uid, _| keep(uid));
    }
}

/// A request of a token.
fn request(
    client: Client,
    clock: Arc<dyn Clock>,
    pod: &PodObject,
    need: &TokenNeed,
) -> impl Future<Output = Answer<Confidential>> + use<> {
    let account = pod.spec().service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
    let (account, need, uid) = (account.to_owned(), need.clone(), pod.uid().clone());
    let api = Api::<ServiceAccount>::namespaced(client, pod.full_name().namespace());
    let name = pod.full_name().name().to_owned();
    async move {
        let account = account.as_str();
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(name),
            uid: Some(uid.to_string()),
        };
        let spec = TokenRequestSpec {
            audiences: Some(need.audience.clone())
                .filter(|audience| !audience.is_empty())
                .map(|audience| vec![audience]),
            bound_object_ref: Some(bound),
            expiration_seconds: Some(need.expiration_seconds),
        };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let params = PostParams::default();
        let create = || api.create_token_request(account, &params, &request);
        let answer = match timeout(REQUEST_TIMEOUT, until_related(create)).await {
            Ok(answer) => answer.map_err(|error| object_error(ObjectKind::Token, account, error.into()))?,
            Err(elapsed) => return Err(ObjectError::unavailable(ObjectKind::Token, account, elapsed)),
        };
        let issued = answer.status.and_then(|status| Some((status.token?, status.expiration_timestamp?)));
        let (token, expires) = issued.ok_or_else(|| {
            ObjectError::unavailable(ObjectKind::Token, account, "the answer of the API server has no token")
        })?;
        let seconds = answer.spec.and_then(|spec| spec.expiration_seconds).unwrap_or(need.expiration_seconds);
        let lifetime = Duration::from_secs(seconds.try_into().unwrap_or_default());
        let jitter = MAX_JITTER.mul_f64(f64::from(jitter(&uid)) / f64::from(u8::MAX));
        let times = RenewalTimes::of_token(clock.now(), Time::from_timestamp(expires.0), lifetime, jitter);
        Ok((Confidential::from(token.into_bytes()), times))
    }
}

/// A number that differs between pods.
fn jitter(uid: &PodUid) -> u8 {
    uid.to_string().bytes().fold(0, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(byte))
}
