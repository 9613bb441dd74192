use super::*;
use crate::ports::SandboxState;

// POD-S58
#[test]
fn a_new_pod_gets_its_first_sandbox_and_all_its_containers() {
    for policy in ["Always", "OnFailure", "Never"] {
        assert_eq!(decide(&three(policy), &PodRuntimeStatus::default()), "sandbox 0 start 0 1 2");
    }
    let pod = pod("Never", vec![named("i"), named("j")], vec![named("a")]);
    assert_eq!(decide(&pod, &PodRuntimeStatus::default()), "sandbox 0 init 0");
}

// POD-S59
#[test]
fn a_lost_sandbox_is_replaced_as_the_policy_allows() {
    type Row<'a> = (&'a str, &'a [(&'a str, Is)], &'a str);
    let running: &[(&str, Is)] = &[("a", Running), ("b", Running), ("c", Running)];
    let one_done: &[(&str, Is)] = &[("a", Exited(0)), ("b", Exited(111)), ("c", Running)];
    let all_done: &[(&str, Is)] = &[("a", Exited(0)), ("b", Exited(0)), ("c", Exited(0))];
    let table: [Row<'_>; 11] = [
        ("Always", running, "sandbox 1 start 0 1 2"),
        ("Always", all_done, "sandbox 1 start 0 1 2"),
        ("OnFailure", running, "sandbox 1 start 0 1 2"),
        ("OnFailure", one_done, "sandbox 1 start 1 2"),
        ("OnFailure", all_done, "stop"),
        ("Never", running, "stop"),
        ("Never", one_done, "stop"),
        ("Never", &[("a", Exited(0))], "stop"),
        ("Never", &[], "sandbox 1 start 0 1 2"),
        ("OnFailure", &[], "sandbox 1 start 0 1 2"),
        ("Always", &[("a", Unknown)], "sandbox 1 start 0 1 2"),
    ];
    for (policy, runs, expected) in table {
        assert_eq!(decide(&three(policy), &lost(runs)), expected, "{policy} {runs:?}");
    }
}

// POD-S59, POD-S63: init containers run again in a new sandbox, unless the pod has ended.
#[test]
fn a_new_sandbox_runs_init_containers_again() {
    let make = |policy: &str| pod(policy, vec![named("i"), named("j")], vec![named("a"), named("b")]);
    type Row<'a> = (&'a str, &'a [(&'a str, Is)], &'a str);
    let table: [Row<'_>; 6] = [
        ("Always", &[("i", Exited(0)), ("j", Exited(0)), ("a", Running)], "sandbox 1 init 0"),
        ("OnFailure", &[("j", Exited(0)), ("a", Exited(0)), ("b", Exited(1))], "sandbox 1 init 0"),
        ("OnFailure", &[("j", Exited(0)), ("a", Exited(0)), ("b", Exited(0))], "stop"),
        ("OnFailure", &[("i", Running)], "sandbox 1 init 0"),
        ("Never", &[("i", Running)], "stop"),
        ("Never", &[], "sandbox 1 init 0"),
    ];
    for (policy, runs, expected) in table {
        assert_eq!(decide(&make(policy), &lost(runs)), expected, "{policy} {runs:?}");
    }
}

// POD-S60
#[test]
fn a_sandbox_must_be_the_only_ready_one_and_fit_the_network() {
    let runs = [("a", Running), ("b", Running), ("c", Running)];
    let plain = three("Always");
    let host = pod_with("Always", Vec::new(), vec![named("a"), named("b"), named("c")], |pod| {
        spec_mut(pod).host_network = Some(true);
    });
    let with = |edit: &dyn Fn(&mut PodRuntimeStatus)| {
        let mut status = status(&runs);
        edit(&mut status);
        status
    };
    let no_address = with(&|s| s.sandboxes[0].ips.clear());
    let host_sandbox = with(&|s| {
        s.sandboxes[0].host_network = true;
        s.sandboxes[0].ips.clear();
    });
    let two_ready = with(&|s| s.sandboxes.insert(0, sandbox(3, SandboxState::Ready)));
    let old_ended = with(&|s| {
        s.sandboxes.push(sandbox(0, SandboxState::NotReady));
        s.sandboxes[0] = sandbox(1, SandboxState::Ready);
    });
    assert_eq!(decide(&plain, &no_address), "sandbox 1 start 0 1 2");
    assert_eq!(decide(&host, &host_sandbox), "idle");
    assert_eq!(decide(&plain, &host_sandbox), "sandbox 1 start 0 1 2");
    assert_eq!(decide(&host, &status(&runs)), "sandbox 1 start 0 1 2");
    assert_eq!(decide(&plain, &two_ready), "sandbox 4 start 0 1 2");
    assert_eq!(decide(&plain, &old_ended), "idle");
}

