use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use serde_json::json;

use crate::ports::{ContainerState, ContainerStatus, SandboxState};
use crate::status::conditions::set_condition;
use crate::status::fixtures::*;
use crate::status::{deadline, rejected};

fn one() -> World {
    World::new(pod(json!({})))
}

fn ended(phase: &str, reason: Option<&str>, message: Option<&str>) -> PodStatus {
    PodStatus {
        phase: Some(phase.into()),
        reason: reason.map(str::to_owned),
        message: message.map(str::to_owned),
        ..PodStatus::default()
    }
}

// POD-S76
#[test]
fn a_terminal_phase_stays_with_its_reason() {
    let kept = one().runs([running("a", 0)]).after(ended("Succeeded", Some("Why"), Some("because"))).status();
    assert_eq!(
        (phase_of(&kept), kept.reason.as_deref(), kept.message.as_deref()),
        ("Succeeded", Some("Why"), Some("because"))
    );

    let evicted = one().runs([exited("a", 0, 0)]).after(ended("Failed", Some("Evicted"), None)).terminal().status();
    assert_eq!((phase_of(&evicted), evicted.reason.as_deref()), ("Failed", Some("Evicted")));

    let changed = one().runs([running("a", 0)]).after(ended("Pending", Some("Why"), Some("because"))).status();
    assert_eq!((phase_of(&changed), &changed.reason, &changed.message), ("Running", &None, &None));
}

#[test]
fn the_api_servers_terminal_phase_is_never_left() {
    let pod = pod(json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "m"}}));
    let status = World::new(pod).runs([exited("a", 0, 0)]).after(ended("Succeeded", None, None)).terminal().status();
    assert_eq!(
        (phase_of(&status), status.reason.as_deref(), status.message.as_deref()),
        ("Failed", Some("Evicted"), Some("m"))
    );
}

#[test]
fn a_running_pod_may_fall_back_to_pending() {
    let before = one().runs([running("a", 0)]).status();
    assert_eq!(phase_of(&before), "Running");
    let two = World::new(pod_with("Always", json!([{"name": "i"}]), json!([{"name": "a"}])));
    assert_eq!(phase_of(&two.runs([running("i", 0)]).after(before).status()), "Pending");
}

// POD-S59
#[test]
fn a_pod_that_may_not_get_another_sandbox_fails() {
    let lost = |policy: &str, runs: &[ContainerStatus]| {
        let mut world = World::new(pod_with(policy, json!([{"name": "i"}]), json!([{"name": "a"}, {"name": "b"}])));
        world.runtime.sandboxes[0].state = SandboxState::NotReady;
        world.runtime.containers = runs.to_vec();
        world
    };
    let outcome = |world: World| {
        let status = world.status();
        (phase_of(&status).to_owned(), status.reason, status.message.unwrap_or_default())
    };
    let failed = |container: &str| {
        let message = format!(
            "the sandbox ended before container {container} was started, and restartPolicy Never forbids a new one"
        );
        ("Failed".to_owned(), Some("SandboxLost".to_owned()), message)
    };
    let pending = || ("Pending".to_owned(), None, String::new());
    assert_eq!(outcome(lost("Never", &[exited("i", 0, 0)])), failed("a"));
    assert_eq!(outcome(lost("Never", &[exited("i", 0, 0), exited("a", 0, 0)])), failed("b"));
    assert_eq!(outcome(lost("Never", &[exited("i", 0, 0), run("a", 0, ContainerState::Created)])), failed("a"));
    // The pod gets another sandbox, because no container ran, or because the policy restarts containers.
    assert_eq!(outcome(lost("Never", &[])), pending());
    assert_eq!(outcome(lost("OnFailure", &[exited("i", 0, 0), exited("a", 0, 0)])), pending());
    // The failed init container already gives the phase and its reason.
    assert_eq!(outcome(lost("Never", &[exited("i", 0, 1)])).1, None);
    // A pod that is being stopped loses its sandbox too.
    let mut stopping = lost("Never", &[exited("i", 0, 0)]);
    stopping.termination_requested = true;
    assert_eq!(outcome(stopping), pending());
    // The pod fails only once no container runs.
    let mut running_on = lost("Never", &[exited("i", 0, 0), running("a", 0)]);
    assert_eq!(outcome(lost("Never", &[exited("i", 0, 0), exited("a", 0, 137)])), failed("b"));
    running_on.runtime.sandboxes[0].attempt = 1;
    assert_eq!(outcome(running_on), pending());
    let mut in_hook = lost("Never", &[exited("i", 0, 0), run("a", 0, ContainerState::Created)]);
    in_hook.hides_running = true;
    assert_eq!(outcome(in_hook), pending());
    let mut good = lost("Never", &[exited("i", 0, 0)]);
    good.runtime.sandboxes[0].state = SandboxState::Ready;
    assert_eq!(outcome(good), pending());
}

