//! Pods that were rejected or have ended, and an agent that is killed and started again (POD-W13).

use std::fs;

use super::harness::{AgentHome, manifest, phase};

const NEVER: &str = "restartPolicy: Never";

fn reason(pod: &k8s_openapi::api::core::v1::Pod) -> String {
    pod.status.as_ref().and_then(|status| status.reason.clone()).unwrap_or_default()
}

#[tokio::test]
async fn next_agent_keeps_lasting_rejections_and_judges_pods_that_lacked_room_again() {
    let home = AgentHome::new();
    home.put("a.yaml", &manifest("a", "exec sleep 1000", ""));
    let agent = home.start(&["--max-pods", "1", "--node-labels", "disk=hdd"]).await;
    agent.ready("a-n1").await;
    home.put("b.yaml", &manifest("b", "exec sleep 1000", ""));
    home.put("d.yaml", &manifest("d", "exec sleep 1000", "nodeSelector: {disk: ssd}"));
    let is_rejected = |pod: &k8s_openapi::api::core::v1::Pod| phase(pod) == "Failed";
    let lacks_room = agent.until("b-n1", "is rejected", is_rejected).await;
    assert_eq!(reason(&lacks_room), "UnexpectedAdmissionError");
    let rejected = agent.until("d-n1", "is rejected", is_rejected).await;
    assert_eq!(reason(&rejected), "NodeAffinity");
    // A status is on disk before it is published.
    agent.crash().await;

    let agent = home.start(&["--node-labels", "disk=ssd"]).await;
    agent.ready("b-n1").await;
    home.put("c.yaml", &manifest("c", "exec sleep 1000", ""));
    agent.ready("c-n1").await;
    let still = agent.named("d-n1").remove(0);
    assert_eq!(still.status, rejected.status);
    let answer = agent.explain("d-n1");
    assert!(answer.contains("NodeAffinity"), "{answer}");
    agent.crash().await;

    // A damaged journal stops no pod, and the log names the file that was kept.
    fs::write(home.root().join("journal"), "0123456789abcdef nonsense\n").unwrap();
    let agent = home.start(&["--node-labels", "disk=ssd"]).await;
    agent.ready("d-n1").await;
    let line = agent.wait_for_line("the journal of final statuses is damaged").await;
    assert!(line.contains("journal.corrupt") && line.contains("good=0"), "{line}");
    assert!(home.root().join("journal.corrupt").exists());
}

#[tokio::test]
async fn finished_pod_is_not_run_again_after_its_container_records_are_lost() {
    let home = AgentHome::new();
    let ran = home.shared().join("ran");
    let script = |code: u8| format!("echo x >> {}; exit {code}", ran.display());
    home.put("a.yaml", &manifest("a", &script(0), NEVER));
    home.put("b.yaml", &manifest("b", &script(3), NEVER));
    home.put("c.yaml", &manifest("c", &script(0), "restartPolicy: OnFailure"));
    let agent = home.start(&[]).await;
    let has_ended = |pod: &k8s_openapi::api::core::v1::Pod| ["Succeeded", "Failed"].contains(&phase(pod));
    let mut before = Vec::new();
    for name in ["a-n1", "b-n1", "c-n1"] {
        before.push(agent.until(name, "has ended", has_ended).await);
    }
    agent.crash().await;
    for dir in ["process", "pods"] {
        fs::remove_dir_all(home.root().join(dir)).unwrap();
    }

    let agent = home.start(&[]).await;
    home.put("d.yaml", &manifest("d", "exec sleep 1000", ""));
    agent.ready("d-n1").await;
    for pod in before {
        let name = pod.metadata.name.as_deref().unwrap();
        let now = agent.until(name, "has ended", has_ended).await;
        assert_eq!(phase(&now), phase(&pod), "{name}");
        let ends = |pod: &k8s_openapi::api::core::v1::Pod| pod.status.clone().unwrap().container_statuses;
        assert_eq!(ends(&now), ends(&pod), "{name}");
    }
    assert_eq!(fs::read_to_string(&ran).unwrap(), "x\nx\nx\n");

    // A manifest that was removed and put back is another pod.
    home.remove("a.yaml");
    super::harness::eventually("the final status is forgotten", || async {
        let final_statuses = fs::read_to_string(home.root().join("journal")).unwrap();
        let forgotten = !final_statuses.contains("default/a-n1") || final_statuses.contains("Forgotten");
        (agent.named("a-n1").is_empty() && forgotten).then_some(())
    })
    .await;
    home.put("a.yaml", &manifest("a", &script(0), NEVER));
    agent.until("a-n1", "has ended", has_ended).await;
    assert_eq!(fs::read_to_string(&ran).unwrap(), "x\nx\nx\nx\n");
}

#[tokio::test]
async fn reboot_is_logged_once_and_ends_the_facts_of_containers() {
    let home = AgentHome::new();
    let agent = home.start(&[]).await;
    assert!(agent.line("machine rebooted").is_none());
    agent.crash().await;
    let boot = fs::read_to_string(home.root().join("boot")).unwrap();
    assert!(boot.contains(fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim()));
    fs::write(home.root().join("boot"), podwright_host::record::seal(br#""another""#)).unwrap();
    // The machine went down while the file was written.
    let damage = || fs::write(home.root().join("run_facts"), "half a li").unwrap();
    damage();
    let agent = home.start(&[]).await;
    agent.wait_for_line("the machine rebooted since the last agent ran").await;
    assert!(agent.line("the facts of containers is damaged").is_none());
    agent.crash().await;
    damage();
    let agent = home.start(&[]).await;
    assert!(agent.line("machine rebooted").is_none());
    agent.wait_for_line("the facts of containers is damaged").await;
}
