//! Bad input causes one message that names the input and the remedy. Everything else keeps running.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::harness::{AgentHome, eventually, manifest, podwright, text};
use crate::support::disks::SmallDisk;
use crate::support::processes::PATIENCE;

const SLEEPS: &str = "exec sleep 1000";

#[tokio::test]
async fn broken_manifest_is_logged_with_its_line_and_other_pods_run() {
    let home = AgentHome::new();
    home.put("good.yaml", &manifest("good", SLEEPS, ""));
    home.put("broken.yaml", "apiVersion: v1\nkind: [\n");
    home.put("field.yaml", &manifest("field", SLEEPS, "restartPolice: Never"));
    home.put("nameless.yaml", &manifest("nameless", SLEEPS, "").replace("- name: main\n    image", "- image"));
    home.put("twice.yaml", &manifest("good", SLEEPS, "hostNetwork: true"));
    symlink("/nowhere", home.manifests().join("link.yaml")).unwrap();
    let agent = home.start(&["--manifest-fields", "strict"]).await;
    agent.ready("good-n1").await;
    for (file, what, remedy) in [
        ("broken.yaml", "not valid YAML", "line "),
        ("field.yaml", "restartPolice", "restartPolicy"),
        ("nameless.yaml", "spec.containers[0].name", "line "),
        ("twice.yaml", "already defined by", "change its name or remove one"),
        ("link.yaml", "cannot be read", "correct or remove it"),
    ] {
        let line = agent.wait_for_line(&format!("{file}\"")).await;
        assert!(line.contains(what) && line.contains(remedy), "{line}");
        let lines = agent.logged().lines().filter(|line| line.contains(&format!("{file}\""))).count();
        assert_eq!(lines, 1, "{}", agent.logged());
    }
    assert_eq!(agent.pods().len(), 1);

    let (code, answer) = agent.get("/explain/default/field-n1", "");
    assert_eq!(code, 404);
    assert!(answer.contains("a manifest with this pod cannot be used") && answer.contains("field.yaml"), "{answer}");

    let (_, answer) = agent.get("/explain/default/elsewhere", "");
    assert!(
        answer.contains("the pod may be in a manifest that cannot be used") && answer.contains("broken.yaml"),
        "{answer}"
    );
    let (_, answer) = agent.get("/explain/default/broken-n1", "");
    assert!(answer.contains("a manifest with this pod") && answer.contains("broken.yaml"), "{answer}");
    assert!(agent.get("/explain", "").1.contains("broken.yaml"));

    // The pod keeps running although its manifest is broken (POD-W27). Its explanation names the manifest, although the broken
    // text names no pod.
    home.put("good.yaml", "apiVersion: v1\nkind: [\n");
    eventually("the explanation names the manifest", || async {
        agent.explain("good-n1").contains("good.yaml").then_some(())
    })
    .await;
    assert_eq!(agent.pods().len(), 1);
}

#[tokio::test]
async fn unlistable_manifest_directory_is_logged_and_other_paths_are_used() {
    let home = AgentHome::new();
    home.put("good.yaml", &manifest("good", SLEEPS, ""));
    let file = home.root().join("file");
    fs::write(&file, "").unwrap();
    let below = file.join("below");
    let manifests = home.manifests();
    let args = ["--manifests", manifests.to_str().unwrap(), "--manifests", below.to_str().unwrap()];
    let agent = home.start(&args).await;
    agent.ready("good-n1").await;
    let line = agent.wait_for_line("cannot be listed").await;
    assert!(line.contains(below.to_str().unwrap()) && line.contains("make it readable for the agent's user"), "{line}");
}

#[tokio::test]
async fn invalid_flags_are_refused_with_the_valid_values() {
    for (args, says) in [
        (["--runtime", "cri=containerd"], "unix:///run/containerd/containerd.sock"),
        (["--runtime", "docker"], "no such runtime"),
        (["--admin", "0.0.0.0:10255"], "TLS and a token"),
        (["--admin-tls-cert", "/c.pem"], "--admin-token-file"),
        (["--admin", "nowhere"], "127.0.0.1:10255"),
        (["--shutdown-grace", "5,10"], "critical"),
        (["--pods-on-exit", "leave"], "keep"),
        (["--shutdown-grace-period-critical-pods", "10"], "--shutdown-grace-period"),
        (["--shutdown-grace-period-by-pod-priority", "10"], "PRIORITY=SECONDS"),
        (["--node-name", "Not_A_Name"], "lower case"),
        (["--manifests", "http://"], "not a URL"),
    ] {
        let output = podwright(&[&["run"], &args[..]].concat()).await;
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
    }
}

