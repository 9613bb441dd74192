//! `podwright controllers --controllers device-taint-eviction`.

use podwright_cluster::Cluster;
use podwright_cluster::taints::LEASE;
use podwright_stand_in::{Fault, Rule, User};
use rustix::process::Signal;
use serde_json::json;

use super::binary::home_of;
use crate::agent::harness::{AgentHome, eventually, podwright, text};

#[tokio::test]
async fn both_controllers_run_in_one_process_with_a_lease_each() {
    let cluster = Cluster::start().await;
    cluster.users(2, &json!([]));
    cluster.tainted_slice();
    let home = home_of(&cluster, &User::admin());
    let kubeconfig = home.kubeconfig();
    let flags = ["--kubeconfig", &kubeconfig, "--controllers", "resourceclaim,device-taint-eviction"];
    let mut controllers = home.start_controllers(&flags).await;
    eventually("the pod is deleted", || async { cluster.is_deleted("p0").then_some(()) }).await;
    assert!(!cluster.is_deleted("p1"));
    let ready = eventually("the controllers are ready", || async {
        let (code, body) = controllers.get_from_port("/readyz", "");
        (code == 200).then_some(body)
    })
    .await;
    let expected = format!("ok\nleaderelection resourceclaim-controller: leading\nleaderelection {LEASE}: leading\n");
    assert_eq!(ready, expected);
    let (_, metrics) = eventually("the deletion is counted", || async {
        let (code, metrics) = controllers.get_from_port("/metrics", "");
        metrics.contains("device_taint_eviction_controller_pod_deletions_total 1\n").then_some((code, metrics))
    })
    .await;
    for line in [
        "device_taint_eviction_controller_pod_deletion_duration_seconds_count 1",
        &format!(r#"leader_election_master_status{{name="{LEASE}"}} 1"#),
        r#"leader_election_master_status{name="resourceclaim-controller"} 1"#,
        &format!(r#"workqueue_depth{{name="{LEASE}""#),
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    controllers.signal(Signal::TERM);
    assert_eq!(controllers.ended().await, Some(0));
    for lease in ["resourceclaim-controller", LEASE] {
        let lease = cluster.server.get("leases", "kube-system", lease).unwrap();
        assert_eq!(lease["spec"]["holderIdentity"], "", "the lease is given back");
    }
    let events = cluster.server.all("events");
    assert!(events.iter().any(|event| event["reason"] == "DeviceTaintManagerEviction"), "{events:?}");
    assert!(cluster.server.requests().iter().all(|served| served.resource != "devicetaintrules"), "the gate is off");
}

#[tokio::test]
async fn rules_that_the_server_does_not_serve_are_reported_as_not_ready() {
    let cluster = Cluster::start().await;
    cluster.users(1, &json!([]));
    cluster.tainted_slice();
    cluster.server.faults().inject(Rule::new().resource("devicetaintrules"), Fault::status(404));
    let home = home_of(&cluster, &User::admin());
    let kubeconfig = home.kubeconfig();
    let flags = ["--kubeconfig", &kubeconfig, "--controllers=device-taint-eviction", "--leader-elect=false"];
    let with_rules = [&flags[..], &["--feature-gates=DRADeviceTaintRules=true"]].concat();
    let controllers = home.start_controllers(&with_rules).await;
    let problem = eventually("the watch of rules fails", || async {
        let (code, body) = controllers.get_from_port("/readyz", "");
        (code == 503 && body.contains("devicetaintrules")).then_some(body)
    })
    .await;
    for part in [
        "the first lists of the watches are not complete\n",
        "the API server does not serve devicetaintrules of resource.k8s.io/v1beta2",
        "--runtime-config=resource.k8s.io/v1beta2=true",
        "turn off the feature gate DRADeviceTaintRules",
    ] {
        assert!(problem.contains(part), "{part}: {problem}");
    }
    assert!(problem.ends_with(&format!("leaderelection {LEASE}: off\n")), "{problem}");
    assert!(!cluster.is_deleted("p0"), "a rule or toleration may be unknown");
    controllers.crash().await;
    // Without the gate, the same server is enough.
    let _controllers = home.start_controllers(&flags).await;
    eventually("the pod is deleted", || async { cluster.is_deleted("p0").then_some(()) }).await;
}

#[tokio::test]
async fn gate_of_device_taints_turns_the_controller_off() {
    let cluster = Cluster::start().await;
    cluster.users(1, &json!([]));
    cluster.tainted_slice();
    let home = home_of(&cluster, &User::admin());
    let kubeconfig = home.kubeconfig();
    let off = "--feature-gates=DRADeviceTaints=false";
    let flags = ["--kubeconfig", &kubeconfig, "--controllers=resourceclaim,device-taint-eviction", off];
    let controllers = home.start_controllers(&flags).await;
    let ready = eventually("the controller is ready", || async {
        let (code, body) = controllers.get_from_port("/readyz", "");
        (code == 200 && body.contains("leading")).then_some(body)
    })
    .await;
    assert!(!ready.contains(LEASE), "{ready}");
    controllers.wait_for_line("controller is not started: its feature gate is off").await;
    assert!(cluster.server.requests().iter().all(|served| served.resource != "resourceslices"));
    assert!(cluster.server.get("leases", "kube-system", LEASE).is_none());
    assert!(!cluster.is_deleted("p0"));
}

#[tokio::test]
async fn unusable_flags_of_device_taints_end_the_controllers_with_the_remedy() {
    let home = AgentHome::new();
    let root = home.root().to_str().unwrap();
    for (flag, part) in [
        ("--concurrent-device-taint-eviction-syncs=0", "write a whole number of at least 1"),
        ("--max-evictions-per-rule=x", "or leave the flag out for no limit"),
        ("--max-evictions-per-rule=3", "has no effect without rules: add --feature-gates=DRADeviceTaintRules=true"),
        ("--feature-gates=DRADeviceTaints=false", "there is no controller to run"),
        ("--feature-gates=DRADeviceTaint=true", "known gates: DRAAdminAccess, "),
    ] {
        let flags = ["controllers", "--root", root, "--kubeconfig=/k", "--controllers=device-taint-eviction", flag];
        let output = podwright(&flags).await;
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(part), "{error}");
    }
}
