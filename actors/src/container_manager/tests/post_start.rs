use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ExecAction, HTTPGetAction, HTTPHeader, Lifecycle, LifecycleHandler, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::start::timeout_of_start;
use super::*;

fn with_post_start(handler: LifecycleHandler) -> Arc<PodObject> {
    let port = ContainerPort { name: Some("web".into()), container_port: 8080, ..ContainerPort::default() };
    pod(
        "Always",
        Vec::new(),
        vec![Container {
            lifecycle: Some(Lifecycle { post_start: Some(handler), ..Lifecycle::default() }),
            ports: Some(vec![port]),
            ..named("a")
        }],
    )
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_post_start_hook_fails_is_stopped_again() {
    let rig = Rig::new();
    let exec = ExecAction { command: Some(vec!["warm".into(), "up".into()]) };
    let pod = with_post_start(LifecycleHandler { exec: Some(exec), ..LifecycleHandler::default() });
    rig.runtime.script("a", Script { exec: (secs(1), 9), ..Script::default() });
    let result = rig.sync(&pod).await;
    let error = result.error.unwrap().to_string();
    assert!(error.contains("PostStartHookError: Exec lifecycle hook ([warm up]) for Container \"a\""), "{error}");
    // The output may contain secrets. Only the waiting message has it.
    assert!(!error.contains("said") && !error.contains("warned"), "{error}");
    assert_eq!(rig.event("FailedPostStartHook"), "PostStartHook failed");
    let name = format!("{}_{}({})", pod.full_name().name(), pod.full_name().namespace(), pod.uid());
    assert_eq!(
        rig.manager.start_errors().of(pod.uid()).values().next().unwrap().message,
        format!(
            "Exec lifecycle hook ([warm up]) for Container \"a\" in Pod \"{name}\" failed - error: command 'warm up' exited \
             with 9: warned\n, message: \"said\\nwarned\\n\""
        )
    );
    assert_eq!(
        rig.runtime.calls(),
        ["0: sandbox 0", "0: create a#0", "0: start a", "0: exec a warm up", "1: stop a 30"]
    );
    assert_eq!(rig.reasons(), ["Created", "Started", "Killing", "FailedPostStartHook"]);
    assert_eq!(rig.waiting(&pod), [("a".to_owned(), "PostStartHookError")]);
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_successful_start_continues_with_its_hook() {
    let rig = Rig::new();
    let exec = ExecAction { command: Some(vec!["warm".into()]) };
    let pod = with_post_start(LifecycleHandler { exec: Some(exec), ..LifecycleHandler::default() });
    rig.runtime.lose_answers_to_start("a", timeout_of_start());
    assert!(rig.sync(&pod).await.error.is_none());
    assert_eq!(rig.runtime.calls(), ["0: sandbox 0", "0: create a#0", "0: start a", "0: exec a warm"]);
}

/// A pod whose container has a hook, and whose last agent died when the container ran and the hook had not ended.
async fn with_due_hook(rig: &Rig) -> Arc<PodObject> {
    let exec = ExecAction { command: Some(vec!["warm".into()]) };
    let pod = with_post_start(LifecycleHandler { exec: Some(exec), ..LifecycleHandler::default() });
    rig.settled(&pod).await;
    rig.manager.ports.run_facts.starts(pod.uid(), &"a#0".into()).await;
    pod
}

#[tokio::test(start_paused = true)]
async fn hook_that_an_earlier_agent_did_not_finish_runs_again() {
    let rig = Rig::new();
    let pod = with_due_hook(&rig).await;
    let result = rig.sync(&pod).await;
    assert!(result.error.is_none() && result.acted);
    assert_eq!(rig.runtime.calls(), ["0: exec a warm"]);
    rig.settled(&pod).await;
    assert_eq!(rig.manager.ports.run_facts.start_of(pod.uid(), &"a#0".into()), None);
}

#[tokio::test(start_paused = true)]
async fn container_is_stopped_when_its_repeated_hook_fails() {
    let rig = Rig::new();
    let pod = with_due_hook(&rig).await;
    rig.runtime.script("a", Script { exec: (secs(1), 9), ..Script::default() });
    rig.runtime.fail("stop a");
    assert!(rig.sync(&pod).await.error.is_some());
    assert_eq!(rig.runtime.calls(), ["0: exec a warm", "1: stop a 30"]);
    // The container still runs. Its hook has failed, and does not run again.
    rig.runtime.heal();
    let result = rig.sync(&pod).await;
    assert!(result.error.is_none() && result.acted);
    assert_eq!(rig.runtime.calls(), ["1: stop a 30"]);
    assert_eq!(rig.waiting(&pod), [("a".to_owned(), "PostStartHookError")]);
}

#[tokio::test(start_paused = true)]
async fn container_that_is_stopped_gets_no_hook() {
    let rig = Rig::new();
    let pod = with_due_hook(&rig).await;
    rig.runtime.edit("a#0", |run| run.spec_hash += 1);
    assert!(rig.sync(&pod).await.error.is_none());
    assert_eq!(rig.runtime.calls(), ["0: stop a 30", "0: create a#1", "0: start a", "0: exec a warm"]);
}

#[tokio::test(start_paused = true)]
async fn hook_runs_after_a_start_whose_answer_and_effect_came_late() {
    let rig = Rig::new();
    let exec = ExecAction { command: Some(vec!["warm".into()]) };
    let pod = with_post_start(LifecycleHandler { exec: Some(exec), ..LifecycleHandler::default() });
    rig.runtime.lose_answers_to_start("a", timeout_of_start());
    rig.runtime.fail("status");
    assert!(rig.sync(&pod).await.error.is_some());
    rig.runtime.heal();
    assert!(rig.sync(&pod).await.error.is_none());
    assert_eq!(rig.runtime.calls(), ["0: sandbox 0", "0: create a#0", "0: start a", "0: exec a warm"]);
}

#[tokio::test(start_paused = true)]
async fn network_hooks_call_the_pod_and_resolve_named_ports() {
    let http = |scheme: Option<&str>, host: Option<&str>, port| {
        let get = HTTPGetAction {
            scheme: scheme.map(Into::into),
            host: host.map(Into::into),
            path: Some("ready".into()),
            port,
            ..HTTPGetAction::default()
        };
        LifecycleHandler { http_get: Some(get), ..LifecycleHandler::default() }
    };
    let tcp = TCPSocketAction { host: None, port: IntOrString::Int(9000) };
    let table = [
        (http(None, None, IntOrString::String("web".into())), Some("http://10.0.0.7:8080/ready")),
        (http(Some("HTTPS"), Some("h"), IntOrString::Int(1)), Some("https://h:1/ready")),
        (http(None, None, IntOrString::String("81".into())), Some("http://10.0.0.7:81/ready")),
        (LifecycleHandler { tcp_socket: Some(tcp), ..LifecycleHandler::default() }, Some("tcp 10.0.0.7:9000")),
        (http(None, None, IntOrString::String("absent".into())), None),
        (http(None, None, IntOrString::Int(0)), None),
        (http(None, None, IntOrString::Int(70_000)), None),
        (LifecycleHandler::default(), None),
    ];
    for (handler, expected) in table {
        let rig = Rig::new();
        let result = rig.sync(&with_post_start(handler.clone())).await;
        // A server error also counts as an answer.
        assert_eq!(result.error.is_none(), expected.is_some(), "{handler:?} {:?}", result.error);
        assert_eq!(rig.fakes.network.lock().first().map(String::as_str), expected);
    }
    let rig = Rig::new();
    *rig.fakes.network_broken.lock() = true;
    let result = rig.sync(&with_post_start(http(None, None, IntOrString::Int(1)))).await;
    let error = result.error.unwrap().to_string();
    assert!(error.contains("HTTP lifecycle hook (ready) for Container \"a\" in Pod"), "{error}");
    assert!(error.ends_with("failed - error: Get \"http://10.0.0.7:1/ready\": refused"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_https_hook_falls_back_to_http_without_credentials() {
    let header = |name: &str, value: &str| HTTPHeader { name: name.into(), value: value.into() };
    let get = HTTPGetAction {
        scheme: Some("HTTPS".into()),
        port: IntOrString::Int(8080),
        http_headers: Some(vec![header("authorization", "secret"), header("X-A", "1")]),
        ..HTTPGetAction::default()
    };
    let pod = with_post_start(LifecycleHandler { http_get: Some(get), ..LifecycleHandler::default() });
    let sent = |headers: &[(String, String)]| {
        headers.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>()
    };
    let others = ["X-A: 1", "User-Agent: kube-lifecycle/1.36", "Accept: */*"];

    let rig = Rig::new();
    *rig.fakes.without_tls.lock() = true;
    assert!(rig.sync(&pod).await.error.is_none());
    assert_eq!(*rig.fakes.network.lock(), ["https://10.0.0.7:8080/", "http://10.0.0.7:8080/"]);
    let headers = std::mem::take(&mut *rig.fakes.headers.lock());
    assert_eq!(sent(&headers[0]), [&["authorization: secret"][..], &others].concat());
    assert_eq!(sent(&headers[1]), others);
    assert_eq!(rig.metric("kubelet_lifecycle_handler_http_fallbacks_total"), 1);

    let rig = Rig::new();
    assert!(rig.sync(&pod).await.error.is_none());
    assert_eq!(*rig.fakes.network.lock(), ["https://10.0.0.7:8080/"]);
    assert_eq!(rig.metric("kubelet_lifecycle_handler_http_fallbacks_total"), 0);
}

#[tokio::test(start_paused = true)]
async fn cancellation_interrupts_a_post_start_hook() {
    let rig = Rig::new();
    let exec = ExecAction { command: Some(vec!["hang".into()]) };
    let pod = with_post_start(LifecycleHandler { exec: Some(exec), ..LifecycleHandler::default() });
    rig.runtime.script("a", Script { exec: (secs(10_000), 0), ..Script::default() });
    let cancel = CancellationToken::new();
    let probes = ProbeSnapshot::new();
    let stop = async {
        tokio::time::sleep(secs(10)).await;
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(rig.sync_with(&pod, &cancel, &probes), stop);
    assert!(matches!(result.error, Some(SyncError::Cancelled)), "{:?}", result.error);
    assert_eq!(rig.clock.now(), Time::from_secs(2_000_010));
}
