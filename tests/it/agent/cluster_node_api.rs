//! The node API of the agent, requested directly and through the API server that the stand-in serves.

mod cadvisor;
mod client;
pub(super) mod https;

use std::fs;
use std::io::ErrorKind;

use podwright_stand_in::{Grant, StandIn, User};
use serde_json::{Value, json};
use tokio::process::Command;

use self::client::NodeClient;
use self::https::https;
use super::harness::{Agent, AgentHome, eventually, manifest, text};

const PODS: &str = "/api/v1/namespaces/default/pods";

struct Cluster {
    server: StandIn,
    home: AgentHome,
}

impl Cluster {
    async fn start() -> Self {
        let server = StandIn::start().await.unwrap();
        let home = AgentHome::of_node(&server, "n1");
        fs::write(home.root().join("ca.crt"), server.ca_certificate()).unwrap();
        Cluster { server, home }
    }

    /// An agent that runs processes and serves the node API on any port.
    async fn agent(&self) -> Agent {
        let (kubeconfig, authority) = (self.home.kubeconfig(), self.home.root().join("ca.crt"));
        let flags = ["--kubeconfig", &kubeconfig, "--node-api", "0.0.0.0:0", "--client-ca-file"];
        let agent = self.home.start(&[&flags[..], &[authority.to_str().unwrap()]].concat()).await;
        agent.wait_for_line("the node is registered").await;
        agent
    }

    /// Creates a pod whose container runs a script, and waits until it runs.
    async fn run(&self, name: &str, script: &str) {
        let container = json!({"name": "main", "image": "img", "command": ["/bin/sh", "-c", script]});
        let spec = json!({"nodeName": "n1", "automountServiceAccountToken": false, "containers": [container]});
        self.server.create(PODS, json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        eventually(&format!("{name} runs"), || async {
            let pod = self.server.get("pods", "default", name)?;
            (pod["status"]["phase"] == "Running").then_some(())
        })
        .await;
    }
}

fn administrator() -> User {
    User::new("kube-apiserver-kubelet-client", &["system:masters"])
}

#[tokio::test]
async fn clients_need_credentials_and_a_permission() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let unauthorized = (401, "Unauthorized".to_owned());
    for token in [None, Some("unknown".to_owned())] {
        let nobody = NodeClient::new(&agent, None, token).await;
        for path in ["/pods", "/healthz", "/exec/default/web/main?command=sh&output=1", "/nowhere"] {
            assert_eq!(nobody.get(path).await, unauthorized, "{path}");
        }
    }
    let other = StandIn::start().await.unwrap();
    let stranger = NodeClient::new(&agent, Some(other.client_certificate(&administrator())), None).await;
    assert_eq!(stranger.get("/pods").await, unauthorized, "another authority signed the certificate");

    // The certificate of a user without a permission, and the token of one with a permission.
    let eve = NodeClient::new(&agent, Some(cluster.server.client_certificate(&User::new("eve", &[]))), None).await;
    let forbidden = "Forbidden (user=eve, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
    assert_eq!(eve.get("/pods").await, (403, forbidden.to_owned()));
    cluster.server.grant(Grant::new("prometheus", "get", "nodes/metrics"));
    cluster.server.grant(Grant::new("prometheus", "get", "nodes/pods"));
    let token = cluster.server.token(User::new("prometheus", &[]));
    let prometheus = NodeClient::new(&agent, None, Some(token)).await;
    assert_eq!(prometheus.code("/pods").await, 200);
    let (code, metrics) = prometheus.get("/metrics").await;
    assert!(code == 200 && metrics.contains("kubelet_working_pods"), "{code} {metrics}");
    let (code, probes) = prometheus.get("/metrics/probes").await;
    assert!(code == 200 && !probes.contains("kubelet_"), "{code} {probes}");
    for path in ["/configz", "/healthz", "/containerLogs/default/web/main", "/logs/"] {
        assert_eq!(prometheus.code(path).await, 403, "{path}");
    }
    let reviews =
        |resource: &str| cluster.server.requests().iter().filter(|served| served.resource == resource).count();
    assert_eq!(reviews("tokenreviews"), 2, "one for each token");
    let before = reviews("subjectaccessreviews");
    assert_eq!(prometheus.code("/pods").await, 200);
    assert_eq!(reviews("subjectaccessreviews"), before, "decisions are cached");

