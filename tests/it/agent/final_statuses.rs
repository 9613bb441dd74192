//! Pods that are over for good, an agent that is killed, and the one that comes after it (POD-W13).

use std::fs;

use super::harness::{Place, manifest, phase};

const NEVER: &str = "restartPolicy: Never";

fn reason(pod: &k8s_openapi::api::core::v1::Pod) -> String {
    pod.status.as_ref().and_then(|status| status.reason.clone()).unwrap_or_default()
}

#[tokio::test]
async fn rejected_pod_stays_rejected_after_agent_crash_with_free_capacity() {
    let place = Place::new();
    place.put("a.yaml", &manifest("a", "exec sleep 1000", ""));
    let agent = place.start(&["--max-pods", "1"]).await;
    agent.ready("a-n1").await;
    place.put("b.yaml", &manifest("b", "exec sleep 1000", ""));
    let refused = agent.until("b-n1", "is refused", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&refused), "OutOfpods");
    // The moment it is told of, it is on disk.
    agent.crash().await;

    let agent = place.start(&[]).await;
    place.put("c.yaml", &manifest("c", "exec sleep 1000", ""));
    agent.ready("c-n1").await;
    let still = agent.named("b-n1").remove(0);
    assert_eq!(still.status, refused.status);
    let told = agent.explain("b-n1");
    assert!(told.contains("OutOfpods"), "{told}");
    agent.crash().await;

    // A damaged journal stops nobody, and says where it is.
    fs::write(place.root().join("journal"), "0123456789abcdef nonsense\n").unwrap();
    let agent = place.start(&[]).await;
    agent.ready("b-n1").await;
    let line = agent.says("the journal of final statuses is damaged").await;
    assert!(line.contains("journal.corrupt") && line.contains("good=0"), "{line}");
    assert!(place.root().join("journal.corrupt").exists());
}

#[tokio::test]
async fn finished_pod_is_not_run_again_after_its_container_records_are_lost() {
    let place = Place::new();
    let ran = place.root().join("ran");
    let script = |code: u8| format!("echo x >> {}; exit {code}", ran.display());
    place.put("a.yaml", &manifest("a", &script(0), NEVER));
    place.put("b.yaml", &manifest("b", &script(3), NEVER));
    place.put("c.yaml", &manifest("c", &script(0), "restartPolicy: OnFailure"));
    let agent = place.start(&[]).await;
    let done = |pod: &k8s_openapi::api::core::v1::Pod| ["Succeeded", "Failed"].contains(&phase(pod));
    let mut before = Vec::new();
    for name in ["a-n1", "b-n1", "c-n1"] {
        before.push(agent.until(name, "is done", done).await);
    }
    agent.crash().await;
    for dir in ["process", "pods"] {
        fs::remove_dir_all(place.root().join(dir)).unwrap();
    }

    let agent = place.start(&[]).await;
    place.put("d.yaml", &manifest("d", "exec sleep 1000", ""));
    agent.ready("d-n1").await;
    for pod in before {
        let name = pod.metadata.name.as_deref().unwrap();
        let now = agent.until(name, "is done", done).await;
        assert_eq!(phase(&now), phase(&pod), "{name}");
        let ends = |pod: &k8s_openapi::api::core::v1::Pod| pod.status.clone().unwrap().container_statuses;
        assert_eq!(ends(&now), ends(&pod), "{name}");
    }
    assert_eq!(fs::read_to_string(&ran).unwrap(), "x\nx\nx\n");

    // Gone from its source and written anew it is another pod.
    place.remove("a.yaml");
    super::harness::eventually("it is forgotten", || async {
        let final_statuses = fs::read_to_string(place.root().join("journal")).unwrap();
        let forgotten = !final_statuses.contains("default/a-n1") || final_statuses.contains("Forgotten");
        (agent.named("a-n1").is_empty() && forgotten).then_some(())
    })
    .await;
    place.put("a.yaml", &manifest("a", &script(0), NEVER));
    agent.until("a-n1", "is done", done).await;
    assert_eq!(fs::read_to_string(&ran).unwrap(), "x\nx\nx\nx\n");
}

#[tokio::test]
async fn reboot_is_logged_once() {
    let place = Place::new();
    let agent = place.start(&[]).await;
    assert!(agent.line("machine rebooted").is_none());
    agent.crash().await;
    let boot = fs::read_to_string(place.root().join("boot")).unwrap();
    assert!(boot.contains(fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim()));
    fs::write(place.root().join("boot"), podwright::adapters::record::seal(br#""another""#)).unwrap();
    let agent = place.start(&[]).await;
    agent.says("the machine rebooted since the last agent ran").await;
    agent.crash().await;
    let agent = place.start(&[]).await;
    assert!(agent.line("machine rebooted").is_none());
}
