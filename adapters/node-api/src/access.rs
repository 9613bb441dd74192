//! Decides who may send a request. A client certificate or a bearer token authenticates the user, and the API server authorizes the
//! user.
//!
//! ```text
//!  certificate ──> ClientAuthority ─┐
//!  token ──> cache ──> TokenReview ─┴─> User ──> attributes ──> cache ──> SubjectAccessReview ──> admitted
//!                       `─> 401                                                  `─> 403
//! ```
//!
//! There is no anonymous access.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use axum::http::{HeaderMap, Method};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures_util::future::BoxFuture;
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use k8s_openapi::api::authorization::v1::{SubjectAccessReviewSpec, SubjectAccessReviewStatus};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use tokio::time::Instant;

use super::attributes::{StreamVerb, attributes};
use super::client_authority::ClientAuthority;
use super::expiring::ExpiringCache;
use super::reviews::{ReviewQueue, TooManyReviews};
use super::user::User;
use podwright_http_server::ClientAddress;
use podwright_metrics::NodeApiMetrics;
use podwright_model::text::error_chain;
use podwright_ports::ApiError;

/// How long the answer of a token review is cached, for valid and for invalid tokens (`authentication.webhook.cacheTTL` of
/// `KubeletConfiguration`, default of 1.36).
pub const TOKEN_TTL: Duration = Duration::from_secs(2 * 60);
/// How long a permission is cached (`authorization.webhook.cacheAuthorizedTTL`, same source).
pub const ALLOWED_TTL: Duration = Duration::from_secs(5 * 60);
/// How long a missing permission is cached (`authorization.webhook.cacheUnauthorizedTTL`, same source).
pub const DENIED_TTL: Duration = Duration::from_secs(30);
/// The most users, the most invalid tokens, and the most decisions, that are cached. A node has fewer clients.
const MAX_CACHED: usize = 4096;
/// The most bytes of a token. The token of a service account has about a thousand.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// The prefix of the WebSocket protocol in which a browser sends its bearer token, in base64 (`k8s.io/apiserver/pkg/authentication/request/websocket`).
pub(super) const WEBSOCKET_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// The token reviews and the access reviews of the API server.
pub trait Reviews: Send + Sync + 'static {
    /// Requests the review of a token, which names the user of the token.
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenReviewStatus, ApiError>>;

    /// Requests the review of the permission that `spec` names.
    fn access(&self, spec: SubjectAccessReviewSpec) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ApiError>>;
}

/// The user that the review of a token authenticates. `None` if the token is not valid.
fn authenticated(review: TokenReviewStatus) -> Option<User> {
    review.user.filter(|_| review.authenticated == Some(true)).map(User::of_review)
}

/// Whether a review permits the access.
fn is_permitted(review: &SubjectAccessReviewStatus) -> bool {
    review.allowed && review.denied != Some(true)
}

/// Why the gatekeeper refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request has no valid credentials.
    Unauthorized,
    /// The user does not have the permission that the request needs.
    Forbidden { user: String, verb: &'static str, subresources: Vec<&'static str> },
    /// The API server did not answer whether the user has the permission.
    Undecided { user: String, verb: &'static str, subresource: &'static str },
    /// The API server reviews too many tokens or permissions, of this client or of all.
    Busy,
}

impl From<TooManyReviews> for Refusal {
    fn from(TooManyReviews: TooManyReviews) -> Self {
        Refusal::Busy
    }
}

/// Decides who may send a request.
pub(super) struct Gatekeeper {
    node: String,
    reviews: Arc<dyn Reviews>,
    authority: Option<Arc<ClientAuthority>>,
    streams: StreamVerb,
    /// The users of tokens, by the digest of the token.
    users: Mutex<ExpiringCache<TokenDigest, User>>,
    /// Tokens that are not valid. Clients with random tokens displace no user.
    invalid: Mutex<ExpiringCache<TokenDigest, ()>>,
    decisions: Mutex<ExpiringCache<Permission, bool>>,
    /// The reviews of tokens, by the address of the client.
    token_reviews: ReviewQueue<TokenDigest, Option<ClientAddress>, Result<Option<User>, String>>,
    /// The reviews of permissions, by the user.
    access_reviews: ReviewQueue<Permission, User, Result<bool, String>>,
}

/// A user, a verb and a subresource of the node.
type Permission = (User, &'static str, &'static str);

/// The SHA-256 digest of a token. The memory of the agent then contains no tokens of other users.
type TokenDigest = [u8; 32];

