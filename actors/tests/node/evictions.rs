//! Evictions: limits on local storage, full disks and short memory.

use std::sync::Arc;
use std::time::Duration;

use podwright_actors::eviction::{EvictionPolicy, EvictionThresholds, Pressure};
use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::{Op, Script, ScriptedRuntime};
use podwright_ports::{ContainerState, RuntimeError};
use serde_json::json;

use super::explain::reading::explain;
use crate::support::fake_disks::{FakeDisks, FakeMeter, Fault};
use crate::support::test_node::{Setup, TestNode};

/// A node with a disk of 1000 MiB, of which `available` MiB are free. Both of its sources have delivered no pods.
async fn node(available: u64) -> (TestNode, Arc<FakeDisks>) {
    let disks = FakeDisks::new(available);
    let node = Setup { disks: Some(disks.clone()), ..Setup::new(true) }.start();
    node.deliver(&[]).await;
    (node, disks)
}

/// A pod with a volume `cache` of at most 1 MiB.
fn limited(name: &str) -> PodBuilder {
    pod(name).spec("volumes", json!([{"name": "cache", "emptyDir": {"sizeLimit": "1024Ki"}}]))
}

/// A pod with a volume without a limit.
fn free(name: &str) -> PodBuilder {
    pod(name).spec("volumes", json!([{"name": "cache", "emptyDir": {}}]))
}

fn outcome(node: &TestNode, name: &str) -> (String, String, String) {
    let status = node.status(name);
    (status.phase.unwrap_or_default(), status.reason.unwrap_or_default(), status.message.unwrap_or_default())
}

fn disruption(node: &TestNode, name: &str) -> Option<String> {
    let conditions = node.status(name).conditions.unwrap_or_default();
    conditions.into_iter().find(|condition| condition.type_ == "DisruptionTarget")?.message
}

const OVER: &str = "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". ";

#[actix::test]
async fn a_pod_over_its_volume_limit_is_evicted_and_its_neighbour_runs() {
    let (node, disks) = node(900).await;
    node.runtime.script("main", Script::stubborn());
    let pods = [limited("a"), limited("b"), free("c")];
    node.deliver(&pods).await;
    disks.write("b", "cache", 1);
    disks.write("c", "cache", 500);
    node.until(15.0).await;
    assert_eq!(node.phase("a"), "Running");
    disks.write("a", "cache", 2);
    node.eventually(6.0, "the pod is evicted", || node.lifecycle("a") == Some(Lifecycle::Terminating)).await;
    let begin = node.now();
    node.eventually(30.0, "the pod has stopped", || node.lifecycle("a") != Some(Lifecycle::Terminating)).await;
    let grace = node.now() - begin;
    assert!((1.9..2.1).contains(&grace), "one second becomes the shortest grace period of a container: {grace} s");
    assert_eq!(outcome(&node, "a"), ("Failed".into(), "Evicted".into(), OVER.into()));
    assert_eq!(disruption(&node, "a"), None, "only pressure of the node is a disruption");
    let events = node.events.of("Evicted");
    assert_eq!(events.iter().map(|event| event.message.as_str()).collect::<Vec<_>>(), [OVER]);
    assert_eq!(events[0].annotations, None, "only pressure of the node has annotations");
    node.until(100.0).await;
    for name in ["b", "c"] {
        assert_eq!(node.phase(name), "Running", "{name}");
    }
    assert_eq!(node.metric("kubelet_evictions{eviction_signal=\"emptydirfs.limit\"}"), 1.0, "evicted once");
    assert_eq!(disks.measured("c"), 0, "a pod without limits is not measured");
    // An evicted pod stays in the set of its source until it is deleted, and does not run again.
    assert_eq!((node.phase("a").as_str(), node.lifecycle("a")), ("Failed", Some(Lifecycle::Finished)));
    assert!(node.final_statuses.has("a"), "the next agent does not run it again");
}

