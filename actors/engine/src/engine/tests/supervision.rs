//! A failure of one pod affects no other pod, and a lost worker is replaced.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;
use crate::pod_worker::{Notifier, WaitFor};
use crate::ports::{Clock, Observed, RuntimeView, SyncKind, SyncOutcome};
use crate::testing::{Call, Does, Gate, pod};

const CONTINUES: SyncOutcome = SyncOutcome::Continue { check_at: None };

// POD-S102
#[actix::test]
async fn hook_that_panics_is_retried_and_no_other_pod_is_affected() {
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
        let snapshot = rig.engine.snapshot(a.uid()).unwrap();
        assert_eq!(snapshot.wait.what, WaitFor::Retry { hook, error: "hook panicked: oh no".to_owned() });
        let delay = snapshot.wait.next.unwrap().since(rig.clock.now()).as_secs_f64();
        assert!((9.9..=15.0).contains(&delay), "{hook:?} is retried after {delay} s");
        rig.update(Update::sync(beside.clone())).await;
        assert_eq!(rig.hooks.calls(beside.uid()), [Call::create(), Call::sync(SyncKind::Sync)]);

        let before = rig.hooks.calls(a.uid()).len();
        pass_secs(16).await;
        let again = &rig.hooks.calls(a.uid())[before - 1..];
        assert_eq!(std::mem::discriminant(&again[0]), std::mem::discriminant(&again[1]), "{hook:?}");
        assert!(rig.engine.snapshot(a.uid()).is_none_or(|snapshot| snapshot.failure.is_none()));
    }
}

/// A clock that panics at one reading, which is in the worker and outside of a hook.
struct PanickingClock {
    clock: TokioClock,
    readings: AtomicUsize,
    panics_at: usize,
}

impl Clock for PanickingClock {
    fn now(&self) -> Time {
        if self.readings.fetch_add(1, Ordering::Relaxed) + 1 == self.panics_at {
            std::panic::resume_unwind(Box::new("the clock fails"));
        }
        self.clock.now()
    }
}

#[actix::test]
async fn lost_worker_is_replaced_from_its_record() {
    tokio::time::pause();
    // The clock is read when the update arrives, when the worker takes it, when the hook has failed, and when the retry is due.
    for (panics_at, error) in [(3, "the worker was lost"), (4, "out of luck")] {
        let hooks = Hooks::new();
        let readings = AtomicUsize::new(0);
        let clock = Arc::new(PanickingClock { clock: TokioClock::starting_at(START), readings, panics_at });
        let config = EngineConfig { threads: Threads::Current, ..EngineConfig::default() };
        let engine = Engine::builder(hooks.clone()).config(config).clock(clock).start().unwrap();
        let a = pod("a").build();
        hooks.fails(a.uid(), Hook::Sync, 2);
        engine.update_pod(Update::create(a.clone()));
        let_workers_run().await;
        let failure = engine.snapshot(a.uid()).unwrap().failure.unwrap();
        assert_eq!((failure.count, &*failure.error), (1, error), "the earlier failure is kept");
        pass_secs(40).await;
        assert_eq!(hooks.calls(a.uid()).len(), 3, "the hook is retried after its backoff");
        engine.update_pod(Update::kill(a.clone()));
        let_workers_run().await;
        assert_eq!(hooks.calls(a.uid())[3..], [Call::stop(30), Call::clean_up()]);
    }
}

/// A clock that advances by 10 µs with each reading.
struct AdvancingClock(AtomicUsize);

impl Clock for AdvancingClock {
    fn now(&self) -> Time {
        START + Duration::from_micros(10) * self.0.fetch_add(1, Ordering::Relaxed) as u32
    }
}

// A hook that always requests to be called again at once keeps its worker busy.
#[actix::test]
async fn pod_that_is_always_busy_does_not_delay_other_pods() {
    tokio::time::pause();
    let hooks = Hooks::new();
    let config = EngineConfig { threads: Threads::Current, ..EngineConfig::default() };
    let clock = Arc::new(AdvancingClock(AtomicUsize::new(0)));
    let engine = Engine::builder(hooks.clone()).config(config).clock(clock).start().unwrap();
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
    let (calls, made) = (before.clone(), hooks.clone());
    hooks.next(
        other.uid(),
        Hook::Sync,
        Does::Runs(Box::new(move || {
            calls.store(made.calls(&"busy".into()).len(), Ordering::Relaxed);
            Ok(CONTINUES)
        })),
    );
    engine.update_pod(Update::create(busy.clone()));
    while hooks.calls(busy.uid()).len() < CALLS {
        tokio::task::yield_now().await;
    }
    let before = before.load(Ordering::Relaxed);
    assert!((1..CALLS / 10).contains(&before), "the other pod was synced after {before} of {CALLS} calls");
}

/// A view that panics.
struct PanickingView;

impl RuntimeView for PanickingView {
    fn observed(&self, _uid: &PodUid) -> Observed {
        std::panic::resume_unwind(Box::new("the view fails"));
    }
}

