//! What goes wrong with one pod stays with it, and no worker is lost for good.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;
use crate::pod_worker::{Notifier, WaitFor};
use crate::ports::{Clock, Observed, RuntimeView, SyncKind, SyncOutcome};
use crate::testing::{Call, Does, Gate, pod};

const CONTINUES: SyncOutcome = SyncOutcome::Continue { check_at: None };

// S102
#[actix::test]
async fn a_hook_that_panics_is_retried_and_no_other_pod_notices() {
    for hook in [Hook::Sync, Hook::Terminating, Hook::TerminatingRuntime, Hook::Terminated] {
        let rig = rig();
        let (a, beside) = (pod("a").build(), pod("beside").build());
        rig.hooks.next(a.uid(), hook, Does::Panics("oh no"));
        rig.run(&beside).await;
        if hook == Hook::TerminatingRuntime {
            rig.update(runtime_kill("a")).await;
        } else {
            rig.run(&a).await;
            if hook != Hook::Sync {
                rig.update(Update::kill(a.clone())).await;
            }
        }
        let seen = rig.engine.snapshot(a.uid()).unwrap();
        assert_eq!(seen.wait.what, WaitFor::Retry { hook, error: "hook panicked: oh no".to_owned() });
        let delay = seen.wait.next.unwrap().since(rig.clock.now()).as_secs_f64();
        assert!((9.9..=15.0).contains(&delay), "{hook:?} is tried again after {delay} s");
        rig.update(Update::sync(beside.clone())).await;
        assert_eq!(rig.hooks.calls(beside.uid()), [Call::create(), Call::sync(SyncKind::Sync)]);

        let before = rig.hooks.calls(a.uid()).len();
        pass_secs(16).await;
        let again = &rig.hooks.calls(a.uid())[before - 1..];
        assert_eq!(std::mem::discriminant(&again[0]), std::mem::discriminant(&again[1]), "{hook:?}");
        assert!(rig.engine.snapshot(a.uid()).is_none_or(|seen| seen.failure.is_none()));
    }
}

/// Panics at one reading: in the worker, beside any hook.
struct Faltering {
    clock: TokioClock,
    readings: AtomicUsize,
    falters_at: usize,
}

impl Clock for Faltering {
    fn now(&self) -> Time {
        if self.readings.fetch_add(1, Ordering::Relaxed) + 1 == self.falters_at {
            std::panic::resume_unwind(Box::new("what time is it"));
        }
        self.clock.now()
    }
}

// D4
#[actix::test]
async fn a_worker_that_is_lost_is_rebuilt_from_its_record() {
    tokio::time::pause();
    // Read when the update comes, when it is taken, when its hook has failed, and when a retry is due.
    for (falters_at, error) in [(3, "the worker was lost"), (4, "out of luck")] {
        let hooks = Hooks::new();
        let readings = AtomicUsize::new(0);
        let clock = Arc::new(Faltering { clock: TokioClock::starting_at(START), readings, falters_at });
        let config = EngineConfig { threads: Threads::Current, ..EngineConfig::default() };
        let parts = EngineParts { config, clock: Some(clock), ..EngineParts::default() };
        let engine = Engine::build(hooks.clone(), parts).unwrap();
        let a = pod("a").build();
        hooks.fails(a.uid(), Hook::Sync, 2);
        engine.update_pod(Update::create(a.clone()));
        pass_a_moment().await;
        let failure = engine.snapshot(a.uid()).unwrap().failure.unwrap();
        assert_eq!((failure.count, &*failure.error), (1, error), "what failed before the loss is not forgotten");
        pass_secs(40).await;
        assert_eq!(hooks.calls(a.uid()).len(), 3, "the backoff goes on");
        engine.update_pod(Update::kill(a.clone()));
        pass_a_moment().await;
        assert_eq!(hooks.calls(a.uid())[3..], [Call::stop(30), Call::clean_up()]);
    }
}

/// Goes on by 10 µs with each reading.
struct Ticking(AtomicUsize);

impl Clock for Ticking {
    fn now(&self) -> Time {
        START + Duration::from_micros(10) * self.0.fetch_add(1, Ordering::Relaxed) as u32
    }
}

