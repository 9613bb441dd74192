//! Explanations of waiting pods: the text for people and the JSON for programs.

pub(super) mod reading;
mod together;

use std::time::Duration;

use podwright_actors::shutdown::ShutdownConfig;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_model::ids::FullName;
use podwright_ports::{EventType, Severity, SourceKind, SourceProblem};
use serde_json::json;

use crate::support::api_node::{ApiNode, unavailable};
use crate::support::test_node::{Setup, TestNode};
use reading::{Retry, assert_text, explain, retry, waits};

// Scenario POD-S67.
#[actix::test]
async fn explain_shows_when_a_crash_backoff_ends() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::ends(1.0, 3));
    node.deliver(&[pod("a")]).await;
    node.until(4.0).await;
    let Retry { left, next, .. } = retry(&node, "a");
    assert_text(
        &explain(&node, "a").to_string(),
        &[
            &format!("test/a: CrashLoopBackOff, waits for the crash backoff of container main, {left} left"),
            "  phase Running, lifecycle sync for 3s",
            "  0 of 1 ready, 1 restart, age 4s",
            "  pod from the API server, uid a",
            "",
            "waits for",
            r#"  container "main" waits out its crash backoff: it ended with exit code 3 (Error)"#,
            &format!("    for 2s (since 08:00:02Z), 2 tries, {next}"),
            "    released by: the end of the backoff; it is started again then",
            "",
            "transitions",
            "  2027-01-15T08:00:00Z      3s ago  waiting                    first update",
            "  2027-01-15T08:00:00Z      3s ago  waiting -> sync            allowed to start",
        ],
    );
}

// KF3
#[actix::test]
async fn explain_shows_what_the_holder_of_a_static_pod_name_waits_for() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("web").uid("old").of_file().grace(30)]).await;
    node.until(10.0).await;
    node.deliver(&[pod("web").uid("new").of_file()]).await;
    node.until(28.0).await;
    assert_text(
        &waits(&node, "web"),
        &[
            "test/web: Pending, waits for its name, held by an earlier pod",
            "  its name test/web is still held by the pod with UID old",
            "    for 18s (since 08:00:10Z)",
            "    released by: the pod that has the name is finished",
            "    cause: its containers were asked to stop and have 30 s for it",
            "      for 18s (since 08:00:10Z), at the latest in 12s (at 08:00:40Z)",
            "      released by: its containers end, or are killed at the end of the grace period",
            r#"      cause: container "main" was asked to stop and still runs"#,
            "        for 18s (since 08:00:10Z), at the latest in 12s (at 08:00:40Z)",
            "        released by: it ends, or is killed at the end of the grace period",
        ],
    );
}

#[actix::test]
async fn explain_shows_image_pull_error_and_next_try() {
    let node = TestNode::start().await;
    node.runtime.fail(Op::Pull);
    node.deliver(&[pod("a")]).await;
    node.until(5.0).await;
    let Retry { left, next, .. } = retry(&node, "a");
    assert_text(
        &waits(&node, "a"),
        &[
            &format!("test/a: ErrImagePull, waits for image img of container main, next try in {left}"),
            r#"  container "main": image "img" is not available (ErrImagePull): it broke"#,
            &format!("    for 4s (since 08:00:00Z), 1 try, {next}"),
            "    released by: the image is available",
        ],
    );
}

#[actix::test]
async fn explain_shows_the_next_try_of_an_image_in_backoff() {
    let node = TestNode::start().await;
    node.runtime.fail(Op::Pull);
    node.deliver(&[pod("a")]).await;
    let waiting = || node.status("a").container_statuses?.pop()?.state?.waiting?.reason;
    node.eventually(60.0, "a backoff", || waiting().as_deref() == Some("ImagePullBackOff")).await;
    let (Retry { left, next, .. }, since) = (retry(&node, "a"), node.now() as u64);
    assert_text(
        &waits(&node, "a"),
        &[
            &format!("test/a: ImagePullBackOff, waits for image img of container main, next try in {left}"),
            r#"  container "main": image "img" is not available (ImagePullBackOff): it broke"#,
            &format!("    for {since}s (since 08:00:00Z), 2 tries, {next}"),
            "    released by: the image is available",
        ],
    );
    node.runtime.heal();
    node.eventually(60.0, "it runs", || node.phase("a") == "Running").await;
    node.wait(1.0).await;
    let Retry { next, .. } = retry(&node, "a");
    assert_text(
        &waits(&node, "a"),
        &[
            "test/a: Running, waits for nothing",
            "  nothing: it is healthy",
            &format!("    {next}"),
            "    released by: an update, a change in the runtime, or the next re-check",
        ],
    );
}

