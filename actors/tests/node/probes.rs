//! Probes of containers.

use podwright_fixtures::api_pods::pod;
use podwright_ports::ExecOutput;
use serde_json::json;

use crate::support::test_node::TestNode;

fn exit(code: i32) -> ExecOutput {
    ExecOutput { exit_code: code, ..ExecOutput::default() }
}

// Failures have no duration, as in the kubelet (`prober/worker.go`, `doProbe`, 1.36).
#[actix::test]
async fn probes_are_counted_by_container_until_they_end() {
    let node = TestNode::start().await;
    let probe = json!({"exec": {"command": ["ready"]}, "periodSeconds": 1, "failureThreshold": 1});
    let ready = pod("a").spec("containers", json!([{"name": "main", "image": "img", "readinessProbe": probe}]));
    node.deliver(std::slice::from_ref(&ready)).await;
    node.wait(2.5).await;
    node.runtime.exec_result(Ok(exit(1)));
    node.wait(4.0).await;
    let series = |result: &str| {
        let labels = "container=\"main\",namespace=\"test\",pod=\"a\",pod_uid=\"a\",probe_type=\"Readiness\"";
        format!("prober_probe_total{{{labels},result=\"{result}\"}}")
    };
    let durations =
        "prober_probe_duration_seconds_count{container=\"main\",namespace=\"test\",pod=\"a\",probe_type=\"Readiness\"}";
    let passed = node.metric(&series("successful"));
    assert!(passed >= 2.0 && node.metric(&series("failed")) >= 3.0);
    assert_eq!(node.metric(durations), passed);

    node.deliver(&[ready.deleting(1)]).await;
    node.wait(3.0).await;
    let left = [series("successful"), series("failed"), durations.to_owned()].map(|series| node.metric(&series));
    assert_eq!(left, [0.0; 3], "a pod that ended has no series");
}

// The label `pod` of a duration is the workload's name (`prober/worker.go`, `getPodLabelName`, 1.36).
#[actix::test]
async fn probe_durations_are_counted_by_workload() {
    let node = TestNode::start().await;
    let probe = json!({"exec": {"command": ["ready"]}, "periodSeconds": 1});
    let main = json!([{"name": "main", "image": "img", "readinessProbe": probe}]);
    let of_deployment = pod("web-7d9f-x2k4p").generated("web-7d9f-", "7d9f");
    node.deliver(&[of_deployment.spec("containers", main)]).await;
    node.wait(2.5).await;
    let labels = |pod: &str| format!("container=\"main\",namespace=\"test\",pod=\"{pod}\"");
    let duration =
        |pod: &str| format!("prober_probe_duration_seconds_count{{{},probe_type=\"Readiness\"}}", labels(pod));
    let counted = [duration("web"), duration("web-7d9f-x2k4p")].map(|series| node.metric(&series) > 0.0);
    assert_eq!(counted, [true, false]);
    let uid = "pod_uid=\"web-7d9f-x2k4p\",probe_type=\"Readiness\",result=\"successful\"";
    assert!(node.metric(&format!("prober_probe_total{{{},{uid}}}", labels("web-7d9f-x2k4p"))) > 0.0);
}

// Only values that the spec gives as plain text count, and they are not expanded (the kubelet's
// `ExpandContainerCommandOnlyStatic`, 1.36).
#[actix::test]
async fn command_of_an_exec_probe_is_expanded_with_the_plain_variables() {
    let node = TestNode::start().await;
    let probe = json!({"exec": {"command": ["check", "$(PORT)", "$(URL)", "$$(PORT)", "$(NODE)", "$(NONE)"]}});
    let env = json!([
        {"name": "PORT", "value": "80"},
        {"name": "URL", "value": "http://$(PORT)"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]);
    let main = json!([{"name": "main", "image": "img", "env": env, "livenessProbe": probe}]);
    node.deliver(&[pod("a").spec("containers", main)]).await;
    node.wait(12.0).await;
    let command = node.runtime.last_command();
    assert_eq!(command, ["check", "80", "http://$(PORT)", "$(PORT)", "", "$(NONE)"]);
}
