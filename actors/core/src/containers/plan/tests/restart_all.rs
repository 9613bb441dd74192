use super::*;

fn make(policy: &str) -> std::sync::Arc<PodObject> {
    let trigger = with_rule(with_policy("b", "Never"), &[42], "RestartAllContainers");
    pod_with(policy, vec![named("i"), with_policy("s", "Always")], vec![named("a"), trigger, named("c")], |pod| {
        spec_mut(pod).ephemeral_containers = Some(vec![ephemeral("e")]);
    })
}

const RUNS: [(&str, Is); 6] =
    [("e", Running), ("c", Unknown), ("b", Exited(42)), ("a", Running), ("s", Running), ("i", Exited(0))];

#[test]
fn an_exit_rule_restarts_all_and_its_trigger_is_removed_last() {
    for policy in ["Always", "Never"] {
        let expected = "restart all kill c(RestartAll) kill a(RestartAll) kill s(RestartAll) \
                        remove c remove a remove s remove i remove b";
        assert_eq!(decide(&make(policy), &status(&RUNS)), expected);
        // The state of the sandbox does not matter: the next plan starts from the beginning.
        assert_eq!(decide(&make(policy), &lost(&RUNS)), expected);
    }
}

#[test]
fn older_runs_of_the_trigger_are_removed_before_its_newest() {
    let mut runs = status(&[("b", Exited(42)), ("a", Exited(1))]);
    let mut old = run("b", Exited(42));
    old.id = "b-old".into();
    runs.containers.push(old);
    assert_eq!(decide(&make("Never"), &runs), "restart all remove a remove b-old remove b");
}

#[test]
fn only_the_newest_run_of_an_undeleted_pod_triggers_restart_all() {
    let mut runs = status(&[("b", Running), ("a", Running), ("c", Running), ("s", Running), ("e", Exited(0))]);
    let mut old = run("b", Exited(42));
    old.id = "b-old".into();
    runs.containers.push(old);
    assert_eq!(decide(&make("Never"), &runs), "idle");

    let deleting = pod_with("Never", Vec::new(), vec![with_rule(named("b"), &[42], "RestartAllContainers")], |pod| {
        pod.metadata.deletion_timestamp = Some(crate::time::Time::from_secs(1).to_api())
    });
    assert_eq!(decide(&deleting, &status(&[("b", Exited(42))])), "stop");
}

#[test]
fn once_all_runs_are_removed_the_pod_starts_again() {
    let none = PodRuntimeStatus { containers: vec![run("e", Exited(0))], ..status(&[]) };
    assert_eq!(decide(&make("Never"), &none), "init 0");
    // The next plan starts at once, with or without a sandbox.
    let ended = status(&[("b", Exited(42))]);
    let before = plan(&make("Never"), &ended, &ProbeSnapshot::new());
    for after in [none, lost(&[])] {
        assert!(plan(&make("Never"), &after, &ProbeSnapshot::new()).starts_more_than(&before), "{after:?}");
    }
}