// A hook that always asks to be called again at once has its worker never rest.
#[actix::test]
async fn a_pod_that_never_rests_keeps_no_other_from_its_turn() {
    tokio::time::pause();
    let hooks = Hooks::new();
    let config = EngineConfig { threads: Threads::Current, ..EngineConfig::default() };
    let clock = Arc::new(Ticking(AtomicUsize::new(0)));
    let parts = EngineParts { config, clock: Some(clock), ..EngineParts::default() };
    let engine = Engine::build(hooks.clone(), parts).unwrap();
    let (busy, other) = (pod("busy").build(), pod("other").build());
    let (asks, created) = (engine.clone(), other.clone());
    hooks.next(
        busy.uid(),
        Hook::Sync,
        Does::Runs(Box::new(move || {
            asks.update_pod(Update::create(created));
            Ok(SyncOutcome::Continue { check_at: Some(START) })
        })),
    );
    const CALLS: usize = 20_000;
    for _ in 0..CALLS {
        hooks.next(busy.uid(), Hook::Sync, Does::Continues(Some(START)));
    }
    let before = Arc::new(AtomicUsize::new(0));
    let (seen, made) = (before.clone(), hooks.clone());
    hooks.next(
        other.uid(),
        Hook::Sync,
        Does::Runs(Box::new(move || {
            seen.store(made.calls(&"busy".into()).len(), Ordering::Relaxed);
            Ok(CONTINUES)
        })),
    );
    engine.update_pod(Update::create(busy.clone()));
    while hooks.calls(busy.uid()).len() < CALLS {
        tokio::task::yield_now().await;
    }
    let before = before.load(Ordering::Relaxed);
    assert!((1..CALLS / 10).contains(&before), "the other pod had its turn after {before} of {CALLS} calls");
}

struct Blind;

impl RuntimeView for Blind {
    fn observed(&self, _uid: &PodUid) -> Observed {
        std::panic::resume_unwind(Box::new("cannot look"));
    }
}

#[actix::test]
async fn a_view_that_panics_has_seen_nothing() {
    tokio::time::pause();
    let hooks = Hooks::new();
    let config = EngineConfig { threads: Threads::Current, ..EngineConfig::default() };
    let parts = EngineParts { config, view: Some(Arc::new(Blind)), ..EngineParts::default() };
    let engine = Engine::build(hooks.clone(), parts).unwrap();
    engine.update_pod(Update::create(pod("a").phase("Failed").build()));
    engine.update_pod(Update::kill(pod("b").static_pod().build()));
    engine.quiesced().await;
    assert_eq!(hooks.calls(&"a".into()), [Call::stop(30), Call::clean_up()]);
    assert_eq!(engine.lifecycle(&"b".into()), Some(Lifecycle::Finished));
}

#[actix::test]
async fn a_dropped_engine_drops_its_hooks_and_tells_who_waits() {
    let rig = rig();
    let (a, b) = (pod("a").build(), pod("b").build());
    rig.run(&b).await;
    rig.run(&pod("idle").build()).await;
    rig.hooks.next(a.uid(), Hook::Sync, Does::IsDeaf(Gate::default()));
    rig.hooks.next(b.uid(), Hook::Terminating, Does::IsDeaf(Gate::default()));
    rig.engine.update_pod(Update::create(a.clone()));
    let (notifier, completed) = Notifier::new();
    let options = KillOptions { completed: Some(notifier), ..KillOptions::default() };
    rig.engine.update_pod(Update::kill(b.clone()).with_options(options));
    pass_a_moment().await;
    // A second ring while the call is under way: the bell that ends it must still be heard.
    rig.engine.update_pod(Update::sync(a.clone()));
    pass_a_moment().await;
    let Rig { hooks, engine, .. } = rig;
    assert!(hooks.is_inside(a.uid()) && hooks.is_inside(b.uid()));
    drop(engine);
    assert!(!completed.await);
    pass_a_moment().await;
    assert!(!hooks.is_inside(a.uid()) && !hooks.is_inside(b.uid()));
    let calls = hooks.calls(a.uid()).len() + hooks.calls(b.uid()).len();
    assert_eq!(Arc::strong_count(&hooks), 1, "no worker is left, not even an idle one");
    pass_secs(1_000).await;
    assert_eq!(hooks.calls(a.uid()).len() + hooks.calls(b.uid()).len(), calls);
}

/// Waits in real time for what other threads do.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::yield_now();
    }
}

fn on_threads(hooks: &Arc<Hooks>, count: usize) -> Engine {
    let threads = Threads::Own(std::num::NonZeroUsize::new(count).unwrap());
    let config = EngineConfig { threads, error_backoff: Duration::from_millis(5), ..EngineConfig::default() };
    Engine::build(hooks.clone(), EngineParts { config, ..EngineParts::default() }).unwrap()
}