#[actix::test]
async fn static_and_critical_pods_are_measured_and_never_evicted() {
    let (node, disks) = node(10).await;
    node.runtime.script("main", Script::stubborn());
    let pods = [limited("file").of_file(), limited("vital").spec("priority", 2_000_000_000)];
    node.deliver(&pods).await;
    for name in ["file", "vital"] {
        disks.write(name, "cache", 3);
    }
    node.until(100.0).await;
    for name in ["file", "vital"] {
        assert_eq!(node.phase(name), "Running", "{name}");
        let text = explain(&node, name).to_string();
        let line = "  emptyDir cache: 3Mi of 1Mi, which exceeds the limit; a static or critical pod is not evicted";
        assert!(text.lines().any(|printed| printed == line), "{text}");
    }
    assert!(node.events.of("Evicted").is_empty());
    assert!(node.events.has("node", "EvictionThresholdMet"));
}

#[actix::test]
async fn a_slow_or_failing_measurement_delays_no_other_pod() {
    let (node, disks) = node(900).await;
    let pods = [limited("slow"), limited("fails"), limited("panics"), limited("over")];
    disks.slow("slow", 1000);
    disks.fail("fails", Fault::Error);
    disks.fail("panics", Fault::Panic);
    node.until(5.0).await;
    node.deliver(&pods).await;
    disks.write("over", "cache", 2);
    disks.write("slow", "cache", 2);
    node.until(25.0).await;
    assert_eq!(node.reason("over"), "Evicted");
    assert_eq!(disks.measured("slow"), 1, "one measurement at a time");
    assert!(disks.measured("panics") > 1, "a panic ends only one measurement");
    assert!(explain(&node, "fails").to_string().contains("not measured: /pods: the disk is broken"));
    assert_eq!((node.phase("fails"), node.phase("slow")), ("Running".into(), "Running".into()));
    node.until(1020.0).await;
    assert_eq!(node.reason("slow"), "Evicted");
}

#[actix::test]
async fn unused_images_are_removed_before_a_pod_is_evicted() {
    let (node, disks) = node(900).await;
    node.deliver(&[free("a")]).await;
    disks.write("a", "cache", 500);
    disks.add_image(200);
    // The image collector lists the image at 300 s, and keeps a new image for two minutes.
    node.until(425.0).await;
    disks.set_available(20);
    node.until(445.0).await;
    assert_eq!(disks.images(), 0);
    assert_eq!(node.phase("a"), "Running");
    assert_eq!(node.events.of("EvictionThresholdMet")[0].message, "Attempting to reclaim ephemeral-storage");
}

/// The number of dead containers of a pod.
fn dead(runtime: &ScriptedRuntime, uid: &str) -> usize {
    let containers = runtime.inspect(&uid.into()).containers;
    containers.into_iter().filter(|run| run.state == ContainerState::Exited).count()
}

// The disk is full, so that the end of the job cannot be written. An agent that restarts knows it only from the dead container.
#[actix::test]
async fn dead_containers_stay_until_the_end_of_their_pod_is_on_disk() {
    let (node, disks) = node(900).await;
    node.runtime.script("job", Script::ends(1.0, 0));
    node.final_statuses.broken(true);
    node.deliver(&[pod("job").policy("Never").containers(&["job"])]).await;
    node.until(25.0).await;
    assert_eq!((node.phase("job"), dead(&node.runtime, "job")), ("Succeeded".to_owned(), 1));
    let runtime = node.runtime.clone();
    disks.fill_while(850, move || dead(&runtime, "job") > 0);
    node.wait(60.0).await;
    assert!(node.events.has("node", "EvictionThresholdMet"));
    assert_eq!(dead(&node.runtime, "job"), 1);
    node.final_statuses.broken(false);
    node.eventually(30.0, "the dead container is removed", || dead(&node.runtime, "job") == 0).await;
    assert!(node.final_statuses.has("job"));
}

