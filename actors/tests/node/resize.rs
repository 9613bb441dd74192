//! In-place resizes of pods, over the store of the stand-in API server.

mod allocation_file;
mod generation;
mod interrupted;
mod whole_pod;

use std::sync::Arc;

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::fake_ports::FakeFinalStatuses;
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_model::pod::PodObject;
use podwright_ports::{AppliedSettings, SourceKind};
use serde_json::{Value, json};

use super::explain::reading::waits;
use crate::support::fake_cgroups::FakeCgroups;
use crate::support::fake_pod_api::FakePodApi;
use crate::support::test_node::{Setup, TestNode};

/// A node of an API server with 4 CPUs.
struct ResizeNode {
    node: TestNode,
    api: Arc<FakePodApi>,
    cgroups: Arc<FakeCgroups>,
    allocations: Arc<FakeFinalStatuses>,
}

const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// A container with equal requests and limits.
fn container(name: &str, cpu: &str, memory: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": memory});
    json!({"name": name, "image": "img", "resources": {"requests": amounts, "limits": amounts}})
}

/// Resources of which only the CPU request matters.
fn request(cpu: &str) -> Value {
    json!({"containers": [{"name": "main", "image": "img", "resources": {"requests": {"cpu": cpu}}}]})
}

impl ResizeNode {
    async fn start() -> Self {
        ResizeNode::start_with(Setup::new(true)).await
    }

    async fn start_with(setup: Setup) -> Self {
        let setup = Setup { sources: vec![SourceKind::Api], ..setup };
        let api = Arc::new(FakePodApi::new(setup.clock));
        ResizeNode::of(setup, api, Arc::default(), Arc::default()).await
    }

    async fn of(
        setup: Setup,
        api: Arc<FakePodApi>,
        cgroups: Arc<FakeCgroups>,
        allocations: Arc<FakeFinalStatuses>,
    ) -> Self {
        let setup =
            Setup { api: Some(api.clone()), cgroups: Some(cgroups.clone()), allocations: allocations.clone(), ..setup };
        cgroups.report_to(setup.runtime.clone());
        let this = ResizeNode { node: setup.start(), api, cgroups, allocations };
        this.watch().await;
        this.node.pass().await;
        this
    }

    /// Starts the next agent on the same machine, after this one was killed.
    async fn restart(self) -> Self {
        self.restart_with(vec![SourceKind::Api]).await
    }

    /// Starts the next agent with these sources.
    async fn restart_with(self, sources: Vec<SourceKind>) -> Self {
        let ResizeNode { node, api, cgroups, allocations } = self;
        let (runtime, final_statuses) = (node.runtime.clone(), node.final_statuses.clone());
        drop(node);
        let setup = Setup { runtime, final_statuses, sources, ..Setup::again(true) };
        ResizeNode::of(setup, api, cgroups, allocations).await
    }

    /// Delivers the pods that the API server has now, as a watch does.
    async fn watch(&self) {
        let check = |pod: &Arc<PodObject>| generation::assert_decided(pod, &self.node.runtime.inspect(pod.uid()));
        self.api.pods().iter().for_each(check);
        self.node.deliver_set(SourceKind::Api, self.api.pods(), Vec::new()).await;
        self.node.settled().await;
    }

