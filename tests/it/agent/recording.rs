//! The flight recorder of a real agent, and its replay.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::harness::{Agent, AgentHome, manifest, podwright, text};

async fn replay(file: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = podwright(&[&["replay", file.to_str().unwrap()], args].concat()).await;
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn save(home: &AgentHome, agent: &Agent) -> PathBuf {
    let file = home.root().join("saved.podrec");
    fs::write(&file, agent.fetch("/recording")).unwrap();
    file
}

#[tokio::test]
async fn replay_of_a_recording_shows_a_container_crash() {
    let home = AgentHome::new();
    home.put("crash.yaml", &manifest("crash", "exit 3", ""));
    home.put("other.yaml", &manifest("other", "exec sleep 1000", ""));
    let agent = home.start(&[]).await;
    let backs_off = |pod: &k8s_openapi::api::core::v1::Pod| {
        let waiting = super::harness::container(pod).and_then(|main| main.state.as_ref()?.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff"))
    };
    agent.until("crash-n1", "backs off", backs_off).await;
    agent.ready("other-n1").await;
    home.remove("other.yaml");
    agent.wait_for_line("lifecycle=\"finished\"").await;
    let file = save(&home, &agent);

    let (code, printed, _) = replay(&file, &[]).await;
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("events of 2 pods"), "{printed}");
    assert!(printed.ends_with("the replay reached every recorded state\n"), "{printed}");

    let (code, printed, _) = replay(&file, &["--pod", "default/crash-n1"]).await;
    assert_eq!(code, Some(0), "{printed}");
    let expected = [
        "source file: pod added",
        "create (static); waiting",
        "calls sync_pod; waiting -> sync; waits for the end of sync_pod",
        "plan: create the first sandbox; start container main",
        "plan: start container main, attempt 2, because it exited with 3",
        "plan: start container main, attempt 3, because it exited with 3",
        "sync_pod failed: CrashLoopBackOff: back-off 10s restarting failed container=main pod=",
        "waits for a retry of sync_pod at",
    ];
    let mut rest = printed.as_str();
    for line in expected {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line:?} is missing, or too early:\n{printed}"));
        rest = &rest[at..];
    }
    let (_, printed, _) = replay(&file, &["--pod", "default/other-n1", "-o", "json"]).await;
    let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let last = printed["timeline"].as_array().unwrap().last().unwrap();
    assert!(last["after"] == "finished" || last["before"] == "finished", "{last}");
    assert_eq!(printed["difference"], serde_json::Value::Null);

    let (code, _, error) = replay(&file, &["--pod", "default/crash"]).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("pod default/crash is not in the recording: similar names are default/crash-n1"), "{error}");
    agent.signal(Signal::TERM);
}

#[tokio::test]
async fn replay_refuses_an_invalid_recording_with_place_and_remedy() {
    let home = AgentHome::new();
    let agent = home.start(&["--recording-size", "0"]).await;
    let (code, why) = agent.get("/recording", "");
    assert_eq!(code, 404);
    assert!(why.contains("--recording-size"), "{why}");
    let file = home.root().join("saved.podrec");
    fs::write(&file, "kind: Pod").unwrap();
    let (code, _, error) = replay(&file, &[]).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("saved.podrec: byte 0: not a recording: get one from a running agent"), "{error}");
    let (code, _, error) = replay(&home.root().join("nowhere"), &[]).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("nowhere cannot be read (no such file or directory)"), "{error}");
    agent.signal(Signal::TERM);
}

#[tokio::test]
async fn replay_escapes_control_characters_of_a_recording() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/recording/hostile-build.podrec");
    let (code, printed, _) = replay(&file, &[]).await;
    assert_eq!(code, Some(0), "{printed:?}");
    assert!(printed.contains("recorded by dev\\u{1b}[2J\\r\\n\\u{202e}live, saved at"), "{printed:?}");
}