    cluster.server.grant(Grant::new("reader", "get", "nodes/proxy"));
    let reader =
        NodeClient::new(&agent, Some(cluster.server.client_certificate(&User::new("reader", &[]))), None).await;
    assert_eq!(reader.code("/configz").await, 200);
    let refused = reader.get("/exec/default/web/main?command=sh&output=1").await;
    let forbidden = "Forbidden (user=reader, verb=create, resource=nodes, subresource(s)=[proxy])\n";
    assert_eq!(refused, (403, forbidden.to_owned()), "a client that may only read runs no command");

    // The certificate of the API server.
    let admin = NodeClient::new(&agent, Some(cluster.server.client_certificate(&administrator())), None).await;
    assert_eq!(admin.get("/healthz").await, (200, "ok".to_owned()));
    assert_eq!(admin.get("/healthz/syncloop").await, (200, "ok".to_owned()));
    assert_eq!(admin.get("/logs/syslog").await, (405, "logs endpoint is disabled.\n".to_owned()));
    assert_eq!(admin.code("/nowhere").await, 404);
    let config: Value = serde_json::from_str(&admin.get("/configz").await.1).unwrap();
    assert_eq!(config["kubeletconfig"]["authentication"]["anonymous"]["enabled"], false, "{config}");
    assert_eq!(admin.send("DELETE", "/pods").await.status(), 405);
    let answer = admin.send("GET", "/healthz").await;
    assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    let run = || admin.client.post(format!("{}/run/default/web/main?cmd=true", admin.url));
    let of_page = run().header("origin", "https://evil.example").send().await.unwrap();
    assert_eq!(of_page.status(), 403, "the browser has the certificate, and the page has not");
    let run = run();
    let refused = run.body(vec![0; (1 << 20) + 1]).send().await.unwrap();
    assert_eq!(refused.status(), 413);
}

