use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use k8s_openapi::api::authentication::v1::UserInfo;
use tokio::time::{advance, sleep};

use super::*;

/// An API server that knows only the token `good`, and permits only `get` on one subresource.
#[derive(Default)]
struct FakeReviews {
    permits: &'static str,
    is_away: bool,
    tokens: AtomicUsize,
    accesses: AtomicUsize,
}

fn eve() -> User {
    User::of_review(UserInfo { username: Some("eve".into()), ..UserInfo::default() })
}

impl Reviews for FakeReviews {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenReviewStatus, ApiError>> {
        self.tokens.fetch_add(1, Ordering::Relaxed);
        let is_known = token == "good";
        let user = is_known.then(|| UserInfo { username: Some("eve".into()), ..UserInfo::default() });
        let review = TokenReviewStatus { authenticated: Some(is_known), user, ..TokenReviewStatus::default() };
        Box::pin(std::future::ready(Ok(review)))
    }

    fn access(&self, spec: SubjectAccessReviewSpec) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ApiError>> {
        self.accesses.fetch_add(1, Ordering::Relaxed);
        let requested = spec.resource_attributes.unwrap_or_default();
        let allowed = requested.verb.as_deref() == Some("get")
            && requested.name.as_deref() == Some("n1")
            && requested.subresource.as_deref() == Some(self.permits);
        let review = SubjectAccessReviewStatus { allowed, ..SubjectAccessReviewStatus::default() };
        let answer = if self.is_away { Err(ApiError::unavailable("away", None)) } else { Ok(review) };
        Box::pin(std::future::ready(answer))
    }
}

fn gatekeeper(reviews: FakeReviews) -> (Arc<FakeReviews>, Gatekeeper) {
    let reviews = Arc::new(reviews);
    (reviews.clone(), Gatekeeper::new("n1", reviews, None, StreamVerb::OfMethod, &NodeApiMetrics::default()))
}

fn headers(authorization: &str) -> HeaderMap {
    HeaderMap::from_iter([(AUTHORIZATION, authorization.parse().unwrap())])
}

async fn get(gatekeeper: &Gatekeeper, authorization: &str, path: &str) -> Result<User, Refusal> {
    gatekeeper.admit(None, &[], &headers(authorization), &Method::GET, path).await
}

/// Requests the pods from the address 10.0.0.`last`.
async fn pods_from(gatekeeper: &Gatekeeper, last: u8, authorization: &str) -> Result<User, Refusal> {
    let client = Some(ClientAddress::from(std::net::IpAddr::from([10, 0, 0, last])));
    gatekeeper.admit(client, &[], &headers(authorization), &Method::GET, "/pods").await
}

