//! The agent over the simulated runtime.

use rustix::process::Signal;

use super::harness::{AgentHome, manifest, text};

#[tokio::test]
async fn example_pods_run_simulated_without_a_process() {
    let home = AgentHome::new();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let agent = home.start(&["--runtime", "simulated", "--manifests", examples]).await;
    for name in ["hello-n1", "init-sidecar-n1", "probes-n1", "volumes-n1"] {
        agent.ready(name).await;
    }
    assert!(home.processes().is_empty(), "{:?}", home.processes());
}

#[tokio::test]
async fn simulated_pods_follow_flags_unless_annotations_override_them() {
    let home = AgentHome::new();
    let manifest = |name: &str, annotations: &str| {
        let meta = format!("metadata: {{name: {name}, annotations: {{{annotations}}}}}");
        let spec = "spec: {restartPolicy: Never, containers: [{name: main, image: i, command: [nothing]}]}";
        home.put(&format!("{name}.yaml"), &format!("apiVersion: v1\nkind: Pod\n{meta}\n{spec}\n"));
    };
    manifest("a", "");
    manifest("b", "simulated.podwright.dev/exit-code: \"7\"");
    let args = ["--runtime", "simulated", "--simulate", "run-for=10ms..20ms", "--simulate", "seed=1"];
    let output = home.run(&[&args[..], &["--until-finished"]].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("all pods have finished succeeded=1 failed=1"), "{}", text(&output.stdout));
    assert!(
        text(&output.stdout).contains("pod default/b-n1 failed (main ended with exit code 7)"),
        "{}",
        text(&output.stdout)
    );
}

#[tokio::test]
async fn invalid_simulation_flag_ends_the_agent_with_remedy() {
    let home = AgentHome::new();
    for (args, says) in [
        (&["--runtime", "simulated", "--simulate", "run-for=soon"][..], "write a duration"),
        (&["--runtime", "simulated", "--simulate", "run=5s"][..], "write one of sandbox-latency"),
        (&["--simulate", "run-for=5s"][..], "add --runtime simulated"),
    ] {
        let output = home.run(args).await;
        assert_ne!(output.status.code(), Some(0));
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    }
}

#[tokio::test]
async fn simulated_pods_are_not_said_to_run_after_the_agent() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", "exec sleep 1000", ""));
    for (runtime, says, not) in [
        ("simulated", "simulated pods end with the agent pods=1", "left running"),
        ("process", "pods are left running for the next agent pods=1", "simulated pods"),
    ] {
        let mut agent = home.start(&["--runtime", runtime]).await;
        agent.ready("web-n1").await;
        agent.signal(Signal::TERM);
        assert_eq!(agent.ended().await, Some(0));
        let log = agent.logged();
        assert!(log.contains(says) && !log.contains(not), "{runtime}: {log}");
    }
}