#[tokio::test]
async fn api_server_reads_logs_and_runs_commands_on_the_node() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.run("web", "echo err >&2; echo one; echo two; echo three; exec sleep 1000").await;
    let node = cluster.server.get("nodes", "", "n1").unwrap();
    assert_ne!(node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"], 0, "{node}");
    assert_eq!(node["status"]["declaredFeatures"][0], "ExtendWebSocketsToKubelet", "{node}");

    let api = https(None);
    let log = async |query: &str| {
        let url = format!("{}{PODS}/web/log{query}", cluster.server.plain_url());
        api.get(url).bearer_auth(cluster.server.admin_token()).send().await.unwrap().text().await.unwrap()
    };
    // The order of the two streams is not known.
    let all = || async { (log("").await.lines().count() == 4).then_some(()) };
    eventually("the log is complete", all).await;
    assert_eq!(log("?stream=Stdout").await, "one\ntwo\nthree\n");
    assert_eq!(log("?stream=Stderr").await, "err\n");
    assert_eq!(log("?tailLines=1").await.lines().count(), 1);
    assert_eq!(log("?stream=Stdout&limitBytes=5").await, "one\nt");
    assert!(log("?timestamps=true&stream=Stdout").await.ends_with("Z three\n"));
    assert!(
        log("?previous=true").await.contains("previous terminated container \\\"main\\\" in pod \\\"web\\\" not found")
    );

    let admin = NodeClient::new(&agent, Some(cluster.server.client_certificate(&administrator())), None).await;
    for (path, code, says) in [
        ("/containerLogs/default/gone/main", 404, "pod \"gone\" does not exist"),
        ("/containerLogs/default/web/other", 404, "container \"other\" not found in pod \"web\""),
        ("/containerLogs/default/web/main?tailLines=x", 400, "Unable to decode query."),
        ("/containerLogs/default/web/main?tailLines=-1", 422, "Invalid request."),
        ("/exec/default/gone/main?command=sh&output=1", 404, "pod does not exist"),
        ("/exec/default/web/main?command=sh", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/default/web/other?command=sh&output=1", 500, "container not found (\"other\")"),
        ("/exec/default/web/bad-uid/main?command=sh&output=1", 500, "container not found (\"main\")"),
        ("/portForward/default/web/bad-uid", 404, "pod not found"),
        ("/portForward/default/web?port=x", 400, "use a number from 1 to 65535"),
    ] {
        let (answered, text) = admin.get(path).await;
        assert!(answered == code && text.contains(says), "{path}: {answered} {text}");
    }
    let uid = cluster.server.get("pods", "default", "web").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let run = admin.send("POST", &format!("/run/default/web/{uid}/main?cmd=echo%20hello")).await;
    assert_eq!((run.status().as_u16(), run.text().await.unwrap().as_str()), (200, "hello\n"));
    let failed = admin.send("POST", "/run/default/web/main?cmd=false").await;
    assert_eq!(failed.status(), 500);
    assert!(failed.text().await.unwrap().contains("command 'false' exited with 1"));
    let (code, metrics) = admin.get("/metrics/resource").await;
    for name in
        ["container_memory_working_set_bytes", "container_cpu_usage_seconds_total", "container_start_time_seconds"]
    {
        let series = format!("{name}{{container=\"main\",namespace=\"default\",pod=\"web\"}} ");
        assert!(code == 200 && metrics.contains(&series), "{series}{metrics}");
    }
    assert!(
        metrics.contains("\nnode_cpu_usage_seconds_total ") && metrics.contains("resource_scrape_error 0"),
        "{metrics}"
    );
    // A request waits 5 s for the measurement of the volumes, and answers without it if the measurement takes longer.
    let summary = eventually("the volumes are measured", || async {
        let summary: Value = serde_json::from_str(&admin.get("/stats/summary").await.1).unwrap();
        (summary["pods"][0]["containers"][0]["logs"]["usedBytes"].as_u64() > Some(0)).then_some(summary)
    })
    .await;
    assert_eq!(
        (&summary["node"]["nodeName"], &summary["pods"][0]["podRef"]["uid"]),
        (&json!("n1"), &json!(uid)),
        "{summary}"
    );
    let pod = &summary["pods"][0];
    assert!(pod["containers"][0]["memory"]["workingSetBytes"].as_u64() > Some(0), "{summary}");
    assert!(
        pod["ephemeral-storage"]["usedBytes"].as_u64() >= pod["containers"][0]["logs"]["usedBytes"].as_u64(),
        "{pod}"
    );
    assert!(pod["containers"][0]["logs"]["usedBytes"].as_u64() > Some(0), "{pod}");
    assert!(pod.get("network").is_none(), "a process shares the network of the node: {pod}");
    has_the_fields_of_a_kubelet(&summary);
    let (_, short) = admin.get("/stats/summary?only_cpu_and_memory=true").await;
    let short: Value = serde_json::from_str(&short).unwrap();
    assert!(short["pods"][0]["cpu"].is_object() && short["node"]["memory"].is_object(), "{short}");
    for (of, field) in [
        ("node", "fs"),
        ("node", "io"),
        ("node", "network"),
        ("node", "rlimit"),
        ("node", "runtime"),
        ("pod", "ephemeral-storage"),
        ("pod", "process_stats"),
        ("pod", "volume"),
        ("container", "logs"),
    ] {
        let object = match of {
            "node" => &short["node"],
            "pod" => &short["pods"][0],
            _ => &short["pods"][0]["containers"][0],
        };
        assert!(object.is_object() && object.get(field).is_none(), "{field}: {short}");
    }
    let pods: Value = serde_json::from_str(&admin.get("/runningpods/").await.1).unwrap();
    assert_eq!(pods["items"][0]["spec"]["containers"][0]["name"], "main", "{pods}");
}

#[tokio::test]
async fn clients_of_one_pod_leave_the_logs_of_other_pods_readable() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    for name in ["web", "db"] {
        cluster.run(name, "echo one; exec sleep 1000").await;
    }
    let admin = NodeClient::new(&agent, Some(cluster.server.client_certificate(&administrator())), None).await;
    let written = || async { (admin.get("/containerLogs/default/web/main").await.1 == "one\n").then_some(()) };
    eventually("the log is written", written).await;
    let mut followed = Vec::new();
    for number in 0..32 {
        let answer = admin.send("GET", "/containerLogs/default/web/main?follow=true").await;
        assert_eq!(answer.status(), 200, "{number}");
        followed.push(answer);
    }
    let (code, why) = admin.get("/containerLogs/default/web/main").await;
    assert!(
        code == 429 && why.starts_with("32 logs of pod default/web are open, which is the limit: "),
        "{code} {why}"
    );
    assert_eq!(admin.code("/containerLogs/default/db/main").await, 200);
    let (_, metrics) = admin.get("/metrics").await;
    assert!(metrics.contains("podwright_node_api_refusals_total{limit=\"pod\",resource=\"log\"} 1\n"), "{metrics}");
    assert!(metrics.contains("podwright_part_panics_total{part=\"node_api\"} 0\n"), "a part reports the server's end");
    drop(followed);
    let readable = || async { (admin.code("/containerLogs/default/web/main").await == 200).then_some(()) };
    eventually("the shares of clients that have gone are free", readable).await;
}

