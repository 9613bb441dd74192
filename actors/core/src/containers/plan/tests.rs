mod init;
mod restart_all;
mod sandbox;

use podwright_fixtures::containers::*;

use super::*;
use crate::containers::restart::STOPPED_FOR_RESIZE;
use crate::probes::{ContainerProbes, ProbeResult};

/// The results of probes, by the name of the run: startup and liveness.
fn probes(of: &[(&str, Option<ProbeResult>, Option<ProbeResult>)]) -> ProbeSnapshot {
    of.iter()
        .map(|(id, startup, liveness)| {
            ((*id).into(), ContainerProbes { startup: *startup, liveness: *liveness, readiness: None })
        })
        .collect()
}

/// Formats a plan in one line, for the tables: `kill a(LivenessFailed) start init 0 start 1 2`.
fn line(plan: &Plan) -> String {
    let mut words = Vec::new();
    let kills = |words: &mut Vec<String>, kills: &[Kill]| {
        words.extend(kills.iter().map(|kill| format!("kill {}({:?})", kill.name, kill.reason)));
    };
    let indexes = |words: &mut Vec<String>, what: &str, indexes: &[usize]| {
        if !indexes.is_empty() {
            let indexes: Vec<_> = indexes.iter().map(ToString::to_string).collect();
            words.push(format!("{what} {}", indexes.join(" ")));
        }
    };
    match plan {
        Plan::Keep(changes) => {
            kills(&mut words, &changes.kill);
            indexes(&mut words, "ephemeral", &changes.ephemeral);
            indexes(&mut words, "init", &changes.init);
            indexes(&mut words, "start", &changes.regular);
            if words.is_empty() {
                words.push("idle".into());
            }
        }
        Plan::NewSandbox { attempt, start } => {
            words.push(format!("sandbox {attempt}"));
            match start {
                FirstStart::Init => words.push("init 0".into()),
                FirstStart::Regular(list) => indexes(&mut words, "start", list),
            }
        }
        Plan::StopPod { kills: list } => {
            words.push("stop".into());
            kills(&mut words, list);
        }
        Plan::RestartAll { kills: list, remove, triggers } => {
            assert_eq!(remove.last().map(ToString::to_string), triggers.last().map(ToString::to_string));
            words.push("restart all".into());
            kills(&mut words, list);
            words.extend(remove.iter().map(|id| format!("remove {id}")));
        }
    }
    words.join(" ")
}

fn decide(pod: &PodObject, status: &PodRuntimeStatus) -> String {
    line(&plan(pod, status, &ProbeSnapshot::new()))
}

// POD-S58
#[test]
fn regular_containers_start_by_state_and_policy() {
    type Row<'a> = (&'a str, &'a [(&'a str, Is)], &'a str);
    let table: [Row<'_>; 12] = [
        ("Always", &[("a", Running), ("b", Running), ("c", Running)], "idle"),
        ("Always", &[], "start 0 1 2"),
        ("Never", &[], "start 0 1 2"),
        ("Always", &[("a", Exited(0)), ("b", Exited(111)), ("c", Running)], "start 0 1"),
        ("OnFailure", &[("a", Exited(0)), ("b", Exited(111)), ("c", Running)], "start 1"),
        ("Never", &[("a", Exited(0)), ("b", Exited(111)), ("c", Running)], "idle"),
        ("Never", &[("a", Exited(0)), ("b", Exited(111)), ("c", Exited(0))], "stop"),
        ("OnFailure", &[("a", Exited(0)), ("b", Exited(0)), ("c", Exited(0))], "stop"),
        // POD-S62
        ("Never", &[("a", Unknown), ("b", Running), ("c", Running)], "kill a(StateUnknown) start 0"),
        ("Never", &[("a", Created), ("b", Running), ("c", Running)], "start 0"),
        ("Always", &[("b", Running), ("c", Running)], "start 0"),
        ("OnFailure", &[("a", Exited(137)), ("b", Created), ("c", Unknown)], "kill c(StateUnknown) start 0 1 2"),
    ];
    for (policy, runs, expected) in table {
        assert_eq!(decide(&three(policy), &status(runs)), expected, "{policy} {runs:?}");
    }
}

