//! The commands that query an agent, as a newcomer types them.

use std::fs;
use std::process::Stdio;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;

use super::harness::{AgentHome, manifest, podwright, text};
use crate::support::processes::PATIENCE;

const SLEEPS: &str = "exec sleep 1000";

#[tokio::test]
async fn get_prints_named_pods_in_each_format() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", SLEEPS, ""));
    home.put("db.yaml", &manifest("db", SLEEPS, "").replace("name: db", "name: db\n  namespace: shop"));
    let agent = home.start(&[]).await;
    agent.ready("web-n1").await;
    agent.ready("db-n1").await;
    let get = async |args: &[&str]| {
        let output = agent.run_client(&[&["get", "pods"], args].concat()).await;
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let names = |table: &str| table.lines().skip(1).map(|line| line[..17].to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&get(&["-A"]).await.1), ["default     web-n", "shop        db-n1"]);
    assert_eq!(names(&get(&["-n", "shop"]).await.1), ["shop        db-n1"]);
    assert_eq!(names(&get(&["web"]).await.1), ["default     web-n"]);
    assert_eq!(get(&["-n", "none"]).await, (Some(0), "no pods\n".to_owned(), String::new()));

    let (_, yaml, _) = get(&["shop/db", "-o", "yaml"]).await;
    let pod: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!((&pod["kind"], &pod["metadata"]["name"]), (&"Pod".into(), &"db-n1".into()), "{yaml}");
    let (code, printed, error) = get(&["shop/web", "db"]).await;
    assert_eq!((code, printed.as_str()), (Some(1), ""), "{error}");
    assert_eq!(error, "podwright: there is no pod shop/web\nsimilar names: default/web-n1\n");

    // The name of the pod is enough, and `explain` shows no name of a function.
    let explained = agent.run_client(&["explain", "db", "-n", "shop"]).await;
    assert!(text(&explained.stdout).starts_with("shop/db-n1: Running, waits for nothing"), "{explained:?}");
}

// An agent may know a pod that no source has. Only the agent can say that it does not.
#[tokio::test]
async fn get_of_a_pod_names_the_reason_if_the_agent_does_not_say_whether_it_knows_the_pod() {
    let busy = (StatusCode::SERVICE_UNAVAILABLE, "the agent is busy\n");
    let answer = |body| (StatusCode::OK, body);
    let known = answer(r#"[{"namespace": "shop", "name": "db"}]"#);
    let not_podwright = "is not podwright of this version";
    for (list, pod, expected) in [
        (busy, busy, "podwright: the agent is busy\n"),
        (answer("no list"), busy, not_podwright),
        (known, busy, "podwright: the agent is busy\n"),
        (known, answer("no explanation"), not_podwright),
        (known, answer("{}"), not_podwright),
        (known, (StatusCode::NOT_FOUND, "there is no pod shop/db\n"), "podwright: there is no pod db\n"),
        (answer("[]"), busy, "podwright: there is no pod db\n"),
    ] {
        let router = Router::new()
            .route("/pods", get(|| async { r#"{"kind": "PodList", "apiVersion": "v1", "items": []}"# }))
            .route("/explain", get(move || async move { list }))
            .route("/explain/{namespace}/{name}", get(move || async move { pod }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let output = podwright(&["get", "pods", "db", "--admin", &address]).await;
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains(expected), "{list:?} {pod:?}: {error}");
    }
}

#[tokio::test]
async fn get_watch_prints_each_pod_that_changes() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", SLEEPS, ""));
    let agent = home.start(&[]).await;
    agent.ready("web-n1").await;
    let mut watch = Command::new(env!("CARGO_BIN_EXE_podwright"));
    watch.args(["get", "pods", "--watch", "--root", home.root().to_str().unwrap()]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut until = async |what: &str| {
        let line = async {
            loop {
                let line = lines.next_line().await.unwrap().expect("the watch goes on");
                if line.contains(what) {
                    return line;
                }
            }
        };
        timeout(PATIENCE, line).await.expect(what)
    };
    until("NAMESPACE").await;
    until("web-n1").await;
    home.put("db.yaml", &manifest("db", SLEEPS, ""));
    until("db-n1").await;
    home.remove("web.yaml");
    let removed = until("Removed").await;
    assert!(removed.contains("web-n1"), "{removed}");
    agent.crash().await;
    let ended = timeout(PATIENCE, watch.wait()).await.expect("the watch ends with the agent").unwrap();
    assert_eq!(ended.code(), Some(1));
}

#[tokio::test]
async fn follow_of_all_containers_prints_whole_lines_until_they_end() {
    let home = AgentHome::new();
    let go = home.shared().join("go");
    let script =
        |name: &str| format!("echo {name} one; while [ ! -e {} ]; do sleep 0.05; done; echo {name} two", go.display());
    let side = format!("  - name: side\n    image: i\n    command: [/bin/sh, -c, {:?}]\n", script("side"));
    home.put("two.yaml", &(manifest("two", &script("main"), "restartPolicy: Never") + &side));
    let agent = home.start(&[]).await;
    agent.ready("two-n1").await;
    let mut logs = Command::new(env!("CARGO_BIN_EXE_podwright"));
    logs.args(["logs", "two", "-f", "--all-containers", "--root", home.root().to_str().unwrap()]);
    let logs = logs.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    fs::write(&go, "").unwrap();
    let output = timeout(PATIENCE, logs.wait_with_output()).await.expect("following ends with the containers").unwrap();
    let printed = text(&output.stdout);
    let mut lines: Vec<&str> = printed.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["main one", "main two", "side one", "side two"]);
}

#[tokio::test]
async fn version_and_completion_need_no_agent() {
    let version = podwright(&["version"]).await;
    assert_eq!(text(&version.stdout), concat!("podwright ", env!("CARGO_PKG_VERSION"), "\n"));
    let completion = podwright(&["completion", "bash"]).await;
    assert!(completion.status.success() && text(&completion.stdout).contains("--all-containers"), "{completion:?}");
    let unknown = podwright(&["completion", "csh"]).await;
    assert_eq!(unknown.status.code(), Some(2));
}
