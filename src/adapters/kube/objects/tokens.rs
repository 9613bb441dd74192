//! The tokens of service accounts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use podwright_actors::ids::PodUid;
use podwright_actors::objects::{MAX_JITTER, needs_renewal};
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{Clock, Confidential, ObjectError, ObjectKind, TokenNeed};
use podwright_actors::text::error_chain;
use podwright_actors::time::Time;
use tokio::time::timeout;

use super::object_error;
use crate::adapters::kube::node_authorizer::until_related;

/// How long one request may take, with its repetitions.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Requests tokens, and keeps them until they are renewed or their pod is removed. Tokens are never written to the agent's disk.
pub(super) struct Tokens {
    client: Client,
    clock: Arc<dyn Clock>,
    tokens: Mutex<HashMap<PodUid, HashMap<TokenNeed, IssuedToken>>>,
}

#[derive(Clone)]
struct IssuedToken {
    token: Confidential,
    expires: Time,
    lifetime: Duration,
    /// How much earlier this token is renewed.
    jitter: Duration,
}

impl Tokens {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Tokens { client, clock, tokens: Mutex::default() }
    }

    /// A valid token of the pod's service account.
    pub(super) async fn get(&self, pod: &PodObject, need: &TokenNeed) -> Result<Confidential, ObjectError> {
        let issued = self.tokens.lock().get(pod.uid()).and_then(|tokens| tokens.get(need)).cloned();
        let now = self.clock.now();
        let (old, is_valid) = match issued {
            Some(old) if !needs_renewal(now, old.expires, old.lifetime, old.jitter) => return Ok(old.token),
            Some(old) => (Some(old.token), now < old.expires),
            None => (None, false),
        };
        match (self.request(pod, need).await, old) {
            (Ok(issued), _) => {
                let token = issued.token.clone();
                self.tokens.lock().entry(pod.uid().clone()).or_default().insert(need.clone(), issued);
                Ok(token)
            }
            (Err(error), Some(old)) if is_valid => {
                tracing::warn!(pod.uid = %pod.uid(), error = %error_chain(&error), "cannot renew a token; the old token is kept");
                Ok(old)
            }
            (Err(error), _) => Err(error),
        }
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        self.tokens.lock().remove(uid);
    }

    pub(super) fn retain(&self, keep: &dyn Fn(&PodUid) -> bool) {
        self.tokens.lock().retain(|uid, _| keep(uid));
    }

    async fn request(&self, pod: &PodObject, need: &TokenNeed) -> Result<IssuedToken, ObjectError> {
        let account = pod.spec().service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
        let api = Api::<ServiceAccount>::namespaced(self.client.clone(), pod.full_name().namespace());
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.full_name().name().to_owned()),
            uid: Some(pod.uid().to_string()),
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
        Ok(IssuedToken {
            token: token.into_bytes().into(),
            expires: Time::from_timestamp(expires.0),
            lifetime: Duration::from_secs(seconds.try_into().unwrap_or_default()),
            jitter: MAX_JITTER.mul_f64(f64::from(jitter(pod.uid())) / f64::from(u8::MAX)),
        })
    }
}

/// A number that differs between pods.
fn jitter(uid: &PodUid) -> u8 {
    uid.to_string().bytes().fold(0, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(byte))
}
