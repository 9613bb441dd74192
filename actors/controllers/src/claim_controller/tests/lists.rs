//! The lists of claims that settle creates without an answer.

use futures_util::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use proptest::prelude::*;
use tokio::runtime;

use super::*;
use crate::claim_controller::shared_lists::SharedLists;

impl Fixture {
    fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|made| made.starts_with(call)).count()
    }
}

/// The first pass starts a list. All passes that come while it runs wait for one more.
#[tokio::test(start_paused = true)]
async fn lost_answers_of_many_creates_cost_two_lists() {
    let fixture = Fixture::new(Reply::Unknown);
    *fixture.api.reply_to_list.lock() = Some(Reply::Slow(Duration::from_secs(1)));
    let pods: Vec<_> = (0..40).map(|at| format!("p{at}")).collect();
    fixture.list(&pods.iter().map(String::as_str).collect::<Vec<_>>(), true);
    sleep(Duration::from_secs(9)).await;
    assert_eq!((fixture.count("create"), fixture.count("list")), (40, 2));
    *fixture.api.reply.lock() = Reply::Success;
    sleep(Duration::from_secs(10)).await;
    assert_eq!((fixture.count("create"), fixture.count("list"), fixture.count("apply")), (80, 4, 40));
}

/// Few passes wait for a list at the same time if lists are fast. The others need none, because each list counts for its namespace.
#[tokio::test(start_paused = true)]
async fn lost_answers_of_many_creates_cost_few_fast_lists() {
    let fixture = Fixture::new(Reply::Unknown);
    *fixture.api.reply_to_list.lock() = Some(Reply::Success);
    let pods: Vec<_> = (0..200).map(|at| format!("p{at}")).collect();
    fixture.list(&pods.iter().map(String::as_str).collect::<Vec<_>>(), true);
    sleep(Duration::from_secs(9)).await;
    let lists = fixture.count("list");
    assert!(fixture.count("create") == 200 && lists <= 3, "{lists} lists");
    *fixture.api.reply.lock() = Reply::Success;
    sleep(Duration::from_secs(20)).await;
    let lists = fixture.count("list");
    assert!(lists <= 6, "{lists} lists");
    assert_eq!((fixture.count("create"), fixture.count("apply")), (400, 200));
}

/// A panic in a list blocks no pass for ever.
#[tokio::test(start_paused = true)]
async fn list_that_panics_is_counted_and_repeated() {
    let fixture = Fixture::new(Reply::Unknown);
    *fixture.api.reply_to_list.lock() = Some(Reply::PanicAfter(Duration::from_secs(1)));
    fixture.list(&["a", "b", "c"], true);
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(fixture.count("list"), 2);
    assert_eq!(fixture.series("podwright_hook_panics_total"), Some(1.0));
    *fixture.api.reply_to_list.lock() = None;
    *fixture.api.reply.lock() = Reply::Success;
    sleep(Duration::from_secs(60)).await;
    assert_eq!((fixture.count("create"), fixture.count("apply")), (6, 3));
}

/// After an outage, the watch lists the claims before a pass can.
#[tokio::test(start_paused = true)]
async fn list_of_the_watch_settles_creates_for_which_no_list_succeeds() {
    let fixture = Fixture::new(Reply::Unknown);
    *fixture.api.reply_to_list.lock() = Some(Reply::Refused);
    fixture.list(&["p"], true);
    sleep(Duration::from_secs(11)).await;
    assert_eq!(fixture.count("create"), 1);
    *fixture.api.reply.lock() = Reply::Success;
    fixture.controller.claim_event(WatchEvent::Init);
    fixture.controller.claim_event(WatchEvent::InitDone);
    rest().await;
    assert_eq!(fixture.calls()[fixture.calls().len() - 2..], ["create p-res-1", "apply shop/p"]);
    assert_eq!(fixture.controller.queued(), 0);
}

/// Lists that take some time. Each returns a claim that has the number of the list as its name.
struct SlowLists {
    lasts: Duration,
    /// Counts the requests and the lists, in the order in which they are made and sent.
    order: AtomicUsize,
    /// The namespace of each list, and its place in the order.
    sent: Mutex<Vec<(String, usize)>>,
    running: Mutex<BTreeSet<String>>,
}

