//! The driver of `examples/`, the real agent and an API server: the devices of claims reach pods and are given back.

use std::fs;

use serde_json::json;

use super::claim_cluster::{ClaimCluster, DRIVER, log_of};
use crate::agent::harness::{Agent, eventually, text};
use crate::support::polling::until;

/// One pod of `cluster` has its device until it ends, another one until it is deleted. The driver is slow, so the test would see a
/// terminal phase that is written too early while the CDI file still exists.
pub(crate) async fn pods_have_their_device_until_they_end_or_are_deleted(cluster: &ClaimCluster, agent: &Agent) {
    let driver = cluster.driver(&["--delay", "300"]).await;
    cluster.run("cam", &["ends"]);
    assert_eq!(log_of(agent, "ends").await, "device n1/device-0\n");
    cluster.wait_for_phase("ends", "Running").await;
    let uid = cluster.pod("ends")["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(cluster.recorded(), [("cam".to_owned(), vec![uid])]);
    assert_eq!(cluster.cdi_files().len(), 1);
    let in_use = |count| format!("dra_resource_claims_in_use{{driver_name=\"{DRIVER}\"}} {count}\n");
    assert!(agent.get_from_port("/metrics", "").1.contains(&in_use(1)));
    cluster.end("ends");
    cluster.wait_for_phase("ends", "Succeeded").await;
    is_released(cluster);
    assert!(!agent.get_from_port("/metrics", "").1.contains(&in_use(1)));

    cluster.run("cam", &["deleted"]);
    assert_eq!(log_of(agent, "deleted").await, "device n1/device-0\n");
    assert_eq!(cluster.cdi_files().len(), 1);
    cluster.delete("deleted");
    cluster.is_gone("deleted").await;
    is_released(cluster);
    assert_eq!((driver.count("prepared 1 for claim"), driver.count("unprepared claim")), (2, 2));
}

/// Checks that the driver and the agent have forgotten all claims.
fn is_released(cluster: &ClaimCluster) {
    assert_eq!(cluster.cdi_files(), Vec::<String>::new());
    assert_eq!(cluster.recorded(), []);
}

#[tokio::test]
async fn process_has_the_device_of_its_claim_until_it_ends_or_is_deleted() {
    let cluster = ClaimCluster::start().await;
    let agent = cluster.agent().await;
    pods_have_their_device_until_they_end_or_are_deleted(&cluster, &agent).await;
}

#[tokio::test]
async fn claim_of_two_pods_is_released_after_the_second_one() {
    let cluster = ClaimCluster::start().await;
    let agent = cluster.agent().await;
    let driver = cluster.driver(&[]).await;
    cluster.run("cam", &["a", "b"]);
    for pod in ["a", "b"] {
        assert_eq!(log_of(&agent, pod).await, "device n1/device-0\n");
    }
    cluster.end("a");
    cluster.wait_for_phase("a", "Succeeded").await;
    let uid = cluster.pod("b")["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(cluster.recorded(), [("cam".to_owned(), vec![uid])]);
    assert_eq!((cluster.cdi_files().len(), driver.count("unprepared claim")), (1, 0));
    cluster.delete("b");
    cluster.is_gone("b").await;
    is_released(&cluster);
    assert_eq!((driver.count("prepared 1 for claim"), driver.count("unprepared claim")), (1, 1));
}

/// DRA-P9, DRA-G1, DRA-U3: the control plane makes the claim, and the spec names none. The node has no such resources and admits
/// the pod nevertheless.
#[tokio::test]
async fn extended_resources_are_the_devices_of_a_claim() {
    let cluster = ClaimCluster::start().await;
    let agent = cluster.agent().await;
    let driver = cluster.driver(&[]).await;
    let class = "deviceclass.resource.kubernetes.io/gpu";
    let amounts = json!({"example.com/gpu": "1", class: "1", "example.com/none": "0"});
    let script =
        "echo device $DEVICE_0 $DEVICE_1; until [ -e \"$PODWRIGHT_ROOTFS/shared/end-web\" ]; do sleep 0.1; done";
    let pod = json!({"metadata": {"name": "web"}, "spec": {
        "automountServiceAccountToken": false, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "shared", "hostPath": {"path": cluster.home.shared()}}],
        "containers": [{"name": "main", "image": "img", "command": ["/bin/sh", "-c", script],
            "resources": {"requests": amounts, "limits": amounts},
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}]}});
    cluster.server.create("/api/v1/namespaces/default/pods", pod).unwrap();
    cluster.claim("web-extended");
    cluster.allocate("web-extended", "device-0", DRIVER, &["web"]);
    let mapping = |resource: &str, request: &str| json!({"containerName": "main", "resourceName": resource, "requestName": request});
    let mappings = json!([mapping("example.com/gpu", "r"), mapping(class, "other"), mapping("example.com/none", "r")]);
    let claim = json!({"resourceClaimName": "web-extended", "requestMappings": mappings});
    let status = json!({"status": {"extendedResourceClaimStatus": claim}});
    let path = "/api/v1/namespaces/default/pods/web/status";
    cluster.server.request("PATCH", path, "application/merge-patch+json", &status).unwrap();
    cluster.bind("web");

    assert_eq!(log_of(&agent, "web").await, "device n1/device-0\n");
    cluster.wait_for_phase("web", "Running").await;
    assert_eq!(cluster.recorded()[0].0, "web-extended");
    assert_eq!(cluster.pod("web")["status"]["extendedResourceClaimStatus"], claim, "the agent keeps the field");
    cluster.end("web");
    cluster.wait_for_phase("web", "Succeeded").await;
    is_released(&cluster);
    assert_eq!((driver.count("prepared 1 for claim"), driver.count("unprepared claim")), (1, 1));
}