    /// Lets time pass while the watch delivers each change.
    async fn wait(&self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.node.wait(0.1).await;
            self.watch().await;
        }
    }

    async fn run(&self, name: &str, spec: &Value) {
        self.api.create_pod(name, spec);
        self.watch().await;
        self.wait(2).await;
        assert_eq!(self.api.phase(name), "Running", "{name}");
    }

    /// Changes the resources of containers, as `kubectl patch --subresource resize` does.
    async fn resize(&self, name: &str, containers: &Value) {
        let path = format!("/api/v1/namespaces/test/pods/{name}/resize");
        self.api.request("PATCH", &path, STRATEGIC, &json!({"spec": {"containers": containers}})).unwrap();
        self.watch().await;
        self.wait(2).await;
    }

    /// The condition as `Reason: message @generation`; empty if the pod does not have it.
    fn condition(&self, name: &str, kind: &str) -> String {
        let conditions = self.api.status(name).conditions.unwrap_or_default();
        let found = conditions.into_iter().find(|condition| condition.type_ == kind);
        found.map_or_else(String::new, |condition| {
            let text = |text: Option<String>| text.unwrap_or_default();
            let generation = condition.observed_generation.unwrap_or_default();
            format!("{}: {} @{generation}", text(condition.reason), text(condition.message))
        })
    }

    /// The resources in the status of the first container, and its restarts.
    fn resources(&self, name: &str) -> (Value, Value, i32) {
        let status = self.api.status(name).container_statuses.unwrap().remove(0);
        let resources = serde_json::to_value(status.resources).unwrap();
        (resources, serde_json::to_value(status.allocated_resources).unwrap(), status.restart_count)
    }

    /// The changes of containers and of the pod's cgroup, in their order.
    fn changes(&self, name: &str) -> Vec<String> {
        let uid = self.api.pod(name).unwrap().uid().to_string();
        let calls = self.node.runtime.calls_of(&uid).into_iter();
        calls.filter(|call| call.starts_with("update") || call.starts_with("cgroup")).collect()
    }

    fn updates(&self, name: &str) -> Vec<String> {
        self.changes(name).into_iter().filter(|call| call.starts_with("update")).collect()
    }

    fn messages(&self, reason: &str) -> Vec<String> {
        self.node.events.of(reason).into_iter().map(|event| event.message).collect()
    }
}

#[actix::test]
async fn running_container_is_resized_up_and_down_without_a_restart() {
    let this = ResizeNode::start().await;
    this.run("web", &json!({"containers": [container("main", "1", "64Mi")]})).await;
    let uid = this.api.pod("web").unwrap().uid().to_string();
    this.node.runtime.uses_memory(&uid, 8);

    this.resize("web", &json!([container("main", "2", "128Mi")])).await;
    let more = ["cgroup memory 128", "update main cpu=1 memory=128Mi", "cgroup cpu 2000", "cgroup request 2000"];
    assert_eq!(
        this.changes("web"),
        [&more[..], &["update main cpu=2 memory=128Mi"]].concat(),
        "the pod gets more first"
    );
    let amounts = json!({"cpu": "2", "memory": "128Mi"});
    assert_eq!(this.resources("web"), (json!({"limits": amounts, "requests": amounts}), amounts, 0));
    let conditions = ["PodResizePending", "PodResizeInProgress"].map(|kind| this.condition("web", kind));
    assert_eq!(conditions, ["", ""]);
    let resources = r#"{"containers":[{"name":"main","resources":{"limits":{"cpu":"2","memory":"128Mi"},"requests":{"cpu":"2","memory":"128Mi"}}}],"generation":2}"#;
    assert_eq!(this.messages("ResizeStarted"), [format!("Pod resize started: {resources}")]);
    assert_eq!(this.messages("ResizeCompleted"), [format!("Pod resize completed: {resources}")]);

    this.resize("web", &json!([container("main", "500m", "32Mi")])).await;
    let less = ["update main cpu=2 memory=32Mi", "cgroup memory 32", "update main cpu=500m memory=32Mi"];
    let expected = [&less[..], &["cgroup cpu 500", "cgroup request 500"]].concat();
    assert_eq!(this.changes("web")[5..], expected, "the containers get less first");
    assert_eq!(this.resources("web").2, 0);
    let changes = |change: &str| this.node.metric(&format!("kubelet_container_requested_resizes_total{{{change}}}"));
    assert_eq!(changes("operation=\"increase\",requirement=\"limits\",resource=\"cpu\""), 1.0);
    assert_eq!(changes("operation=\"decrease\",requirement=\"requests\",resource=\"memory\""), 1.0);
    assert_eq!(this.node.metric("kubelet_pod_resize_duration_milliseconds_count{success=\"true\"}"), 2.0);
    assert_eq!(this.node.metric("kubelet_pod_in_progress_resizes"), 0.0);
}