// The exit code of such a run does not say whether the container has completed its work.
#[test]
fn a_container_that_was_stopped_for_a_resize_starts_again() {
    let of = |mut status: PodRuntimeStatus| {
        status.containers[0].reason = STOPPED_FOR_RESIZE.to_owned();
        status
    };
    let pod = |policy: &str| pod(policy, vec![named("i"), named("j")], vec![named("a"), named("b")]);
    for (policy, code) in [("Always", 0), ("OnFailure", 0), ("Never", 143)] {
        let ended = [("a", Exited(code)), ("b", Exited(0))];
        let expected = "start 0";
        assert_eq!(decide(&pod(policy), &of(status(&[("a", Exited(code)), ("b", Running)]))), expected, "{policy}");
        if policy != "Always" {
            assert_eq!(decide(&three(policy), &of(status(&[ended[0], ended[1], ("c", Exited(0))]))), expected);
            assert_eq!(decide(&three(policy), &of(lost(&[ended[0], ended[1], ("c", Exited(0))]))), "sandbox 1 start 0");
        }
        assert_eq!(decide(&pod(policy), &of(status(&[("i", Exited(code))]))), "init 0", "{policy}");
        assert_eq!(decide(&pod(policy), &of(status(&[("j", Exited(code)), ("i", Exited(0))]))), "init 1", "{policy}");
    }
}

#[test]
fn the_older_of_two_running_runs_of_a_container_is_stopped() {
    let mut status = status(&[("a", Running), ("b", Running), ("c", Running)]);
    status.containers.push(ContainerStatus { id: "b-older".into(), ..status.containers[1].clone() });
    assert_eq!(decide(&three("Never"), &status), "kill b(Superseded)");
    status.containers[1].state = ContainerState::Created;
    assert_eq!(decide(&three("Never"), &status), "kill b(Superseded) start 1");
    status.containers[3].state = ContainerState::Exited;
    assert_eq!(decide(&three("Never"), &status), "start 1");
}

// POD-S61
#[test]
fn a_running_container_is_replaced_without_the_others() {
    let all = [("a", Running), ("b", Running), ("c", Running)];
    let failed = Some(ProbeResult::Failure);
    let passed = Some(ProbeResult::Success);
    let liveness = probes(&[("a", None, passed), ("b", passed, failed), ("c", None, None)]);
    let startup = probes(&[("b", failed, None)]);
    let unknown = probes(&[("b", Some(ProbeResult::Unknown), Some(ProbeResult::Unknown))]);

    let mut changed = status(&all);
    changed.containers[1].spec_hash ^= 1;
    for (policy, restart) in [("Always", " start 1"), ("OnFailure", " start 1"), ("Never", "")] {
        let pod = three(policy);
        let table = [
            (&status(&all), &liveness, format!("kill b(LivenessFailed){restart}")),
            (&status(&all), &startup, format!("kill b(StartupFailed){restart}")),
            (&status(&all), &unknown, "idle".to_owned()),
            (&changed, &ProbeSnapshot::new(), "kill b(HashChanged) start 1".to_owned()),
            // A changed definition takes precedence over a failed probe, which would not restart the container.
            (&changed, &liveness, "kill b(HashChanged) start 1".to_owned()),
        ];
        for (status, probes, expected) in table {
            assert_eq!(line(&plan(&pod, status, probes)), expected, "{policy}");
        }
    }
}

#[test]
fn a_probe_kill_of_the_last_container_stops_the_pod_with_its_reason() {
    let pod = pod("Never", Vec::new(), vec![named("a")]);
    let probes = probes(&[("a", None, Some(ProbeResult::Failure))]);
    assert_eq!(line(&plan(&pod, &status(&[("a", Running)]), &probes)), "stop kill a(LivenessFailed)");
}

// POD-S66
#[test]
fn a_containers_own_policy_and_rules_win_over_the_pods() {
    let own = |policy: &str| vec![with_policy("a", policy), with_policy("b", policy), named("c")];
    let runs = [("a", Exited(0)), ("b", Exited(111)), ("c", Running)];
    assert_eq!(decide(&pod("Never", Vec::new(), own("Always")), &status(&runs)), "start 0 1");
    assert_eq!(decide(&pod("Never", Vec::new(), own("OnFailure")), &status(&runs)), "start 1");
    assert_eq!(decide(&pod("Always", Vec::new(), own("Never")), &status(&runs)), "idle");

    let ruled = vec![with_rule(with_policy("a", "Never"), &[42], "Restart"), named("b")];
    let pod = pod("Never", Vec::new(), ruled);
    assert_eq!(decide(&pod, &status(&[("a", Exited(42)), ("b", Running)])), "start 0");
    assert_eq!(decide(&pod, &status(&[("a", Exited(41)), ("b", Running)])), "idle");
}

#[test]
fn a_liveness_kill_restarts_by_the_containers_own_policy() {
    let probes = probes(&[("a", None, Some(ProbeResult::Failure))]);
    let runs = status(&[("a", Running), ("b", Running)]);
    for (own, expected) in [("Never", "kill a(LivenessFailed)"), ("OnFailure", "kill a(LivenessFailed) start 0")] {
        let pod = pod("Always", Vec::new(), vec![with_policy("a", own), named("b")]);
        assert_eq!(line(&plan(&pod, &runs, &probes)), expected);
    }
}