#[tokio::test]
async fn driver_that_fails_is_named_and_can_be_given_up() {
    let cluster = ClaimCluster::start().await;
    let agent = cluster.agent().await;
    let driver = cluster.driver(&["--fail", "prepare"]).await;
    cluster.run("cam", &["web"]);
    let fault = format!("DRA driver {DRIVER} answered with ");
    let names_fault = |text: &str| text.contains(&fault) && text.contains("the driver was started with --fail");
    // The first try may come before the driver has registered.
    let event = cluster.event_with("web", "FailedPrepareDynamicResources", &fault).await;
    assert_eq!(event["type"], "Warning");
    assert!(names_fault(event["message"].as_str().unwrap()), "{event}");
    let state = || async {
        let output = agent.run_client(&["explain"]).await;
        let line = format!("DRA driver {DRIVER}: 1 of 1 instances connected; reports the health of its devices\n");
        text(&output.stdout).contains(&line).then_some(())
    };
    eventually("explain shows the state of the driver", state).await;
    let explained = agent.explain("web");
    let waits = "ResourceClaim default/cam is not prepared: ";
    assert!(explained.contains(waits) && names_fault(&explained), "{explained}");
    assert_eq!(cluster.phase("web"), "Pending");

    driver.stop().await;
    let driver = cluster.driver(&["--fail", "unprepare"]).await;
    assert_eq!(log_of(&agent, "web").await, "device n1/device-0\n");
    cluster.wait_for_phase("web", "Running").await;
    cluster.delete("web");
    let event = cluster.event("web", "FailedUnprepareDynamicResources").await;
    assert!(names_fault(event["message"].as_str().unwrap()), "{event}");
    let explain = || async {
        let output = agent.run_client(&["explain", "default/web"]).await;
        Some(text(&output.stdout)).filter(|text| text.contains("ResourceClaim default/cam is not released"))
    };
    let explained = eventually("explain names the fault", explain).await;
    assert!(names_fault(&explained) && explained.contains("podwright give-up default/cam"), "{explained}");
    assert_eq!(cluster.phase("web"), "Running");

    for (args, error) in [
        (["default/other", DRIVER], "this node does not hold ResourceClaim default/other"),
        (["default/cam", "other"], "ResourceClaim default/cam has no driver \"other\", but simulated.example.com"),
    ] {
        let output = agent.run_client(&["give-up", args[0], "--driver", args[1]]).await;
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(error), "{output:?}");
    }
    let output = agent.run_client(&["give-up", "default/cam", "--driver", DRIVER]).await;
    assert!(output.status.success(), "{output:?}");
    cluster.is_gone("web").await;
    assert_eq!(cluster.recorded(), []);
    assert_eq!(driver.count("unprepared claim"), 0);
}

/// DRA-W1
#[tokio::test]
async fn agent_deletes_the_slices_that_an_earlier_one_left() {
    let cluster = ClaimCluster::start().await;
    let spec =
        json!({"driver": DRIVER, "nodeName": "n1", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}});
    let slice = json!({"metadata": {"name": "left"}, "spec": spec});
    cluster.server.create("/apis/resource.k8s.io/v1/resourceslices", slice).unwrap();
    let _agent = cluster.agent().await;
    let is_gone = || async { cluster.server.all("resourceslices").is_empty().then_some(()) };
    eventually("the slice is deleted", is_gone).await;
}

#[tokio::test]
async fn registry_directory_that_cannot_be_watched_is_reported_as_unhealthy() {
    let cluster = ClaimCluster::start().await;
    let agent = cluster.agent().await;
    let healthz = |code| {
        let agent = &agent;
        move || async move { Some(agent.get_from_port("/healthz", "")).filter(|(found, _)| *found == code) }
    };
    eventually("the agent is healthy", healthz(200)).await;
    let registry = cluster.home.root().join("plugins_registry");
    // The agent creates the directory again whenever it finds none.
    let replace = || fs::remove_dir_all(&registry).is_ok() && fs::write(&registry, "").is_ok();
    until("a file is in place of the directory", replace).await;
    let (_, why) = eventually("the agent is not healthy", healthz(500)).await;
    let expected = "plugins_registry is not a directory: move it away\n";
    assert!(why.starts_with("no plugin can register: ") && why.ends_with(expected), "{why}");
    let explained = agent.run_client(&["explain"]).await;
    assert!(text(&explained.stdout).contains(expected), "{explained:?}");
    fs::remove_file(&registry).unwrap();
    eventually("the agent is healthy again", healthz(200)).await;
}