// POD-W23
#[test]
fn a_lost_sandbox_follows_the_containers_own_policies() {
    let regular = |own: &str| vec![with_policy("a", own), named("b")];
    let ruled = vec![with_rule(named("a"), &[42], "Restart"), named("b")];
    let all = vec![with_rule(named("a"), &[42], "RestartAllContainers"), named("b")];
    let running: &[(&str, Is)] = &[("a", Running), ("b", Running)];
    let table = [
        ("Never", regular("Always"), running, "sandbox 1 start 0"),
        ("Never", regular("OnFailure"), running, "sandbox 1 start 0"),
        ("Never", regular("OnFailure"), &[("a", Exited(0)), ("b", Running)], "stop"),
        ("Never", regular("Always"), &[("a", Exited(0)), ("b", Exited(0))], "sandbox 1 start 0"),
        ("Never", ruled.clone(), &[("a", Exited(42)), ("b", Exited(0))], "sandbox 1 start 0"),
        ("Never", ruled.clone(), &[("a", Exited(1)), ("b", Exited(0))], "stop"),
        ("Always", regular("Never"), running, "sandbox 1 start 1"),
        ("Always", regular("Never"), &[("b", Running)], "sandbox 1 start 0 1"),
        // A container that never ran does not "run again".
        ("Never", regular("Always"), &[("a", Running)], "sandbox 1 start 0 1"),
        // Its runs were removed so that it starts again.
        ("Never", regular("OnFailure"), &[("b", Exited(137))], "sandbox 1 start 0"),
        // A created run that never started changes nothing.
        ("Never", ruled.clone(), &[("a", Created), ("a", Exited(42)), ("b", Exited(0))], "sandbox 1 start 0"),
        ("Never", ruled.clone(), &[("a", Created), ("a", Exited(1)), ("b", Exited(0))], "stop"),
        ("Never", all.clone(), &[("b", Exited(137))], "sandbox 1 start 0"),
        ("Never", all, &[("a", Exited(1)), ("b", Exited(137))], "stop"),
    ];
    for (policy, regular, runs, expected) in table {
        let pod = pod(policy, Vec::new(), regular);
        assert_eq!(decide(&pod, &lost(runs)), expected, "{policy} {runs:?}");
    }
}

// POD-W23, KEP-5532
#[test]
fn a_sandbox_lost_during_restart_all_is_replaced() {
    let regular = || vec![with_rule(named("a"), &[42], "RestartAllContainers")];
    let initialized = pod("Never", vec![named("i")], regular());
    assert_eq!(decide(&initialized, &lost(&[("i", Exited(0))])), "sandbox 1 init 0");
    assert_eq!(decide(&initialized, &lost(&[("i", Exited(0)), ("a", Created)])), "sandbox 1 init 0");
    assert_eq!(decide(&initialized, &lost(&[("i", Exited(1))])), "stop");
    assert_eq!(decide(&initialized, &lost(&[("i", Running)])), "stop");
    assert_eq!(decide(&pod("Never", Vec::new(), regular()), &lost(&[("a", Created)])), "sandbox 1 start 0");
}

// POD-W23
#[test]
fn a_completed_init_container_does_not_restart_the_pod() {
    let ruled = with_rule(named("i"), &[0, 3], "Restart");
    let pod = pod("Never", vec![ruled, named("j")], vec![named("a")]);
    assert_eq!(decide(&pod, &lost(&[("i", Exited(0)), ("j", Running)])), "stop");
    assert_eq!(decide(&pod, &lost(&[("i", Exited(3))])), "sandbox 1 init 0");
}

// POD-W23
#[test]
fn while_initializing_the_init_containers_policies_decide() {
    let init = || vec![with_policy("i", "OnFailure"), named("j"), sidecar("s")];
    let pod = pod("Never", init(), vec![named("a")]);
    type Row<'a> = (&'a [(&'a str, Is)], &'a str);
    let table: [Row<'_>; 5] = [
        (&[("i", Running)], "sandbox 1 init 0"),
        (&[("i", Exited(3))], "sandbox 1 init 0"),
        (&[("i", Exited(0)), ("j", Running)], "stop"),
        (&[("i", Exited(0)), ("j", Exited(0)), ("s", Running)], "stop"),
        (&[("i", Exited(3)), ("a", Exited(0))], "stop"),
    ];
    for (runs, expected) in table {
        assert_eq!(decide(&pod, &lost(runs)), expected, "{runs:?}");
    }
}
