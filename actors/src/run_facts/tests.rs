use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Container, Lifecycle, LifecycleHandler};
use podwright_fixtures::containers::{Is, named, pod, run, status};
use proptest::prelude::*;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::ids::FullName;
use crate::journal::Write;
use crate::ports::{CheckpointWriter, ContainerState, ContainerStatus, RuntimePodContainer};
use crate::probes::{ContainerProbes, ProbeResult};

/// A file in memory, which the stores of several agents open one after the other.
#[derive(Clone, Default)]
struct Disk(Arc<Content>);

#[derive(Default)]
struct Content {
    records: Mutex<Vec<String>>,
    broken: AtomicBool,
    hangs: AtomicBool,
}

impl Disk {
    /// The store of the next agent, with a running writer.
    fn agent(&self) -> Arc<RunFacts> {
        let facts = Arc::new(RunFacts::open(self).unwrap());
        let writer = facts.clone();
        tokio::spawn(async move { writer.run(&CancellationToken::new()).await });
        facts
    }

    async fn write(&self, all: bool, records: Vec<Arc<str>>) -> Result<(), CheckpointError> {
        while self.0.hangs.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if self.0.broken.load(Ordering::Relaxed) {
            return Err(CheckpointError::new("/run_facts", "no space is left"));
        }
        let mut kept = self.0.records.lock();
        if all {
            kept.clear();
        }
        kept.extend(records.iter().map(|record| record.to_string()));
        Ok(())
    }
}

impl Checkpoint for Disk {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        Ok(OpenCheckpoint { records: self.0.records.lock().clone(), writer: Box::new(self.clone()) })
    }
}

impl CheckpointWriter for Disk {
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.write(true, records).boxed()
    }

    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.write(false, records).boxed()
    }
}

fn uid() -> PodUid {
    "u".into()
}

/// A run that the runtime ended before its process was executed.
fn never_started(name: &str) -> ContainerStatus {
    ContainerStatus { started_at: None, reason: "StartError".into(), ..run(name, Is::Exited(128)) }
}

fn of(runs: Vec<ContainerStatus>) -> PodRuntimeStatus {
    PodRuntimeStatus { containers: runs, ..status(&[]) }
}

