//! The engine on threads of its own, with updates from several other threads at once.

use std::num::NonZeroUsize;
use std::time::Instant;

use super::*;
use crate::ports::SyncKind;
use crate::testing::{Call, pod};

const PODS: usize = 20;

fn on_two_threads(hooks: &Arc<Hooks>) -> Engine {
    let threads = Threads::Own(NonZeroUsize::new(2).unwrap());
    let config = EngineConfig { threads, ..EngineConfig::default() };
    Engine::builder(hooks.clone()).config(config).start().unwrap()
}

fn drain(engine: &Engine) {
    let start = Instant::now();
    while !engine.is_quiescent() {
        assert!(start.elapsed() < Duration::from_secs(60), "the engine is not quiescent after 60 s");
        std::thread::yield_now();
    }
}

fn name(n: usize) -> String {
    format!("pod {n}")
}

// KF4. Each of three threads sends the same updates, with the pods in an order of its own (POD-S11).
#[test]
fn pod_killed_right_after_its_create_is_never_updated() {
    for _ in 0..20 {
        let hooks = Hooks::new();
        let engine = on_two_threads(&hooks);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let engine = engine.clone();
                scope.spawn(move || {
                    for n in (0..PODS).map(|n| (n * 7 + thread * 5) % PODS) {
                        let target = pod(&name(n)).build();
                        engine.update_pod(Update::create(target.clone()));
                        engine.update_pod(Update::kill(target.clone()));
                        engine.update_pod(Update::changed(target));
                    }
                });
            }
        });
        drain(&engine);
        for n in 0..PODS {
            let calls = hooks.calls(&name(n).as_str().into());
            // The creates of the three threads may be synced before the first kill. No other sync is allowed.
            let creates = calls.iter().take_while(|call| **call == Call::create()).count();
            assert!(creates <= 3, "pod {n}: {calls:?}");
            assert_eq!(calls[creates..], [Call::stop(30), Call::clean_up()], "pod {n}: {calls:?}");
            assert!(engine.should_pod_be_finished(&name(n).as_str().into()));
        }
    }
}

// POD-S12
#[test]
fn last_of_overlapping_updates_is_always_processed() {
    for _ in 0..20 {
        let hooks = Hooks::new();
        let engine = on_two_threads(&hooks);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let engine = engine.clone();
                scope.spawn(move || {
                    for overlap in 0..PODS {
                        for n in 0..=overlap {
                            let version = format!("{thread} {overlap}");
                            engine.update_pod(Update::create(pod(&name(n)).label("v", &version).build()));
                        }
                    }
                });
            }
        });
        for n in 0..PODS {
            engine.update_pod(Update::create(pod(&name(n)).label("v", "last").build()));
        }
        drain(&engine);
        for n in 0..PODS {
            let calls = hooks.calls(&name(n).as_str().into());
            assert_eq!(calls.last(), Some(&Call::version(SyncKind::Create, "last")), "pod {n}");
            assert!(calls.len() <= 3 * (PODS - n) + 1, "pod {n}: {} calls", calls.len());
        }
    }
}