// A restart of the agent resets neither the pod's age nor its active deadline.
#[test]
fn a_running_pod_without_start_time_started_with_its_sandbox() {
    let mut world = World::new(pod(json!({"spec": {"activeDeadlineSeconds": 5, "restartPolicy": "Never"}})));
    world.runtime.containers = vec![running("a", 0)];
    world.now = at(6);
    let status = world.status();
    assert_eq!(status.start_time, Some(at(0).to_api()));
    assert_eq!((phase_of(&status), status.reason.as_deref()), ("Failed", Some("DeadlineExceeded")));
}

#[test]
fn a_passed_active_deadline_fails_a_pod_for_good() {
    let world = || {
        let mut world = World::new(pod(json!({"spec": {"activeDeadlineSeconds": 5, "restartPolicy": "Never"}})));
        world.runtime.containers = vec![running("a", 0)];
        world.previous = Some(PodStatus { start_time: Some(at(0).to_api()), ..PodStatus::default() });
        world
    };
    let status_at = |seconds| {
        let mut world = world();
        world.now = at(seconds);
        world.status()
    };
    assert_eq!(deadline(&world().pod, world().previous.as_ref()), Some(at(5)));
    assert_eq!(phase_of(&status_at(4)), "Running");
    let late = status_at(5);
    assert_eq!((phase_of(&late), late.reason.as_deref()), ("Failed", Some("DeadlineExceeded")));
    assert_eq!(late.message.as_deref(), Some("Pod was active on the node longer than the specified deadline"));

    let succeeded = PodStatus { start_time: Some(at(0).to_api()), ..ended("Succeeded", None, None) };
    let mut world = world().after(succeeded);
    world.now = at(60);
    assert_eq!(phase_of(&world.status()), "Succeeded", "a pod that succeeded in time keeps its phase");
}

#[test]
fn a_pod_without_a_start_time_has_no_active_deadline() {
    let pod = pod(json!({"spec": {"activeDeadlineSeconds": 5}}));
    assert_eq!(deadline(&pod, None), None);
    assert_eq!(deadline(&pod, Some(&PodStatus::default())), None);
}