/// The node and the container `main` of the first pod, which has no limits, have the values that clients of a kubelet read without
/// a check.
fn has_the_fields_of_a_kubelet(summary: &Value) {
    let kubelet: Value =
        serde_json::from_str(include_str!("../../../adapters/node-api/src/stats/tests/kubelet.json")).unwrap();
    let (node, pod) = (&summary["node"], &summary["pods"][0]);
    let main = &pod["containers"][0];
    let systems = node["systemContainers"].as_array().unwrap();
    let pods = systems.iter().find(|system| system["name"] == "pods").unwrap();
    // The kernel may not measure the time of waiting, and a process has no image.
    let may_be_absent = ["io", "psi", "runtime", "rootfs"];
    let (none, limits): (&[&str], &[&str]) = (&[], &["availableBytes", "swapAvailableBytes"]);
    for (kind, object, absent) in [
        ("node", node, none),
        ("cpu", &node["cpu"], none),
        ("memory", &node["memory"], none),
        ("swap", &node["swap"], none),
        ("system container", pods, none),
        ("cpu", &pods["cpu"], none),
        ("memory", &pods["memory"], limits),
        ("container", main, none),
        ("cpu", &main["cpu"], none),
        ("memory", &main["memory"], limits),
        ("cpu", &pod["cpu"], none),
        ("memory", &pod["memory"], limits),
    ] {
        let keys = kubelet["keys"][kind].as_array().unwrap().iter().map(|key| key.as_str().unwrap());
        for key in keys.filter(|key| !may_be_absent.contains(key) && !absent.contains(key)) {
            assert!(object.get(key).is_some(), "{kind} without {key}: {object}");
        }
    }
    assert!(main["memory"].get("availableBytes").is_none(), "without a limit: {main}");
    assert!(pod["process_stats"]["process_count"].as_u64() > Some(0), "{pod}");
    let number = |object: &Value, key: &str| object[key].as_u64().unwrap();
    assert!(node["cpu"]["usageNanoCores"].is_u64(), "{node}");
    for memory in [&node["memory"], &main["memory"], &pods["memory"]] {
        let (used, working_set) = (number(memory, "usageBytes"), number(memory, "workingSetBytes"));
        assert!(working_set > 0 && working_set <= used && number(memory, "pageFaults") > 0, "{memory}");
    }
}

