//! `podwright preview`, and `podwright explain pod` and `explain rule` of running controllers.

use std::fs;

use podwright_cluster::taints::{LEASE, RULES, forever};
use podwright_cluster::{Cluster, MERGE};
use podwright_stand_in::{User, Verb};
use serde_json::{Value, json};

use super::binary::home_of;
use crate::agent::harness::{AgentHome, eventually, podwright, text};

const RULE: &str = "apiVersion: resource.k8s.io/v1beta2\nkind: DeviceTaintRule\nmetadata:\n  name: r\nspec:\n  deviceSelector:\n    driver: d\n  \
                    taint:\n    key: t\n    value: v\n    effect: NoExecute\n";

/// Runs `preview` with the text of a file.
async fn preview(home: &AgentHome, rule: &str, more: &[&str]) -> std::process::Output {
    let file = home.root().join("rule.yaml");
    fs::write(&file, rule).unwrap();
    let kubeconfig = home.kubeconfig();
    let flags = ["preview", "-f", file.to_str().unwrap(), "--kubeconfig", &kubeconfig];
    podwright(&[&flags[..], more].concat()).await
}

/// Adds a pod that a rule would evict at once, and a pod that tolerates the taint for five minutes.
fn two_pods(cluster: &Cluster) {
    cluster.user(0, &json!([]));
    let short = json!([{"key": "t", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]);
    cluster.claim_of_device("c1", "i1", &short);
    let spec = json!({"nodeName": "n1", "priority": 1000});
    cluster.pod_with("p1", &json!([{"name": "c0", "resourceClaimName": "c1"}]), &spec);
    cluster.reserve("c1", &json!([cluster.consumer("p1")]));
}

#[tokio::test]
async fn preview_shows_what_a_rule_would_hit_and_changes_nothing() {
    let cluster = Cluster::start().await;
    two_pods(&cluster);
    let home = home_of(&cluster, &User::admin());
    cluster.server.forget_requests();
    let output = preview(&home, RULE, &[]).await;
    let shown = text(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(shown.starts_with("DeviceTaintRule r: taint t=v:NoExecute, since "), "{shown}");
    assert!(
        shown.contains("0 published devices match; 2 allocated devices match; 2 pods in 1 namespace are evicted"),
        "{shown}"
    );
    let row =
        |name: &str| shown.lines().find(|line| line.contains(&format!("default     {name} "))).unwrap().to_owned();
    assert!(row("p0").contains(" now"), "{shown}");
    assert!(row("p1").contains(" 1000 ") && row("p1").contains("(in 300 s)"), "{shown}");
    let requests = cluster.server.requests();
    assert!(requests.iter().all(|served| served.verb == Some(Verb::List)), "{requests:?}");
    let output = preview(&home, RULE, &["-o", "json"]).await;
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["evicts"], json["pods"].as_array().unwrap().len()), (&json!(true), 2), "{json}");
    assert_eq!((&json["pods"][1]["name"], &json["pods"][1]["priority"]), (&json!("p1"), &json!(1000)), "{json}");
    let all = RULE.replace("deviceSelector:\n    driver: d", "deviceSelector: {}");
    let shown = text(&preview(&home, &all, &[]).await.stdout);
    assert!(shown.contains("WARNING: this rule evicts all pods of the cluster that use devices."), "{shown}");
}

