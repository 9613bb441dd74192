//! The flight recorder of a real agent, and its replay.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::harness::{Agent, Place, manifest, podwright, text};

async fn replay(file: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = podwright(&[&["replay", file.to_str().unwrap()], args].concat()).await;
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn save(place: &Place, agent: &Agent) -> PathBuf {
    let file = place.root().join("saved.podrec");
    fs::write(&file, agent.fetch("/recording")).unwrap();
    file
}

#[tokio::test]
async fn replay_of_a_recording_shows_a_container_crash() {
    let place = Place::new();
    place.put("crash.yaml", &manifest("crash", "exit 3", ""));
    place.put("other.yaml", &manifest("other", "exec sleep 1000", ""));
    let agent = place.start(&[]).await;
    let backs_off = |pod: &k8s_openapi::api::core::v1::Pod| {
        let waiting = super::harness::container(pod).and_then(|main| main.state.as_ref()?.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff"))
    };
    agent.until("crash-n1", "backs off", backs_off).await;
    agent.ready("other-n1").await;
    place.remove("other.yaml");
    agent.says("lifecycle=\"finished\"").await;
    let file = save(&place, &agent);

    let (code, told, _) = replay(&file, &[]).await;
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("events of 2 pods"), "{told}");
    assert!(told.ends_with("the replay reached every recorded state\n"), "{told}");

    let (code, told, _) = replay(&file, &["--pod", "default/crash-n1"]).await;
    assert_eq!(code, Some(0), "{told}");
    let expected = [
        "source file: pod added",
        "create (static); waiting",
        "calls sync_pod; waiting -> sync; waits for the end of sync_pod",
        "plan: create the first sandbox; start container main",
        "plan: start container main, attempt 2, because it exited with 3",
        "plan: start container main, attempt 3, because it exited with 3",
        "sync_pod failed: CrashLoopBackOff: waiting 10 s before container main is started again",
        "waits for a retry of sync_pod at",
    ];
    let mut rest = told.as_str();
    for line in expected {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line:?} is missing, or too early:\n{told}"));
        rest = &rest[at..];
    }
    let (_, told, _) = replay(&file, &["--pod", "default/other-n1", "-o", "json"]).await;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let last = told["timeline"].as_array().unwrap().last().unwrap();
    assert!(last["after"] == "finished" || last["before"] == "finished", "{last}");
    assert_eq!(told["difference"], serde_json::Value::Null);

    let (code, _, error) = replay(&file, &["--pod", "default/crash"]).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("pod default/crash is not in the recording: similar names are default/crash-n1"), "{error}");
    agent.signal(Signal::TERM);
}

#[tokio::test]
async fn replay_refuses_an_invalid_recording_with_place_and_remedy() {
    let place = Place::new();
    let agent = place.start(&["--recording-size", "0"]).await;
    let (code, why) = agent.get("/recording", "");
    assert_eq!(code, 404);
    assert!(why.contains("--recording-size"), "{why}");
    let file = place.root().join("saved.podrec");
    fs::write(&file, "kind: Pod").unwrap();
    let (code, _, error) = replay(&file, &[]).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("saved.podrec: byte 0: not a recording: get one from a running agent"), "{error}");
    let (code, _, error) = replay(&place.root().join("nowhere"), &[]).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("nowhere cannot be read (no such file or directory)"), "{error}");
    agent.signal(Signal::TERM);
}

#[tokio::test]
async fn replay_escapes_control_characters_of_a_recording() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/recording/hostile-build.podrec");
    let (code, told, _) = replay(&file, &[]).await;
    assert_eq!(code, Some(0), "{told:?}");
    assert!(told.contains("recorded by dev\\u{1b}[2J\\r\\n\\u{202e}live, saved at"), "{told:?}");
}