#[tokio::test]
async fn kubectl_follows_the_log_of_a_pod_until_its_container_ends() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.server.write_kubeconfig(&cluster.home.root().join("admin"), &administrator()).unwrap();
    cluster.run("web", "echo one; sleep 1; echo two").await;
    let mut command = Command::new("kubectl");
    command.arg("--kubeconfig").arg(cluster.home.root().join("admin"));
    command.arg("--cache-dir").arg(cluster.home.root().join("cache")).args(["logs", "-f", "web"]);
    match command.kill_on_drop(true).output().await {
        Ok(output) => assert_eq!(text(&output.stdout), "one\ntwo\n", "{}", text(&output.stderr)),
        Err(error) if error.kind() == ErrorKind::NotFound => eprintln!("skipped: there is no kubectl"),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn unusable_authority_ends_the_agent_and_a_port_in_use_does_not() {
    let cluster = Cluster::start().await;
    let kubeconfig = cluster.home.kubeconfig();
    let flags = ["--kubeconfig", &kubeconfig, "--node-api", "127.0.0.1:0", "--client-ca-file"];
    let output = cluster.home.run(&[&flags[..], &[&kubeconfig]].concat()).await;
    let error = text(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains("holds no certificate in PEM"), "{error}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let agent = cluster.home.start(&["--kubeconfig", &kubeconfig, "--node-api", &address]).await;
    agent.wait_for_line("cannot listen for the node API").await;
    cluster.run("web", "exec sleep 1000").await;
    let node = cluster.server.get("nodes", "", "n1").unwrap();
    let port = &node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
    assert_eq!(port.as_u64(), Some(taken.local_addr().unwrap().port().into()), "{node}");
}

#[tokio::test]
async fn commands_run_only_in_the_running_container_of_the_named_pod() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.home.put("web.yaml", &manifest("web", "exec sleep 1000", "terminationGracePeriodSeconds: 1"));
    cluster.run("two", "exec sleep 1000").await;
    eventually("the mirror pod runs", || async {
        (cluster.server.get("pods", "default", "web-n1")?["status"]["phase"] == "Running").then_some(())
    })
    .await;
    let admin = NodeClient::new(&agent, Some(cluster.server.client_certificate(&administrator())), None).await;
    let run = async |path: &str| {
        let answer = admin.send("POST", &format!("/run/default/{path}?cmd=echo%20hi")).await;
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let uid = |name: &str| {
        let pod = cluster.server.get("pods", "default", name).unwrap();
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let hi = (200, "hi\n".to_owned());
    let not_found = (500, "container not found (\"main\")".to_owned());
    // The UID of the mirror pod and the UID of the static pod name the same pod.
    let own = agent.ready("web-n1").await.metadata.uid.unwrap();
    assert_ne!(own, uid("web-n1"));
    assert_eq!(run("web-n1/main").await, hi);
    assert_eq!(run(&format!("web-n1/{}/main", uid("web-n1"))).await, hi);
    assert_eq!(run(&format!("web-n1/{own}/main")).await, hi);
    assert_eq!(run(&format!("web-n1/{}/main", uid("two"))).await, not_found);
    assert_eq!(run(&format!("two/{}/main", uid("two"))).await, hi);
    assert_eq!(run(&format!("two/{}/main", uid("web-n1"))).await, not_found);

    // A container that has ended.
    let container = json!({"name": "main", "image": "img", "command": ["/bin/true"]});
    let spec = json!({"nodeName": "n1", "automountServiceAccountToken": false, "restartPolicy": "Never", "containers": [container]});
    cluster.server.create(PODS, json!({"metadata": {"name": "done"}, "spec": spec})).unwrap();
    eventually("the pod ends", || async {
        (cluster.server.get("pods", "default", "done")?["status"]["phase"] == "Succeeded").then_some(())
    })
    .await;
    assert_eq!(run("done/main").await, not_found);
}
