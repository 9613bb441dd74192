//! Replays the statuses that a watch returned for pods that upstream's kubelet 1.36 ran. Each step has a state of the runtime
//! and the status that the API server then had.

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;

use crate::ports::{ContainerState, ContainerStatus, SandboxState};
use crate::probes::ProbeResult;
use crate::status::fixtures::*;
use crate::status::{SetOutcome, StatusCache, merge_for_api};

/// A node with one pod, and the API server's copy of its status.
struct Replay {
    world: World,
    cache: StatusCache,
    api: PodStatus,
}

impl Replay {
    fn new(pod: std::sync::Arc<crate::pod::PodObject>) -> Self {
        let mut world = World::new(pod);
        world.runtime.sandboxes.clear();
        Replay { world, cache: StatusCache::default(), api: PodStatus::default() }
    }

    /// The second after the start.
    fn at(&mut self, seconds: u64) -> &mut Self {
        self.world.now = at(seconds);
        self
    }

    fn runs(&mut self, runs: impl IntoIterator<Item = ContainerStatus>) -> &mut Self {
        self.world.runtime.sandboxes = vec![sandbox(0, SandboxState::Ready)];
        self.world.runtime.containers = runs.into_iter().collect();
        self
    }

    fn error(&mut self, name: &str, reason: &'static str) -> &mut Self {
        self.world.errors.insert(
            name.into(),
            crate::containers::start_error::StartError {
                reason,
                message: String::new(),
                since: crate::time::Time::ZERO,
                until: None,
                refused: None,
            },
        );
        self
    }

    /// A setup: the status is computed, kept and sent while containers may run.
    fn sync(&mut self) -> &mut Self {
        self.write(true)
    }

    /// The last status of a termination: nothing runs any more.
    fn end(&mut self) -> &mut Self {
        self.world.is_terminal = true;
        self.world.runtime.sandboxes = vec![sandbox(0, SandboxState::NotReady)];
        self.write(false)
    }

    fn write(&mut self, held_back: bool) -> &mut Self {
        let pod = self.world.pod.clone();
        self.world.previous = self.cache.get(pod.uid()).map(|status| (*status).clone());
        let outcome = self.cache.set(&pod, None, self.world.status(), false, self.world.now);
        assert!(!matches!(outcome, SetOutcome::Refused(_)), "{outcome:?}");
        self.send(held_back)
    }

    fn send(&mut self, held_back: bool) -> &mut Self {
        let kept = (*self.cache.get(self.world.pod.uid()).unwrap()).clone();
        self.api = merge_for_api(&self.world.pod, &self.api, kept, held_back, self.world.now);
        self
    }

    /// Phase, the conditions PodReadyToStartContainers, Initialized, ContainersReady and Ready, and the containers.
    fn saw(&self, phase: &str, conditions: [&str; 4], containers: &[&str]) -> &Self {
        assert_eq!(phase_of(&self.api), phase);
        let kinds = ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"];
        let have = kinds.map(|kind| condition(&self.api, kind));
        assert_eq!(have.each_ref().map(String::as_str), conditions);
        assert_eq!(condition(&self.api, "PodScheduled"), "True");
        for expected in containers {
            let name = expected.split(' ').next().unwrap();
            assert_eq!(line(&self.api, name), *expected);
        }
        self
    }
}

const NEW: [&str; 4] = ["False", "True", "False ContainersNotReady", "False ContainersNotReady"];
const WAITS: [&str; 4] = ["True", "True", "False ContainersNotReady", "False ContainersNotReady"];
const SERVES: [&str; 4] = ["True", "True", "True", "True"];
const DONE: [&str; 4] = ["False", "True PodCompleted", "False PodCompleted", "False PodCompleted"];

fn run_for(containers: serde_json::Value) -> Replay {
    Replay::new(pod(json!({"spec": {"restartPolicy": "Never", "containers": containers}})))
}

#[test]
fn succeed() {
    let mut replay = run_for(json!([{"name": "a"}]));
    replay.sync().saw("Pending", NEW, &["a w:ContainerCreating - ready=no started=no 0"]);
    let fields = serde_json::to_value(&replay.api).unwrap();
    let fields: Vec<_> = fields.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        [
            "conditions",
            "containerStatuses",
            "hostIP",
            "hostIPs",
            "observedGeneration",
            "phase",
            "podIP",
            "podIPs",
            "qosClass",
            "resources",
            "startTime"
        ]
    );
    let pod = replay.world.pod.clone();
    assert!(matches!(replay.cache.set_sandbox_ready(&pod, true, at(1)), SetOutcome::Accepted(_)));
    replay.send(true).saw("Pending", WAITS, &["a w:ContainerCreating - ready=no started=no 0"]);
    // The end is known, but the phase waits until the pod was terminated.
    replay.runs([exited("a", 0, 0)]).sync();
    let early = ["True", "True PodCompleted", "False PodCompleted", "False PodCompleted"];
    replay.saw("Pending", early, &["a t:Completed:0 - ready=no started=no 0"]);
    replay.end().saw("Succeeded", DONE, &["a t:Completed:0 - ready=no started=no 0"]);
}