#[test]
fn a_deleted_pod_starts_no_container() {
    let pod = pod_with("Always", Vec::new(), vec![named("a"), named("b")], |pod| {
        let time = crate::time::Time::from_secs(1).to_api();
        pod.metadata.deletion_timestamp = Some(time);
    });
    assert_eq!(decide(&pod, &status(&[("a", Exited(1)), ("b", Running)])), "idle");
    assert_eq!(decide(&pod, &status(&[("a", Exited(1)), ("b", Exited(0))])), "stop");
}

#[test]
fn ephemeral_containers_start_once() {
    let pod = pod_with("Always", vec![named("i")], vec![named("a")], |pod| {
        spec_mut(pod).ephemeral_containers = Some(vec![ephemeral("e"), ephemeral("f")]);
    });
    // Even while the pod initializes.
    assert_eq!(decide(&pod, &status(&[("i", Running)])), "ephemeral 0 1");
    assert_eq!(decide(&pod, &status(&[("a", Running), ("e", Exited(1))])), "ephemeral 1");
    assert_eq!(decide(&pod, &status(&[("a", Running), ("e", Unknown), ("f", Created)])), "idle");
}

mod totality {
    use proptest::prelude::*;

    use super::*;
    use crate::ports::{PodRuntimeStatus, SandboxState};

    fn any_run() -> impl Strategy<Value = Option<Is>> {
        prop_oneof![
            Just(None),
            Just(Some(Created)),
            Just(Some(Running)),
            Just(Some(Unknown)),
            prop_oneof![Just(0), Just(1), Just(42)].prop_map(|code| Some(Exited(code))),
        ]
    }

    fn any_policy() -> impl Strategy<Value = &'static str> {
        prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")]
    }

    fn any_result() -> impl Strategy<Value = Option<ProbeResult>> {
        prop_oneof![
            Just(None),
            Just(Some(ProbeResult::Unknown)),
            Just(Some(ProbeResult::Success)),
            Just(Some(ProbeResult::Failure)),
        ]
    }

    const NAMES: [&str; 5] = ["s1", "i1", "s2", "a", "b"];

    proptest! {
        #![proptest_config(podwright_random::cases(256))]

        /// For all inputs: indexes exist and ascend, a container that keeps running is not started, only runs that are
        /// that have not ended are killed, and nothing starts together with an init container that it must wait for.
        #[test]
        fn container_plans_keep_their_invariants(
            policy in any_policy(),
            runs in proptest::array::uniform5(any_run()),
            results in proptest::array::uniform5((any_result(), any_result())),
            ready in any::<bool>(),
        ) {
            let pod = pod(policy, vec![sidecar("s1"), named("i1"), sidecar("s2")], vec![named("a"), named("b")]);
            let list: Vec<_> = NAMES.iter().zip(runs).filter_map(|(name, is)| Some((*name, is?))).collect();
            let status: PodRuntimeStatus = if ready { status(&list) } else { lost(&list) };
            let snapshot = NAMES.iter().zip(results).map(|(name, (s, l))| (*name, s, l)).collect::<Vec<_>>();
            let plan = plan(&pod, &status, &probes(&snapshot));
            let is_running = |name: &str| matches!(
                status.newest(name).map(|run| run.state), Some(crate::ports::ContainerState::Running));
            match &plan {
                Plan::Keep(changes) => {
                    prop_assert!(status.sandboxes[0].state == SandboxState::Ready);
                    let init = changes.init.iter().map(|place| pod.init_containers()[*place].name.as_str());
                    let regular = changes.regular.iter().map(|place| pod.containers()[*place].name.as_str());
                    for name in init.chain(regular) {
                        let killed = changes.kill.iter().any(|kill| kill.name.as_str() == name);
                        prop_assert!(!is_running(name) || killed, "{name} would run twice");
                    }
                    // A regular init container that starts is the last one, so its failure holds nothing back.
                    let blocking = changes.init.iter().position(|place| *place == 1);
                    if let Some(at) = blocking {
                        prop_assert!(at + 1 == changes.init.len() && changes.regular.is_empty());
                    }
                    for list in [&changes.init, &changes.regular] {
                        prop_assert!(list.windows(2).all(|pair| pair[0] < pair[1]));
                    }
                    for kill in &changes.kill {
                        let run = status.newest(kill.name.as_str()).unwrap();
                        prop_assert!(run.state != crate::ports::ContainerState::Exited);
                    }
                }
                Plan::NewSandbox { start, .. } => {
                    prop_assert!(!ready);
                    prop_assert_eq!(start, &FirstStart::Init);
                }
                Plan::StopPod { .. } => {}
                Plan::RestartAll { .. } => prop_assert!(false, "no rule restarts all containers"),
            }
        }
    }
}
