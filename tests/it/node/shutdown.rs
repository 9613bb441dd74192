//! The shutdown of the node.

use std::time::Duration;

use podwright_actors::pod_worker::Lifecycle;
use podwright_actors::shutdown::ShutdownConfig;

use crate::support::fake_runtime::Script;
use crate::support::pods::pod;
use crate::support::test_node::TestNode;

const CONFIG: ShutdownConfig = ShutdownConfig::new(Duration::from_secs(30), Duration::from_secs(10));

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
    let late = node.node.stop_pods(CONFIG).await.late;
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
async fn node_shutdown_returns_the_pods_that_did_not_stop_in_time() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a"), pod("b").spec("priority", 2_000_000_000)]).await;
    node.runtime.fail_stops();
    let begin = node.now();
    let late = node.node.stop_pods(CONFIG).await.late;
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
    let (report, ()) = tokio::join!(node.node.stop_pods(CONFIG), release);
    assert_eq!(report.late.len(), 0);
    assert_eq!(node.lifecycle("a"), Some(Lifecycle::Finished));
    assert!((10.0..15.5).contains(&(node.now() - begin)));
}
