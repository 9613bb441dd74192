//! The start, probes and end of CRI pods of each kind.

use std::fs;
use std::net::TcpListener;
use std::os::fd::AsFd;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;

use super::containerd::Containerd;
use crate::agent::harness::{AgentHome, container, phase};

fn named<'a>(pod: &'a Pod, name: &str) -> &'a ContainerStatus {
    let status = pod.status.as_ref().unwrap();
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    all.into_iter().find(|status| status.name == name).unwrap()
}

fn waiting(pod: &Pod) -> Option<&str> {
    container(pod)?.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

#[tokio::test]
async fn example_pods_run_as_cri_containers() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let agent = containerd.agent_with(&home, &["--manifests", examples]).await;

    for name in ["hello-n1", "hooks-n1", "probes-n1", "stubborn-n1", "volumes-n1"] {
        let pod = agent.ready(name).await;
        let status = pod.status.unwrap();
        assert!(status.pod_ip.is_some(), "{name} has its own address");
        let run = &status.container_statuses.unwrap()[0];
        assert!(run.container_id.as_ref().unwrap().starts_with("containerd://"), "{run:?}");
        assert!(run.image_id.contains("sha256:"), "{run:?}");
        // On a slow machine, probes may exceed their time limits.
        assert!(run.restart_count == 0 || name == "probes-n1", "{name}");
    }
    let pod = agent.until("job-once-n1", "succeeds", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(container(&pod).unwrap().restart_count, 0);
    let crashing = |pod: &Pod| named(pod, "crashes").restart_count > 0 && named(pod, "steady").restart_count == 0;
    agent.until("crashloop-n1", "is restarted", crashing).await;

    let running = |pod: &Pod| phase(pod) == "Running" && named(pod, "work").state.as_ref().unwrap().running.is_some();
    let pod = agent.until("init-sidecar-n1", "works", running).await;
    let prepared = named(&pod, "prepare").state.as_ref().unwrap().terminated.clone().unwrap();
    let since =
        |name: &str| named(&pod, name).state.as_ref().unwrap().running.as_ref().unwrap().started_at.clone().unwrap();
    assert_eq!(prepared.exit_code, 0);
    assert!(prepared.finished_at.unwrap() <= since("helper") && since("helper") <= since("work"));
    let retried = agent.until("job-retry-n1", "succeeds", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(container(&retried).unwrap().restart_count, 2, "an emptyDir exists for as long as its pod");
}

#[tokio::test]
async fn cri_pods_that_cannot_run_report_the_reason() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let pod = |name: &str, container: &str| {
        let head = "apiVersion: v1\nkind: Pod\nmetadata:";
        home.put(
            &format!("{name}.yaml"),
            &format!("{head}\n  name: {name}\nspec:\n  restartPolicy: Never\n  containers:\n  - name: main\n    {container}\n"),
        );
    };
    let image = super::image::BUSYBOX;
    let command = "[/bin/sh, -c, \"echo logged; echo written > /dev/termination-log; exit 3\"]";
    let fallback = "terminationMessagePolicy: FallbackToLogsOnError";
    pod("never", "image: podwright.test/absent:1\n    imagePullPolicy: Never");
    pod("invalid", "image: podwright.test/ABSENT:1");
    pod("absent", "image: 127.0.0.1:1/absent:1");
    pod("bad-command", &format!("image: {image}\n    command: [/no/such/command]"));
    pod("writes", &format!("image: {image}\n    command: {command}\n    {fallback}"));
    pod("logs", &format!("image: {image}\n    command: [/bin/sh, -c, \"echo one; echo two; exit 3\"]\n    {fallback}"));
    pod("silent", &format!("image: {image}\n    command: [/bin/sh, -c, \"echo one; exit 3\"]"));
    let agent = containerd.agent(&home).await;

    agent.until("never-n1", "is never pulled", |pod| waiting(pod) == Some("ErrImageNeverPull")).await;
    agent.until("invalid-n1", "has no valid image", |pod| waiting(pod) == Some("InvalidImageName")).await;
    let pulled = |pod: &Pod| matches!(waiting(pod), Some("ErrImagePull" | "ImagePullBackOff"));
    agent.until("absent-n1", "cannot be pulled", pulled).await;
    for (name, reason, code, message) in [
        ("bad-command-n1", "StartError", 128, "/no/such/command"),
        ("writes-n1", "Error", 3, "written\n"),
        ("logs-n1", "Error", 3, "one\ntwo\n"),
        ("silent-n1", "Error", 3, ""),
    ] {
        let pod = agent.until(name, "fails", |pod| phase(pod) == "Failed").await;
        let end = container(&pod).unwrap().state.as_ref().unwrap().terminated.clone().unwrap();
        assert_eq!((end.reason.as_deref(), end.exit_code), (Some(reason), code), "{name}");
        let found = end.message.unwrap_or_default();
        assert!(found.contains(message) && (!message.is_empty() || found.is_empty()), "{name}: {found}");
    }
}

#[tokio::test]
async fn exec_and_http_probes_reach_cri_containers() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let serve = "mkdir /www; echo hi > /www/index.html; sleep 1; exec httpd -f -p 8080 -h /www";
    let probes = "startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 600}\n    \
                  readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1, timeoutSeconds: 60}\n    \
                  livenessProbe: {exec: {command: [test, -e, /www/index.html]}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 1}";
    home.put(
        "web.yaml",
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - name: main\n    image: {}\n    command: [/bin/sh, -c, {serve:?}]\n    {probes}\n",
            super::image::BUSYBOX
        ),
    );
    let agent = containerd.agent(&home).await;
    let pod = agent.ready("web-n1").await;
    assert_eq!(container(&pod).unwrap().restart_count, 0);

    // Another process removes the file that the liveness probe checks.
    let id = container(&pod).unwrap().container_id.clone().unwrap();
    let id = id.strip_prefix("containerd://").unwrap();
    containerd.ctr(&["tasks", "exec", "--exec-id", "x", id, "rm", "/www/index.html"]);
    let again =
        agent.until("web-n1", "is restarted", |pod| container(pod).is_some_and(|it| it.restart_count == 1)).await;
    let before = container(&again).unwrap().last_state.as_ref().unwrap().terminated.clone().unwrap();
    assert_eq!(before.container_id, container(&pod).unwrap().container_id);
    agent.ready("web-n1").await;
}