/// The runs of a pod that are left, and those whose starts were abandoned.
fn observe(facts: &RunFacts, pod: &str, status: &PodRuntimeStatus) -> (Vec<String>, Vec<String>) {
    let left = facts.observe(&pod.into(), Arc::new(status.clone()), Time::ZERO);
    let left = left.containers.iter().map(|run| run.id.to_string()).collect();
    let abandoned = |run: &ContainerStatus| Some(facts.abandoned(&pod.into(), run.name.as_str())?.to_string());
    (left, status.containers.iter().filter_map(abandoned).collect())
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn run_that_never_started_is_abandoned_only_if_an_earlier_agent_was_starting_it() {
    let disk = Disk::default();
    let first = disk.agent();
    for name in ["a", "b", "c"] {
        first.starts(&uid(), &name.into()).await;
    }
    first.starts(&uid(), &"hooked".into()).await;
    first.hook_failed(&uid(), &"hooked".into());
    first.start_ended(&uid(), &"b".into());
    // The file has every change before this one.
    first.starts(&uid(), &"d".into()).await;
    let (c, hooked) = (run("c", Is::Exited(128)), never_started("hooked"));
    let all = of(vec![never_started("a"), never_started("b"), c, hooked, never_started("e")]);
    let next = disk.agent();
    assert_eq!(next.start_of(&uid(), &"a".into()), Some(StartFact::Requested));
    assert_eq!(next.start_of(&uid(), &"hooked".into()), Some(StartFact::HookFailed));
    assert_eq!(observe(&next, "u", &all), (names(&["b", "c", "hooked", "e"]), names(&["a"])));
    assert_eq!(observe(&next, "another", &all), (names(&["a", "b", "c", "hooked", "e"]), names(&[])));

    // Its own start failed.
    assert_eq!(observe(&first, "u", &all), (names(&["a", "b", "c", "hooked", "e"]), names(&[])));
}

#[test]
fn lines_that_cannot_be_parsed_are_left_out_and_counted() {
    let lines = ["{\"run\":\"a\",\"pod\":\"u\",\"ready\":true}", "half a li", "{\"run\":\"b\"}"];
    let (facts, errors) = super::file::parse(&lines.map(str::to_owned));
    assert_eq!((facts.len(), errors.len()), (1, 2));
    assert_eq!(facts.fact(&uid(), &"a".into()).and_then(|fact| fact.ready), Some(true));
}

#[tokio::test(start_paused = true)]
async fn run_with_a_successor_is_not_abandoned() {
    let disk = Disk::default();
    disk.agent().starts(&uid(), &"a".into()).await;
    let newer = ContainerStatus { name: "a".into(), ..run("a2", Is::Running) };
    let status = of(vec![newer, never_started("a")]);
    assert_eq!(observe(&disk.agent(), "u", &status), (names(&["a2", "a"]), names(&[])));
}

#[tokio::test(start_paused = true)]
async fn abandoned_start_that_is_repeated_stays_abandoned_until_it_ends() {
    let disk = Disk::default();
    disk.agent().starts(&uid(), &"a".into()).await;
    let next = disk.agent();
    // The start of the dead agent may still be under way when the next agent starts the run.
    next.starts(&uid(), &"a".into()).await;
    let ended = of(vec![never_started("a")]);
    assert_eq!(observe(&next, "u", &ended), (names(&[]), names(&["a"])));
    next.start_ended(&uid(), &"a".into());
    assert_eq!(observe(&next, "u", &ended), (names(&["a"]), names(&[])));
}

// A newer run that never started may be the start that the death of an agent cancelled.
#[tokio::test(start_paused = true)]
async fn run_that_was_stopped_for_a_resize_has_its_reason_until_the_next_run_has_started() {
    let disk = Disk::default();
    let first = disk.agent();
    assert!(stops_for_resize(&first, 10).await);
    let reasons = |facts: &RunFacts, runs: &[ContainerStatus]| reasons(facts, runs, 20);
    let (running, ended) = (run("a", Is::Running), run("a", Is::Exited(0)));
    let newer = |run: ContainerStatus| ContainerStatus { id: "a2".into(), ..run };
    assert_eq!(reasons(&first, &[running]), [""], "the agent dies before the stop");

    let second = disk.agent();
    assert_eq!(reasons(&second, std::slice::from_ref(&ended)), [STOPPED_FOR_RESIZE]);
    assert_eq!(reasons(&second, &[newer(run("a", Is::Created)), ended.clone()]), ["", STOPPED_FOR_RESIZE]);
    second.starts(&uid(), &"a2".into()).await;

    let third = disk.agent();
    let cancelled = newer(never_started("a"));
    assert_eq!(reasons(&third, &[cancelled, ended.clone()]), [STOPPED_FOR_RESIZE], "the newer run is abandoned");

    let fourth = disk.agent();
    assert_eq!(reasons(&fourth, &[newer(run("a", Is::Running)), ended.clone()]), ["", ""]);
    assert_eq!(reasons(&fourth, &[newer(run("a", Is::Exited(0))), ended]), ["", ""]);
}

// The agent dies before it requests the stop, or the request fails, and the resize is taken back.
#[tokio::test(start_paused = true)]
async fn run_that_outlives_its_stop_for_a_resize_has_its_own_reason() {
    let (running, ended) = ([run("a", Is::Running)], [run("a", Is::Exited(0))]);
    // The second agent reads the run at these times while it runs. The clock may have been set back.
    for (reads, expected) in
        [(&[39][..], STOPPED_FOR_RESIZE), (&[40], ""), (&[5_000], ""), (&[1, 20], STOPPED_FOR_RESIZE), (&[1, 31], "")]
    {
        let disk = Disk::default();
        assert!(stops_for_resize(&disk.agent(), 10).await);
        let second = disk.agent();
        for seconds in reads {
            assert_eq!(reasons(&second, &running, *seconds), [""]);
        }
        assert_eq!(reasons(&second, &ended, 6_000), [expected], "{reads:?}");
        second.written().await;
        assert_eq!(reasons(&disk.agent(), &ended, 6_000), [expected], "{reads:?}, and the third agent");
    }
}

#[tokio::test(start_paused = true)]
async fn stop_for_a_resize_that_is_not_in_the_file_is_undone() {
    let ended = [run("a", Is::Exited(0))];
    for is_hanging in [false, true] {
        let disk = Disk::default();
        let fault = if is_hanging { &disk.0.hangs } else { &disk.0.broken };
        fault.store(true, Ordering::Relaxed);
        let facts = disk.agent();
        assert!(!stops_for_resize(&facts, 10).await);
        assert_eq!(reasons(&facts, &ended, 20), [""]);
        fault.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(6)).await;
        facts.written().await;
        assert_eq!(reasons(&disk.agent(), &ended, 20), [""]);
        assert!(stops_for_resize(&facts, 10).await, "a later sync tries again");
        fault.store(true, Ordering::Relaxed);
        assert!(!stops_for_resize(&facts, 15).await);
        assert_eq!(reasons(&facts, &ended, 20), [STOPPED_FOR_RESIZE], "the earlier stop may take effect");
    }
}

