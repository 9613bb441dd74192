//! A replay of an engine's recording reaches the recorded states.

use std::num::NonZeroUsize;

use super::*;
use crate::recorder::Recorder;
use crate::replay::{Pick, replay};
use crate::testing::pod;

const PODS: usize = 12;

#[test]
fn recording_saved_during_updates_replays_without_a_difference() {
    let recorder = Arc::new(Recorder::new(Recorder::SMALLEST));
    let config = EngineConfig { threads: Threads::Own(NonZeroUsize::new(2).unwrap()), ..EngineConfig::default() };
    let engine = Engine::builder(Hooks::new()).config(config).recorder(recorder).start().unwrap();
    let pods: Vec<_> = (0..PODS)
        .map(|n| if n % 3 == 0 { pod(&n.to_string()).static_pod().build() } else { pod(&n.to_string()).build() })
        .collect();
    let (mut dropped, mut events) = (0, 0);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (engine, pods) = (engine.clone(), &pods);
            scope.spawn(move || {
                for round in 0..1_500 {
                    let pod = &pods[(round * 7 + thread * 5) % PODS];
                    match round % 11 {
                        0 => engine.update_pod(Update::create(pod.clone())),
                        9 => engine.update_pod(Update::kill(pod.clone()).with_options(evicting())),
                        10 => drop(engine.sync_known_pods(&HashSet::from([pod.uid().clone()]))),
                        _ => engine.update_pod(Update::sync(pod.clone())),
                    }
                }
            });
        }
        for _ in 0..30 {
            let run = replay(&engine.recording().unwrap(), &Pick::None).unwrap();
            assert_eq!(run.difference, None);
            (dropped, events) = (run.dropped, run.events);
        }
    });
    let run = replay(&engine.recording().unwrap(), &Pick::None).unwrap();
    assert_eq!(run.difference, None);
    assert!(run.dropped >= dropped && run.dropped > 0 && run.events > 100, "{run:?} {events}");
}