#[test]
fn crashloop() {
    let mut replay = Replay::new(pod(json!({})));
    replay.sync().saw("Pending", NEW, &["a w:ContainerCreating - ready=no started=no 0"]);
    replay.runs([exited("a", 0, 1)]).sync().saw("Running", WAITS, &["a t:Error:1 - ready=no started=no 0"]);
    replay.runs([running("a", 1), exited("a", 0, 1)]).sync();
    replay.saw("Running", SERVES, &["a r t:Error:1 ready=yes started=yes 1"]);
    replay.runs([exited("a", 1, 1), exited("a", 0, 1)]).sync();
    replay.saw("Running", WAITS, &["a t:Error:1 t:Error:1 ready=no started=no 1"]);
    replay.error("a", "CrashLoopBackOff").sync();
    replay.saw("Running", WAITS, &["a w:CrashLoopBackOff t:Error:1 ready=no started=no 1"]);
    replay.world.errors.clear();
    replay.runs([running("a", 2), exited("a", 1, 1)]).sync();
    replay.saw("Running", SERVES, &["a r t:Error:1 ready=yes started=yes 2"]);
    replay.runs([exited("a", 2, 1), exited("a", 1, 1)]).end();
    let failed = ["False", "True", "False PodFailed", "False PodFailed"];
    replay.saw("Failed", failed, &["a t:Error:1 t:Error:1 ready=no started=no 2"]);
}

#[test]
fn init_fail_never() {
    let mut replay = Replay::new(pod_with("Never", json!([{"name": "i1"}, {"name": "i2"}]), json!([{"name": "a"}])));
    let waits = |name: &str| format!("{name} w:PodInitializing - ready=no started=no 0");
    let (i1, i2, a) = (waits("i1"), waits("i2"), waits("a"));
    let not_ready = "False ContainersNotReady";
    let no = "False ContainersNotInitialized";
    replay.sync().saw("Pending", ["False", no, not_ready, not_ready], &[&i1, &i2, &a]);
    replay.runs([running("i1", 0)]).sync();
    replay.saw("Pending", ["True", no, not_ready, not_ready], &["i1 r - ready=no started=yes 0", &i2, &a]);
    replay.runs([exited("i1", 0, 2)]).sync();
    let failed = "False PodFailed";
    replay.saw("Pending", ["True", no, failed, failed], &["i1 t:Error:2 - ready=no started=no 0", &i2, &a]);
    replay.end().saw("Failed", ["False", no, failed, failed], &["i1 t:Error:2 - ready=no started=no 0", &i2, &a]);
    let pod = replay.world.pod.clone();
    assert!(matches!(replay.cache.terminate(&pod, None, at(9)), SetOutcome::Accepted(_)));
    replay.send(false).saw("Failed", ["False", no, failed, failed], &[&i2, &a]);
}

#[test]
fn sidecar_job() {
    let mut replay =
        Replay::new(pod_with("Never", json!([{"name": "s", "restartPolicy": "Always"}]), json!([{"name": "a"}])));
    let a = "a w:PodInitializing - ready=no started=no 0";
    let not_ready = "False ContainersNotReady";
    replay.sync().saw("Pending", ["False", "False ContainersNotInitialized", not_ready, not_ready], &[a]);
    replay.runs([running("s", 0)]).sync().saw("Pending", WAITS, &["s r - ready=yes started=yes 0", a]);
    replay.runs([running("s", 0), running("a", 0)]).sync();
    replay.saw("Running", SERVES, &["s r - ready=yes started=yes 0", "a r - ready=yes started=yes 0"]);
    replay.runs([running("s", 0), exited("a", 0, 0)]).sync();
    replay.saw("Running", WAITS, &["s r - ready=yes started=yes 0", "a t:Completed:0 - ready=no started=no 0"]);
    replay.runs([exited("s", 0, 0), exited("a", 0, 0)]);
    replay.world.runtime.sandboxes = vec![sandbox(0, SandboxState::NotReady)];
    replay.sync().saw("Running", DONE, &["s t:Completed:0 - ready=no started=no 0"]);
    replay.end().saw("Succeeded", DONE, &["a t:Completed:0 - ready=no started=no 0"]);
}

