//! Elections against a lease in memory, in paused time.

mod failures;
mod model;
mod other_writers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use parking_lot::Mutex;
use podwright_model::time::Time;
use podwright_ports::{ApiError, ApiFuture, Clock, LeaseApi};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::*;

const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(10);
/// The longest time between two attempts of a replica that follows.
const LONGEST_RETRY: Duration = Duration::from_millis(4400);
/// Longer than any wait of a test.
const PATIENCE: Duration = Duration::from_secs(120);

fn name() -> LeaseName {
    LeaseName { namespace: "kube-system".to_owned(), name: "resourceclaim-controller".to_owned() }
}

/// The lease of the server.
#[derive(Clone, Debug, Default)]
struct Server {
    lease: Option<Lease>,
    version: u64,
}

impl Server {
    fn read(&self) -> Result<Lease, CallFailure> {
        self.lease.clone().ok_or(CallFailure::NotFound)
    }

    fn create(&mut self, lease: &Lease) -> Result<Lease, CallFailure> {
        match self.lease {
            Some(_) => Err(CallFailure::Conflict),
            None => Ok(self.store(lease)),
        }
    }

    fn replace(&mut self, lease: &Lease) -> Result<Lease, CallFailure> {
        let stored = self.read()?;
        match stored.metadata.resource_version == lease.metadata.resource_version {
            true => Ok(self.store(lease)),
            false => Err(CallFailure::Conflict),
        }
    }

    fn store(&mut self, lease: &Lease) -> Lease {
        self.version += 1;
        let mut lease = lease.clone();
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        lease
    }

    fn perform(&mut self, call: &Call) -> Result<Lease, CallFailure> {
        match call {
            Call::Read => self.read(),
            Call::Create(lease) => self.create(lease),
            Call::Renew(lease) | Call::Replace(lease) | Call::Release(lease) => self.replace(lease),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Link {
    #[default]
    Good,
    /// Each call fails, and is not performed.
    Down,
    /// The namespace of the lease does not exist.
    NoNamespace,
    /// Each call is performed, and has no answer.
    LosesAnswers,
}

/// The connection of one replica to the server.
#[derive(Clone, Default)]
struct FakeLeaseApi {
    server: Arc<Mutex<Server>>,
    link: Arc<Mutex<Link>>,
    calls: Arc<AtomicU64>,
}

impl FakeLeaseApi {
    fn call<'a>(
        &'a self,
        call: impl FnOnce(&mut Server) -> Result<Lease, CallFailure> + Send + 'a,
    ) -> ApiFuture<'a, Lease> {
        async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let link = *self.link.lock();
            if link == Link::Down {
                return Err(ApiError::unavailable("the server cannot be reached", None));
            }
            if link == Link::NoNamespace {
                return Err(ApiError::NotFound);
            }
            let answer = call(&mut self.server.lock());
            if link == Link::LosesAnswers {
                std::future::pending::<()>().await;
            }
            answer.map_err(|failure| match failure {
                CallFailure::NotFound => ApiError::NotFound,
                CallFailure::Conflict => ApiError::conflict("another version"),
                CallFailure::Other => ApiError::refused("forbidden"),
            })
        }
        .boxed()
    }
}

impl LeaseApi for FakeLeaseApi {
    fn read(&self) -> ApiFuture<'_, Lease> {
        self.call(|server| server.read())
    }

    fn create<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease> {
        self.call(|server| server.create(lease))
    }

    fn replace<'a>(&'a self, lease: &'a Lease) -> ApiFuture<'a, Lease> {
        self.call(|server| server.replace(lease))
    }
}

/// A wall clock that a test sets.
struct WallClock(AtomicU64);

impl WallClock {
    fn at(seconds: u64) -> Arc<Self> {
        Arc::new(WallClock(AtomicU64::new(seconds)))
    }
}

impl Clock for WallClock {
    fn now(&self) -> Time {
        Time::from_secs(self.0.load(Ordering::Relaxed))
    }
}

