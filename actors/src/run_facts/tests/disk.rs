//! The file: what it has, a disk that fails, and a disk that hangs.

use tokio::time::Instant;

use super::*;

#[test]
fn lines_that_cannot_be_parsed_are_left_out_and_counted() {
    let lines = ["{\"run\":\"a\",\"pod\":\"u\",\"ready\":true}", "half a li", "{\"run\":\"b\"}"];
    let (facts, errors) = file::parse(&lines.map(str::to_owned));
    assert_eq!((facts.len(), errors.len()), (1, 2));
    assert_eq!(facts.fact(&uid(), &"a".into()).and_then(|fact| fact.ready), Some(true));
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