#[test]
fn readiness() {
    let probe = json!({"exec": {"command": ["x"]}});
    let mut replay = Replay::new(pod(json!({"spec": {"containers": [{"name": "a", "readinessProbe": probe}]}})));
    let pod = replay.world.pod.clone();
    replay.sync().runs([running("a", 0)]).sync();
    replay.saw("Running", WAITS, &["a r - ready=no started=yes 0"]);
    for (ready, conditions, text) in
        [(true, SERVES, "a r - ready=yes started=yes 0"), (false, WAITS, "a r - ready=no started=yes 0")]
    {
        assert!(matches!(replay.cache.set_ready(&pod, &"a-0".into(), ready, at(6)), SetOutcome::Accepted(_)));
        replay.send(true).saw("Running", conditions, &[text]);
        // The next setup computes the same status.
        let result = if ready { ProbeResult::Success } else { ProbeResult::Failure };
        replay.world.probes.entry("a-0".into()).or_default().readiness = Some(result);
        replay.sync().saw("Running", conditions, &[text]);
    }
    replay.runs([exited("a", 0, 0)]).end().saw("Succeeded", DONE, &["a t:Completed:0 - ready=no started=no 0"]);
}

#[test]
fn deadline() {
    let mut replay = Replay::new(pod(json!({"spec": {"activeDeadlineSeconds": 5, "restartPolicy": "Never"}})));
    replay.at(0).sync().runs([running("a", 0)]).at(1).sync();
    replay.saw("Running", SERVES, &["a r - ready=yes started=yes 0"]);
    // The pod is not ready from the deadline on, though its container still is and its phase waits for the stop.
    replay.at(5).sync();
    let failed = ["True", "True", "False PodFailed", "False PodFailed"];
    replay.saw("Running", failed, &["a r - ready=yes started=yes 0"]);
    assert_eq!(replay.api.reason, None);
    replay.runs([exited("a", 0, 0)]).at(6).end();
    let failed = ["False", "True", "False PodFailed", "False PodFailed"];
    replay.saw("Failed", failed, &["a t:Completed:0 - ready=no started=no 0"]);
    assert_eq!(replay.api.reason.as_deref(), Some("DeadlineExceeded"));
    assert!(replay.api.message.is_some());
}

#[test]
fn bad_command() {
    let mut replay = run_for(json!([{"name": "a"}]));
    replay.sync();
    let failed = ContainerStatus { reason: "StartError".into(), ..exited("a", 0, 128) };
    replay.runs([failed]).error("a", "RunContainerError").sync();
    let conditions = ["True", "True", "False PodFailed", "False PodFailed"];
    replay.saw("Pending", conditions, &["a t:StartError:128 - ready=no started=no 0"]);
    replay.end();
    let conditions = ["False", "True", "False PodFailed", "False PodFailed"];
    replay.saw("Failed", conditions, &["a t:StartError:128 - ready=no started=no 0"]);
}

#[test]
fn no_image_then_deleted() {
    let mut replay = Replay::new(pod(json!({})));
    replay.sync().runs([]).error("a", "ErrImageNeverPull").sync();
    replay.saw("Pending", WAITS, &["a w:ErrImageNeverPull - ready=no started=no 0"]);
    replay.world.pod = pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    replay.sync().saw("Pending", WAITS, &["a w:ContainerCreating - ready=no started=no 0"]);
    replay.end().saw("Pending", NEW, &["a w:ContainerCreating - ready=no started=no 0"]);
    let pod = replay.world.pod.clone();
    assert!(matches!(replay.cache.terminate(&pod, None, at(9)), SetOutcome::Accepted(_)));
    replay.send(false).saw("Failed", NEW, &["a t:ContainerStatusUnknown:137 - ready=no started=no 0"]);
}

#[test]
fn liveness() {
    let mut replay = Replay::new(pod(json!({})));
    replay.sync().runs([running("a", 0)]).sync();
    replay.runs([running("a", 1), exited("a", 0, 0)]).sync();
    replay.saw("Running", SERVES, &["a r t:Completed:0 ready=yes started=yes 1"]);
    replay.runs([exited("a", 1, 0), exited("a", 0, 0)]).error("a", "CrashLoopBackOff").sync();
    replay.saw("Running", WAITS, &["a w:CrashLoopBackOff t:Completed:0 ready=no started=no 1"]);
}

#[test]
fn a_created_container_that_never_started_is_waiting() {
    let mut replay = Replay::new(pod(json!({})));
    replay.sync().runs([run("a", 0, ContainerState::Created)]).sync();
    replay.saw("Pending", WAITS, &["a w:ContainerCreating - ready=no started=no 0"]);
}