#[actix::test]
async fn explain_shows_the_error_of_a_failing_hook() {
    let node = TestNode::start().await;
    node.runtime.fail(Op::RunSandbox);
    node.deliver(&[pod("a")]).await;
    // The hook was retried within 15 s and is not retried again before 20 s.
    node.until(18.0).await;
    let Retry { left, next, .. } = retry(&node, "a");
    assert_text(
        &waits(&node, "a"),
        &[
            &format!("test/a: ContainerCreating, waits for its setup to succeed, next try in {left}"),
            "  setting it up failed: creating sandbox, attempt 0: it broke",
            &format!("    for 17s (since 08:00:00Z), 2 tries, {next}"),
            "    released by: the next try succeeds, or an update arrives",
        ],
    );
}

#[actix::test]
async fn explain_shows_containers_that_run_in_the_grace_period() {
    let node = TestNode::start().await;
    node.runtime.script("app", Script::stubborn());
    node.deliver(&[pod("a").containers(&["app", "quick"]).grace(30)]).await;
    node.until(5.0).await;
    node.deliver(&[pod("a").containers(&["app", "quick"]).grace(30).deleting(20)]).await;
    node.until(12.0).await;
    assert_text(
        &waits(&node, "a"),
        &[
            "test/a: Terminating, waits for its containers to stop, 13s left",
            "  its containers were asked to stop and have 20 s for it",
            "    for 7s (since 08:00:05Z), at the latest in 13s (at 08:00:25Z)",
            "    released by: its containers end, or are killed at the end of the grace period",
            r#"    cause: container "app" was asked to stop and still runs"#,
            "      for 7s (since 08:00:05Z), at the latest in 13s (at 08:00:25Z)",
            "      released by: it ends, or is killed at the end of the grace period",
        ],
    );
}

// KF21. Scenario POD-S38.
#[actix::test]
async fn explain_shows_why_an_orphan_still_exists() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a").grace(2)]).await;
    node.runtime.fail_stops();
    node.deliver(&[]).await;
    node.until(8.0).await;
    let Retry { left, next, .. } = retry(&node, "a");
    assert_text(
        &waits(&node, "a"),
        &[
            &format!("test/a: Terminating, waits for its stop to succeed, next try in {left}"),
            "  no source desires it any more, and stopping its containers failed: [failed to \"KillContainer\" for \"main\" with KillContainerError: \"it broke\", failed to \"KillPodSandbox\" for \"a\" with KillPodSandboxError: \"it broke\"]",
            &format!("    for 7s (since 08:00:00Z), 1 try, {next}"),
            "    released by: the next try succeeds, or an update arrives",
        ],
    );
}