// The dead container of a job uses most of the disk. The job stays in the set of its source.
#[actix::test]
async fn dead_containers_of_ended_pods_are_removed_before_a_pod_is_evicted() {
    let (node, disks) = node(900).await;
    node.runtime.script("job", Script::ends(1.0, 0));
    node.runtime.script("loop", Script::ends(1.0, 1));
    let job = pod("job").policy("Never").containers(&["job"]);
    node.deliver(&[job, pod("loop").containers(&["loop"]), free("a")]).await;
    disks.write("a", "cache", 500);
    node.until(25.0).await;
    assert_eq!((node.phase("job"), dead(&node.runtime, "job")), ("Succeeded".to_owned(), 1));
    let runtime = node.runtime.clone();
    disks.fill_while(850, move || dead(&runtime, "job") > 0);
    node.eventually(15.0, "the dead container is removed", || dead(&node.runtime, "job") == 0).await;
    node.wait(60.0).await;
    assert_eq!(node.events.of("Evicted").len(), 0, "the removal was enough");
    assert_eq!((node.phase("job"), node.phase("a")), ("Succeeded".into(), "Running".into()));
    assert_eq!(node.runtime.calls_of("job").iter().filter(|call| *call == "start job").count(), 1, "the job has ended");
    assert!(dead(&node.runtime, "loop") >= 1, "the crash backoff comes from the newest dead run");
}

#[actix::test]
async fn a_panic_while_dead_containers_are_removed_is_counted_and_the_next_removal_succeeds() {
    let (node, disks) = node(900).await;
    node.runtime.script("job", Script::ends(1.0, 0));
    node.deliver(&[pod("job").policy("Never").containers(&["job"])]).await;
    node.until(25.0).await;
    node.runtime.fail(Op::Remove);
    node.events.panic_on("ContainerGCFailed");
    let runtime = node.runtime.clone();
    disks.fill_while(850, move || dead(&runtime, "job") > 0);
    node.wait(30.0).await;
    assert!(node.metric("podwright_hook_panics_total") >= 1.0);
    node.runtime.heal();
    node.eventually(30.0, "the dead container is removed", || dead(&node.runtime, "job") == 0).await;
}

#[actix::test]
async fn a_full_disk_evicts_one_pod_after_the_other_until_it_has_space() {
    let (node, disks) = node(900).await;
    node.runtime.script("main", Script::stubborn());
    let pods = [free("big"), free("small"), free("important").spec("priority", 10), free("file").of_file()];
    node.deliver(&pods).await;
    for (name, size) in [("big", 300), ("small", 100), ("important", 400), ("file", 500)] {
        disks.write(name, "cache", size);
    }
    node.until(15.0).await;
    disks.set_available(99);
    node.eventually(10.0, "a pod is evicted", || node.reason("big") == "Evicted").await;
    assert_eq!(node.lifecycle("small"), Some(Lifecycle::Sync), "one pod at a time");
    let low = "The node was low on resource: ephemeral-storage. Threshold quantity: 104857601, available: 99Mi. ";
    assert_eq!(outcome(&node, "big"), ("Failed".into(), "Evicted".into(), low.into()));
    assert_eq!(disruption(&node, "big").as_deref(), Some(low));
    let events = node.events.of("Evicted");
    let annotations: Vec<_> = events[0].annotations.iter().flat_map(|all| all.iter()).collect();
    assert!(annotations.contains(&(&"starved_resource".into(), &"ephemeral-storage".to_owned())), "{annotations:?}");
    // New pods are rejected, except static ones.
    let more = [pods.as_slice(), &[free("new"), free("new-file").of_file()]].concat();
    node.deliver(&more).await;
    let why = "Pod was rejected: The node had condition: [DiskPressure]. ";
    assert_eq!(outcome(&node, "new"), ("Failed".into(), "Evicted".into(), why.into()));
    node.eventually(10.0, "a static pod runs", || node.phase("new-file") == "Running").await;
    let problems = node.node.explainer().node_problems();
    assert!(problems[0].detail.contains("nodefs.available was 99Mi, less than 104857601"), "{problems:?}");
    // The disk is still full, so the next pod follows once the first one is cleaned up.
    node.eventually(40.0, "the next pod is evicted", || node.reason("small") == "Evicted").await;
    assert_eq!(node.lifecycle("big"), Some(Lifecycle::Finished));
    disks.set_available(500);
    node.wait(30.0).await;
    assert_eq!((node.phase("important"), node.phase("file")), ("Running".into(), "Running".into()));
    assert_eq!(node.metric("kubelet_evictions{eviction_signal=\"nodefs.available\"}"), 2.0);
    assert!(node.metric("kubelet_eviction_stats_age_seconds_count{eviction_signal=\"nodefs.available\"}") >= 2.0);
    assert_eq!(node.metric("kubelet_admission_rejections_total{reason=\"Evicted\"}"), 1.0);
    // The condition lasts for five minutes.
    node.deliver(&[more.as_slice(), &[free("early")]].concat()).await;
    assert_eq!(node.reason("early"), "Evicted");
    node.wait(310.0).await;
    assert!(node.node.explainer().node_problems().is_empty());
    node.deliver(&[more.as_slice(), &[free("late")]].concat()).await;
    node.eventually(10.0, "a new pod runs", || node.phase("late") == "Running").await;
}