/// A replica that takes part in the election.
struct Replica {
    api: FakeLeaseApi,
    wall: Arc<WallClock>,
    leadership: watch::Receiver<Leadership>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(server: &Arc<Mutex<Server>>, identity: &str) -> Self {
        let api = FakeLeaseApi { server: server.clone(), ..FakeLeaseApi::default() };
        let wall = WallClock::at(1_800_000_000);
        let elector =
            Elector::new(Arc::new(api.clone()), Candidate::new(identity, name(), Timing::default()), wall.clone());
        let (leadership, stop) = (elector.leadership(), CancellationToken::new());
        let task = tokio::spawn(elector.run(stop.clone()));
        Replica { api, wall, leadership, stop, task }
    }

    fn set_link(&self, link: Link) {
        *self.api.link.lock() = link;
    }

    fn leads(&self) -> bool {
        self.leadership.borrow().is_leading()
    }

    /// Waits until the replica leads, or does not lead, and returns how long that took.
    async fn until(&self, leads: bool) -> Duration {
        let started = Instant::now();
        let mut leadership = self.leadership.clone();
        let wait = leadership.wait_for(|leadership| leadership.is_leading() == leads);
        timeout(PATIENCE, wait).await.expect("the leadership changes").unwrap();
        started.elapsed()
    }
}

fn spec(server: &Mutex<Server>) -> LeaseSpec {
    server.lock().lease.clone().unwrap().spec.unwrap()
}

#[tokio::test(start_paused = true)]
async fn first_replica_leads_at_once_and_keeps_the_lease() {
    let server = Arc::default();
    let one = Replica::start(&server, "one");
    assert!(one.until(true).await < Duration::from_secs(1));
    let first = spec(&server);
    assert_eq!((first.holder_identity.as_deref(), first.lease_duration_seconds), (Some("one"), Some(15)));
    assert_eq!(first.lease_transitions, Some(0));
    let two = Replica::start(&server, "two");
    one.wall.0.fetch_add(100, Ordering::Relaxed);
    sleep(Duration::from_secs(100)).await;
    assert!(one.leads() && !two.leads());
    let last = spec(&server);
    assert_eq!(last.acquire_time, first.acquire_time, "the holder is the same");
    assert!(last.renew_time > first.renew_time);
    assert_eq!(last.lease_transitions, Some(0));
    let renewals = one.api.calls.load(Ordering::Relaxed);
    assert!((50..54).contains(&renewals), "one call every 2 s: {renewals}");
    let Leadership::Following { holder, problem, .. } = two.leadership.borrow().clone() else { panic!() };
    assert_eq!((holder.as_deref(), problem), (Some("one"), None));
}

