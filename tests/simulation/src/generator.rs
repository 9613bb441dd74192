//! Generates a scenario from a seed. Pure.

mod adapters;
mod additions;

use std::time::Duration;

use super::rng::Rng;
use super::scenario::{
    Api, ContainerPlan, Fault, HookPlan, Kind, Op, PodIndex, PodPlan, ProbePlan, Scenario, Source, Step, StepAction,
    Window,
};

/// For how long steps and faults happen. After this time every pod has to reach its final state.
pub(super) const EVENTFUL: Duration = Duration::from_secs(420);
/// The end of the time for which steps are drawn first. Steps after it are drawn last, so that the steps before it stay
/// the same when later steps are added to the generator.
const FIRST: Duration = Duration::from_secs(300);

/// The scenario of a seed. The one of the adapters has more faults of requests and watches.
pub(super) fn scenario(api: Api, seed: u64) -> Scenario {
    let mut rng = Rng::new(seed);
    let count = rng.pick(&[1, 1, 2, 2, 3, 4, 5, 6]);
    let mut pods: Vec<PodPlan> = (0..count).map(|which| pod(&mut rng, which)).collect();
    let mut steps = Vec::new();
    for (which, pod) in pods.iter().enumerate() {
        life(&mut rng, which, pod, &mut steps);
    }
    // In a third of the scenarios the runtime has no faults, so that failures without faults are easy to read.
    let troubles = rng.pick(&[0, 0, 1, 2, 3, 5, 8]);
    for _ in 0..troubles {
        let window = window(&mut rng, count);
        steps.push(Step { at: when(&mut rng), what: StepAction::Fault(window) });
    }
    for _ in 0..rng.pick(&[0, 0, 0, 1, 2, 3]) {
        let source = rng.pick(&[Source::File, Source::Api]);
        let what = match rng.below(5) {
            0 => StepAction::Empty(source, rng.millis(0, 15_000)),
            1 => StepAction::Mute(source, rng.millis(1_000, 60_000)),
            2 => StepAction::Problem(source),
            _ => StepAction::Repeat(source),
        };
        steps.push(Step { at: when(&mut rng), what });
    }
    for _ in 0..rng.pick(&[0, 0, 0, 0, 1, 1, 2, 3]) {
        let down = rng.pick(&[Duration::ZERO, Duration::from_secs(1), Duration::from_secs(20)]);
        let what = match rng.below(6) {
            0 => {
                let total = rng.pick(&[10, 30, 60]);
                StepAction::Shutdown { critical: rng.pick(&[0, 5, 10]), total, down }
            }
            _ => StepAction::Crash(down),
        };
        let at = when(&mut rng);
        if rng.percent(30) {
            // A new agent to which one source delivers nothing for a while.
            let source = rng.pick(&[Source::File, Source::Api]);
            steps.push(Step { at, what: StepAction::Mute(source, down + rng.millis(1_000, 30_000)) });
        }
        steps.push(Step { at, what });
    }
    let with_events = rng.percent(75);
    for _ in 0..rng.pick(&[0, 1, 2, 3, 5]) {
        let which = rng.below(count);
        let what = match rng.below(6) {
            0 if troubles > 0 => StepAction::Fault(window(&mut rng, count)),
            1 => StepAction::Crash(rng.pick(&[Duration::ZERO, Duration::from_secs(20)])),
            _ => change(&mut rng, which, &pods[which]),
        };
        let at = rng.millis(0, 119_999);
        steps.push(Step { at: FIRST + at, what });
    }
    // Drawn last, so that the other steps of a seed stay the same.
    if rng.percent(15) {
        let (total, after) = (rng.pick(&[10, 30, 60]), rng.millis(0, 12_000));
        let what = StepAction::CancelledShutdown { critical: rng.pick(&[0, 5, 10]), total, after };
        steps.push(Step { at: when(&mut rng), what });
    }
    for _ in 0..rng.pick(&[0, 0, 0, 1, 1, 2]) {
        let what = match pods.iter().position(|pod| pod.source == Source::Api) {
            Some(which) if rng.percent(60) => StepAction::Recreate(which),
            _ => StepAction::Away(rng.millis(1_000, 60_000)),
        };
        steps.push(Step { at: when(&mut rng), what });
    }
    let claims = additions::claims(&mut rng, &mut pods, &mut steps);
    additions::watches(&mut rng, &pods, &mut steps);
    additions::resizes(&mut rng, &mut pods, &mut steps);
    if api == Api::Adapters {
        adapters::requests(&mut rng, &mut steps);
        adapters::watches(&mut rng, &mut steps);
        adapters::crashes(&mut rng, &mut steps);
    }
    additions::restarts(&mut rng, &mut steps);
    additions::whole_pods(&mut rng, &mut pods);
    additions::set_backs(&mut rng, &mut steps);
    additions::init_resources(&mut rng, &mut pods);
    steps.sort_by_key(|step| step.at);
    Scenario { api, seed, with_events, pods, claims, steps }
}