/// Begins a stop of the run `a` that takes at most 30 s.
async fn stops_for_resize(facts: &RunFacts, seconds: u64) -> bool {
    facts.stops_for_resize(&uid(), Time::from_secs(seconds), &[(&"a".into(), Duration::from_secs(30))]).await
}

/// The reasons that the runs have when a hook reads the pod.
fn reasons(facts: &RunFacts, runs: &[ContainerStatus], seconds: u64) -> Vec<String> {
    let left = facts.observe(&uid(), Arc::new(of(runs.to_vec())), Time::from_secs(seconds));
    left.containers.iter().map(|run| run.reason.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn container_with_a_post_start_hook_is_observed_as_running_once_its_start_has_ended() {
    let post_start = Some(LifecycleHandler::default());
    let lifecycle = Lifecycle { post_start, ..Lifecycle::default() };
    let hooked = |name: &str| Container { lifecycle: Some(lifecycle.clone()), ..named(name) };
    let pod = pod("Always", Vec::new(), vec![hooked("a"), hooked("b"), hooked("c"), named("plain")]);
    let facts = RunFacts::in_memory();
    let runs = status(&[("a", Is::Running), ("b", Is::Running), ("c", Is::Exited(0)), ("plain", Is::Running)]);
    for name in ["a", "c", "plain"] {
        facts.starts(pod.uid(), &name.into()).await;
    }
    let states = || facts.observable(&pod, &runs).containers.iter().map(|run| run.state).collect::<Vec<_>>();
    use ContainerState::{Created, Exited, Running};
    assert_eq!(states(), [Created, Running, Exited, Running]);
    facts.start_ended(pod.uid(), &"a".into());
    assert_eq!(states(), [Running, Running, Exited, Running]);
}

#[tokio::test(start_paused = true)]
async fn facts_of_runs_and_pods_that_are_gone_leave_the_file() {
    let disk = Disk::default();
    let facts = disk.agent();
    for (pod, name) in [("u", "a"), ("u", "b"), ("gone", "c")] {
        facts.starts(&pod.into(), &name.into()).await;
    }
    observe(&facts, "u", &status(&[("a", Is::Created)]));
    facts.retain(|pod| *pod == uid());
    facts.starts(&uid(), &"d".into()).await;
    let kept = RunFacts::open(&disk).unwrap().kept.into_inner().facts;
    assert_eq!(kept.pods.keys().cloned().collect::<Vec<_>>(), [uid()]);
    assert_eq!(kept.pods[&uid()].keys().cloned().collect::<Vec<_>>(), ["a".into(), "d".into()]);
}

#[tokio::test(start_paused = true)]
async fn broken_file_delays_no_start_and_is_written_once_it_can_be() {
    let disk = Disk::default();
    disk.0.broken.store(true, Ordering::Relaxed);
    let facts = disk.agent();
    let begin = Instant::now();
    for name in ["a", "b"] {
        facts.starts(&uid(), &name.into()).await;
    }
    assert_eq!(begin.elapsed(), Duration::ZERO);
    disk.0.broken.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(6)).await;
    let ended = of(vec![never_started("a"), never_started("b")]);
    assert_eq!(observe(&disk.agent(), "u", &ended).1, names(&["a", "b"]));
}

#[tokio::test(start_paused = true)]
async fn disk_that_hangs_delays_the_starts_once() {
    let disk = Disk::default();
    disk.0.hangs.store(true, Ordering::Relaxed);
    let facts = disk.agent();
    let begin = Instant::now();
    for name in ["a", "b"] {
        facts.starts(&uid(), &name.into()).await;
    }
    facts.written().await;
    assert!(begin.elapsed() < Duration::from_secs(11), "{:?}", begin.elapsed());

    // Starts wait again once the disk answers.
    disk.0.hangs.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(2)).await;
    facts.starts(&uid(), &"c".into()).await;
    let ended = of(vec![never_started("a"), never_started("b"), never_started("c")]);
    assert_eq!(observe(&disk.agent(), "u", &ended).1, names(&["a", "b", "c"]));
}