#[tokio::test(start_paused = true)]
async fn stopped_leader_gives_the_lease_to_the_next_attempt() {
    let server = Arc::default();
    let one = Replica::start(&server, "one");
    one.until(true).await;
    let two = Replica::start(&server, "two");
    sleep(Duration::from_secs(9)).await;
    one.stop.cancel();
    one.task.await.unwrap();
    assert!(!one.leadership.borrow().is_leading());
    let free = spec(&server);
    assert_eq!((free.holder_identity.as_deref(), free.lease_duration_seconds), (Some(""), Some(1)));
    assert!(two.until(true).await <= LONGEST_RETRY);
    assert_eq!(spec(&server).lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn stopped_follower_leaves_the_lease_of_the_leader() {
    let server = Arc::default();
    let one = Replica::start(&server, "one");
    one.until(true).await;
    let two = Replica::start(&server, "two");
    sleep(Duration::from_secs(5)).await;
    two.stop.cancel();
    two.task.await.unwrap();
    assert_eq!(spec(&server).holder_identity.as_deref(), Some("one"));
    sleep(LEASE).await;
    assert!(one.leads());
}

/// An attempt of a candidate, or the end of its work.
fn attempt(candidate: &mut Candidate, server: &mut Server, event: Event) {
    let now = Moment { local: Time::from_secs(100), wall: Time::from_secs(1_800_000_000) };
    let mut next = candidate.step(event, now);
    while let Next::Call(call) = next {
        let answer = server.perform(&call).map(Box::new);
        next = candidate.step(Event::Answered { call, sent: now.local, answer }, now);
    }
}

#[test]
fn follower_knows_where_the_leader_is_reachable() {
    let mut server = Server::default();
    let address = "https://10.0.0.1:10255";
    let mut one = Candidate::new("one", name(), Timing::default()).with_address(Some(address.to_owned()));
    let mut two = Candidate::new("two", name(), Timing::default());
    attempt(&mut one, &mut server, Event::Due);
    attempt(&mut two, &mut server, Event::Due);
    assert_eq!((two.holder(), two.address_of_holder()), (Some("one"), Some(address)));
    attempt(&mut one, &mut server, Event::Release);
    attempt(&mut two, &mut server, Event::Due);
    assert_eq!((two.holder(), server.lease.unwrap().metadata.annotations), (Some("two"), None));
}

#[tokio::test(start_paused = true)]
async fn jumps_of_the_wall_clock_change_nothing() {
    let server = Arc::default();
    let one = Replica::start(&server, "one");
    one.until(true).await;
    let two = Replica::start(&server, "two");
    for (first, second) in [(1_900_000_000, 1), (1, 1_900_000_000), (1_800_000_000, 1_800_000_000)] {
        one.wall.0.store(first, Ordering::Relaxed);
        two.wall.0.store(second, Ordering::Relaxed);
        for _ in 0..60 {
            sleep(Duration::from_secs(1)).await;
            assert!(one.leads() && !two.leads());
        }
    }
    one.set_link(Link::Down);
    let took = two.until(true).await;
    assert!(took >= LEASE - LONGEST_RETRY, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn of_racing_replicas_one_leads() {
    for _ in 0..20 {
        let server = Arc::default();
        let replicas: Vec<_> = ["one", "two", "three"].map(|identity| Replica::start(&server, identity)).into();
        for _ in 0..80 {
            sleep(Duration::from_millis(500)).await;
            assert_eq!(replicas.iter().filter(|replica| replica.leads()).count(), 1);
        }
        assert_eq!(spec(&server).lease_transitions, Some(0));
        for replica in &replicas {
            replica.task.abort();
        }
    }
}

#[test]
fn durations_that_do_not_fit_are_refused() {
    let second = Duration::from_secs(1);
    let timing = |lease: u32, renew: u32, retry: u32| Timing {
        lease_duration: second * lease,
        renew_deadline: second * renew,
        retry_period: second * retry,
    };
    assert_eq!(Timing::default().fault(), None);
    let fraction = Timing { lease_duration: Duration::from_millis(15_500), ..Timing::default() };
    assert!(fraction.fault().unwrap().contains("whole number of seconds"));
    for (bad, text) in [
        (timing(10, 10, 2), "lease duration"),
        (timing(15, 2, 2), "1.2 times"),
        (timing(15, 10, 0), "longer than zero"),
    ] {
        assert!(bad.fault().unwrap().contains(text), "{bad:?}");
    }
}

/// A lease that is lost and taken again at once begins another term, and the guard of the calls follows it.
#[tokio::test(start_paused = true)]
async fn lease_that_is_lost_and_taken_again_begins_another_term() {
    let server: Arc<Mutex<Server>> = Arc::default();
    let api = FakeLeaseApi { server: server.clone(), ..FakeLeaseApi::default() };
    let link = api.link.clone();
    let elector = Elector::new(Arc::new(api), Candidate::new("one", name(), Timing::default()), WallClock::at(1));
    let (mut leadership, guard, stop) = (elector.leadership(), elector.guard(), CancellationToken::new());
    assert!(!guard.is_held());
    let task = tokio::spawn(elector.run(stop.clone()));
    leadership.wait_for(Leadership::is_leading).await.unwrap();
    assert_eq!(*leadership.borrow(), Leadership::Leading { term: 1 });
    assert!(guard.is_held());
    sleep(Duration::from_secs(60)).await;
    assert_eq!(*leadership.borrow(), Leadership::Leading { term: 1 }, "a renewal begins no term");
    *link.lock() = Link::Down;
    leadership.wait_for(|leadership| !leadership.is_leading()).await.unwrap();
    assert!(!guard.is_held());
    *link.lock() = Link::Good;
    leadership.wait_for(Leadership::is_leading).await.unwrap();
    assert_eq!(*leadership.borrow(), Leadership::Leading { term: 2 });
    assert!(guard.is_held() && guard.of_term(2).is_held());
    assert!(!guard.of_term(1).is_held(), "a call of the first term");
    stop.cancel();
    task.await.unwrap();
    assert!(!guard.is_held());
}
