use super::*;
use crate::ports::SandboxState;

fn three_init(policy: &str) -> std::sync::Arc<PodObject> {
    pod(policy, vec![named("i"), named("j"), named("k")], vec![named("a"), named("b")])
}

// POD-S63
#[test]
fn init_containers_run_one_after_another() {
    type Row<'a> = (&'a str, &'a [(&'a str, Is)], &'a str);
    let done: &[(&str, Is)] = &[("i", Exited(0)), ("j", Exited(0)), ("k", Exited(0))];
    let table: [Row<'_>; 18] = [
        ("Always", &[], "init 0"),
        ("Never", &[], "init 0"),
        ("Always", &[("i", Running)], "idle"),
        ("Always", &[("i", Created)], "init 0"),
        ("Always", &[("i", Exited(0))], "init 1"),
        ("Always", &[("i", Exited(0)), ("j", Exited(0)), ("k", Running)], "idle"),
        ("Always", &[("i", Exited(0)), ("j", Exited(0)), ("k", Exited(1))], "init 2"),
        ("OnFailure", &[("i", Exited(0)), ("j", Exited(0)), ("k", Exited(1))], "init 2"),
        ("Never", &[("i", Exited(0)), ("j", Exited(0)), ("k", Exited(1))], "stop"),
        // The runs of the first containers may be removed.
        ("Never", &[("k", Running)], "idle"),
        ("Never", &[("k", Exited(0))], "start 0 1"),
        ("Always", done, "start 0 1"),
        ("Never", done, "start 0 1"),
        ("Always", &[("i", Unknown)], "kill i(StateUnknown) init 0"),
        ("OnFailure", &[("j", Unknown)], "kill j(StateUnknown) init 1"),
        ("Never", &[("i", Unknown)], "stop"),
        // A running regular container proves that initialization is complete; an exited one does not.
        ("Never", &[("i", Exited(1)), ("a", Running)], "start 1"),
        ("Always", &[("a", Exited(1))], "init 0"),
    ];
    for (policy, runs, expected) in table {
        assert_eq!(decide(&three_init(policy), &status(runs)), expected, "{policy} {runs:?}");
    }
}

// A failed removal at the replacement of the sandbox leaves such runs.
#[test]
fn init_containers_of_an_older_sandbox_run_again() {
    let in_old = |runs: &[(&str, Is)], old: &[&str]| {
        let mut status = status(runs);
        status.sandboxes = vec![sandbox(1, SandboxState::Ready), sandbox(0, SandboxState::NotReady)];
        for run in &mut status.containers {
            run.sandbox = if old.contains(&run.name.as_str()) { "s0".into() } else { "s1".into() };
        }
        decide(&three_init("Always"), &status)
    };
    let done = [("i", Exited(0)), ("j", Exited(0)), ("k", Exited(0)), ("a", Exited(1))];
    assert_eq!(in_old(&done, &["i", "j", "k", "a"]), "init 0");
    assert_eq!(in_old(&done, &["j", "k", "a"]), "init 1");
    assert_eq!(in_old(&done, &["a"]), "start 0 1");
    let failed = [("i", Exited(0)), ("j", Exited(1))];
    assert_eq!(in_old(&failed, &["j"]), "init 1");
    assert_eq!(in_old(&failed, &[]), "init 1");
}

#[test]
fn an_out_of_memory_kill_is_a_failure_whatever_its_exit_code() {
    let mut runs = status(&[("i", Exited(0))]);
    runs.containers[0].reason = "OOMKilled".into();
    assert_eq!(decide(&three_init("OnFailure"), &runs), "init 0");
    assert_eq!(decide(&three_init("Never"), &runs), "stop");
}

#[test]
fn an_init_containers_own_policy_and_rules_apply() {
    let pod =
        pod("Never", vec![with_policy("i", "OnFailure"), with_rule(named("j"), &[42], "Restart")], vec![named("a")]);
    assert_eq!(decide(&pod, &status(&[("i", Exited(1))])), "init 0");
    assert_eq!(decide(&pod, &status(&[("j", Exited(42))])), "init 1");
    assert_eq!(decide(&pod, &status(&[("j", Exited(41))])), "stop");
    // Without an exit code no rule matches.
    assert_eq!(decide(&pod, &status(&[("j", Unknown)])), "stop");
    assert_eq!(decide(&pod, &status(&[("i", Unknown)])), "kill i(StateUnknown) init 0");
}