#[tokio::test(start_paused = true)]
async fn file_does_not_grow_with_the_number_of_starts() {
    let disk = Disk::default();
    let facts = disk.agent();
    for n in 0..2_000 {
        let run = format!("run-{n}").into();
        facts.starts(&uid(), &run).await;
        facts.start_ended(&uid(), &run);
    }
    assert!(disk.0.records.lock().len() < 600);
}

fn listed(runs: &[(&str, ContainerState)], grace: Option<u32>) -> RuntimePod {
    let containers = runs.iter().map(|(name, state)| RuntimePodContainer {
        id: (*name).into(),
        sandbox: "s".into(),
        name: (*name).into(),
        state: *state,
        attempt: 0,
        created_at: Time::ZERO,
    });
    RuntimePod {
        uid: uid(),
        full_name: FullName::new("ns", "p"),
        is_static: true,
        grace: grace.map(|seconds| Grace::from_seconds(seconds.into())),
        sandboxes: Vec::new(),
        containers: containers.collect(),
    }
}

#[tokio::test(start_paused = true)]
async fn pod_without_a_spec_has_the_rest_of_its_stop_or_else_its_own_grace_period() {
    use ContainerState::{Exited, Running, Unknown};
    let at = |millis: u64| Time::from_secs(1000) + Duration::from_millis(millis);
    let disk = Disk::default();
    let first = disk.agent();
    let limit = Duration::from_secs(30);
    first.stops(&uid(), &"a".into(), at(9_500), limit);
    first.stops(&uid(), &"b".into(), at(4_000), limit);
    // The clock was a year ahead, and is set back when the next agent reads it.
    first.stops(&uid(), &"ahead".into(), at(365 * 24 * 3600 * 1000 + 20_000), limit);
    first.stops(&uid(), &"failed".into(), at(9_500), limit);
    first.stop_ended(&uid(), &"failed".into());
    first.starts(&uid(), &"last".into()).await;
    let next = disk.agent();
    for (runs, own, expected) in [
        (&[("a", Running), ("b", Running)][..], Some(60), 10),
        (&[("b", Unknown)], None, 4),
        (&[("ahead", Running)], Some(60), 30),
        // This container was not asked to stop.
        (&[("a", Running), ("c", Running)], Some(60), 60),
        (&[("failed", Running)], Some(60), 60),
        // Neither the runtime nor an earlier agent says how long.
        (&[("c", Running)], None, 1),
        (&[("c", Exited)], Some(60), 1),
    ] {
        let grace = next.grace_of(&listed(runs, own), at(0));
        assert_eq!(grace.seconds(), expected, "{runs:?} {own:?}");
    }
    assert_eq!(next.grace_of(&listed(&[("a", Running)], Some(60)), at(60_000)), Grace::MIN, "the time is over");
    next.runs(&uid());
    assert_eq!(next.grace_of(&listed(&[("a", Running)], Some(60)), at(0)).seconds(), 60, "the pod runs again");
}

#[tokio::test(start_paused = true)]
async fn stop_that_is_called_again_writes_nothing() {
    let facts = RunFacts::in_memory();
    let at = |millis: u64| Time::from_secs(1000) + Duration::from_millis(millis);
    facts.stops(&uid(), &"a".into(), at(30_000), Duration::from_secs(30));
    let version = facts.kept.lock().lines.version();
    facts.stops(&uid(), &"a".into(), at(30_001), Duration::from_secs(29));
    assert_eq!(facts.kept.lock().lines.version(), version);
    // A shorter grace period.
    facts.stops(&uid(), &"a".into(), at(5_000), Duration::from_secs(5));
    assert_eq!(facts.rest_of_stop(&uid(), &"a".into(), at(0)), Some(Duration::from_secs(5)));
}

