use k8s_openapi::api::core::v1::Container;

use super::*;
use crate::testing::created;

const BORN: Time = Time::from_secs(1_000_000);

fn at(seconds: u64) -> Time {
    BORN + Duration::from_secs(seconds)
}

/// `seconds` before the table was made.
fn before(seconds: u64) -> Time {
    Time::from_secs(1_000_000 - seconds)
}

fn container(image: &str) -> Container {
    Container { name: "a".into(), image: Some(image.into()), ..Container::default() }
}

fn run(count: u32, image: &str, started: Time, finished: Time) -> ContainerStatus {
    let container = container(image);
    ContainerStatus {
        id: format!("a{count}").into(),
        restart_count: count,
        state: ContainerState::Exited,
        created_at: started,
        started_at: Some(started),
        finished_at: Some(finished),
        exit_code: 1,
        reason: "Error".into(),
        spec_hash: Definition::Regular(&container).spec_hash(),
        image: image.into(),
        ..created("a")
    }
}

fn check(table: &mut CrashBackoff, image: &str, runs: Vec<ContainerStatus>, now: Time) -> BackoffDecision {
    let container = container(image);
    let status = PodRuntimeStatus { sandboxes: Vec::new(), containers: runs };
    table.check(&"u".into(), &Definition::Regular(&container), &status, now)
}

fn new(max: u64) -> CrashBackoff {
    CrashBackoff::new(Duration::from_secs(max), BORN, Time::ZERO)
}

/// The delays of a container that exits right after each start and restarts as early as it may.
fn waits(table: &mut CrashBackoff, restarts: u32) -> Vec<u64> {
    let mut now = at(1);
    let mut waits = Vec::new();
    for count in 0..restarts {
        let runs = vec![run(count, "i", now, now)];
        let ended = now;
        if let BackoffDecision::Wait { until, .. } = check(table, "i", runs.clone(), now) {
            let early = Time::from_nanos(until.as_nanos() - 1);
            assert!(matches!(check(table, "i", runs.clone(), early), BackoffDecision::Wait { .. }));
            now = until;
            assert_eq!(check(table, "i", runs, now), BackoffDecision::Start);
        }
        waits.push(now.since(ended).as_secs());
    }
    waits
}

