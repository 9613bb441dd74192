//! The shutdown of the node.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_actors::shutdown::ShutdownConfig;
use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::Script;

use crate::support::test_node::{Setup, TestNode};

fn config() -> ShutdownConfig {
    ShutdownConfig::new(Duration::from_secs(30), Duration::from_secs(10))
}

// Scenario POD-S92.
#[actix::test]
async fn node_shutdown_stops_normal_pods_before_critical_pods() {
    let node = TestNode::start().await;
    for name in ["usual", "short", "long", "vital"] {
        node.runtime.script(name, Script::stubborn());
    }
    node.runtime.script("done", Script::ends(1.0, 0));
    let of = |name: &str, grace| pod(name).containers(&[name]).grace(grace);
    let pods = [
        of("usual", 30),
        of("short", 2),
        of("long", 1000),
        of("vital", 30).spec("priority", 2_000_000_000),
        of("done", 30).policy("Never"),
    ];
    node.deliver(&pods).await;
    node.wait(5.0).await;
    let begin = node.now();
    let late = node.node.stop_pods(config()).await.late;
    assert_eq!(late.len(), 0);
    assert!((30.0..30.5).contains(&(node.now() - begin)), "{}", node.now() - begin);
    let at = |which: &str| node.metric(&format!("kubelet_graceful_shutdown_{which}_time_seconds")) - 1_800_000_000.0;
    assert!((at("start") - begin).abs() < 0.01 && (at("end") - node.now()).abs() < 0.01);

    let mut stops: Vec<_> = node.runtime.calls().into_iter().filter(|call| call.what.starts_with("stop ")).collect();
    stops.sort_by(|a, b| a.what.cmp(&b.what));
    let stops: Vec<_> = stops.iter().map(|call| (call.what.as_str(), (call.at - begin).round())).collect();
    let expected = [("stop long 20", 0.0), ("stop short 2", 0.0), ("stop usual 20", 0.0), ("stop vital 10", 20.0)];
    assert_eq!(stops, expected);
    for name in ["usual", "short", "long", "vital"] {
        assert_eq!((node.phase(name), node.reason(name)), ("Failed".into(), "Terminated".into()), "{name}");
        let conditions = node.status(name).conditions.unwrap();
        let target = conditions.iter().find(|c| c.type_ == "DisruptionTarget").unwrap();
        assert_eq!(target.reason.as_deref(), Some("TerminationByKubelet"));
        assert_eq!(node.lifecycle(name), Some(Lifecycle::Finished));
    }
    assert_eq!((node.phase("done"), node.reason("done")), ("Succeeded".into(), String::new()));

    node.deliver(&[pods.as_slice(), &[pod("new")]].concat()).await;
    assert_eq!((node.phase("new"), node.reason("new")), ("Failed".into(), "NodeShutdown".into()));
}

#[actix::test]
async fn shutdown_that_leaves_pods_running_rejects_no_pod() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a")]).await;
    let report = node.node.stop_pods(Duration::ZERO).await;
    assert_eq!((report.stopped, report.left_running), (0, 1));
    node.deliver(&[pod("a"), pod("new")]).await;
    node.wait(1.0).await;
    assert_eq!((node.phase("a"), node.phase("new")), ("Running".into(), "Running".into()));
}

#[actix::test]
async fn node_shutdown_returns_the_pods_that_did_not_stop_in_time() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a"), pod("b").spec("priority", 2_000_000_000)]).await;
    node.runtime.fail_stops();
    let begin = node.now();
    let late = node.node.stop_pods(config()).await.late;
    assert_eq!(late.iter().map(|pod| pod.full_name().name()).collect::<Vec<_>>(), ["a", "b"]);
    // Each group has half a second more, so that the exit of a killed container can be observed.
    assert!((31.0..31.1).contains(&(node.now() - begin)));
}

#[actix::test]
async fn node_shutdown_waits_for_slow_volume_cleanup() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a")]).await;
    node.storage.stuck(true);
    let begin = node.now();
    let release = async {
        node.wait(5.0).await;
        node.storage.stuck(false);
    };
    let (report, ()) = tokio::join!(node.node.stop_pods(config()), release);
    assert_eq!(report.late.len(), 0);
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert!((10.0..15.5).contains(&(node.now() - begin)));
}

#[actix::test]
async fn node_shutdown_stops_a_group_for_each_configured_priority() {
    let node = TestNode::start().await;
    for name in ["low", "middle", "high"] {
        node.runtime.script(name, Script::stubborn());
    }
    let of = |name: &str, priority: i32| pod(name).containers(&[name]).grace(100).spec("priority", priority);
    node.deliver(&[of("high", 5000), of("low", -7), of("middle", 100)]).await;
    let begin = node.now();
    let periods =
        [(0, 4), (100, 3), (200, 1000), (1000, 2)].map(|(priority, time)| (priority, Duration::from_secs(time)));
    let late = node.node.stop_pods(ShutdownConfig::by_priority(BTreeMap::from(periods))).await.late;
    assert_eq!(late.len(), 0);
    let mut stops: Vec<_> = node.runtime.calls().into_iter().filter(|call| call.what.starts_with("stop ")).collect();
    stops.sort_by(|a, b| a.at.total_cmp(&b.at));
    let stops: Vec<_> = stops.iter().map(|call| (call.what.as_str(), (call.at - begin).round())).collect();
    // No pod has the priority 200, so nobody waits for that group.
    assert_eq!(stops, [("stop low 4", 0.0), ("stop middle 3", 4.0), ("stop high 2", 7.0)]);
}