fn when(rng: &mut Rng) -> Duration {
    // Many steps get the same few times, so that they race.
    match rng.below(3) {
        0 => Duration::from_secs(rng.next() % FIRST.as_secs()),
        1 => Duration::from_secs(5 * (1 + rng.next() % 8)),
        _ => rng.millis(0, 299_999),
    }
}

/// Draws the steps of one pod.
fn life(rng: &mut Rng, which: PodIndex, pod: &PodPlan, steps: &mut Vec<Step>) {
    let born = if rng.percent(60) { Duration::from_secs(rng.next() % 5) } else { when(rng) / 2 };
    steps.push(Step { at: born, what: StepAction::Add(which) });
    for _ in 0..rng.pick(&[0, 0, 1, 1, 2, 3, 4]) {
        let what = change(rng, which, pod);
        let soon = rng.percent(50);
        let at = if soon { born + rng.millis(0, 20_000) } else { born + when(rng) };
        if let StepAction::Delete(..) = what
            && rng.percent(40)
        {
            let later = at + rng.millis(100, 8_000);
            steps.push(Step { at: later, what: StepAction::Delete(which, rng.pick(&[0, 1, 2, 5])) });
            if rng.percent(30) {
                steps.push(Step { at: later + rng.millis(0, 4_000), what: StepAction::Remove(which) });
            }
        }
        if let StepAction::Kill { .. } = what
            && rng.percent(50)
        {
            let grace = rng.pick(&[None, Some(1), Some(4), Some(60)]);
            steps.push(Step {
                at: at + rng.millis(0, 4_000),
                what: StepAction::Kill { pod: which, evict: false, grace },
            });
        }
        steps.push(Step { at, what });
    }
    steps.retain(|step| step.at < FIRST);
}

/// Draws one change of a pod.
fn change(rng: &mut Rng, which: PodIndex, pod: &PodPlan) -> StepAction {
    let from_api = pod.source == Source::Api;
    match rng.below(14) {
        0 | 1 => StepAction::Label(which),
        2 | 3 => StepAction::Image(which),
        4 | 5 => StepAction::SandboxEnds(which),
        6 | 7 if from_api => {
            let grace = rng.pick(&[None, Some(0), Some(1), Some(5), Some(60)]);
            StepAction::Kill { pod: which, evict: rng.percent(60), grace }
        }
        6..=9 if !from_api => StepAction::Replace(which),
        8 => StepAction::Return(which, rng.pick(&[Duration::ZERO, Duration::from_secs(1), Duration::from_secs(12)])),
        9 | 10 if from_api => StepAction::Delete(which, rng.pick(&[0, 1, 5, 20, 40])),
        11 => StepAction::Remove(which),
        _ => StepAction::Label(which),
    }
}

fn window(rng: &mut Rng, pods: usize) -> Window {
    use Op::*;
    let op = rng.pick(&[
        List,
        Status,
        Status,
        RunSandbox,
        StopSandbox,
        RemoveSandbox,
        Pull,
        Create,
        Start,
        Start,
        Stop,
        Stop,
        Remove,
        Exec,
        Event,
        Event,
        Network,
        SetUp,
        TearDown,
        RemoveDirectory,
        ListDirectories,
    ]);
    let op = (!rng.percent(15)).then_some(op);
    let long = rng.pick(&[100, 900, 3_000, 15_000, 60_000]);
    let time = rng.millis(1, long);
    let fault = match (op, rng.below(8)) {
        (Some(Event), 0..=2) => Fault::Lost,
        (Some(Event), 3 | 4) => Fault::Twice,
        (Some(Event), _) => Fault::Slow(time),
        (_, 0 | 1) => Fault::Error,
        (_, 2) => Fault::ErrorAfter,
        (_, 3 | 4) => Fault::Slow(time),
        (_, 5) => Fault::Late(time),
        (_, 6) => Fault::Panic,
        _ => Fault::PanicAfter,
    };
    Window {
        lasts: rng.millis(500, 90_000),
        op,
        pod: rng.percent(40).then(|| rng.below(pods)),
        fault,
        percent: rng.pick(&[5, 20, 50, 100]),
    }
}