#[tokio::test]
async fn unusable_root_directory_is_an_error_with_remedy() {
    for (root, says) in [
        ("/proc/podwright", "cannot create the root directory /proc/podwright"),
        ("/proc", "cannot write to the root directory /proc"),
    ] {
        let output = podwright(&["run", "--root", root]).await;
        assert_eq!(output.status.code(), Some(1), "{root}");
        let printed = text(&output.stderr);
        assert!(printed.contains(says) && printed.contains("--root"), "{printed}");
    }
}

#[tokio::test]
async fn full_disk_ends_a_new_agent_with_remedy() {
    let home = AgentHome::new();
    let at = home.shared().join("disk");
    fs::create_dir(&at).unwrap();
    let Some(disk) = SmallDisk::new(&at) else { return };
    disk.fill();
    let (root, manifests) = (at.join("root"), home.manifests());
    let (root, manifests) = (root.to_str().unwrap(), manifests.to_str().unwrap());
    for runtime in ["process", "simulated"] {
        let flags = ["--runtime", runtime, "--manifests", manifests, "--admin", "127.0.0.1:0", "--node-name", "n1"];
        let output = podwright(&[&["run", "--root", root][..], &flags].concat()).await;
        assert_eq!(output.status.code(), Some(1), "{runtime}: {}", text(&output.stdout));
        let printed = text(&output.stderr);
        assert!(printed.contains(root) && printed.contains("free disk space and inodes"), "{runtime}: {printed}");
    }
}

#[tokio::test]
async fn two_agents_cannot_share_a_root_directory() {
    let home = AgentHome::new();
    home.put("good.yaml", &manifest("good", SLEEPS, ""));
    let agent = home.start(&[]).await;
    let second = home.run(&[]).await;
    assert_eq!(second.status.code(), Some(1));
    let printed = text(&second.stderr);
    assert!(
        printed.contains(home.root().to_str().unwrap()) && printed.contains("in use by another podwright process"),
        "{printed}"
    );
    agent.ready("good-n1").await;
}

#[tokio::test]
async fn pods_run_although_the_admin_address_is_taken() {
    let home = AgentHome::new();
    home.put("job.yaml", &manifest("job", "exit 0", "restartPolicy: Never"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = home.run(&["--admin", &address, "--until-finished"]).await;
    assert_eq!(output.status.code(), Some(0));
    let logged = text(&output.stdout);
    let lines: Vec<&str> = logged.lines().filter(|line| line.contains("cannot listen for admin requests")).collect();
    assert_eq!(lines.len(), 1, "{logged}");
    assert!(lines[0].contains(&address) && lines[0].contains("--admin"), "{logged}");
}

#[tokio::test]
async fn corrupted_container_record_is_logged_and_other_pods_are_adopted() {
    let home = AgentHome::new();
    home.put("one.yaml", &manifest("one", SLEEPS, ""));
    home.put("two.yaml", &manifest("two", SLEEPS, ""));
    let agent = home.start(&[]).await;
    let one = agent.ready("one-n1").await;
    let two = agent.ready("two-n1").await;
    agent.crash().await;
    let id = |pod: &k8s_openapi::api::core::v1::Pod| {
        let id = super::harness::container(pod).unwrap().container_id.clone().unwrap();
        id.trim_start_matches("process://").to_owned()
    };
    let record = home.root().join("process/containers").join(id(&one)).join("state");
    fs::write(&record, "scribble").unwrap();

    let agent = home.start(&[]).await;
    let line = agent.wait_for_line(&id(&one)).await;
    assert!(line.contains("WARN") || line.contains("ERROR"), "{line}");
    assert_eq!(id(&agent.ready("two-n1").await), id(&two));
    agent
        .until("one-n1", "runs with a new container", |pod| super::harness::is_ready(pod) && id(pod) != id(&one))
        .await;
}

#[tokio::test]
async fn validate_prints_every_manifest_fault_and_fails() {
    let home = AgentHome::new();
    home.put("good.yaml", &manifest("good", SLEEPS, ""));
    home.put("field.yaml", &manifest("field", SLEEPS, "restartPolice: Never"));
    let output = podwright(&["validate", home.manifests().to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stdout);
    assert!(printed.contains("good.yaml: ok, 1 pod: default/good"), "{printed}");
    assert!(printed.contains("field.yaml: warning: line 6"), "{printed}");
    let output = podwright(&["validate", concat!(env!("CARGO_MANIFEST_DIR"), "/examples")]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let output =
        podwright(&["validate", "--runtime", "process", concat!(env!("CARGO_MANIFEST_DIR"), "/examples")]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));

    let mut piped = Command::new(env!("CARGO_BIN_EXE_podwright"));
    piped.args(["validate", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut piped = piped.spawn().unwrap();
    piped.stdin.take().unwrap().write_all(manifest("piped", SLEEPS, "").as_bytes()).await.unwrap();
    let output = timeout(PATIENCE, piped.wait_with_output()).await.expect("the command ends").unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "-: ok, 1 pod: default/piped\n".to_owned()));
}
