//! The engine with recording hooks, in paused time.

use std::time::Duration;

use super::*;
use crate::pod_worker::{KillOptions, Lifecycle};
use crate::testing::{Call, Hooks, pod};
use crate::time::Grace;

fn engine(hooks: &Arc<Hooks>) -> Engine {
    tokio::time::pause();
    let config = EngineConfig { threads: Threads::Current, seed: Some(1), ..EngineConfig::default() };
    Engine::build(hooks.clone(), EngineParts { config, ..EngineParts::default() }).unwrap()
}

// S1
#[actix::test]
async fn a_created_pod_is_set_up_once() {
    let hooks = Hooks::new();
    let engine = engine(&hooks);
    let pod = pod("a").build();
    engine.update_pod(Update::create(pod.clone()));
    engine.quiesced().await;
    assert_eq!(hooks.calls(pod.uid()), [Call::create()]);
    assert_eq!(engine.lifecycle(pod.uid()), Some(Lifecycle::Sync));
    assert!(Arc::ptr_eq(&engine.active_pod(pod.uid()).unwrap(), &pod));
}

// S4
#[actix::test]
async fn a_deleted_pod_is_stopped_with_its_deletion_grace_and_cleaned_up() {
    let hooks = Hooks::new();
    let engine = engine(&hooks);
    let running = pod("a").build();
    engine.update_pod(Update::create(running.clone()));
    engine.quiesced().await;
    engine.update_pod(Update::changed(pod("a").deleting(15).build()));
    engine.quiesced().await;
    assert_eq!(hooks.calls(running.uid()), [Call::create(), Call::stop(15), Call::clean_up()]);
    assert!(engine.is_pod_known_terminated(running.uid()));
    assert!(engine.should_pod_be_finished(running.uid()));
}

// S15, S99
#[actix::test]
async fn a_shorter_grace_reaches_a_stop_in_progress() {
    let hooks = Hooks::new();
    let engine = engine(&hooks);
    let target = pod("a").build();
    engine.update_pod(Update::create(target.clone()));
    engine.quiesced().await;
    hooks.stops_take(Duration::from_secs(600));
    engine.update_pod(Update::kill(target.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let options = KillOptions { grace: Some(Grace::from_seconds(5)), ..KillOptions::default() };
    engine.update_pod(Update::kill(target.clone()).with_options(options));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(hooks.calls(target.uid()), [Call::create(), Call::stop(30), Call::stop(5)]);
}