#[actix::test]
async fn explain_shows_an_unreachable_runtime() {
    let setup = Setup::new(false);
    setup.runtime.unreachable();
    let node = setup.start();
    node.deliver(&[pod("a")]).await;
    node.until(200.0).await;
    assert_text(
        &waits(&node, "a"),
        &[
            "test/a: Pending, waits for the container runtime",
            "  its update from the source waits for the container runtime",
            "    released by: the runtime's containers have been listed",
            "    cause: the container runtime does not answer: runtime unreachable: nobody listens",
            "      for 3m20s (since 08:00:00Z), 200 tries",
            "      released by: the runtime answers again; it is called every second",
        ],
    );
    assert_eq!(node.node.explainer().lines().len(), 1);
    let troubles: Vec<_> = node.node.explainer().node_problems().into_iter().map(|trouble| trouble.detail).collect();
    let held = "(its pods wait for the container runtime)";
    assert_text(
        &troubles.join("\n"),
        &[
            "the container runtime does not answer: runtime unreachable: nobody listens",
            &format!("housekeeping begins when every source has sent its pods; missing: file {held}, api {held}"),
        ],
    );
    // The latest set of the source is applied when the runtime answers.
    node.deliver(&[pod("b")]).await;
    node.runtime.heal();
    node.until(203.0).await;
    assert_eq!((node.runtime.running("a"), node.runtime.running("b")), (vec![], vec!["main".to_owned()]));
    assert_eq!(node.node.explainer().lines().len(), 1);
}

#[actix::test]
async fn explain_shows_runtime_outage_as_cause_of_a_failing_hook() {
    let node = TestNode::start().await;
    node.deliver(&[pod("a")]).await;
    node.until(55.0).await;
    node.runtime.unreachable();
    node.until(100.0).await;
    let Retry { failing, left, next } = retry(&node, "a");
    assert_text(
        &waits(&node, "a"),
        &[
            &format!("test/a: Running, waits for its setup to succeed, next try in {left}"),
            "  setting it up failed, because the container runtime does not answer",
            &format!("    {failing}, {next}"),
            "    released by: the next try succeeds, or an update arrives",
            "    cause: the container runtime does not answer: runtime unreachable: nobody listens",
            "      for 40s (since 08:01:00Z), 40 tries",
            "      released by: the runtime answers again; it is called every second",
        ],
    );
}

#[actix::test]
async fn explain_shows_housekeeping_waiting_for_a_source() {
    let setup = Setup::new(true);
    let node = Setup { sources: vec![SourceKind::File, SourceKind::Http], ..setup }.start();
    node.deliver_set(SourceKind::File, vec![pod("a").of_file().build()], vec![]).await;
    node.deliver_set(SourceKind::File, vec![], vec![]).await;
    node.until(3.0).await;
    node.deliver_set(SourceKind::File, vec![pod("a").of_file().uid("b").build()], vec![]).await;
    node.until(7.0).await;
    assert_text(
        &waits(&node, "a"),
        &[
            "test/a: Pending, waits for its name, held by an earlier pod",
            "  its name test/a is still held by the pod with UID a",
            "    for 4s (since 08:00:03Z)",
            "    released by: the pod that has the name is finished",
            "    cause: no source desires it any more: a housekeeping pass stops it",
            "      for 7s (since 08:00:00Z)",
            "      released by: the next housekeeping pass",
            "      cause: housekeeping begins when every source has sent its pods; missing: http",
            "        for 7s (since 08:00:00Z)",
            "        released by: the source sends its pods",
        ],
    );
}

#[actix::test]
async fn explain_shows_a_missing_volume() {
    let node = TestNode::start().await;
    node.storage.missing(true);
    node.deliver(&[pod("a")]).await;
    node.until(18.0).await;
    let Retry { left, next, .. } = retry(&node, "a");
    assert_text(
        &waits(&node, "a"),
        &[
            &format!("test/a: ContainerCreating, waits for volume data, next try in {left}"),
            r#"  volume "data" cannot be brought up: no such directory"#,
            &format!("    for 17s (since 08:00:00Z), 2 tries, {next}"),
            "    released by: the next try succeeds, or the pod is changed",
        ],
    );
}

// KF12. Rule POD-W10.
#[actix::test]
async fn explain_shows_a_volume_that_does_not_answer() {
    let node = TestNode::start().await;
    node.deliver(&[pod("b")]).await;
    ["a", "b"].iter().for_each(|uid| node.storage.hang(uid));
    node.deliver(&[pod("a")]).await;
    node.wait(20.0).await;
    // The calls for the directories still hang.
    for (uid, what) in [("a", "set up: /pods/a"), ("b", "taken down: /pods/b")] {
        let printed = waits(&node, uid);
        assert!(printed.contains(&format!("its volumes are being {what} is under way")), "{printed}");
    }
    node.wait(104.0).await;
    let message = "/pods/a is not done after 123 s: check whether the file system there answers";
    assert!(node.events.of("FailedMount").iter().any(|event| event.message.ends_with(message)));
    let printed = waits(&node, "a");
    assert!(printed.contains(&format!("volume \"/pods/a\" cannot be brought up: {message}")), "{printed}");
}

