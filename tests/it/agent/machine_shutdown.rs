//! A shutdown of the machine, which a stand-in for systemd-logind announces.

use std::fs;
use std::time::Duration;

use podwright_logind::{Logind, LogindError};

use super::harness::{AgentHome, container, eventually, manifest, phase};
use crate::support::logind::StandIn;

const SLEEPS: &str = "exec sleep 1000";

fn reason(pod: &k8s_openapi::api::core::v1::Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.reason.as_deref()).unwrap_or_default()
}

#[tokio::test]
async fn the_delay_of_a_shutdown_is_raised_only_if_it_is_too_short() {
    let home = tempfile::tempdir().unwrap();
    let logind = StandIn::listen(home.path());
    let client = Logind::over(logind.connect().await, home.path().join("conf.d"));
    let file = home.path().join("conf.d/99-podwright.conf");
    client.allow_delay(Duration::from_secs(5)).await.unwrap();
    assert!(!file.exists());
    client.allow_delay(Duration::from_secs(30)).await.unwrap();
    assert!(fs::read_to_string(&file).unwrap().ends_with("[Login]\nInhibitDelayMaxSec=30\n"));
    assert_eq!(logind.calls("KillUnit"), 1);

    // A later file of the administrator keeps the delay short.
    logind.ignore_settings();
    let error = client.allow_delay(Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(error, LogindError::TooShort { .. }), "{error}");
    let client = Logind::over(logind.connect().await, "/proc/nowhere");
    let error = client.allow_delay(Duration::from_secs(60)).await.unwrap_err();
    assert!(error.to_string().contains("InhibitDelayMaxSec=60"), "{error}");
}

#[tokio::test]
async fn pods_stop_before_the_machine_shuts_down_and_run_again_if_it_does_not() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", SLEEPS, ""));
    let logind = StandIn::listen(home.root());
    // With two groups, the agent needs three seconds more than the grace period.
    logind.allow(Duration::from_secs(600));
    let agent = home.start_on_bus(&["--shutdown-grace-period", "120"], &logind.address()).await;
    let first = agent.ready("web-n1").await;
    eventually("the agent delays a shutdown", || async { (logind.locks() == 1).then_some(()) }).await;

    logind.prepare(true).await;
    agent.until("web-n1", "has stopped", |pod| phase(pod) == "Failed" && reason(pod) == "Terminated").await;
    eventually("the machine may shut down", || async { (logind.locks() == 0).then_some(()) }).await;
    assert_eq!(home.processes(), Vec::<String>::new());
    agent.wait_for_line("Shutdown manager detected shutdown event").await;
    home.put("late.yaml", &manifest("late", SLEEPS, ""));
    agent.until("late-n1", "is rejected", |pod| reason(pod) == "NodeShutdown").await;

    logind.prepare(false).await;
    eventually("the agent delays the next shutdown", || async { (logind.locks() == 1).then_some(()) }).await;
    agent.wait_for_line("Shutdown manager detected shutdown cancellation").await;
    agent.ready("late-n1").await;
    let again = agent.ready("web-n1").await;
    assert_ne!(container(&again).unwrap().container_id, container(&first).unwrap().container_id);
    assert!(agent.get("/metrics", "").1.contains("kubelet_graceful_shutdown_end_time_seconds 1"));
}

#[tokio::test]
async fn an_agent_without_system_bus_runs_pods_and_logs_the_remedy() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", SLEEPS, ""));
    let agent = home.start_on_bus(&["--shutdown-grace-period", "5"], "unix:path=/nowhere/bus").await;
    agent.ready("web-n1").await;
    let line = agent.wait_for_line("a shutdown of the machine is not delayed").await;
    assert!(line.contains("check whether dbus.service runs"), "{line}");
}