// POD-S64, POD-S65
#[test]
fn sidecars_start_in_order_and_are_kept_running() {
    let yes = Some(ProbeResult::Success);
    let no = Some(ProbeResult::Failure);
    let open = Some(ProbeResult::Unknown);
    type Probes<'a> = &'a [(&'a str, Option<ProbeResult>, Option<ProbeResult>)];
    type Row<'a> = (&'a [(&'a str, Is)], Probes<'a>, &'a str);
    let three: &[(&str, Is)] = &[("s1", Running), ("s2", Running), ("s3", Running)];
    let up: &[(&str, Is)] = &[("s1", Running), ("s2", Running), ("s3", Running), ("a", Running)];
    let table: [Row<'_>; 20] = [
        (&[], &[], "init 0"),
        (&[("s1", Running)], &[("s1", yes, None)], "init 1"),
        (&[("s1", Running)], &[("s1", None, None)], "idle"),
        (&[("s1", Running), ("s2", Running)], &[("s1", yes, yes), ("s2", open, None)], "idle"),
        (&[("s1", Running), ("s2", Running)], &[("s1", yes, None), ("s2", yes, None)], "init 2"),
        (three, &[("s3", no, None)], "kill s3(StartupFailed) init 2"),
        (three, &[("s3", open, None)], "idle"),
        (three, &[("s3", yes, None)], "start 0"),
        (three, &[("s3", yes, no)], "kill s3(LivenessFailed) init 2 start 0"),
        // A failed liveness probe does not hold the next container back.
        (&[("s1", Running), ("s2", Running)], &[("s2", yes, no)], "kill s2(LivenessFailed) init 1 2"),
        (
            &[("s1", Running), ("s2", Running)],
            &[("s1", yes, no), ("s2", yes, None)],
            "kill s1(LivenessFailed) init 0 2",
        ),
        (&[("s1", Exited(0))], &[], "init 0"),
        (&[("s1", Exited(1)), ("s2", Running)], &[("s2", yes, None)], "init 0 2"),
        (&[("s1", Created)], &[], "init 0"),
        (&[("s1", Unknown)], &[], "kill s1(StateUnknown) init 0"),
        (up, &[("s1", yes, None), ("s2", yes, None), ("s3", yes, None)], "idle"),
        (up, &[("s1", no, None), ("s2", yes, no)], "kill s2(LivenessFailed) kill s1(StartupFailed) init 0 1"),
        (&[("s1", Exited(0)), ("s2", Exited(3)), ("s3", Running), ("a", Running)], &[("s3", yes, None)], "init 0 1"),
        // The run of a sidecar was removed while the pod runs.
        (&[("s1", Running), ("s3", Running), ("a", Running)], &[("s1", yes, None), ("s3", yes, None)], "init 1"),
        (&[("s1", Exited(0)), ("s2", Exited(0)), ("s3", Exited(0)), ("a", Exited(0))], &[], "init 0 1 2"),
    ];
    for policy in ["OnFailure", "Never"] {
        let pod = pod(policy, vec![sidecar("s1"), sidecar("s2"), sidecar("s3")], vec![named("a")]);
        for (runs, results, expected) in table {
            let got = line(&plan(&pod, &status(runs), &probes(results)));
            assert_eq!(got, expected, "{policy} {runs:?} {results:?}");
        }
    }
}

#[test]
fn a_sidecar_without_probes_counts_as_started_when_it_runs() {
    let pod = pod("Never", vec![with_policy("s", "Always"), named("i")], vec![named("a")]);
    let failed = probes(&[("s", None, Some(ProbeResult::Failure))]);
    assert_eq!(line(&plan(&pod, &status(&[("s", Running)]), &failed)), "init 1");
}

#[test]
fn a_started_sidecar_lets_the_next_container_start_at_once() {
    let pod = pod("Always", vec![sidecar("s")], vec![named("a")]);
    let yes = probes(&[("s", Some(ProbeResult::Success), None)]);
    let starts_more_than = |before: &[(&str, Is)], after: &[(&str, Is)]| {
        let before = plan(&pod, &status(before), &yes);
        plan(&pod, &status(after), &yes).starts_more_than(&before)
    };
    assert!(starts_more_than(&[], &[("s", Running)]));
    // The regular container had exited, and then the sidecar.
    assert!(starts_more_than(&[("s", Exited(1)), ("a", Exited(0))], &[("s", Running), ("a", Exited(0))]));
    // A container that was just started and exited must wait.
    assert!(!starts_more_than(&[("s", Running), ("a", Exited(0))], &[("s", Running), ("a", Exited(0))]));
    assert!(!starts_more_than(&[("s", Exited(0)), ("a", Running)], &[("s", Running), ("a", Running)]));
}

#[test]
fn a_sidecar_whose_definition_changed_is_replaced() {
    let pod = pod("Never", vec![with_policy("s", "Always")], vec![named("a")]);
    let mut runs = status(&[("s", Running), ("a", Running)]);
    runs.containers[0].spec_hash ^= 1;
    assert_eq!(decide(&pod, &runs), "kill s(HashChanged) init 0");
}

// POD-S65
#[test]
fn sidecars_do_not_outlive_the_regular_containers() {
    let pod = pod("Never", vec![with_policy("s", "Always")], vec![named("a")]);
    assert_eq!(decide(&pod, &status(&[("s", Exited(1)), ("a", Running)])), "init 0");
    assert_eq!(decide(&pod, &status(&[("s", Running), ("a", Exited(0))])), "stop");
    assert_eq!(decide(&pod, &status(&[("s", Running), ("a", Exited(1))])), "stop");
}