#[actix::test]
async fn cancelled_shutdown_keeps_later_groups_and_runs_static_pods_again() {
    let node = TestNode::start().await;
    node.runtime.script("slow", Script::stubborn());
    let pods = [
        pod("quick").of_file(),
        pod("slow").of_file().containers(&["slow"]).grace(10),
        pod("once").of_file().policy("Never"),
        pod("remote"),
        pod("vital").of_file().spec("priority", 2_000_000_000),
        pod("late").of_file(),
    ];
    node.deliver(&pods[..5]).await;
    let begin = node.now();
    let cancel = async {
        node.wait(2.0).await;
        node.deliver(&pods).await;
        assert_eq!((node.phase("late"), node.reason("late")), ("Failed".into(), "NodeShutdown".into()));
        node.node.resume().await;
        node.settled().await;
        assert_eq!(node.phase("late"), "Running", "a pod that the shutdown rejected is admitted");
        assert_eq!(node.lifecycle("slow"), Some(Lifecycle::Terminating), "a stop that has begun goes on");
    };
    let (report, ()) = tokio::join!(node.node.stop_pods(config()), cancel);
    assert_eq!((report.stopped, report.late.len(), report.left_running), (4, 0, 1));
    assert!((10.0..10.6).contains(&(node.now() - begin)), "{}", node.now() - begin);

    // Two passes: one drops the record, and one starts the pod.
    node.wait(5.0).await;
    for name in ["quick", "slow", "vital", "late"] {
        assert_eq!((node.phase(name), node.lifecycle(name)), ("Running".into(), Some(Lifecycle::Sync)), "{name}");
    }
    let stops = |name: &str| {
        let stop = format!("stop {name} ");
        node.runtime.calls().iter().filter(|call| call.what.starts_with(&stop)).count()
    };
    assert_eq!((stops("vital"), stops("slow")), (0, 1));
    for name in ["once", "remote"] {
        assert_eq!((node.phase(name), node.reason(name)), ("Failed".into(), "Terminated".into()), "{name}");
    }

    // The next shutdown is complete.
    let report = node.node.stop_pods(config()).await;
    assert_eq!((report.stopped, report.late.len(), report.left_running), (4, 0, 0));
    node.wait(10.0).await;
    assert_eq!(node.reason("quick"), "Terminated");
}

// The shutdown finds the pod while it stops after its deadline (POD-S76).
#[actix::test]
async fn static_pod_that_ended_before_a_cancelled_shutdown_does_not_run_again() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("a").of_file().grace(60).spec("activeDeadlineSeconds", 2)]).await;
    node.wait(5.0).await;
    let ended = ("Failed".to_owned(), "DeadlineExceeded".to_owned());
    assert_eq!((node.phase("a"), node.reason("a")), ended);
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Terminating));
    let cancel = async {
        node.wait(1.0).await;
        node.node.resume().await;
    };
    let (report, ()) = tokio::join!(node.node.stop_pods(config()), cancel);
    assert_eq!(report.stopped, 1);
    node.wait(10.0).await;
    assert_eq!((node.phase("a"), node.reason("a")), ended);
    assert_eq!((node.lifecycle("a"), node.runtime.running("a")), (Some(Lifecycle::Finished), Vec::new()));
    assert_eq!(node.runtime.times_of("start main").len(), 1);
}

#[actix::test]
async fn times_of_the_last_shutdown_are_in_the_metrics_of_the_next_agent() {
    let setup = Setup::new(true);
    let file = setup.shutdown_times.clone();
    let node = setup.start();
    node.deliver(&[]).await;
    let times = |node: &TestNode| {
        ["start", "end"].map(|which| node.metric(&format!("kubelet_graceful_shutdown_{which}_time_seconds")))
    };
    assert_eq!(times(&node), [0.0, 0.0]);
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("a").grace(3)]).await;
    let begin = async {
        node.wait(1.0).await;
        let record: serde_json::Value = serde_json::from_str(&file.records()[0]).unwrap();
        assert!(record["startTime"].as_str().unwrap().starts_with("2027-01-15T08:00:00"), "{record}");
        assert!(record["endTime"].is_null(), "{record}");
    };
    tokio::join!(node.node.stop_pods(config()), begin);
    let next = Setup { shutdown_times: file.clone(), ..Setup::again(true) }.start();
    assert_eq!(times(&next), times(&node));
    assert!(times(&next)[1] > times(&next)[0], "{:?}", times(&next));
    drop((node, next));

    // A file that cannot be used keeps no pod from stopping.
    file.plant("not a record");
    file.broken(true);
    let node = Setup { shutdown_times: file.clone(), ..Setup::again(true) }.start();
    assert_eq!(times(&node), [0.0, 0.0]);
    node.deliver(&[pod("a")]).await;
    assert_eq!(node.node.stop_pods(config()).await.stopped, 1);
}