#[tokio::test(start_paused = true)]
async fn results_of_probes_are_those_of_the_same_run_while_it_runs() {
    use ProbeResult::{Failure, Success};
    let disk = Disk::default();
    let first = disk.agent();
    for (name, kind, passed) in [
        ("a", ProbeKind::Startup, true),
        ("a", ProbeKind::Readiness, true),
        ("b", ProbeKind::Readiness, true),
        ("b", ProbeKind::Readiness, false),
        ("ended", ProbeKind::Readiness, true),
        ("alive", ProbeKind::Liveness, true),
    ] {
        first.probed(&uid(), &name.into(), kind, passed);
    }
    first.starts(&uid(), &"last".into()).await;
    let next = disk.agent();
    let names = ["a", "b", "alive", "new"];
    let runs = status(&[
        ("a", Is::Running),
        ("b", Is::Running),
        ("alive", Is::Running),
        ("new", Is::Running),
        ("ended", Is::Exited(1)),
    ]);
    next.observe(&uid(), Arc::new(runs.clone()), Time::ZERO);
    let results = |mut probes: ProbeSnapshot| {
        next.complete(&uid(), &runs, &mut probes);
        names.map(|name| probes.get(&ContainerId::from(name)).map(|of| (of.startup, of.readiness)))
    };
    let none = ProbeSnapshot::new();
    assert_eq!(results(none), [Some((Some(Success), Some(Success))), Some((None, Some(Failure))), None, None]);
    let later = ContainerProbes { readiness: Some(Failure), ..ContainerProbes::default() };
    assert_eq!(results([("a".into(), later)].into())[0], Some((Some(Success), Some(Failure))), "a later result counts");
    let restarted = of(vec![run("ended", Is::Running)]);
    let mut probes = ProbeSnapshot::new();
    next.complete(&uid(), &restarted, &mut probes);
    assert!(probes.is_empty(), "the fact of an exited run is gone");
}

/// What happens to two pods with three runs each.
#[derive(Clone, Debug)]
enum Change {
    Starts(usize, usize),
    HookFailed(usize, usize),
    StartEnded(usize, usize),
    Stops(usize, usize, u64),
    StopsForResize(usize, usize, Option<u64>),
    StopEnded(usize, usize),
    Runs(usize),
    Probed(usize, usize, ProbeKind, bool),
    Observed(usize, Vec<Option<ContainerState>>, u64),
    Gone(usize),
    NextAgent,
}

const PODS: [&str; 2] = ["p", "q"];
const RUNS: [&str; 3] = ["a", "b", "c"];

fn changes() -> impl Strategy<Value = Change> {
    let state = prop_oneof![
        Just(None),
        Just(Some(ContainerState::Created)),
        Just(Some(ContainerState::Running)),
        Just(Some(ContainerState::Exited)),
    ];
    let run = || (0..PODS.len(), 0..RUNS.len());
    let kind = prop_oneof![Just(ProbeKind::Startup), Just(ProbeKind::Readiness), Just(ProbeKind::Liveness)];
    prop_oneof![
        4 => run().prop_map(|(pod, run)| Change::Starts(pod, run)),
        1 => run().prop_map(|(pod, run)| Change::HookFailed(pod, run)),
        3 => run().prop_map(|(pod, run)| Change::StartEnded(pod, run)),
        3 => (run(), 0..90u64).prop_map(|((pod, run), at)| Change::Stops(pod, run, at)),
        1 => (run(), proptest::option::of(0..90u64)).prop_map(|((pod, run), at)| Change::StopsForResize(pod, run, at)),
        2 => run().prop_map(|(pod, run)| Change::StopEnded(pod, run)),
        1 => (0..PODS.len()).prop_map(Change::Runs),
        3 => (run(), kind, any::<bool>()).prop_map(|((pod, run), kind, passed)| Change::Probed(pod, run, kind, passed)),
        4 => (0..PODS.len(), proptest::collection::vec(state, RUNS.len()), 0..90u64)
            .prop_map(|(pod, states, at)| Change::Observed(pod, states, at)),
        1 => (0..PODS.len()).prop_map(Change::Gone),
        1 => Just(Change::NextAgent),
    ]
}

/// The pod as the runtime has it. A run that has ended never started.
fn observed(states: &[Option<ContainerState>]) -> PodRuntimeStatus {
    let runs = RUNS.iter().zip(states).filter_map(|(name, state)| {
        Some(match (*state)? {
            ContainerState::Exited => never_started(name),
            state => ContainerStatus { state, ..run(name, Is::Created) },
        })
    });
    of(runs.collect())
}