/// A list that runs.
struct RunningList<'a>(&'a SlowLists, String);

impl Drop for RunningList<'_> {
    fn drop(&mut self) {
        self.0.running.lock().remove(&self.1);
    }
}

impl ResourceClaimApi for SlowLists {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Answer, ApiError>> {
        async move {
            let Request::ListClaims { namespace } = request else { panic!("{request:?}") };
            assert!(self.running.lock().insert(namespace.clone()), "a list of {namespace} runs already");
            let _running = RunningList(self, namespace.clone());
            let number = self.sent.lock().len();
            self.sent.lock().push((namespace, self.order.fetch_add(1, Ordering::Relaxed)));
            sleep(self.lasts).await;
            let owner = OwnerReference { controller: Some(true), uid: "owner".to_owned(), ..OwnerReference::default() };
            let name = Some(number.to_string());
            let claim = ObjectMeta { name, owner_references: Some(vec![owner]), ..ObjectMeta::default() };
            Ok(Answer::Claims(Arc::new([claim].into_iter().collect())))
        }
        .boxed()
    }

    fn record(&self, _: OwnerWarning) {}

    fn close_events(&self, _: Duration) -> BoxFuture<'_, usize> {
        ready(0).boxed()
    }
}

/// A request: its namespace, when it is made, and after which time its pass is dropped.
#[derive(Clone, Copy, Debug)]
struct ListRequest {
    namespace: &'static str,
    at: u64,
    dropped_after: Option<u64>,
}

fn list_requests() -> impl Strategy<Value = Vec<ListRequest>> {
    let namespace = prop_oneof![3 => Just("shop"), 1 => Just("other")];
    let request = (namespace, 0..30_u64, proptest::option::weighted(0.3, 0..12_u64));
    let request = request.prop_map(|(namespace, at, dropped_after)| ListRequest { namespace, at, dropped_after });
    proptest::collection::vec(request, 1..40)
}

/// Makes a request, and checks its answer.
async fn request(lists: &SharedLists, api: &SlowLists, ports: &ClaimControllerPorts, request: ListRequest) {
    sleep(Duration::from_millis(request.at)).await;
    let (made, began) = (api.order.fetch_add(1, Ordering::Relaxed), Instant::now());
    let limit = request.dropped_after.map_or(Duration::from_secs(60), Duration::from_millis);
    let Ok(answer) = timeout(limit, lists.list(request.namespace.to_owned(), ports)).await else { return };
    let Ok(Answer::Claims(claims)) = answer else { panic!("{answer:?}") };
    let number: usize = claims.of("owner")[0].name.as_ref().unwrap().parse().unwrap();
    let (namespace, sent) = api.sent.lock()[number].clone();
    assert_eq!(namespace, request.namespace);
    assert!(sent > made, "the list was sent before the request");
    assert!(began.elapsed() <= api.lasts * 2 + Duration::from_millis(2), "{:?}", began.elapsed());
}

proptest! {
    #![proptest_config(podwright_random::cases(200))]

    /// A list answers only requests that were made before it was sent, at most one list of a namespace runs, and each request waits for
    /// at most two lists, whichever passes are dropped.
    #[test]
    fn list_answers_the_requests_that_were_made_before_it(requests in list_requests(), lasts in 1..10_u64) {
        let paused = runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        paused.block_on(async {
            let api = Arc::new(SlowLists {
                lasts: Duration::from_millis(lasts),
                order: AtomicUsize::new(0),
                sent: Mutex::default(),
                running: Mutex::default(),
            });
            let clock = Arc::new(TokioClock::new());
            let (metrics, lease) = (ControllersMetrics::new(), LeaseGuard::without_election());
            let ports = ClaimControllerPorts { api: api.clone(), clock, metrics, lease };
            let lists = SharedLists::default();
            join_all(requests.iter().map(|made| request(&lists, &api, &ports, *made))).await;
        });
    }
}