impl Gatekeeper {
    /// A gatekeeper for the node of this name. Without an authority, clients cannot authenticate by certificates.
    pub(super) fn new(
        node: &str,
        reviews: Arc<dyn Reviews>,
        authority: Option<Arc<ClientAuthority>>,
        streams: StreamVerb,
        metrics: &NodeApiMetrics,
    ) -> Self {
        Gatekeeper {
            node: node.to_owned(),
            reviews,
            authority,
            streams,
            users: Mutex::new(ExpiringCache::new(MAX_CACHED)),
            invalid: Mutex::new(ExpiringCache::new(MAX_CACHED)),
            decisions: Mutex::new(ExpiringCache::new(MAX_CACHED)),
            token_reviews: ReviewQueue::new(metrics.clone()),
            access_reviews: ReviewQueue::new(metrics.clone()),
        }
    }

    /// Finds the user of a request and checks the user's permission.
    ///
    /// # Errors
    /// [`Refusal`] if the request must not be answered.
    pub(super) async fn admit(
        &self,
        client: Option<ClientAddress>,
        peer: &[CertificateDer<'static>],
        headers: &HeaderMap,
        method: &Method,
        path: &str,
    ) -> Result<User, Refusal> {
        let user = self.user(client, peer, headers).await?.ok_or(Refusal::Unauthorized)?;
        let needed = attributes(method, path, self.streams);
        for subresource in &needed.subresources {
            match self.is_allowed(&user, needed.verb, subresource).await? {
                Ok(true) => return Ok(user),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(
                        user = user.name,
                        error,
                        "the API server does not authorize a client of the node API"
                    );
                    return Err(Refusal::Undecided { user: user.name, verb: needed.verb, subresource });
                }
            }
        }
        tracing::debug!(user = user.name, verb = needed.verb, path, "refused a client of the node API");
        Err(Refusal::Forbidden { user: user.name, verb: needed.verb, subresources: needed.subresources })
    }

    /// The user of the client certificate. Without a valid certificate, the user of the bearer token.
    async fn user(
        &self,
        client: Option<ClientAddress>,
        peer: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<Option<User>, TooManyReviews> {
        if let Some(user) = self.authority.as_ref().and_then(|authority| authority.user(peer)) {
            return Ok(Some(user));
        }
        let Some(token) = token(headers) else { return Ok(None) };
        let key = token_digest(&token);
        let known = self.users.lock().get(&key, Instant::now());
        if let Some(user) = known {
            return Ok(Some(user));
        }
        if self.invalid.lock().get(&key, Instant::now()).is_some() {
            return Ok(None);
        }
        let reviews = self.reviews.clone();
        let review = async move {
            let answer = reviews.token(&token).await;
            answer.map(authenticated).map_err(|error| error_chain(&error).to_string())
        };
        match self.token_reviews.answer(key, client, review).await? {
            Ok(Some(user)) => {
                self.users.lock().insert(key, user.clone(), TOKEN_TTL, Instant::now());
                Ok(Some(user))
            }
            Ok(None) => {
                self.invalid.lock().insert(key, (), TOKEN_TTL, Instant::now());
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(error, "the API server does not authenticate a client of the node API");
                Ok(None)
            }
        }
    }

    /// Whether a user has a permission, or the error of the API server.
    async fn is_allowed(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<Result<bool, String>, TooManyReviews> {
        let key = (user.clone(), verb, subresource);
        let known = self.decisions.lock().get(&key, Instant::now());
        if let Some(allowed) = known {
            return Ok(Ok(allowed));
        }
        let (reviews, spec) = (self.reviews.clone(), user.review(&self.node, verb, subresource));
        let review = async move {
            let answer = reviews.access(spec).await;
            answer.map(|review| is_permitted(&review)).map_err(|error| error_chain(&error).to_string())
        };
        let answer = self.access_reviews.answer(key.clone(), user.clone(), review).await?;
        if let Ok(allowed) = answer {
            let life = if allowed { ALLOWED_TTL } else { DENIED_TTL };
            self.decisions.lock().insert(key, allowed, life, Instant::now());
        }
        Ok(answer)
    }
}

fn token_digest(token: &str) -> TokenDigest {
    let mut sum = TokenDigest::default();
    sum.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    sum
}

/// The bearer token of a request, in its `Authorization` header (RFC 6750, section 2.1) or among the protocols of a WebSocket.
fn token(headers: &HeaderMap) -> Option<String> {
    let of_header = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
    });
    let token = of_header.or_else(|| {
        let protocols = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
        let encoded =
            protocols.flat_map(|list| list.split(',')).find_map(|it| it.trim().strip_prefix(WEBSOCKET_TOKEN))?;
        String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('=')).ok()?).ok()
    });
    token.filter(|token| !token.is_empty() && token.len() <= MAX_TOKEN_BYTES)
}

#[cfg(test)]
mod tests;