fn stop_at(seconds: u64) -> StopFact {
    StopFact { killed_at: Time::from_secs(seconds), limit: Duration::from_secs(seconds) }
}

fn apply(kept: &mut Kept, change: &Change) {
    let changed = match change {
        Change::Starts(pod, run) => {
            step(&mut kept.facts, Event::Starts { pod: &PODS[*pod].into(), run: &RUNS[*run].into() })
        }
        Change::HookFailed(pod, run) => {
            step(&mut kept.facts, Event::HookFailed { pod: &PODS[*pod].into(), run: &RUNS[*run].into() })
        }
        Change::StartEnded(pod, run) => {
            step(&mut kept.facts, Event::StartEnded { pod: &PODS[*pod].into(), run: &RUNS[*run].into() })
        }
        Change::Stops(pod, run, at) => {
            let (pod, run) = (&PODS[*pod].into(), &RUNS[*run].into());
            step(&mut kept.facts, Event::Stops { pod, run, stop: stop_at(*at) })
        }
        Change::StopsForResize(pod, run, at) => {
            let (pod, run) = (&PODS[*pod].into(), &RUNS[*run].into());
            step(&mut kept.facts, Event::StopsForResize { pod, run, stop: at.map(stop_at) })
        }
        Change::StopEnded(pod, run) => {
            step(&mut kept.facts, Event::StopEnded { pod: &PODS[*pod].into(), run: &RUNS[*run].into() })
        }
        Change::Probed(pod, run, kind, passed) => {
            let (pod, run) = (&PODS[*pod].into(), &RUNS[*run].into());
            step(&mut kept.facts, Event::Probed { pod, run, kind: *kind, passed: *passed })
        }
        Change::Runs(pod) => step(&mut kept.facts, Event::Runs { pod: &PODS[*pod].into() }),
        Change::Observed(pod, states, at) => {
            let (pod, status, now) = (&PODS[*pod].into(), &observed(states), Time::from_secs(*at));
            step(&mut kept.facts, Event::Observed { pod, status, now })
        }
        Change::Gone(pod) => {
            step(&mut kept.facts, Event::Retained { keep: &|uid: &PodUid| *uid != PodUid::from(PODS[*pod]) })
        }
        Change::NextAgent => Vec::new(),
    };
    kept.queue(&changed);
}

/// The facts as the next agent has them.
fn inherited(facts: &State) -> State {
    let mut facts = facts.clone();
    let all = facts.pods.values_mut().flat_map(|runs| runs.values_mut());
    all.for_each(|fact| (fact.inherited, fact.abandoned) = (true, None));
    facts
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    #[test]
    fn file_has_the_facts_after_every_change(changes in proptest::collection::vec(changes(), 0..60)) {
        let (mut kept, mut file) = (Kept::default(), Vec::<String>::new());
        for change in changes {
            apply(&mut kept, &change);
            let (all, lines) = match kept.take() {
                Write::Save(lines) => (true, lines),
                Write::Append(lines) => (false, lines),
            };
            if all {
                file.clear();
            }
            file.extend(lines.iter().map(|line| line.to_string()));
            let (read, errors) = super::file::parse(&file);
            prop_assert!(errors.is_empty(), "{:?}", errors);
            prop_assert_eq!(&read, &inherited(&kept.facts));
            if let Change::NextAgent = change {
                kept = Kept { facts: read, ..Kept::default() };
            }
            if let Change::Observed(pod, states, at) = change {
                let facts = kept.facts.pods.get(&PODS[pod].into());
                for (run, fact) in facts.into_iter().flatten() {
                    let state = RUNS.iter().position(|name| *name == run.as_str()).and_then(|at| states[at]);
                    let is_kept = match state {
                        None => false,
                        Some(ContainerState::Exited) => {
                            let is_requested = fact.start == Some(StartFact::Requested);
                            fact.for_resize.is_some() || (is_requested && fact.inherited && fact.abandoned.is_some())
                        }
                        Some(ContainerState::Running) => {
                            fact.for_resize.is_none_or(|stop| stop.killed_at > Time::from_secs(at))
                        }
                        Some(_) => true,
                    };
                    prop_assert!(is_kept, "{} is {:?} and has {:?}", run, state, fact);
                }
            }
        }
    }
}
