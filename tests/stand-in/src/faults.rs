//! Faults that tests set: refusals, delays and dropped connections of requests, and delays of watch events.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;

use crate::call::Verb;
use crate::refusal::Refusal;

/// The attributes of a request by which a fault selects it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestInfo {
    /// The HTTP method.
    pub method: String,
    /// The path without the options.
    pub path: String,
    /// The options behind the `?`.
    pub query: String,
    /// The user, empty for a request without a known credential.
    pub user: String,
    /// The verb, where the path names a resource.
    pub verb: Option<Verb>,
    /// The plural of the resource, with the path below the object: `pods/status`. Empty for other paths.
    pub resource: String,
    /// The namespace of the path.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The media type of the body.
    pub content_type: String,
}

/// A fault of a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The request waits until [`Faults::release`] and is then processed.
    Stall,
    /// The server answers with this refusal, and does nothing.
    Refuse(Refusal),
    /// The connection is closed before the request is processed.
    DropBefore,
    /// The connection is closed after the request has been processed, without an answer.
    DropAfter,
    /// The request is processed, and the server answers with this refusal all the same.
    RefuseAfter(Refusal),
    /// The request is processed after this time.
    Delay(Duration),
    /// The request is processed at once, and answered after this time.
    DelayAfter(Duration),
}

impl Fault {
    /// The server answers with a status code.
    #[must_use]
    pub fn status(code: u16) -> Self {
        let reason = match code {
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "InternalError",
        };
        Self::Refuse(Refusal::plain(code, reason, format!("an injected fault answers {code}")))
    }

    /// The server answers 429 with the header `Retry-After`.
    #[must_use]
    pub fn too_many_requests(retry_after_seconds: u64) -> Self {
        let message = "the server has received too many requests and has asked us to try again later";
        Self::Refuse(Refusal::too_many_requests(message, retry_after_seconds))
    }
}

type Hook = Box<dyn FnMut(&RequestInfo) -> Option<Fault> + Send>;
type HangUpHook = Box<dyn FnMut(&RequestInfo) -> bool + Send>;

/// The requests that a fault hits. Every attribute that is set must match.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    verb: Option<Verb>,
    resource: Option<String>,
    name: Option<String>,
    user: Option<String>,
    skip: usize,
    times: Option<usize>,
    percent: Option<u8>,
    /// The sum of the percentages of the requests since the last hit.
    shares: usize,
}

impl Rule {
    /// A rule that every request matches.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only requests with this verb.
    #[must_use]
    pub fn verb(mut self, verb: Verb) -> Self {
        self.verb = Some(verb);
        self
    }

    /// Only requests to this resource, `pods` or `pods/status`.
    #[must_use]
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// Only requests to an object of this name.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Only requests of this user.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    /// Lets the first matching requests pass.
    #[must_use]
    pub fn skip(mut self, requests: usize) -> Self {
        self.skip = requests;
        self
    }

    /// Ends after this many requests.
    #[must_use]
    pub fn times(mut self, requests: usize) -> Self {
        self.times = Some(requests);
        self
    }

    /// Only this percentage of the matching requests, evenly distributed: 50 selects every second request.
    #[must_use]
    pub fn percent(mut self, percent: u8) -> Self {
        self.percent = Some(percent.min(100));
        self
    }

    fn hits(&mut self, request: &RequestInfo) -> bool {
        let is = |rule: &Option<String>, text: &str| rule.as_ref().is_none_or(|rule| rule == text);
        let matches = self.verb.is_none_or(|verb| request.verb == Some(verb))
            && is(&self.resource, &request.resource)
            && is(&self.name, &request.name)
            && is(&self.user, &request.user);
        if !matches || self.times == Some(0) {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if let Some(percent) = self.percent {
            self.shares += usize::from(percent);
            if self.shares < 100 {
                return false;
            }
            self.shares -= 100;
        }
        self.times = self.times.map(|times| times - 1);
        true
    }
}

/// The faults of one server.
#[derive(Default)]
pub struct Faults {
    hooks: Mutex<Vec<Hook>>,
    hang_ups: Mutex<Option<HangUpHook>>,
    latency: Mutex<Duration>,
    lags: Mutex<BTreeMap<String, Duration>>,
    /// The resources whose streaming lists do not end.
    endless: Mutex<BTreeSet<String>>,
    stalled: tokio::sync::Notify,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("hooks", &self.hooks.lock().len()).finish_non_exhaustive()
    }
}

impl Faults {
    /// Decides for every request. The first hook that returns a fault wins.
    pub fn on(&self, hook: impl FnMut(&RequestInfo) -> Option<Fault> + Send + 'static) {
        self.hooks.lock().push(Box::new(hook));
    }

    /// Applies a fault to the requests that match a rule.
    pub fn inject(&self, mut rule: Rule, fault: Fault) {
        self.on(move |request| rule.hits(request).then(|| fault.clone()));
    }

    /// Decides for every write whose client has gone before the server processed it. If the hook returns true, the server processes the
    /// write at once. Without a hook, it processes no such write. A real server may do either.
    pub fn on_hang_up(&self, hook: impl FnMut(&RequestInfo) -> bool + Send + 'static) {
        *self.hang_ups.lock() = Some(Box::new(hook));
    }

    /// Ends all faults, and lets stalled requests go on.
    pub fn clear(&self) {
        self.hooks.lock().clear();
        *self.hang_ups.lock() = None;
        *self.latency.lock() = Duration::ZERO;
        self.lags.lock().clear();
        self.end_lists();
        self.release();
    }

    /// Lets the requests go on that are stalled now.
    pub fn release(&self) {
        self.stalled.notify_waiters();
    }

    /// Delays every request.
    pub fn set_latency(&self, latency: Duration) {
        *self.latency.lock() = latency;
    }

    /// Delays the watch events of a resource. Resources with different lags overtake each other.
    pub fn set_lag(&self, plural: &str, lag: Duration) {
        self.lags.lock().insert(plural.to_owned(), lag);
    }

    /// The end of a streaming list of a resource comes only after [`Faults::end_lists`]. The changes since the beginning of the list come
    /// before it, as from a server whose cache is behind.
    pub fn hold_list_ends(&self, plural: &str) {
        self.endless.lock().insert(plural.to_owned());
    }

    /// Lets the streaming lists end whose ends are held, with the next change of any object.
    pub fn end_lists(&self) {
        self.endless.lock().clear();
    }

    pub(crate) fn holds_list_end(&self, plural: &str) -> bool {
        self.endless.lock().contains(plural)
    }

    pub(crate) fn lag(&self, plural: &str) -> Duration {
        self.lags.lock().get(plural).copied().unwrap_or_default()
    }

    pub(crate) fn latency(&self) -> Duration {
        *self.latency.lock()
    }

    pub(crate) fn decide(&self, request: &RequestInfo) -> Option<Fault> {
        self.hooks.lock().iter_mut().find_map(|hook| hook(request))
    }

    /// Whether a write is processed whose client has gone.
    pub(crate) fn outlives_client(&self, request: &RequestInfo) -> bool {
        self.hang_ups.lock().as_mut().is_some_and(|hook| hook(request))
    }

    pub(crate) async fn stall(&self) {
        self.stalled.notified().await;
    }
}