#[actix::test]
async fn a_full_disk_evicts_no_pod_while_a_pod_over_its_limit_stops() {
    let (node, disks) = node(900).await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[limited("over"), free("other")]).await;
    disks.write("other", "cache", 300);
    // The measurement and the stop take from 20 s to 34 s, and the disk is checked every 10 s.
    disks.slow("over", 5);
    node.runtime.slow(Op::Stop, 7.0);
    node.until(17.0).await;
    disks.write("over", "cache", 2);
    node.until(27.0).await;
    assert_eq!(node.lifecycle("over"), Some(Lifecycle::Terminating));
    disks.set_available(50);
    node.until(33.0).await;
    assert_eq!(node.lifecycle("over"), Some(Lifecycle::Terminating));
    assert!(!node.node.explainer().node_problems().is_empty(), "the disk was checked");
    assert_eq!(node.lifecycle("other"), Some(Lifecycle::Sync), "the stop of a pod over its limit may be enough");
    // It was not enough.
    node.until(45.0).await;
    assert_eq!(node.reason("other"), "Evicted");
}

#[actix::test]
async fn the_next_eviction_waits_until_the_evicted_pod_is_cleaned_up() {
    let (node, disks) = node(900).await;
    node.deliver(&[free("a"), free("b"), free("c")]).await;
    for (name, size) in [("a", 300), ("b", 200), ("c", 100)] {
        disks.write(name, "cache", size);
    }
    node.until(15.0).await;
    node.storage.stuck(true);
    disks.set_available(50);
    node.eventually(10.0, "a pod is evicted", || node.reason("a") == "Evicted").await;
    node.wait(28.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Terminated), "its volumes cannot be unmounted");
    assert_eq!(node.lifecycle("b"), Some(Lifecycle::Sync));
    // A pod that cannot be cleaned up delays the next eviction by 30 s at most.
    node.eventually(5.0, "the next pod is evicted", || node.reason("b") == "Evicted").await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Terminated));
    node.wait(10.0).await;
    node.storage.stuck(false);
    node.eventually(30.0, "the last pod is evicted", || node.reason("c") == "Evicted").await;
    assert_eq!(node.lifecycle("b"), Some(Lifecycle::Finished));
}

#[actix::test]
async fn pod_whose_measurement_fails_is_evicted_first_and_blocks_no_eviction() {
    evicts_the_unmeasured_pod_first(|disks| disks.fail("unmeasured", Fault::Error)).await;
}

#[actix::test]
async fn pod_whose_measurement_panics_is_evicted_first_and_blocks_no_eviction() {
    evicts_the_unmeasured_pod_first(|disks| disks.fail("unmeasured", Fault::Panic)).await;
}

#[actix::test]
async fn pod_that_takes_long_to_measure_is_evicted_first_and_blocks_no_eviction() {
    evicts_the_unmeasured_pod_first(|disks| disks.slow("unmeasured", 100_000)).await;
}

async fn evicts_the_unmeasured_pod_first(fault: impl FnOnce(&FakeDisks)) {
    let (node, disks) = node(900).await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[free("unmeasured"), free("small"), free("big")]).await;
    disks.write("small", "cache", 5);
    disks.write("big", "cache", 500);
    fault(&disks);
    node.until(15.0).await;
    disks.set_available(99);
    node.eventually(50.0, "the pod without a measurement is evicted", || node.reason("unmeasured") == "Evicted").await;
    assert_eq!(node.phase("big"), "Running", "one pod at a time");
    node.eventually(50.0, "the next pod is evicted", || node.reason("big") == "Evicted").await;
    assert_eq!(node.phase("small"), "Running");
}

