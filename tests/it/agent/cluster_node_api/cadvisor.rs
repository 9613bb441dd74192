//! The metrics of containers, pods and the machine, as Prometheus requests them.

use std::collections::HashSet;

use podwright_stand_in::{Grant, User};

use super::Cluster;
use super::client::NodeClient;
use crate::agent::harness::eventually;

#[tokio::test]
async fn prometheus_scrapes_containers_and_the_machine() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.run("web", "exec sleep 1000").await;
    let client = async |user: &str, resource: &str| {
        cluster.server.grant(Grant::new(user, "get", resource));
        NodeClient::new(&agent, None, Some(cluster.server.token(User::new(user, &[])))).await
    };
    assert_eq!(client("eve", "nodes/proxy").await.code("/metrics/cadvisor").await, 403);
    let prometheus = client("prometheus", "nodes/metrics").await;
    let answer = prometheus.send("GET", "/metrics/cadvisor").await;
    assert_eq!(answer.status(), 200);
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));

    // Answers within half a second are the same one. A process without memory is about to execute its program.
    let text = eventually("the container is measured", || async {
        let text = prometheus.get("/metrics/cadvisor").await.1;
        let mut memory = text.lines().filter(|line| line.starts_with("container_memory_rss{container=\"main\""));
        memory.any(|line| !line.contains("} 0 ")).then_some(text)
    })
    .await;
    let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let find = |name: &str, labels: &[&str]| {
        let name = format!("{name}{{");
        let has = |line: &&&str| line.starts_with(&name) && labels.iter().all(|label| line.contains(label));
        let found = series.iter().find(has);
        let values = found.and_then(|line| line.rsplit_once("} "));
        let (_, values) = values.unwrap_or_else(|| panic!("{name} {labels:?} in\n{text}"));
        values.split(' ').map(|value| value.parse::<f64>().unwrap()).collect::<Vec<_>>()
    };
    let main = ["container=\"main\"", "image=\"img\"", "namespace=\"default\"", "pod=\"web\""];
    for (name, is_sampled) in [
        ("container_cpu_usage_seconds_total", true),
        ("container_memory_working_set_bytes", true),
        ("container_memory_rss", true),
        ("container_processes", true),
        ("container_last_seen", true),
        ("container_start_time_seconds", false),
    ] {
        let values = find(name, &main);
        assert!(values[0] > 0.0 || name == "container_cpu_usage_seconds_total", "{name}: {values:?}");
        // The time is in milliseconds.
        assert_eq!(values.get(1).is_some_and(|at| *at > 1e12), is_sampled, "{name}: {values:?}");
    }
    for name in ["container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_fs_limit_bytes"]
    {
        assert!(find(name, &["id=\"/\"", "container=\"\"", "pod=\"\""])[0] > 0.0, "{name}");
    }
    for name in ["machine_cpu_cores", "machine_memory_bytes"] {
        assert!(find(name, &["boot_id=\"", "machine_id=\"", "system_uuid=\""])[0] >= 1.0, "{name}");
    }
    for line in ["container_scrape_error 0", "machine_scrape_error 0"] {
        assert!(series.contains(&line), "{text}");
    }
    let mut seen = HashSet::new();
    for line in text.lines() {
        let end = line.rfind('}').map_or(line.len(), |end| end + 1);
        assert!(seen.insert(&line[..end]), "twice: {line}");
    }
}