// KF35
#[actix::test]
async fn explain_shows_the_position_in_the_start_queue() {
    let node = TestNode::start().await;
    node.runtime.slow(Op::RunSandbox, 5.0);
    let pods: Vec<_> = (0..9).map(|n| pod(&format!("p{n}"))).collect();
    node.deliver(&pods).await;
    node.until(2.0).await;
    assert_text(
        &waits(&node, "p7"),
        &[
            "test/p7: ContainerCreating, waits for the start governor",
            "  it waits for the start governor to start its sandbox: 3 before it in the queue, 4 of at most 4 starts run, as many as the runtime handles well",
            "    for 1s (since 08:00:00Z)",
            "    released by: starts before it end",
        ],
    );
}

// Scenario POD-S92.
#[actix::test]
async fn explain_shows_order_and_deadlines_of_a_node_shutdown() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("usual"), pod("vital").spec("priority", 2_000_000_000)]).await;
    node.until(5.0).await;
    let config = ShutdownConfig::new(Duration::from_secs(30), Duration::from_secs(10));
    let explanations = async {
        node.until(12.0).await;
        (waits(&node, "usual"), waits(&node, "vital"))
    };
    let stops = node.node.stop_pods(config);
    let (_, (usual, vital)) = tokio::join!(stops, explanations);
    assert_text(
        &usual,
        &[
            "test/usual: Terminated, waits for its containers to stop, 13s left",
            "  its containers were asked to stop and have 20 s for it",
            "    for 7s (since 08:00:05Z), at the latest in 13s (at 08:00:25Z)",
            "    released by: its containers end, or are killed at the end of the grace period",
            r#"    cause: container "main" was asked to stop and still runs"#,
            "      for 7s (since 08:00:05Z), at the latest in 13s (at 08:00:25Z)",
            "      released by: it ends, or is killed at the end of the grace period",
            "    cause: the node shuts down, and stops it by then at the latest",
            "      for 7s (since 08:00:05Z), at the latest in 13s (at 08:00:25Z)",
            "      released by: the pod has stopped",
        ],
    );
    assert_text(
        &vital,
        &[
            "test/vital: Running, waits for its turn in the node's shutdown, 13s left",
            "  the node shuts down: 1 pod stops before it, and it is stopped after them",
            "    for 7s (since 08:00:05Z), at the latest in 13s (at 08:00:25Z)",
            "    released by: the pods before it have stopped",
        ],
    );
}

#[actix::test]
async fn explain_shows_a_status_that_cannot_be_written() {
    let this = ApiNode::start().await;
    this.api.create_pod("a", &json!({}));
    this.api.fail(unavailable());
    this.watch().await;
    this.node.until(5.0).await;
    assert_text(
        &waits(&this.node, "a"),
        &[
            "test/a: Running, waits for the write of its status to the API server, next try in 1s",
            "  its status cannot be written to the API server: the API server did not perform the call: connection refused",
            "    for 4s (since 08:00:00Z), 6 tries, next in 1s (at 08:00:06Z)",
            "    released by: the API server accepts the status; each try writes the newest status",
        ],
    );
    let wait = &serde_json::to_value(explain(&this.node, "a")).unwrap()["chain"][0];
    assert_eq!((&wait["what"], &wait["on"]["kind"]), (&json!("statusWrite"), &json!("apiServer")));

    this.api.fail(None);
    this.node.wait(20.0).await;
    assert!(waits(&this.node, "a").starts_with("test/a: Running, waits for nothing"));
}

