//! `--until-finished` and its exit codes.

use rustix::process::Signal;

use super::harness::{AgentHome, manifest, text};

const NEVER: &str = "restartPolicy: Never";

#[tokio::test]
async fn until_finished_exits_with_0_after_all_pods_succeeded() {
    let home = AgentHome::new();
    home.put("a.yaml", &manifest("a", "sleep 1", NEVER));
    home.put("b.yaml", &manifest("b", "exit 0", "restartPolicy: OnFailure"));
    let output = home.run(&["--until-finished"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("all pods have finished succeeded=2 failed=0"));
}

#[tokio::test]
async fn until_finished_exits_with_1_and_names_the_failed_pod() {
    let home = AgentHome::new();
    home.put("a.yaml", &manifest("a", "exit 0", NEVER));
    home.put("b.yaml", &manifest("b", "exit 5", NEVER));
    let output = home.run(&["--until-finished"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(
        text(&output.stdout).contains("pod default/b-n1 failed (main ended with exit code 5)"),
        "{}",
        text(&output.stdout)
    );
}

#[tokio::test]
async fn until_finished_counts_rejected_pods_and_broken_manifests_as_failed() {
    let home = AgentHome::new();
    let greedy =
        manifest("greedy", "exit 0", NEVER).replace("image: i", "image: i\n    resources: {requests: {cpu: 9999}}");
    home.put("greedy.yaml", &greedy);
    let output = home.run(&["--until-finished"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let line = "pod default/greedy-n1 failed: UnexpectedAdmissionError: Pod was rejected: ";
    assert!(text(&output.stdout).contains(line), "{}", text(&output.stdout));

    home.put("greedy.yaml", "kind: Pod\n");
    let output = home.run(&["--until-finished"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("greedy.yaml"), "{}", text(&output.stdout));
}

#[tokio::test]
async fn until_finished_runs_pods_in_turn_if_the_node_has_no_room_for_all() {
    let home = AgentHome::new();
    for name in ["a", "b", "c"] {
        home.put(&format!("{name}.yaml"), &manifest(name, "sleep 0.3", NEVER));
    }
    let output = home.run(&["--until-finished", "--max-pods", "1"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("all pods have finished succeeded=3 failed=0"), "{}", text(&output.stdout));
}

#[tokio::test]
async fn until_finished_stops_the_pods_that_an_earlier_agent_left_running() {
    let home = AgentHome::new();
    home.put("left.yaml", &manifest("left", "exec sleep 1000", ""));
    let mut first = home.start(&[]).await;
    first.ready("left-n1").await;
    first.signal(Signal::TERM);
    assert_eq!(first.ended().await, Some(0), "{}", first.logged());
    assert!(!home.processes().is_empty());
    home.remove("left.yaml");
    let output = home.run(&["--until-finished"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert_eq!(home.processes(), Vec::<String>::new());
}

#[tokio::test]
async fn until_finished_does_not_wait_for_missing_manifests() {
    let home = AgentHome::new();
    let output = home.run(&["--until-finished", "--manifests", "/nowhere/at-all"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("there is no manifest at /nowhere/at-all"), "{}", text(&output.stderr));
}