/// All measurements together have 120 s: of these 17 pods, four at a time take 29 s each, so one is never measured.
#[actix::test]
async fn pod_for_whose_measurement_no_time_is_left_is_not_evicted() {
    let (node, disks) = node(900).await;
    node.runtime.script("main", Script::stubborn());
    let slow: Vec<String> = (0..17).map(|at| format!("slow-{at}")).collect();
    slow.iter().for_each(|name| disks.slow(name, 29));
    disks.write("big", "cache", 500);
    let pods: Vec<_> = slow.iter().map(|name| free(name)).chain([free("big")]).collect();
    node.deliver(&pods).await;
    node.until(15.0).await;
    disks.set_available(99);
    node.eventually(140.0, "the pod with the largest usage is evicted", || node.reason("big") == "Evicted").await;
    assert!(slow.iter().all(|name| node.phase(name) == "Running"));
}

#[actix::test]
async fn slow_measurements_of_limits_do_not_delay_the_evictions_of_a_full_disk() {
    let (node, disks) = node(900).await;
    node.runtime.script("main", Script::stubborn());
    let slow = ["s1", "s2", "s3", "s4", "s5"];
    let pods: Vec<_> = slow.into_iter().map(limited).chain([free("file").of_file(), free("a"), free("b")]).collect();
    slow.iter().for_each(|name| disks.slow(name, 100_000));
    disks.write("a", "cache", 500);
    node.deliver(&pods).await;
    node.until(15.0).await;
    disks.set_available(99);
    let evicted = || slow.iter().filter(|name| node.reason(name) == "Evicted").count();
    node.eventually(130.0, "a pod is evicted", || evicted() == 1).await;
}

#[actix::test]
async fn no_pod_is_evicted_while_no_pod_can_be_measured() {
    let (node, disks) = node(900).await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[free("small"), free("big")]).await;
    disks.write("big", "cache", 500);
    ["small", "big"].iter().for_each(|name| disks.fail(name, Fault::Error));
    node.until(15.0).await;
    disks.set_available(99);
    node.until(100.0).await;
    for name in ["small", "big"] {
        assert_eq!(node.phase(name), "Running", "{name}");
    }
    assert!(disks.measured("small") > 1, "every check tries again");
    ["small", "big"].iter().for_each(|name| disks.repair(name));
    node.eventually(15.0, "a pod is evicted", || node.reason("big") == "Evicted").await;
    assert_eq!(node.phase("small"), "Running");
}

#[actix::test]
async fn short_memory_evicts_the_pod_that_is_most_above_its_request() {
    let meter = FakeMeter::new(500);
    let node = Setup { meter: Some(meter.clone()), ..Setup::new(true) }.start();
    node.deliver(&[]).await;
    node.runtime.script("main", Script::stubborn());
    let burstable = |name: &str, request: &str| {
        let main = json!({"name": "main", "image": "img", "resources": {"requests": {"memory": request}}});
        pod(name).spec("containers", json!([main]))
    };
    let pods = [pod("much"), pod("little"), burstable("within", "400Mi"), pod("important").spec("priority", 10)];
    for (name, memory) in [("much", 200), ("little", 100), ("within", 390), ("important", 300)] {
        node.runtime.uses_memory(name, memory);
    }
    node.deliver(&pods).await;
    node.until(15.0).await;
    assert_eq!(node.phase("much"), "Running");
    let mut changes = node.node.pressure_changes();
    assert_eq!(*changes.borrow_and_update(), []);
    meter.set_available(99);
    node.eventually(10.0, "a pod is evicted", || node.reason("much") == "Evicted").await;
    let message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 99Mi. Container main was \
                   using 200Mi, request is 0, has larger consumption of memory. ";
    assert_eq!(outcome(&node, "much"), ("Failed".into(), "Evicted".into(), message.into()));
    assert_eq!(disruption(&node, "much").as_deref(), Some(message));
    assert_eq!(node.events.of("EvictionThresholdMet")[0].message, "Attempting to reclaim memory");
    assert_eq!(*changes.borrow_and_update(), [Pressure::Memory]);
    let conditions = node.node.node_conditions();
    assert_eq!((conditions[0].type_.as_str(), conditions[0].status.as_str()), ("MemoryPressure", "True"));
    assert_eq!((conditions[1].type_.as_str(), conditions[1].status.as_str()), ("DiskPressure", "False"));
    meter.set_available(200);
    // Only pods without requests are rejected.
    let more = [pods.as_slice(), &[pod("new"), burstable("new-burstable", "1Mi")]].concat();
    node.deliver(&more).await;
    assert_eq!(node.reason("new"), "Evicted");
    node.wait(30.0).await;
    for name in ["little", "within", "important", "new-burstable"] {
        assert_eq!(node.phase(name), "Running", "{name}");
    }
    assert_eq!(node.metric("kubelet_evictions{eviction_signal=\"memory.available\"}"), 1.0);
    node.wait(310.0).await;
    assert_eq!(*changes.borrow_and_update(), []);
}