fn pod(rng: &mut Rng, which: PodIndex) -> PodPlan {
    let source = rng.pick(&[Source::File, Source::Api, Source::Api]);
    let policy = rng.pick(&[None, Some("Always"), Some("Always"), Some("OnFailure"), Some("Never")]);
    let mut containers = Vec::new();
    if rng.percent(35) {
        for n in 0..=rng.below(3) {
            let kind = rng.pick(&[Kind::Init, Kind::Sidecar]);
            containers.push(container(rng, kind, format!("i{n}")));
        }
    }
    for n in 0..=rng.pick(&[0, 0, 0, 1, 2]) {
        containers.push(container(rng, Kind::Regular, format!("c{n}")));
    }
    let mut settings = Vec::new();
    if rng.percent(30) {
        settings.push(("sandbox-latency", rng.pick(&["10ms", "1s", "0s..20s"]).to_owned()));
    }
    if rng.percent(10) {
        settings.push(("sandbox-failures", rng.pick(&["1", "0.5", "3"]).to_owned()));
    }
    if rng.percent(15) {
        settings.push(("network-failures", rng.pick(&["3", "0.3", "always"]).to_owned()));
    }
    if rng.percent(3) {
        settings.push(("run-fro", "5s".to_owned()));
    }
    PodPlan {
        name: format!("p{which}"),
        source,
        policy,
        grace: rng.pick(&[None, Some(0), Some(2), Some(5), Some(30), Some(30), Some(60)]),
        deadline: rng.percent(8).then(|| rng.pick(&[5, 20, 60])),
        priority: rng.percent(15).then_some(2_000_000_000),
        host_network: rng.percent(10),
        cpu: rng.pick(&[None, None, None, None, Some("1"), Some("3")]),
        resize: None,
        claims: Vec::new(),
        settings,
        containers,
    }
}

fn container(rng: &mut Rng, kind: Kind, name: String) -> ContainerPlan {
    let mut settings: Vec<(&'static str, String)> = Vec::new();
    let mut set = |key: &'static str, value: &str| settings.push((key, value.to_owned()));
    if rng.percent(25) {
        set("pull-latency", rng.pick(&["5ms", "500ms", "0s..10s", "40s"]));
    }
    if rng.percent(8) {
        set("pull-failures", rng.pick(&["1", "3", "0.5"]));
    }
    if rng.percent(25) {
        set("start-latency", rng.pick(&["1ms", "300ms", "0s..5s"]));
    }
    if rng.percent(8) {
        set("start-failures", rng.pick(&["1", "3", "0.5"]));
    }
    let ends = match kind {
        Kind::Init => true,
        Kind::Sidecar => rng.percent(20),
        Kind::Regular => rng.percent(45),
    };
    if ends {
        set("run-for", rng.pick(&["0s", "1ms", "1s", "3s", "0s..15s", "30s"]));
        match kind {
            Kind::Init => {
                if rng.percent(25) {
                    set("exit-code", rng.pick(&["1", "3"]));
                    set("exits", rng.pick(&["1", "2", "always"]));
                }
            }
            Kind::Sidecar | Kind::Regular => {
                set("exit-code", rng.pick(&["0", "0", "1", "3"]));
                if rng.percent(30) {
                    set("exits", rng.pick(&["1", "2", "0.5"]));
                }
            }
        }
    }
    if rng.percent(50) {
        set("stop-latency", rng.pick(&["10ms", "1s", "0s..8s", "never"]));
    }
    let mut probes = Vec::new();
    if kind != Kind::Init {
        for field in ["startupProbe", "livenessProbe", "readinessProbe"] {
            if rng.percent(14) {
                probes.push(ProbePlan {
                    field,
                    exec: rng.percent(60),
                    period: rng.pick(&[1, 2, 10]),
                    failures: rng.pick(&[1, 3]),
                    grace: (field != "readinessProbe" && rng.percent(30)).then(|| rng.pick(&[1, 5, 20])),
                });
            }
        }
        if probes.iter().any(|probe| probe.exec) && rng.percent(15) {
            settings.push(("exec-exit-code", "1".to_owned()));
        }
    }
    let hook = |rng: &mut Rng| rng.pick(&[HookPlan::Exec, HookPlan::Http, HookPlan::Sleep(1), HookPlan::Sleep(6)]);
    let own = kind == Kind::Regular && rng.percent(8);
    ContainerPlan {
        name,
        kind,
        policy: own.then(|| rng.pick(&["Always", "OnFailure", "Never"])),
        rule: (own && rng.percent(60)).then(|| (rng.pick(&[0, 1, 3]), rng.pick(&["Restart", "RestartAllContainers"]))),
        probes,
        post_start: (kind != Kind::Init && rng.percent(8)).then(|| hook(rng)),
        pre_stop: (kind != Kind::Init && rng.percent(12)).then(|| hook(rng)),
        settings,
    }
}
