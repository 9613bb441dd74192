//! Runs that are stopped for a resize.

use super::*;

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

// The sync is cancelled, so the run is not stopped, and may complete its work by itself.
#[tokio::test(start_paused = true)]
async fn stop_for_a_resize_whose_caller_waits_no_longer_is_undone() {
    let (running, ended) = ([run("a", Is::Running)], [run("a", Is::Exited(0))]);
    let disk = Disk::default();
    let facts = disk.agent();
    assert_eq!(stops_for_resize(&facts, 10).now_or_never(), None);
    assert_eq!(reasons(&facts, &ended, 20), [""]);
    facts.written().await;
    assert_eq!(reasons(&disk.agent(), &ended, 20), [""], "the next agent");

    // The earlier stop is over at 40 s, and the later one would be at 45 s.
    for (seconds, expected) in [(39, STOPPED_FOR_RESIZE), (40, "")] {
        let facts = Disk::default().agent();
        assert!(stops_for_resize(&facts, 10).await);
        assert_eq!(stops_for_resize(&facts, 15).now_or_never(), None);
        assert_eq!(reasons(&facts, &running, seconds), [""]);
        assert_eq!(reasons(&facts, &ended, seconds), [expected], "it ran at {seconds} s");
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