#[actix::test]
async fn container_restarts_if_its_resize_policy_requires_that() {
    let this = ResizeNode::start().await;
    let with_policy = |cpu: &str, memory: &str| {
        let mut container = container("main", cpu, memory);
        container["resizePolicy"] = json!([
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
            {"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        container
    };
    this.run("web", &json!({"containers": [with_policy("1", "64Mi")]})).await;
    this.resize("web", &json!([with_policy("2", "64Mi")])).await;
    assert_eq!((this.updates("web").len(), this.resources("web").2), (1, 0), "CPU changes in place");
    this.resize("web", &json!([with_policy("2", "128Mi")])).await;
    assert_eq!((this.updates("web").len(), this.resources("web").2), (1, 1), "memory needs a restart");
    assert_eq!(this.messages("Killing"), ["Container main resize requires restart"]);
    assert_eq!(this.resources("web").0["limits"]["memory"], "128Mi");
    assert_eq!(this.condition("web", "PodResizeInProgress"), "");
    this.wait(30).await;
    assert_eq!(this.resources("web").2, 1, "one restart is enough");
}

#[actix::test]
async fn resize_waits_for_room_and_is_allocated_when_a_pod_ends() {
    let this = ResizeNode::start().await;
    this.run("web", &request("1")).await;
    this.run("other", &request("2")).await;
    this.resize("web", &request("3")["containers"]).await;
    let message = "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000";
    assert_eq!(this.condition("web", "PodResizePending"), format!("Deferred: {message} @2"));
    assert_eq!(this.resources("web").1, json!({"cpu": "1"}), "the old resources stay allocated");
    let resources = r#"{"containers":[{"name":"main","resources":{"requests":{"cpu":"3"}}}],"generation":2"#;
    assert_eq!(
        this.messages("ResizeDeferred"),
        [format!("Pod resize OutOfcpu: {resources},\"error\":\"{message}\"}}")]
    );
    assert_eq!(this.node.metric("kubelet_pod_pending_resizes{reason=\"deferred\"}"), 1.0);
    let explained = waits(&this.node, "web");
    assert!(explained.contains(&format!("its resize waits for room on the node: {message}")), "{explained}");
    assert!(this.updates("web").is_empty());

    this.api.delete_pod("other");
    this.watch().await;
    this.wait(3).await;
    assert_eq!(this.condition("web", "PodResizePending"), "");
    assert_eq!(this.resources("web").1, json!({"cpu": "3"}));
    assert_eq!(this.updates("web").len(), 1);
    assert_eq!(this.messages("ResizeDeferred").len(), 1, "one event for each generation");
    let accepted = ["pod_terminated", "pods_removed", "pod_updated"].map(|trigger| {
        this.node.metric(&format!("kubelet_pod_deferred_accepted_resizes_total{{retry_trigger=\"{trigger}\"}}"))
    });
    assert_eq!(accepted.iter().sum::<f64>(), 1.0);
}

// Only the allocated resources of a pod count for other pods. A resize that was withdrawn has no effect.
#[actix::test]
async fn deferred_resize_reserves_nothing_and_can_be_withdrawn() {
    let this = ResizeNode::start().await;
    this.run("web", &request("1")).await;
    this.run("other", &request("2")).await;
    this.resize("web", &request("3")["containers"]).await;
    this.run("small", &request("1")).await;
    this.resize("web", &request("1")["containers"]).await;
    assert_eq!(this.condition("web", "PodResizePending"), "");
    assert_eq!(this.node.metric("kubelet_pod_pending_resizes{reason=\"deferred\"}"), 0.0);
    this.api.delete_pod("other");
    this.watch().await;
    this.wait(3).await;
    assert_eq!(this.resources("web").1, json!({"cpu": "1"}));
    assert!(this.updates("web").is_empty());
}

// Resizes that request no more come first, then pods of higher priority.
#[actix::test]
async fn waiting_resizes_are_allocated_in_their_order() {
    let this = ResizeNode::start().await;
    this.run("low", &request("1")).await;
    let mut high = request("1");
    high["priority"] = json!(100);
    this.run("high", &high).await;
    this.run("other", &request("2")).await;
    this.resize("low", &request("2")["containers"]).await;
    this.resize("high", &request("2")["containers"]).await;
    assert!(this.condition("low", "PodResizePending").starts_with("Deferred"));
    // One CPU becomes free. Both resizes need it.
    this.resize("other", &request("1")["containers"]).await;
    assert_eq!(this.condition("high", "PodResizePending"), "");
    assert!(this.condition("low", "PodResizePending").starts_with("Deferred"));
}

// The CPU that a container still uses counts until the runtime has taken it away.
#[actix::test]
async fn resources_that_a_container_still_uses_are_not_allocated_to_another_pod() {
    let this = ResizeNode::start().await;
    this.run("web", &request("3")).await;
    this.run("other", &request("1")).await;
    this.node.runtime.fail(Op::Update);
    this.resize("web", &request("1")["containers"]).await;
    this.resize("other", &request("3")["containers"]).await;
    assert_eq!(this.condition("web", "PodResizeInProgress"), "Error: it broke @2");
    assert!(this.condition("other", "PodResizePending").starts_with("Deferred"));
    let failed = r#"Pod resize error: {"containers":[{"name":"main","resources":{"requests":{"cpu":"1"}}}],"generation":2,"error":"it broke"}"#;
    this.wait(30).await;
    assert_eq!(this.messages("ResizeError"), [failed], "a repeated error is one event");

    this.node.runtime.heal();
    this.wait(30).await;
    assert_eq!(this.condition("web", "PodResizeInProgress"), "");
    assert_eq!(this.condition("other", "PodResizePending"), "");
    assert_eq!(this.resources("other").1, json!({"cpu": "3"}));
}

#[actix::test]
async fn new_pod_waits_for_what_a_resize_gives_back() {
    let this = ResizeNode::start().await;
    let starts = |name: &str| {
        let uid = this.api.pod(name).unwrap().uid().to_string();
        this.node.runtime.calls_of(&uid).len()
    };
    this.run("web", &request("3")).await;
    this.node.runtime.fail(Op::Update);
    this.resize("web", &request("1")["containers"]).await;
    this.api.create_pod("new", &request("3"));
    this.watch().await;
    this.wait(60).await;
    assert_eq!((starts("new"), this.api.status("new").reason), (0, None));
    let explained = waits(&this.node, "new");
    assert!(explained.contains("(test/web gives back cpu: 2)"), "{explained}");
    this.node.runtime.heal();
    this.wait(30).await;
    assert_eq!(this.api.phase("new"), "Running");

    // No pod waits for ever for a resize that fails.
    this.node.runtime.fail(Op::Update);
    this.resize("new", &request("1")["containers"]).await;
    this.api.create_pod("late", &request("2"));
    this.watch().await;
    this.wait(100).await;
    assert_eq!((starts("late"), this.api.status("late").reason), (0, None));
    this.wait(30).await;
    assert_eq!((starts("late"), this.api.status("late").reason.as_deref()), (0, Some("OutOfcpu")));
}

// The stop ends the resize. The container keeps its resources until it has stopped.
#[actix::test]
async fn new_pod_waits_until_a_pod_has_stopped_whose_resize_to_less_was_not_applied() {
    let this = ResizeNode::start().await;
    this.node.runtime.script("main", Script::stubborn());
    let mut web = request("3");
    (web["activeDeadlineSeconds"], web["terminationGracePeriodSeconds"]) = (json!(20), json!(30));
    this.run("web", &web).await;
    this.node.runtime.fail(Op::Update);
    this.resize("web", &request("1")["containers"]).await;
    this.wait(20).await;
    let uid = this.api.pod("web").unwrap().uid().to_string();
    assert_eq!(this.node.lifecycle(&uid), Some(Lifecycle::Terminating));
    this.api.create_pod("new", &request("3"));
    this.watch().await;
    this.wait(5).await;
    let new = this.api.pod("new").unwrap().uid().to_string();
    assert_eq!((this.node.runtime.running(&uid).len(), this.node.runtime.calls_of(&new).len()), (1, 0));
    let explained = waits(&this.node, "new");
    assert!(explained.contains("(test/web gives back cpu: 3)"), "{explained}");
    this.wait(40).await;
    assert_eq!((this.node.runtime.running(&uid).len(), this.api.phase("new")), (0, "Running".into()));
}

// The stop comes before the calls of the resize.
#[actix::test]
async fn no_pod_waits_for_ever_for_a_container_that_a_resize_cannot_stop() {
    let this = ResizeNode::start().await;
    let restarting = |cpu: &str| {
        let mut container = request(cpu)["containers"][0].clone();
        container["resizePolicy"] = json!([
            {"resourceName": "cpu", "restartPolicy": "RestartContainer"},
            {"resourceName": "memory", "restartPolicy": "NotRequired"}]);
        container
    };
    this.run("web", &json!({"containers": [restarting("3")]})).await;
    this.node.runtime.fail_stops();
    this.resize("web", &json!([restarting("1")])).await;
    this.api.create_pod("late", &request("2"));
    this.watch().await;
    this.wait(100).await;
    let (calls, reason) = (|| this.node.runtime.times_of("start main").len(), || this.api.status("late").reason);
    assert_eq!((calls(), reason()), (1, None));
    this.wait(30).await;
    assert_eq!((calls(), reason().as_deref()), (1, Some("OutOfcpu")));
}

#[actix::test]
async fn memory_limit_is_not_set_below_the_usage() {
    let this = ResizeNode::start().await;
    this.run("web", &json!({"containers": [container("main", "1", "64Mi")]})).await;
    let uid = this.api.pod("web").unwrap().uid().to_string();
    this.node.runtime.uses_memory(&uid, 48);
    this.resize("web", &json!([container("main", "1", "32Mi")])).await;
    let (limit, used) = (32 << 20, 48 << 20);
    let error = format!(
        "Error: cannot decrease memory limits: [attempting to set pod memory limit ({limit}) below current usage ({used}), \
         attempting to set container \"main\" memory limit ({limit}) below current usage ({used})] @2"
    );
    assert_eq!(this.condition("web", "PodResizeInProgress"), error);
    assert!(this.changes("web").is_empty());
    assert_eq!(this.resources("web").0["limits"]["memory"], "64Mi", "the status has what the container has");
    assert_eq!(this.resources("web").1["memory"], "32Mi");

    this.node.runtime.uses_memory(&uid, 16);
    this.wait(30).await;
    assert_eq!(this.condition("web", "PodResizeInProgress"), "");
    assert_eq!(this.resources("web").0["limits"]["memory"], "32Mi");
}

#[actix::test]
async fn status_has_the_resources_that_the_runtime_reports() {
    let this = ResizeNode::start().await;
    this.run("web", &json!({"containers": [container("main", "1", "64Mi")]})).await;
    let uid = this.api.pod("web").unwrap().uid().to_string();
    this.node.runtime.edit(&uid, "main", |run| {
        let settings = AppliedSettings {
            cpu_limit: Some(1000),
            cpu_request: Some(1000),
            memory_limit: Some(64 << 20),
            ..AppliedSettings::default()
        };
        run.applied = Some(Box::new(settings));
    });
    this.resize("web", &json!([container("main", "2", "64Mi")])).await;
    // The runtime has not applied it yet.
    assert_eq!(this.resources("web").0["limits"]["cpu"], "1");
    this.node.runtime.edit(&uid, "main", |run| {
        let applied = run.applied.as_mut().unwrap();
        (applied.cpu_limit, applied.cpu_request) = (Some(2000), Some(2000));
    });
    // The change of a limit is no event. The next sync reads it, which is due after 60 to 90 seconds.
    this.node.wait(95.0).await;
    assert_eq!(this.resources("web").0["limits"]["cpu"], "2");
}

#[actix::test]
async fn static_pod_is_not_resized() {
    let node = TestNode::start().await;
    node.deliver(&[pod("web").of_file().cpu("1")]).await;
    node.wait(2.0).await;
    node.deliver(&[pod("web").of_file().cpu("2")]).await;
    node.wait(2.0).await;
    let status = node.status("web");
    let pending =
        status.conditions.unwrap().into_iter().find(|condition| condition.type_ == "PodResizePending").unwrap();
    assert_eq!(pending.reason.as_deref(), Some("Infeasible"));
    assert_eq!(pending.message.as_deref(), Some("In-place resize of static-pods is not supported"));
    assert_eq!(node.events.count("web", "ResizeInfeasible"), 1);
    assert_eq!(node.metric("kubelet_pod_infeasible_resizes_total{reason_detail=\"static_pod\"}"), 1.0);
    assert_eq!(node.metric("kubelet_pod_pending_resizes{reason=\"infeasible\"}"), 1.0);
    assert_eq!(node.runtime.calls_of("web").iter().filter(|call| call.starts_with("update")).count(), 0);
}
