//! A controller, the server, and watches that lag: what the tests of all orders share.

mod key;
mod laws;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use self::laws::Law;
use super::server::ServerEvent;
use super::*;
use crate::resource_claim::api::{Answer, ApiError, Request, StatusApply};
use crate::resource_claim::owners::{OwnerId, is_done};
use crate::resource_claim::pass::Pass;
use crate::resource_claim::table::WatchEvent;
use crate::resource_claim::unanswered::UnansweredCreates;

pub(super) use self::laws::consumers;

/// The kinds that are watched: pods, claims, templates and groups.
pub(super) const KINDS: usize = 4;
/// The kind of the claims.
pub(super) const CLAIMS: usize = 1;
/// The server performs a call at most this long after its answer was lost. The controller waits longer.
pub(super) const LATEST: Duration = Duration::from_secs(9);

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Performed,
    Refused,
    /// The call has no answer.
    Lost {
        is_performed: bool,
    },
    /// The call has no answer, and the server performs it later.
    Late,
}

#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) key: Key,
    pass: Pass,
    pub(super) request: Request,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) core: Core,
    pub(super) server: Server,
    pub(super) now: Time,
    /// What each watch has not shown.
    pub(super) hidden: [VecDeque<ServerEvent>; KINDS],
    pub(super) queue: BTreeSet<Key>,
    pub(super) running: Vec<Running>,
    /// The claims in the list that the watch of claims reads, as the server has sent them.
    pub(super) listing: Option<Vec<ResourceClaim>>,
    /// Calls that the server has not performed yet, and when it gives them up.
    pub(super) late: Vec<(Time, Request)>,
    /// The first law that was broken.
    pub(super) broken: Option<String>,
}

fn kind_of(object: &Object) -> usize {
    match object {
        Object::Pod(_) => 0,
        Object::Claim(_) => CLAIMS,
        Object::Template(_) => 2,
        Object::Group(_) => 3,
    }
}

impl World {
    /// A controller that has just begun its first term.
    pub(super) fn new(objects: impl IntoIterator<Item = Object>) -> Self {
        let mut world = World {
            core: Core::new(GROUPS),
            server: Server::default(),
            now: Time::from_secs(1_000),
            hidden: Default::default(),
            queue: BTreeSet::new(),
            running: Vec::new(),
            listing: None,
            late: Vec::new(),
            broken: None,
        };
        objects.into_iter().for_each(|object| world.server.put(object));
        world.begin_term(UnansweredCreates::default());
        world
    }

    fn check(&mut self, law: Law) {
        if let Err(broken) = law {
            self.broken.get_or_insert(broken);
        }
    }

    pub(super) fn collect_events(&mut self) {
        for event in self.server.take_events() {
            self.hidden[kind_of(&event.object)].push_back(event);
        }
    }

    pub(super) fn show(&mut self, kind: usize) {
        // The watch shows the changes since the list after the list.
        let is_listing = kind == CLAIMS && self.listing.is_some();
        if !is_listing && let Some(event) = self.hidden[kind].pop_front() {
            self.queue.extend(event.show(&mut self.core, self.now));
        }
    }

    /// A watch lists all objects of a kind anew.
    pub(super) fn list(&mut self, kind: usize) {
        if kind == CLAIMS {
            self.begin_list();
            return self.end_list();
        }
        self.hidden[kind].clear();
        let keys = match kind {
            0 => list(&mut self.core, self.server.pods.values(), Core::pod_event),
            2 => list(&mut self.core, self.server.templates.values(), Core::template_event),
            _ => list(&mut self.core, self.server.groups.values(), Core::pod_group_event),
        };
        self.queue.extend(keys);
    }

    /// The watch of claims begins a list, and the server reads its claims.
    pub(super) fn begin_list(&mut self) {
        self.hidden[CLAIMS].clear();
        self.listing = Some(self.server.claims.values().cloned().collect());
        self.queue.extend(self.core.claim_event(WatchEvent::Init, self.now));
        // No create is sent at the same time as the list, so that their order is known.
        self.now = self.now + Duration::from_nanos(1);
    }

    /// The list arrives.
    pub(super) fn end_list(&mut self) {
        let Some(claims) = self.listing.take() else { return };
        let listed = claims.into_iter().map(|claim| WatchEvent::InitApply(Arc::new(claim)));
        for event in listed.chain([WatchEvent::InitDone]) {
            self.queue.extend(self.core.claim_event(event, self.now));
        }
    }

    /// Another process takes over. The calls in flight are performed in time, or never.
    pub(super) fn restart(&mut self, are_performed: bool) {
        self.drop_passes(are_performed);
        // The new process does not know these calls. A claim that the server creates after its first list may be a second one.
        self.pass_time(LATEST);
        self.begin_term(UnansweredCreates::default());
    }

    /// The process loses its lease, and leads again.
    pub(super) fn next_term(&mut self, are_performed: bool) {
        let unanswered = self.core.unanswered_creates(self.now);
        self.drop_passes(are_performed);
        self.begin_term(unanswered);
    }