#[actix::test]
async fn runtime_view_that_panics_has_observed_nothing() {
    tokio::time::pause();
    let hooks = Hooks::new();
    let config = EngineConfig { threads: Threads::Current, ..EngineConfig::default() };
    let engine = Engine::builder(hooks.clone()).config(config).view(Arc::new(PanickingView)).start().unwrap();
    engine.update_pod(Update::create(pod("a").phase("Failed").build()));
    engine.update_pod(Update::kill(pod("b").static_pod().build()));
    engine.quiesced().await;
    assert_eq!(hooks.calls(&"a".into()), [Call::stop(30), Call::clean_up()]);
    assert_eq!(engine.lifecycle(&"b".into()), Some(Lifecycle::Finished));
}

#[actix::test]
async fn dropped_engine_drops_its_hook_calls_and_fails_its_notifiers() {
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
    let_workers_run().await;
    // Wakes the worker while its hook call is in progress. The later wake-up by the close must not be lost.
    rig.engine.update_pod(Update::sync(a.clone()));
    let_workers_run().await;
    let Rig { hooks, engine, .. } = rig;
    assert!(hooks.is_inside(a.uid()) && hooks.is_inside(b.uid()));
    drop(engine);
    assert!(!completed.await);
    let_workers_run().await;
    assert!(!hooks.is_inside(a.uid()) && !hooks.is_inside(b.uid()));
    let calls = hooks.calls(a.uid()).len() + hooks.calls(b.uid()).len();
    assert_eq!(Arc::strong_count(&hooks), 1, "a worker is left");
    pass_secs(1_000).await;
    assert_eq!(hooks.calls(a.uid()).len() + hooks.calls(b.uid()).len(), calls);
}

/// Waits in real time until other threads have done something.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited 60 s for {what}");
        std::thread::yield_now();
    }
}

fn on_threads(hooks: &Arc<Hooks>, count: usize) -> Engine {
    let threads = Threads::Own(std::num::NonZeroUsize::new(count).unwrap());
    let config = EngineConfig { threads, error_backoff: Duration::from_millis(5), ..EngineConfig::default() };
    Engine::builder(hooks.clone()).config(config).start().unwrap()
}

#[test]
fn pods_of_an_ended_thread_get_workers_on_another_thread() {
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
        until("a sync", || engine.is_quiescent());
    }
    let homes = homes.lock().clone();
    let second = homes.iter().position(|name| name.starts_with("actix-rt")).expect("a pod on the second thread");

    // One pod of that thread has a hook call in progress. The others are idle.
    let busy = (second + 1..16).find(|n| homes[*n] == homes[second]).expect("two of sixteen");
    hooks.next(pods[busy].uid(), Hook::Sync, Does::IsDeaf(Gate::default()));
    engine.update_pod(Update::sync(pods[busy].clone()));
    until("a hook call in progress", || hooks.is_inside(pods[busy].uid()));
    let end_thread = || {
        actix::Arbiter::current().stop();
        Ok(CONTINUES)
    };
    hooks.next(pods[second].uid(), Hook::Sync, Does::Runs(Box::new(end_thread)));
    engine.update_pod(Update::sync(pods[second].clone()));
    until("the retry of the lost hook call", || hooks.calls(pods[busy].uid()).len() == 3);

    // Updates and stops reach the pods that moved, and new pods whose first choice is the ended thread.
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

/// Decrements a count when its thread ends.
struct ThreadMark(Arc<AtomicUsize>);

impl Drop for ThreadMark {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

thread_local! {
    static MARK: std::cell::RefCell<Option<ThreadMark>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn dropped_engine_ends_its_threads() {
    let hooks = Hooks::new();
    let engine = on_threads(&hooks, 2);
    let threads = Arc::new(AtomicUsize::new(0));
    for n in 0..16 {
        let pod = pod(&format!("pod {n}")).build();
        let threads = threads.clone();
        let count = move || {
            MARK.with_borrow_mut(|mark| {
                mark.get_or_insert_with(|| {
                    threads.fetch_add(1, Ordering::SeqCst);
                    ThreadMark(threads.clone())
                });
            });
            Ok(CONTINUES)
        };
        hooks.next(pod.uid(), Hook::Sync, Does::Runs(Box::new(count)));
        hooks.next(pod.uid(), Hook::Sync, Does::IsDeaf(Gate::default()));
        engine.update_pod(Update::create(pod));
    }
    until("the first syncs", || engine.is_quiescent());
    for n in 0..16 {
        engine.update_pod(Update::sync(pod(&format!("pod {n}")).build()));
    }
    until("hook calls in progress", || (0..16).all(|n| hooks.is_inside(&format!("pod {n}").as_str().into())));
    assert_eq!(threads.load(Ordering::SeqCst), 2);
    drop(engine);
    until("the end of the threads", || threads.load(Ordering::SeqCst) == 0);
    until("the drop of the hooks", || Arc::strong_count(&hooks) == 1);
    assert!((0..16).all(|n| !hooks.is_inside(&format!("pod {n}").as_str().into())));
}
