//! Requests token reviews and access reviews from the API server, for the clients of the node API.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use podwright_ports::ApiError;
use tokio::time::sleep;

use super::call::limited_to;

/// The timeout of one call (upstream `DelegatingAuthenticatorConfig.TokenAccessReviewTimeout`, 1.36).
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How many times a call is made if the API server does not perform it, and the first pause between two calls (upstream
/// `DefaultAuthWebhookRetryBackoff`, 1.36). Each pause is longer by half.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// Token reviews and access reviews of an API server.
#[derive(Clone)]
pub struct KubeReviews {
    tokens: Api<TokenReview>,
    accesses: Api<SubjectAccessReview>,
}

impl KubeReviews {
    /// Calls over a client with the rights of a node.
    pub fn new(client: Client) -> Self {
        KubeReviews { tokens: Api::all(client.clone()), accesses: Api::all(client) }
    }

    /// Requests the review of a token, which names the user of the token.
    ///
    /// # Errors
    /// [`ApiError`] if the API server does not answer.
    pub async fn token(&self, token: &str) -> Result<TokenReviewStatus, ApiError> {
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let params = PostParams::default();
        let answer = repeated(|| self.tokens.create(&params, &review)).await?;
        Ok(answer.status.unwrap_or_default())
    }

    /// Requests the review of a permission of a user.
    ///
    /// # Errors
    /// [`ApiError`] if the API server does not answer.
    pub async fn access(&self, spec: SubjectAccessReviewSpec) -> Result<SubjectAccessReviewStatus, ApiError> {
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let params = PostParams::default();
        let answer = repeated(|| self.accesses.create(&params, &review)).await?;
        Ok(answer.status.unwrap_or_default())
    }
}

/// Makes a call until the API server performs or refuses it. A review changes nothing, so it may be repeated.
async fn repeated<T, F: Future<Output = kube::Result<T>>>(call: impl Fn() -> F) -> Result<T, ApiError> {
    let mut pause = PAUSE;
    for _ in 1..ATTEMPTS {
        match limited_to(CALL_TIMEOUT, call()).await {
            Err(ApiError::Unavailable { .. }) => sleep(pause).await,
            answer => return answer,
        }
        pause = pause * 3 / 2;
    }
    limited_to(CALL_TIMEOUT, call()).await
}