    /// All passes end. Their calls are performed later, or never.
    fn drop_passes(&mut self, are_performed: bool) {
        let requests = self.running.drain(..).map(|running| (self.now + LATEST, running.request));
        if are_performed {
            self.late.extend(requests.filter(|(_, request)| changes(request)));
        } else {
            drop(requests);
        }
    }

    /// A pass ends during its call, without a step for the answer. The call is performed later, or never.
    pub(super) fn lose_worker(&mut self, at: usize, is_performed: bool) {
        let Running { key, request, .. } = self.running.remove(at);
        self.queue.insert(key);
        if is_performed && changes(&request) {
            self.late.push((self.now + LATEST, request));
        }
    }

    /// The server performs a late call in time.
    pub(super) fn perform_late(&mut self, at: usize) {
        if at < self.late.len() {
            let (_, request) = self.late.remove(at);
            let _ = self.perform(&request, true);
        }
    }

    pub(super) fn pass_time(&mut self, time: Duration) {
        let now = self.now + time;
        while let Some(at) = self.late.iter().position(|(until, _)| *until <= now) {
            self.perform_late(at);
        }
        self.now = now;
    }

    pub(super) fn begin_term(&mut self, unanswered: UnansweredCreates) {
        self.core = Core::new(GROUPS).with_unanswered(unanswered);
        self.listing = None;
        self.collect_events();
        (0..KINDS).for_each(|kind| self.list(kind));
        assert!(self.core.is_synced());
        self.running.clear();
        self.queue = self.core.all_keys().into_iter().collect();
    }

    /// The keys that a worker may take.
    pub(super) fn idle(&self) -> impl Iterator<Item = &Key> {
        self.queue.iter().filter(|key| self.running.iter().all(|running| running.key != **key))
    }

    pub(super) fn begin(&mut self, key: Key) {
        self.queue.remove(&key);
        let mut pass = self.core.begin(&key);
        let step = pass.step(&mut self.core, None, self.now);
        self.stepped(key, pass, step);
    }

    fn stepped(&mut self, key: Key, pass: Pass, step: Step) {
        match step {
            Step::Call(request) => {
                self.check(self.check_request(&request));
                self.running.push(Running { key, pass, request });
            }
            Step::Done(Report { result: Ok(()), .. }) => {}
            Step::Done(Report { result: Err(_), .. }) => {
                self.queue.insert(key);
            }
        }
    }

    pub(super) fn step(&mut self, at: usize, outcome: Outcome) {
        let Running { key, mut pass, request } = self.running.remove(at);
        let answer = match outcome {
            Outcome::Performed => self.perform(&request, false),
            Outcome::Refused => Err(server::error(ApiErrorKind::Refused)),
            Outcome::Lost { is_performed } => {
                if is_performed {
                    let _ = self.perform(&request, false);
                }
                Err(server::error(ApiErrorKind::Unknown))
            }
            Outcome::Late => {
                if changes(&request) {
                    self.late.push((self.now + LATEST, request));
                }
                Err(server::error(ApiErrorKind::Unknown))
            }
        };
        let step = pass.step(&mut self.core, Some(answer), self.now);
        self.stepped(key, pass, step);
    }

    fn perform(&mut self, request: &Request, is_late: bool) -> Result<Answer, ApiError> {
        let (pods, claims) = (self.server.pods.clone(), self.server.claims.clone());
        let answer = self.server.perform(request);
        self.collect_events();
        // A write of a status has no version. So a late one may replace a newer one, and the next pass repeats that.
        if answer.is_ok() && !(is_late && matches!(request, Request::ApplyStatus(_))) {
            self.check(self.check_effect(request, &pods, &claims));
        }
        answer
    }

    /// The watches catch up, and nothing fails any more.
    pub(super) fn settle(&mut self) {
        self.pass_time(LATEST);
        self.end_list();
        for _ in 0..2_000 {
            for kind in 0..KINDS {
                while !self.hidden[kind].is_empty() {
                    self.show(kind);
                }
            }
            if !self.running.is_empty() {
                self.step(0, Outcome::Performed);
            } else if let Some(key) = self.queue.first().cloned() {
                // The results of creates become known with time.
                self.pass_time(Duration::from_secs(1));
                self.begin(key);
            } else {
                self.check(self.check_rest());
                return;
            }
        }
        self.check(Err(format!("the controller does not come to rest: {:?}", self.queue)));
    }
}

/// Whether a call changes something on the server.
fn changes(request: &Request) -> bool {
    match request {
        Request::CreateClaim(_) | Request::ApplyStatus(_) | Request::ChangeClaim(_) | Request::DeleteClaim { .. } => {
            true
        }
        Request::GetClaim(_) | Request::GetPod(_) | Request::GetPodGroup(_) | Request::ListClaims { .. } => false,
    }
}

fn list<'a, T: Clone + 'a>(
    core: &mut Core,
    objects: impl Iterator<Item = &'a T>,
    event: fn(&mut Core, WatchEvent<T>) -> Vec<Key>,
) -> Vec<Key> {
    let mut keys = event(core, WatchEvent::Init);
    objects.for_each(|object| keys.extend(event(core, WatchEvent::InitApply(Arc::new(object.clone())))));
    keys.extend(event(core, WatchEvent::InitDone));
    keys
}