#[actix::test]
async fn explain_escapes_control_characters_of_foreign_text() {
    let node = TestNode::start().await;
    let (what, message) = ("/m/a.yaml".to_owned(), "no\x1b[2J\nwaits for".to_owned());
    let problem = SourceProblem { what, message, pods: vec![FullName::new("test", "a")], severity: Severity::Fault };
    node.deliver_set(SourceKind::File, vec![pod("a").of_file().build()], vec![problem]).await;
    node.until(5.0).await;
    let text = explain(&node, "a").to_string();
    assert_eq!(text.lines().last(), Some(r"  /m/a.yaml: no\u{1b}[2J\nwaits for"), "{text}");
}

#[actix::test]
async fn explain_json_has_the_wait_chain_across_pods() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("web").uid("old").of_file().grace(30)]).await;
    node.deliver(&[pod("web").uid("new").of_file()]).await;
    node.until(10.0).await;
    let explanation = serde_json::to_value(explain(&node, "web")).unwrap();
    assert_eq!(
        (&explanation["uid"], &explanation["others"]),
        (&json!("new"), &json!([{"uid": "old", "lifecycle": "terminating"}]))
    );
    let chain = explanation["chain"].as_array().unwrap();
    let steps: Vec<_> = chain.iter().map(|wait| json!([wait["depth"], wait["what"], wait["on"]])).collect();
    let pod = |uid: &str| json!({"kind": "pod", "name": "test/web", "uid": uid});
    let container = json!({"kind": "container", "name": "main"});
    assert_eq!(
        steps,
        [json!([0, "fullName", pod("old")]), json!([1, "grace", pod("old")]), json!([2, "containerStop", container])]
    );
    assert_eq!(explanation["containers"][0].get("waits"), None, "the container that stops belongs to another pod");
    // The older pod can be explained too.
    let of =
        |uid: &str| node.node.explainer().explain(&FullName::new("test", "web"), Some(&uid.into()), &|_| Vec::new());
    let old = serde_json::to_value(of("old").unwrap()).unwrap();
    assert_eq!((&old["uid"], &old["chain"][0]["what"]), (&json!("old"), &json!("grace")));
    assert_eq!(old["others"], json!([{"uid": "new", "lifecycle": "waiting"}]));
    assert_eq!(of("none"), None);
    let lines = serde_json::to_value(node.node.explainer().lines()).unwrap();
    assert_eq!(lines[0]["uid"], "new");
    assert_eq!((&lines[0]["lifecycle"], &lines[0]["restarts"]), (&json!("waiting"), &json!(0)));
    assert_eq!(
        (&lines[0]["what"], &lines[0]["wait"]),
        (&json!("fullName"), &json!("its name, held by an earlier pod"))
    );
    assert_eq!((&lines[1]["what"], &lines[1]["wait"]), (&json!("grace"), &json!("its containers to stop, 20s left")));
}

#[actix::test]
async fn crash_loop_publishes_one_long_wait_event() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::ends(1.0, 1));
    node.deliver(&[pod("a")]).await;
    node.until(3000.0).await;
    assert_eq!(node.events.of("LongWait").len(), 1, "{:?}", node.events.of("LongWait"));
}

#[actix::test]
async fn long_wait_publishes_one_event() {
    let node = TestNode::start().await;
    node.storage.missing(true);
    node.deliver(&[pod("a")]).await;
    node.until(290.0).await;
    assert_eq!(node.events.of("LongWait"), []);
    node.until(1500.0).await;
    let events = node.events.of("LongWait");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].kind, EventType::Warning);
    let message = &events[0].message;
    assert!(message.starts_with("ContainerCreating, waits for volume data, next try in "), "{message}");
    assert!(message.ends_with(" (volume \"data\" cannot be brought up: no such directory)"), "{message}");
    // After the pod was healthy, the next long wait publishes an event again.
    node.storage.missing(false);
    node.until(1600.0).await;
    node.storage.missing(true);
    node.until(2200.0).await;
    assert_eq!(node.events.of("LongWait").len(), 2);
}