#[tokio::test]
async fn preview_refuses_wrong_input_with_the_position_and_the_remedy() {
    let cluster = Cluster::start().await;
    let home = home_of(&cluster, &User::admin());
    for (rule, part) in [
        (
            RULE.replace("NoExecute", "NoExecut"),
            "line 11, column 5: spec.taint.effect: \"NoExecut\" is no effect: use None",
        ),
        (RULE.replace("driver: d", "drver: d"), "did you mean \"driver\"?"),
        (RULE.replace("kind: DeviceTaintRule", "kind: Pod"), "only a DeviceTaintRule has a preview"),
    ] {
        let output = preview(&home, &rule, &[]).await;
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("rule.yaml has no valid DeviceTaintRule:") && error.contains(part), "{error}");
    }
    let kubeconfig = home.kubeconfig();
    let output = podwright(&["preview", "-f", "/nowhere.yaml", "--kubeconfig", &kubeconfig]).await;
    assert!(text(&output.stderr).contains("cannot read /nowhere.yaml: correct the file or --filename"), "{output:?}");
    let file = home.root().join("rule.yaml");
    let output = podwright(&["preview", "-f", file.to_str().unwrap(), "--kubeconfig", "/nowhere"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    fs::write(&file, RULE).unwrap();
    let output = podwright(&["preview", "-f", file.to_str().unwrap(), "--kubeconfig", "/nowhere"]).await;
    assert!(text(&output.stderr).contains("correct the file or --kubeconfig"), "{output:?}");
    for (variable, success) in [(&*kubeconfig, true), ("/nowhere", false)] {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_podwright"));
        command.args(["preview", "-f", file.to_str().unwrap()]).env("KUBECONFIG", variable);
        let output = command.output().await.unwrap();
        assert_eq!(output.status.success(), success, "{output:?}");
        assert_eq!(text(&output.stderr).contains("there is no kubeconfig at /nowhere"), !success, "{output:?}");
    }
    let nobody = home_of(&cluster, &User::new("nobody", &[]));
    let output = preview(&nobody, RULE, &[]).await;
    let error = text(&output.stderr);
    assert!(error.contains("cannot list the resourceslices of the cluster: permit the verb list on pods"), "{error}");
}

#[tokio::test]
async fn preview_without_rules_of_the_server_warns() {
    let cluster = Cluster::start().await;
    two_pods(&cluster);
    let rules = podwright_stand_in::Rule::new().resource("devicetaintrules");
    cluster.server.faults().inject(rules, podwright_stand_in::Fault::status(404));
    let output = preview(&home_of(&cluster, &User::admin()), RULE, &[]).await;
    assert!(output.status.success(), "{output:?}");
    let warning = text(&output.stderr);
    assert!(
        warning.contains("warning: the API server does not serve DeviceTaintRules: start kube-apiserver with"),
        "{warning}"
    );
    assert!(text(&output.stdout).contains("2 pods in 1 namespace"), "{output:?}");
}

#[tokio::test]
async fn controllers_explain_pods_and_rules() {
    let cluster = Cluster::start().await;
    cluster.users(1, &forever());
    cluster.rule();
    let home = home_of(&cluster, &User::admin());
    let kubeconfig = home.kubeconfig();
    let gates = "--feature-gates=DRADeviceTaintRules=true";
    let flags = ["--kubeconfig", &kubeconfig, "--controllers=device-taint-eviction", gates];
    let controllers = home.start_controllers(&flags).await;
    let explained = eventually("the pod is pending", || async {
        let output = controllers.run_client(&["explain", "pod", "default/p0"]).await;
        let shown = text(&output.stdout);
        (output.status.success() && shown.starts_with("default/p0: The pod is evicted at ")).then_some(shown)
    })
    .await;
    for part in [
        "  c0: ResourceClaim c0\n",
        "device d/w/i0: taint t=v of DeviceTaintRule r since 2020-01-01T00:00:00Z: tolerated for 2000000000 s",
        "DeviceTaintRule r is deleted, or gets another effect than NoExecute",
    ] {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    let output = controllers.run_client(&["explain", "rule", "r"]).await;
    let explained = text(&output.stdout);
    assert!(explained.starts_with("r: 1 pod waits in 1 namespace for the eviction by this rule."), "{output:?}");
    assert!(explained.contains("default     p0     n1     0 "), "{explained}");
    let output = controllers.run_client(&["explain", "rule", "r", "-o", "json"]).await;
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["state"], &json["counts"]["pending"]), (&json!("inProgress"), &json!(1)), "{json}");
    let output = controllers.run_client(&["explain", "pod", "default/absent"]).await;
    assert!(text(&output.stdout).contains("There is no pod of this name that uses ResourceClaims."), "{output:?}");
    let output = controllers.run_client(&["explain", "rule", "No Name"]).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = controllers.run_client(&["explain", "claim", "default/c0"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = text(&output.stderr);
    assert!(error.contains("resourceclaim-controller does not run in this process"), "{error}");
    assert!(error.contains("add resourceclaim to --controllers"), "{error}");
    controllers.crash().await;
    // Another replica leads.
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{LEASE}");
    let address = json!({"podwright.dev/admin-address": "https://10.0.0.5:10255"});
    let spec = json!({"holderIdentity": "another-pod_1", "leaseDurationSeconds": 3600});
    let taken = json!({"metadata": {"annotations": address}, "spec": spec});
    cluster.server.request("PATCH", &lease, MERGE, &taken).unwrap();
    let controllers = home.start_controllers(&flags).await;
    eventually("the replica follows", || async {
        let output = controllers.run_client(&["explain", "pod", "default/p0"]).await;
        let leader = "run the command on the leader, which is another-pod_1, on the machine or in the pod another-pod, or from here with \
                      --admin https://10.0.0.5:10255 --admin-ca FILE --admin-token-file FILE, if its certificate has this address";
        text(&output.stderr).contains(leader).then_some(())
    })
    .await;
}

/// The limit stops the evictions, and the annotation lets them go on.
#[tokio::test]
async fn limit_of_evictions_stops_until_the_rule_is_annotated() {
    let cluster = Cluster::start().await;
    cluster.users(5, &json!([]));
    cluster.rule();
    let home = home_of(&cluster, &User::admin());
    let kubeconfig = home.kubeconfig();
    let gates = "--feature-gates=DRADeviceTaintRules=true";
    let limit = "--max-evictions-per-rule=2";
    let flags =
        ["--kubeconfig", &kubeconfig, "--controllers=device-taint-eviction", "--leader-elect=false", gates, limit];
    let controllers = home.start_controllers(&flags).await;
    let condition = || {
        let rule = cluster.server.get("devicetaintrules", "", "r")?;
        let conditions = rule["status"]["conditions"].as_array()?.clone();
        conditions.into_iter().find(|condition| condition["type"] == "podwright.dev/EvictionLimitReached")
    };
    let stopped =
        eventually("the limit is reached", || async { condition().filter(|condition| condition["status"] == "True") })
            .await;
    assert!(stopped["message"].as_str().unwrap().contains("podwright.dev/continue-evictions"), "{stopped}");
    let deleted = || (0..5).filter(|at| cluster.is_deleted(&format!("p{at}"))).count();
    eventually("the pods that count are deleted", || async { (deleted() == 2).then_some(()) }).await;
    let held = (0..5).find(|at| !cluster.is_deleted(&format!("p{at}"))).unwrap();
    let output = controllers.run_client(&["explain", "pod", &format!("default/p{held}")]).await;
    assert!(text(&output.stdout).contains("It is held, because DeviceTaintRule r has reached the limit"), "{output:?}");
    let annotated = json!({"metadata": {"annotations": {"podwright.dev/continue-evictions": "5"}}});
    cluster.server.request("PATCH", &format!("{RULES}/r"), MERGE, &annotated).unwrap();
    eventually("all pods are deleted", || async { (deleted() == 5).then_some(()) }).await;
}