#[test]
fn initialized_follows_the_init_containers() {
    let init = json!([{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]);
    let world = || World::new(pod_with("Never", init.clone(), json!([{"name": "a"}])));
    let no = "False ContainersNotInitialized";
    for (runs, value) in [
        (vec![], no),
        (vec![running("i", 0)], no),
        (vec![exited("i", 0, 0)], no),
        (vec![exited("i", 0, 0), running("s", 0)], "True"),
        (vec![exited("i", 0, 0), exited("s", 0, 1), running("a", 0)], "True"),
        (vec![exited("i", 0, 0), exited("s", 0, 0), exited("a", 0, 0)], "True PodCompleted"),
    ] {
        assert_eq!(condition(&world().runs(runs.clone()).status(), "Initialized"), value, "{runs:?}");
    }
    assert_eq!(condition(&one().status(), "Initialized"), "True");
}

#[test]
fn readiness_gates_affect_ready_but_not_containers_ready() {
    let pod = |status: &str| {
        pod(json!({
            "spec": {"readinessGates": [{"conditionType": "example.com/gate"}]},
            "status": {"conditions": [{"type": "example.com/gate", "status": status}]},
        }))
    };
    for (gate, ready) in [("True", "True"), ("False", "False ReadinessGatesNotReady")] {
        let status = World::new(pod(gate)).runs([running("a", 0)]).status();
        assert_eq!(condition(&status, "ContainersReady"), "True");
        assert_eq!(condition(&status, "Ready"), ready);
        assert_eq!(condition(&status, "example.com/gate"), gate, "conditions of other programs are kept");
    }
}

#[test]
fn the_disruption_target_condition_is_kept() {
    let mut before = one().runs([running("a", 0)]).status();
    let disruption = PodCondition {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
        reason: Some("TerminationByKubelet".into()),
        ..PodCondition::default()
    };
    set_condition(&mut before, disruption);
    let after = one().runs([exited("a", 0, 0)]).after(before).terminal().status();
    assert_eq!(condition(&after, "DisruptionTarget"), "True TerminationByKubelet");
}

#[test]
fn transition_times_change_with_the_status_only() {
    let time = |status: &PodStatus, kind: &str| {
        let condition = status.conditions.iter().flatten().find(|c| c.type_ == kind).unwrap();
        condition.last_transition_time.clone().unwrap()
    };
    let before = one().status();
    let mut later = one().runs([running("a", 0)]).after(before);
    later.now = at(9);
    let later = later.status();
    assert_eq!(time(&later, "Ready"), at(9).to_api());
    assert_eq!(time(&later, "PodScheduled"), at(5).to_api());
}

#[test]
fn a_sandbox_is_ready_to_start_when_it_is_the_only_ready_one_with_an_address() {
    let host = |states: &[SandboxState]| {
        let mut world = one();
        world.runtime.sandboxes = states.iter().enumerate().map(|(n, state)| sandbox(9 - n as u32, *state)).collect();
        condition(&world.status(), "PodReadyToStartContainers")
    };
    use SandboxState::{NotReady, Ready};
    assert_eq!(host(&[]), "False");
    assert_eq!(host(&[Ready]), "True");
    assert_eq!(host(&[Ready, NotReady]), "True");
    assert_eq!(host(&[NotReady, Ready]), "False");
    assert_eq!(host(&[Ready, Ready]), "False");

    let mut pod_network = World::new(pod(json!({"spec": {"hostNetwork": false}})));
    let value = |world: &World| condition(&world.status(), "PodReadyToStartContainers");
    assert_eq!(value(&pod_network), "False", "the sandbox has the node's network");
    pod_network.runtime.sandboxes[0].host_network = false;
    assert_eq!(value(&pod_network), "False", "it has no address");
    pod_network.runtime.sandboxes[0].ips = vec!["10.0.0.2".parse().unwrap()];
    assert_eq!(value(&pod_network), "True");
}

// POD-S90
#[test]
fn pod_addresses_survive_the_sandbox() {
    let world = |ips: &[&str], state| {
        let mut world = World::new(pod(json!({"spec": {"hostNetwork": false}})));
        world.runtime.sandboxes[0] = crate::ports::SandboxStatus {
            host_network: false,
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            ..sandbox(0, state)
        };
        world
    };
    let ips = |status: &PodStatus| -> Vec<String> { status.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect() };
    let before = world(&["fd00::2", "10.0.0.2", "10.0.0.3"], SandboxState::Ready).status();
    assert_eq!(ips(&before), ["10.0.0.2", "fd00::2"], "one of each family, the node's first");
    assert_eq!(before.pod_ip.as_deref(), Some("10.0.0.2"));
    let gone = world(&[], SandboxState::NotReady).after(before.clone()).status();
    assert_eq!(ips(&gone), ["10.0.0.2", "fd00::2"]);
    assert_eq!(ips(&world(&[], SandboxState::Ready).after(before).status()), [""; 0], "a new sandbox has its own");
}

#[test]
fn host_network_pods_have_the_nodes_addresses() {
    let mut world = one();
    let status = world.status();
    assert_eq!((status.pod_ip.as_deref(), status.host_ip.as_deref()), (Some("192.0.2.1"), Some("192.0.2.1")));
    // The node's address changes and a second family is added: the pod keeps its first address and gains the other.
    world.previous = Some(status);
    world.node.host_ips = vec!["192.0.2.9".parse().unwrap(), "2001:db8::9".parse().unwrap()].into();
    let status = world.status();
    let ips: Vec<_> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    assert_eq!(ips, ["192.0.2.1", "2001:db8::9"]);
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.9"));
}

#[test]
fn host_network_pod_that_started_before_the_network_gets_the_first_address_of_the_node() {
    let mut world = one();
    world.node.host_ips = vec!["127.0.0.1".parse().unwrap()].into();
    let status = world.status();
    assert_eq!(status.pod_ip.as_deref(), Some("127.0.0.1"));
    world.previous = Some(status);
    world.node.host_ips = vec!["192.0.2.9".parse().unwrap()].into();
    let status = world.status();
    assert_eq!((status.pod_ip.as_deref(), status.pod_ips.unwrap().len()), (Some("192.0.2.9"), 1));
}

#[test]
fn the_status_of_a_rejected_pod_has_only_phase_and_reason() {
    let pod = pod(json!({}));
    let status = serde_json::to_value(rejected(&pod, "OutOfcpu", "no")).unwrap();
    assert_eq!(
        status,
        json!({"phase": "Failed", "reason": "OutOfcpu", "message": "no", "qosClass": "BestEffort", "observedGeneration": 1})
    );
}