#[test]
fn pods_of_a_thread_that_ended_move_to_another() {
    let hooks = Hooks::new();
    let engine = on_threads(&hooks, 2);
    let pods: Vec<_> = (0..16).map(|n| pod(&format!("pod {n}")).build()).collect();
    let here = std::thread::current().id();
    let homes: Arc<parking_lot::Mutex<Vec<_>>> = Arc::default();
    for pod in &pods {
        let homes = homes.clone();
        let note = move || {
            let thread = std::thread::current();
            assert_ne!(thread.id(), here);
            homes.lock().push(thread.name().unwrap_or_default().to_owned());
            Ok(CONTINUES)
        };
        hooks.next(pod.uid(), Hook::Sync, Does::Runs(Box::new(note)));
        engine.update_pod(Update::create(pod.clone()));
        until("a setup", || engine.is_quiescent());
    }
    let homes = homes.lock().clone();
    let second = homes.iter().position(|name| name.starts_with("actix-rt")).expect("a pod on the second thread");

    // Of the pods on that thread one has a call under way, the others are idle.
    let busy = (second + 1..16).find(|n| homes[*n] == homes[second]).expect("two of sixteen");
    hooks.next(pods[busy].uid(), Hook::Sync, Does::IsDeaf(Gate::default()));
    engine.update_pod(Update::sync(pods[busy].clone()));
    until("a call under way", || hooks.is_inside(pods[busy].uid()));
    let end_thread = || {
        actix::Arbiter::current().stop();
        Ok(CONTINUES)
    };
    hooks.next(pods[second].uid(), Hook::Sync, Does::Runs(Box::new(end_thread)));
    engine.update_pod(Update::sync(pods[second].clone()));
    until("the lost call is made again", || hooks.calls(pods[busy].uid()).len() == 3);

    // New pods that belong there, and the ones that moved, live on.
    let more: Vec<_> = (16..32).map(|n| pod(&format!("pod {n}")).build()).collect();
    for pod in pods.iter().chain(&more) {
        engine.update_pod(Update::changed(pod.clone()));
    }
    until("updates", || engine.is_quiescent());
    for pod in pods.iter().chain(&more) {
        assert_eq!(hooks.calls(pod.uid()).last(), Some(&Call::sync(SyncKind::Update)));
        engine.update_pod(Update::kill(pod.clone()));
    }
    until("stops", || pods.iter().chain(&more).all(|pod| engine.should_pod_be_finished(pod.uid())));
    for pod in &more {
        assert_eq!(hooks.calls(pod.uid()), [Call::sync(SyncKind::Update), Call::stop(30), Call::clean_up()]);
    }
}

struct Leaving(Arc<AtomicUsize>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

thread_local! {
    /// Dropped when its thread ends.
    static LEAVING: std::cell::RefCell<Option<Leaving>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn a_dropped_engine_ends_its_threads() {
    let hooks = Hooks::new();
    let engine = on_threads(&hooks, 2);
    let threads = Arc::new(AtomicUsize::new(0));
    for n in 0..16 {
        let pod = pod(&format!("pod {n}")).build();
        let threads = threads.clone();
        let count = move || {
            LEAVING.with_borrow_mut(|leaving| {
                leaving.get_or_insert_with(|| {
                    threads.fetch_add(1, Ordering::SeqCst);
                    Leaving(threads.clone())
                });
            });
            Ok(CONTINUES)
        };
        hooks.next(pod.uid(), Hook::Sync, Does::Runs(Box::new(count)));
        hooks.next(pod.uid(), Hook::Sync, Does::IsDeaf(Gate::default()));
        engine.update_pod(Update::create(pod));
    }
    until("setups", || engine.is_quiescent());
    for n in 0..16 {
        engine.update_pod(Update::sync(pod(&format!("pod {n}")).build()));
    }
    until("calls under way", || (0..16).all(|n| hooks.is_inside(&format!("pod {n}").as_str().into())));
    assert_eq!(threads.load(Ordering::SeqCst), 2);
    drop(engine);
    until("the threads end", || threads.load(Ordering::SeqCst) == 0);
    until("all is dropped", || Arc::strong_count(&hooks) == 1);
    assert!((0..16).all(|n| !hooks.is_inside(&format!("pod {n}").as_str().into())));
}