/// Returns a listener in the network namespace of a process. Any thread can accept its connections.
fn listen_in_network_of(pid: &str, port: u16) -> TcpListener {
    let network = fs::File::open(format!("/proc/{pid}/ns/net")).unwrap();
    // Only this thread enters the network namespace, and it ends after the bind.
    let bind = move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        TcpListener::bind(("0.0.0.0", port)).unwrap()
    };
    std::thread::spawn(bind).join().unwrap()
}

#[tokio::test]
async fn grpc_probe_reaches_a_server_in_the_pod_network() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let probe = "readinessProbe: {grpc: {port: 9000, service: shop}, periodSeconds: 1, failureThreshold: 1}";
    home.put(
        "shop.yaml",
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: shop\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - name: main\n    image: {}\n    command: [sleep, '1000']\n    {probe}\n",
            super::image::BUSYBOX
        ),
    );
    let agent = containerd.agent(&home).await;
    let runs = |pod: &Pod| container(pod).is_some_and(|it| it.started == Some(true));
    let pod = agent.until("shop-n1", "runs", runs).await;
    let id = container(&pod).unwrap().container_id.clone().unwrap();
    let tasks = containerd.ctr(&["tasks", "list"]);
    let task = tasks.lines().find(|line| line.starts_with(id.strip_prefix("containerd://").unwrap())).unwrap();
    let listener = listen_in_network_of(task.split_whitespace().nth(1).unwrap(), 9000);

    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("shop", ServingStatus::Serving).await;
    listener.set_nonblocking(true).unwrap();
    let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
    tokio::spawn(async move { Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap() });
    agent.ready("shop-n1").await;
    reporter.set_service_status("shop", ServingStatus::NotServing).await;
    agent.until("shop-n1", "is not ready", |pod| container(pod).is_some_and(|it| !it.ready)).await;
}

// Takes over 40 s: a log is rotated every 10 s, and its container writes for three of these periods.
#[tokio::test]
async fn log_rotation_loses_no_output_of_a_container() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let logs = home.root().join("log/pods");
    let dir = |uid: &str| logs.join(format!("default_busy-n1_{uid}/main"));
    let image = super::image::BUSYBOX;
    let flags = containerd.flags();
    crate::agent::logs::nothing_is_lost_in_rotation(&home, &flags.each_ref().map(String::as_str), image, dir).await;
}
