//! The engine on threads of its own, fed by several others at once.

use std::num::NonZeroUsize;
use std::time::Instant;

use super::*;
use crate::ports::SyncKind;
use crate::testing::{Call, pod};

const PODS: usize = 20;

fn on_two_threads(hooks: &Arc<Hooks>) -> Engine {
    let threads = Threads::Own(NonZeroUsize::new(2).unwrap());
    let config = EngineConfig { threads, ..EngineConfig::default() };
    Engine::build(hooks.clone(), EngineParts { config, ..EngineParts::default() }).unwrap()
}

fn drain(engine: &Engine) {
    let start = Instant::now();
    while !engine.is_quiescent() {
        assert!(start.elapsed() < Duration::from_secs(60), "the engine does not come to rest");
        std::thread::yield_now();
    }
}

fn name(n: usize) -> String {
    format!("pod {n}")
}

// S11: each of three threads sends the same back-to-back updates, for the pods in an order of its own.
#[test]
fn a_pod_that_is_killed_right_after_its_creation_is_never_updated() {
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
            // Each thread's create may have been worked on before the first of the kills, and nothing else may.
            let creates = calls.iter().take_while(|call| **call == Call::create()).count();
            assert!(creates <= 3, "pod {n}: {calls:?}");
            assert_eq!(calls[creates..], [Call::stop(30), Call::clean_up()], "pod {n}: {calls:?}");
            assert!(engine.should_pod_be_finished(&name(n).as_str().into()));
        }
    }
}

// S12
#[test]
fn of_overlapping_updates_the_last_one_is_always_processed() {
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