// POD-S67
#[test]
fn crash_backoff_doubles_up_to_its_limit() {
    assert_eq!(waits(&mut new(300), 9), [0, 10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(waits(&mut new(25), 5), [0, 10, 20, 25, 25]);
    assert_eq!(waits(&mut new(1), 4), [0, 1, 1, 1]);
    assert_eq!(waits(&mut new(0), 3), [0, 1, 1]);
    assert_eq!(waits(&mut new(9_999), 8), [0, 10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn a_container_without_exits_starts_and_has_no_backoff() {
    let mut table = new(300);
    assert_eq!(check(&mut table, "i", Vec::new(), at(0)), BackoffDecision::Start);
    assert!(table.loops.is_empty());
}

// POD-S67
#[test]
fn another_image_resets_the_crash_backoff() {
    let mut table = new(300);
    assert_eq!(check(&mut table, "i", vec![run(0, "i", at(0), at(1))], at(1)), BackoffDecision::Start);
    let second = vec![run(1, "i", at(1), at(2))];
    let wait = BackoffDecision::Wait { until: at(12), delay: Duration::from_secs(10) };
    assert_eq!(check(&mut table, "i", second.clone(), at(3)), wait);
    assert_eq!(check(&mut table, "j", second, at(3)), BackoffDecision::Start);
}

// POD-S67
#[test]
fn a_run_of_eleven_minutes_resets_the_crash_backoff() {
    let mut table = new(300);
    assert_eq!(waits(&mut table, 4), [0, 10, 20, 40]);
    let started = at(100);
    let runs = vec![run(4, "i", started, started + Duration::from_secs(660))];
    assert_eq!(check(&mut table, "i", runs, at(761)), BackoffDecision::Start);
    let next = vec![run(5, "i", at(761), at(762))];
    assert_eq!(
        check(&mut table, "i", next, at(762)),
        BackoffDecision::Wait { until: at(772), delay: Duration::from_secs(10) }
    );
}

#[test]
fn a_run_just_short_of_recovery_waits_the_whole_backoff() {
    let mut table = new(300);
    assert_eq!(waits(&mut table, 8), [0, 10, 20, 40, 80, 160, 300, 300]);
    let started = at(911);
    let runs = vec![run(8, "i", started, started + Duration::from_secs(599))];
    let until = started + Duration::from_secs(899);
    for seconds in [599, 700, 898] {
        let verdict = check(&mut table, "i", runs.clone(), started + Duration::from_secs(seconds));
        assert_eq!(verdict, BackoffDecision::Wait { until, delay: Duration::from_secs(300) });
    }
    assert_eq!(check(&mut table, "i", runs, until), BackoffDecision::Start);
}

#[test]
fn a_skewed_runtime_clock_does_not_change_the_backoff() {
    // The clock was set back by an hour after the first run.
    let mut table = new(300);
    assert_eq!(check(&mut table, "i", vec![run(0, "i", at(1), at(2))], at(2)), BackoffDecision::Start);
    let behind = vec![run(1, "i", before(3598), before(3597))];
    let wait = BackoffDecision::Wait { until: at(12), delay: Duration::from_secs(10) };
    assert_eq!(check(&mut table, "i", behind.clone(), at(3)), wait);
    assert_eq!(check(&mut table, "i", behind, at(12)), BackoffDecision::Start);

    // The runtime's clock is ahead by a jump that our clock does not follow, long after the table was made.
    let mut table = new(300);
    assert_eq!(check(&mut table, "i", vec![run(0, "i", at(1000), at(1001))], at(1001)), BackoffDecision::Start);
    let ahead = vec![run(1, "i", at(1002), at(1004))];
    let wait = BackoffDecision::Wait { until: at(1014), delay: Duration::from_secs(10) };
    assert_eq!(check(&mut table, "i", ahead, at(1003)), wait);

    // These runs ended before the agent started, by a clock that was an hour ahead.
    let mut table = new(300);
    let ahead = vec![run(1, "i", at(3600), at(3601))];
    assert_eq!(check(&mut table, "i", ahead, at(5)), BackoffDecision::Start);
}

#[test]
fn expired_backoffs_are_removed() {
    let mut table = new(300);
    waits(&mut table, 2);
    assert_eq!(table.loops.len(), 1);
    table.sweep(at(640));
    assert!(table.loops.is_empty());
    waits(&mut table, 2);
    table.retain(|uid| *uid != "u".into());
    assert!(table.loops.is_empty());
}

// POD-W34
#[test]
fn after_an_agent_restart_the_crash_backoff_continues() {
    // (the runs before the restart, newest first, as count, started, finished seconds before it) -> delay
    type Runs = Vec<(u32, u64, u64)>;
    let table: [(Runs, u64); 8] = [
        (vec![(0, 20, 10)], 0),
        (vec![(1, 20, 10)], 10),
        (vec![(4, 20, 10)], 80),
        (vec![(50, 20, 10)], 300),
        // The pause of 45 s implies a delay of 40 s before this run.
        (vec![(50, 20, 10), (49, 66, 65)], 80),
        // No pause: the run before was the first one.
        (vec![(50, 20, 10), (49, 21, 20)], 10),
        // The run before had recovered.
        (vec![(50, 20, 10), (49, 2_000, 30)], 10),
        // This run had recovered.
        (vec![(50, 900, 10)], 0),
    ];
    for (runs, expected) in table {
        let runs: Vec<_> =
            runs.into_iter().map(|(count, start, end)| run(count, "i", before(start), before(end))).collect();
        let exit = before(10);
        let got = match check(&mut new(300), "i", runs.clone(), exit) {
            BackoffDecision::Start => 0,
            BackoffDecision::Wait { delay, .. } => delay.as_secs(),
        };
        assert_eq!(got, expected, "{runs:?}");
    }
}

#[test]
fn backoff_ignores_runs_of_another_image_or_of_this_process() {
    let mut table = new(300);
    assert_eq!(check(&mut table, "j", vec![run(7, "i", before(20), before(10))], before(10)), BackoffDecision::Start);
    // A container that was killed and replaced without an exit was never counted.
    assert_eq!(check(&mut new(300), "i", vec![run(7, "i", at(1), at(2))], at(2)), BackoffDecision::Start);
}

#[test]
fn the_exit_of_a_removed_run_delays_the_next_start() {
    let mut table = new(300);
    let container = container("i");
    let definition = Definition::Regular(&container);
    let uid = PodUid::from("u");
    let exit = |table: &mut CrashBackoff, now: Time| {
        let status = PodRuntimeStatus { sandboxes: Vec::new(), containers: vec![run(0, "i", now, now)] };
        table.keep_exit(&uid, &definition, &status, now);
        check(table, "i", Vec::new(), now)
    };
    assert_eq!(exit(&mut table, at(1)), BackoffDecision::Start);
    assert_eq!(exit(&mut table, at(2)), BackoffDecision::Wait { until: at(12), delay: Duration::from_secs(10) });
    assert_eq!(check(&mut table, "i", Vec::new(), at(12)), BackoffDecision::Start);
    assert_eq!(exit(&mut table, at(13)), BackoffDecision::Wait { until: at(33), delay: Duration::from_secs(20) });
    assert_eq!(check(&mut table, "i", Vec::new(), at(33)), BackoffDecision::Start);
    // By the runtime's clock the run ended in the future.
    let status = PodRuntimeStatus { sandboxes: Vec::new(), containers: vec![run(0, "i", at(33), at(3600))] };
    table.keep_exit(&uid, &definition, &status, at(34));
    let wait = BackoffDecision::Wait { until: at(74), delay: Duration::from_secs(40) };
    assert_eq!(check(&mut table, "i", Vec::new(), at(34)), wait);
}

#[test]
fn a_container_that_a_reboot_ended_starts_at_once() {
    let runs = vec![run(5, "i", before(200), before(20))];
    let mut table = CrashBackoff::new(Duration::from_secs(300), BORN, before(201));
    assert!(matches!(check(&mut table, "i", runs.clone(), at(1)), BackoffDecision::Wait { .. }), "it crashed");
    let mut table = CrashBackoff::new(Duration::from_secs(300), BORN, before(199));
    assert_eq!(check(&mut table, "i", runs, at(1)), BackoffDecision::Start);
    // The following exits count as usual.
    let next = vec![run(6, "i", at(1), at(2))];
    assert_eq!(
        check(&mut table, "i", next, at(2)),
        BackoffDecision::Wait { until: at(12), delay: Duration::from_secs(10) }
    );
}