#[actix::test]
async fn short_memory_evicts_a_pod_whose_processes_cannot_be_measured_and_then_the_next_one() {
    let (node, meter) = node_with_memory().await;
    node.runtime.fail_usage("innocent", RuntimeError::failed("the runtime is busy"));
    meter.set_available(99);
    node.eventually(10.0, "the first pod is evicted", || node.reason("innocent") == "Evicted").await;
    node.eventually(20.0, "the next pod is evicted", || node.reason("big") == "Evicted").await;
}

#[actix::test]
async fn short_memory_evicts_a_pod_that_the_runtime_does_not_have_and_then_the_next_one() {
    let (node, meter) = node_with_memory().await;
    node.runtime.fail_usage("innocent", RuntimeError::NotFound("innocent".into()));
    meter.set_available(99);
    node.eventually(10.0, "the first pod is evicted", || node.reason("innocent") == "Evicted").await;
    node.eventually(10.0, "the next pod is evicted", || node.reason("big") == "Evicted").await;
}

/// A node with enough memory and two pods, of which `big` uses more.
async fn node_with_memory() -> (TestNode, Arc<FakeMeter>) {
    let meter = FakeMeter::new(500);
    let node = Setup { meter: Some(meter.clone()), ..Setup::new(true) }.start();
    node.deliver(&[]).await;
    node.runtime.script("main", Script::stubborn());
    node.runtime.uses_memory("innocent", 1);
    node.runtime.uses_memory("big", 300);
    node.deliver(&[pod("innocent"), pod("big")]).await;
    node.until(15.0).await;
    (node, meter)
}

#[actix::test]
async fn a_soft_threshold_evicts_after_its_time_and_leaves_the_pod_time_to_stop() {
    let disks = FakeDisks::new(900);
    let policy = EvictionPolicy::new(EvictionThresholds::none())
        .soft("nodefs.available<50%".parse().unwrap(), &"nodefs.available=1m".parse().unwrap())
        .unwrap()
        .minimum_reclaim("nodefs.available=100Mi".parse().unwrap())
        .max_pod_grace(Duration::from_secs(12));
    let node = Setup { disks: Some(disks.clone()), eviction: policy, ..Setup::new(true) }.start();
    node.deliver(&[]).await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[free("a"), free("b"), free("c")]).await;
    for (name, size) in [("a", 300), ("b", 200), ("c", 100)] {
        disks.write(name, "cache", size);
    }
    node.until(15.0).await;
    disks.set_available(499);
    node.until(25.0).await;
    assert_eq!(node.node.pressures().len(), 1, "the condition begins at once");
    node.until(79.0).await;
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Sync), "the threshold has been met for less than a minute");
    node.until(81.0).await;
    let begin = node.now();
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Terminating));
    node.eventually(20.0, "the pod has stopped", || node.lifecycle("a") != Some(Lifecycle::Terminating)).await;
    assert!((9.0..13.0).contains(&(node.now() - begin)), "the grace period is twelve seconds");
    // The threshold is no longer met, but less than the minimum was reclaimed.
    disks.set_available(599);
    node.eventually(40.0, "the next pod is evicted", || node.reason("b") == "Evicted").await;
    disks.set_available(600);
    node.wait(60.0).await;
    assert_eq!(node.phase("c"), "Running");
    assert_eq!(node.metric("kubelet_evictions{eviction_signal=\"nodefs.available\"}"), 2.0);
}