#[tokio::test]
async fn a_request_without_valid_credentials_is_unauthorized() {
    let (reviews, gatekeeper) = gatekeeper(FakeReviews { permits: "proxy", ..FakeReviews::default() });
    for bad in ["", "Bearer", "Bearer ", "Basic good", "Bearer bad", "good"] {
        assert_eq!(get(&gatekeeper, bad, "/pods").await, Err(Refusal::Unauthorized), "{bad}");
    }
    let none = gatekeeper.admit(None, &[], &HeaderMap::new(), &Method::GET, "/pods").await;
    assert_eq!(none, Err(Refusal::Unauthorized));
    assert_eq!(reviews.tokens.load(Ordering::Relaxed), 1, "only a token is reviewed");
    assert_eq!(reviews.accesses.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn own_subresource_of_a_path_is_reviewed_before_the_proxy() {
    for (permits, path, admitted, reviewed) in [
        ("pods", "/pods", true, 1),
        ("proxy", "/pods", true, 2),
        ("proxy", "/exec/a/b/c", true, 1),
        ("pods", "/exec/a/b/c", false, 1),
        ("proxy", "/metrics", false, 1),
        ("metrics", "/metrics/resource", true, 1),
    ] {
        let (reviews, gatekeeper) = gatekeeper(FakeReviews { permits, ..FakeReviews::default() });
        let answer = get(&gatekeeper, "Bearer good", path).await;
        assert_eq!(answer.is_ok(), admitted, "{permits} {path}");
        assert_eq!(reviews.accesses.load(Ordering::Relaxed), reviewed, "{permits} {path}");
    }
    let (_, gatekeeper) = gatekeeper(FakeReviews::default());
    let refused = get(&gatekeeper, "bearer good", "/healthz").await;
    let subresources = vec!["healthz", "proxy"];
    assert_eq!(refused, Err(Refusal::Forbidden { user: "eve".into(), verb: "get", subresources }));
}

#[tokio::test(start_paused = true)]
async fn users_and_decisions_are_cached_for_the_times_of_a_kubelet() {
    let (reviews, gatekeeper) = gatekeeper(FakeReviews { permits: "proxy", ..FakeReviews::default() });
    let count = || (reviews.tokens.load(Ordering::Relaxed), reviews.accesses.load(Ordering::Relaxed));
    for _ in 0..3 {
        assert_eq!(get(&gatekeeper, "Bearer good", "/configz").await, Ok(eve()));
        assert!(get(&gatekeeper, "Bearer bad", "/configz").await.is_err());
    }
    assert_eq!(count(), (2, 2), "a token that is not valid is cached too");
    advance(DENIED_TTL).await;
    assert_eq!(get(&gatekeeper, "Bearer good", "/configz").await, Ok(eve()));
    assert_eq!(count(), (2, 3), "a missing permission is reviewed again");
    advance(TOKEN_TTL - DENIED_TTL).await;
    assert!(get(&gatekeeper, "Bearer good", "/run/a/b/c").await.is_ok());
    assert_eq!(count(), (3, 3));
    advance(ALLOWED_TTL - TOKEN_TTL).await;
    assert!(get(&gatekeeper, "Bearer good", "/run/a/b/c").await.is_ok());
    assert_eq!(count(), (4, 4), "a permission is reviewed again");
}

#[tokio::test]
async fn reviews_without_an_answer_permit_nothing_and_are_repeated() {
    let (reviews, gatekeeper) = gatekeeper(FakeReviews { permits: "proxy", is_away: true, ..FakeReviews::default() });
    for _ in 0..2 {
        let refused = get(&gatekeeper, "Bearer good", "/run/a/b/c").await;
        assert_eq!(refused, Err(Refusal::Undecided { user: "eve".into(), verb: "get", subresource: "proxy" }));
    }
    assert_eq!(reviews.accesses.load(Ordering::Relaxed), 2);
}

/// Answers a review after a second, and counts the reviews. It knows the token `good`, and permits everything.
#[derive(Default)]
struct SlowReviews {
    tokens: AtomicUsize,
    accesses: AtomicUsize,
}

impl Reviews for SlowReviews {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenReviewStatus, ApiError>> {
        self.tokens.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            sleep(Duration::from_secs(1)).await;
            let user = UserInfo { username: Some("eve".into()), ..UserInfo::default() };
            let authenticated = Some(token == "good");
            Ok(TokenReviewStatus { authenticated, user: Some(user), ..TokenReviewStatus::default() })
        })
    }

    fn access(&self, _: SubjectAccessReviewSpec) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ApiError>> {
        self.accesses.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {
            sleep(Duration::from_secs(1)).await;
            Ok(SubjectAccessReviewStatus { allowed: true, ..SubjectAccessReviewStatus::default() })
        })
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_user_at_a_time_share_the_reviews() {
    let reviews = Arc::new(SlowReviews::default());
    let gatekeeper = Gatekeeper::new("n1", reviews.clone(), None, StreamVerb::OfMethod, &NodeApiMetrics::default());
    let requests = (0..50).map(|_| get(&gatekeeper, "Bearer good", "/metrics"));
    assert!(join_all(requests).await.iter().all(Result::is_ok));
    assert_eq!((reviews.tokens.load(Ordering::Relaxed), reviews.accesses.load(Ordering::Relaxed)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn clients_with_random_tokens_do_not_keep_a_user_of_another_address_out() {
    let reviews = Arc::new(SlowReviews::default());
    let gatekeeper = Gatekeeper::new("n1", reviews.clone(), None, StreamVerb::OfMethod, &NodeApiMetrics::default());
    let random: Vec<String> = (0..100).map(|number| format!("Bearer token-{number}")).collect();
    let crowd = join_all(random.iter().map(|own| pods_from(&gatekeeper, 1, own)));
    let (refused, admitted) = tokio::join!(crowd, pods_from(&gatekeeper, 2, "Bearer good"));
    assert_eq!(admitted, Ok(eve()));
    let busy = refused.iter().filter(|answer| **answer == Err(Refusal::Busy)).count();
    let unauthorized = refused.iter().filter(|answer| **answer == Err(Refusal::Unauthorized)).count();
    assert_eq!((busy, unauthorized), (92, 8), "an address has eight reviews at a time");
    assert_eq!(reviews.tokens.load(Ordering::Relaxed), 9);
}

#[tokio::test]
async fn a_very_long_token_is_not_sent_to_the_api_server() {
    let (reviews, gatekeeper) = gatekeeper(FakeReviews { permits: "proxy", ..FakeReviews::default() });
    let long = format!("Bearer {}", "x".repeat(MAX_TOKEN_BYTES + 1));
    assert_eq!(get(&gatekeeper, &long, "/pods").await, Err(Refusal::Unauthorized));
    assert_eq!(reviews.tokens.load(Ordering::Relaxed), 0);
    assert!(get(&gatekeeper, &long[..long.len() - 1], "/pods").await.is_err());
    assert_eq!(reviews.tokens.load(Ordering::Relaxed), 1);
}

#[test]
fn only_a_review_that_says_so_authenticates_and_permits() {
    use serde_json::{from_value, json};
    let eve = json!({"username": "eve"});
    for (status, is_known) in [
        (json!({"authenticated": true, "user": eve}), true),
        (json!({"authenticated": false, "user": eve}), false),
        (json!({"user": eve}), false),
        (json!({"authenticated": true}), false),
        (json!({"error": "it broke"}), false),
    ] {
        assert_eq!(authenticated(from_value(status.clone()).unwrap()).is_some(), is_known, "{status}");
    }
    for (status, is_allowed) in [
        (json!({"allowed": true}), true),
        (json!({"allowed": true, "denied": false}), true),
        (json!({"allowed": true, "denied": true}), false),
        (json!({"allowed": false}), false),
        (json!({"allowed": false, "evaluationError": "it broke"}), false),
    ] {
        assert_eq!(is_permitted(&from_value(status.clone()).unwrap()), is_allowed, "{status}");
    }
}

#[test]
fn a_websocket_carries_its_token_among_its_protocols() {
    let of = |protocols: &str| token(&HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, protocols.parse().unwrap())]));
    let encoded = BASE64_URL_SAFE_NO_PAD.encode("good");
    assert_eq!(of(&format!("v5.channel.k8s.io, {WEBSOCKET_TOKEN}{encoded}")).as_deref(), Some("good"));
    assert_eq!(of("v5.channel.k8s.io"), None);
    assert_eq!(of(&format!("{WEBSOCKET_TOKEN}*")), None);
}
