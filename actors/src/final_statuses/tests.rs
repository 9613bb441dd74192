use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep};

use super::*;
use crate::journal::OUTDATED_LINES;
use crate::ports::CheckpointWriter;
use crate::testing::pod;

/// A store whose writes take a second each, or fail, or hang.
#[derive(Default)]
struct Slow {
    kept: Mutex<Vec<String>>,
    /// For each write: whether it saved all records, and the number of records.
    writes: Mutex<Vec<(bool, usize)>>,
    broken: AtomicBool,
    cannot_append: AtomicBool,
    stuck: AtomicBool,
    openings: AtomicU64,
    /// The number of writes that began.
    begun: AtomicU64,
}

impl Slow {
    async fn write(&self, opening: u64, all: bool, records: Vec<Arc<str>>) -> Result<(), CheckpointError> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_secs(1)).await;
        if self.stuck.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        assert!(records.iter().all(|record| !record.contains('\n')));
        if self.openings.load(Ordering::Relaxed) != opening {
            return Err(CheckpointError::Superseded { path: "/journal".into() });
        }
        let mut kept = self.kept.lock();
        if all {
            kept.clear();
        } else if self.cannot_append.load(Ordering::Relaxed) {
            kept.extend(records.first().map(|record| record.to_string()));
        }
        if self.broken.load(Ordering::Relaxed) || !all && self.cannot_append.load(Ordering::Relaxed) {
            return Err(CheckpointError::new("/journal", "no space is left"));
        }
        self.writes.lock().push((all, records.len()));
        kept.extend(records.iter().map(|record| record.to_string()));
        Ok(())
    }
}

/// A writer of the store, with the number of its opening.
struct SlowWriter(Arc<Slow>, u64);

/// Where the node opens the store.
struct SlowStore(Arc<Slow>);

impl Checkpoint for SlowStore {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        let SlowStore(store) = self;
        let opening = store.openings.fetch_add(1, Ordering::Relaxed) + 1;
        let writer = Box::new(SlowWriter(store.clone(), opening));
        Ok(OpenCheckpoint { records: store.kept.lock().clone(), writer })
    }
}

impl CheckpointWriter for SlowWriter {
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.0.write(self.1, true, records).boxed()
    }

    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.0.write(self.1, false, records).boxed()
    }
}

fn open(store: &Arc<Slow>) -> (Arc<FinalStatusStore>, Vec<(PodUid, PodStatus)>) {
    let (final_statuses, statuses) = FinalStatusStore::open(&SlowStore(store.clone())).unwrap();
    let final_statuses = Arc::new(final_statuses);
    let writer = final_statuses.clone();
    tokio::spawn(async move { writer.run(&CancellationToken::new()).await });
    (final_statuses, statuses)
}

/// What the next agent would restore. Does not open the store, which would supersede its writer.
fn restored(store: &Slow) -> Vec<(PodUid, PodStatus)> {
    let copy = Arc::new(Slow::default());
    *copy.kept.lock() = store.kept.lock().clone();
    FinalStatusStore::open(&SlowStore(copy)).unwrap().1
}

fn failed(reason: &str) -> PodStatus {
    let (reason, message) = (Some(reason.into()), Some("line\nbreak".into()));
    PodStatus { phase: Some("Failed".into()), reason, message, ..PodStatus::default() }
}

// KF19
#[tokio::test(start_paused = true)]
async fn the_next_agent_restores_final_statuses_until_they_are_dropped() {
    let store = Arc::new(Slow::default());
    let (final_statuses, statuses) = open(&store);
    assert!(statuses.is_empty());
    assert!(final_statuses.note(&pod("a").build(), Ending::Rejected, &failed("OutOfcpu")));
    assert!(final_statuses.note(&pod("b").build(), Ending::Ended, &failed("Evicted")));
    assert_eq!(final_statuses.ending(&"a".into()), Some(Ending::Rejected), "the ending is known before it is on disk");
    final_statuses.written().await.unwrap();
    assert!(!final_statuses.note(&pod("b").build(), Ending::Ended, &failed("Evicted")), "the status is unchanged");

    let (final_statuses, statuses) = open(&store);
    assert_eq!(statuses, [("a".into(), failed("OutOfcpu")), ("b".into(), failed("Evicted"))]);
    assert!(final_statuses.is_stored(&"a".into()), "an earlier agent has stored it");
    assert_eq!(
        ["a", "b", "c"].map(|uid| final_statuses.ending(&uid.into())),
        [Some(Ending::Rejected), Some(Ending::Ended), None]
    );
    final_statuses.retain(|uid| uid.to_string() == "b");
    final_statuses.written().await.unwrap();
    assert_eq!(open(&store).1.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn final_statuses_that_arrive_during_a_write_are_written_together() {
    let store = Arc::new(Slow::default());
    let (final_statuses, _) = open(&store);
    let begin = Instant::now();
    let ends = (0..1000).map(|n| {
        let final_statuses = final_statuses.clone();
        async move {
            if n > 0 {
                sleep(Duration::from_millis(500)).await;
            }
            final_statuses.note(&pod(&format!("p{n}")).build(), Ending::Ended, &failed("x"));
            final_statuses.written().await.unwrap();
        }
    });
    futures_util::future::join_all(ends).await;
    assert_eq!(*store.writes.lock(), [(true, 1), (false, 999)]);
    assert_eq!(begin.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_cost_of_a_change_does_not_grow_with_the_number_of_final_statuses() {
    let store = Arc::new(Slow::default());
    let (final_statuses, _) = open(&store);
    let note = async |n: u32| {
        final_statuses.note(&pod(&format!("p{n}")).build(), Ending::Ended, &failed("x"));
        final_statuses.written().await.unwrap();
    };
    for n in 0..500 {
        note(n).await;
    }
    // Each final status is added and dropped again at once.
    for n in 500..1500 {
        note(n).await;
        final_statuses.retain(|uid| uid.to_string() != format!("p{n}"));
        final_statuses.written().await.unwrap();
    }
    assert_eq!(restored(&store).len(), 500);
    let writes = store.writes.lock().clone();
    let written: usize = writes.iter().map(|(_, records)| records).sum();
    assert!(written < 3 * 2500, "{written} lines for 2,500 changes");
    let largest = writes.iter().filter(|(all, _)| !all).map(|(_, records)| *records).max();
    assert_eq!(largest, Some(1));
    assert!(store.kept.lock().len() <= 2 * 500 + OUTDATED_LINES, "the file does not grow with time");

    final_statuses.retain(|_| false);
    final_statuses.written().await.unwrap();
    assert_eq!(store.kept.lock().len(), 0, "one save replaces the lines of dropped entries");
}

#[tokio::test(start_paused = true)]
async fn lines_that_cannot_be_appended_are_saved_with_all_others() {
    let store = Arc::new(Slow::default());
    let (final_statuses, _) = open(&store);
    for (name, cannot) in [("a", false), ("b", false), ("c", true), ("d", false)] {
        store.cannot_append.store(cannot, Ordering::Relaxed);
        final_statuses.note(&pod(name).build(), Ending::Ended, &failed("x"));
        final_statuses.written().await.unwrap();
        assert!(
            restored(&store).iter().any(|(uid, _)| *uid == name.into()),
            "{name} is on disk once `written` returns"
        );
    }
    assert_eq!(*store.writes.lock(), [(true, 1), (false, 1), (true, 3), (false, 1)]);
}

// KF19
#[tokio::test(start_paused = true)]
async fn the_first_write_of_an_agent_saves_all_final_statuses() {
    let store = Arc::new(Slow::default());
    let (final_statuses, _) = open(&store);
    for name in ["a", "b"] {
        final_statuses.note(&pod(name).build(), Ending::Ended, &failed("x"));
        final_statuses.written().await.unwrap();
    }
    let (final_statuses, _) = open(&store);
    final_statuses.retain(|uid| *uid == "a".into());
    final_statuses.written().await.unwrap();
    assert_eq!(*store.writes.lock(), [(true, 1), (false, 1), (true, 1)]);
    assert_eq!(open(&store).1, [("a".into(), failed("x"))]);
}

#[tokio::test(start_paused = true)]
async fn a_failing_disk_delays_no_pod_and_is_written_later() {
    let store = Arc::new(Slow::default());
    store.broken.store(true, Ordering::Relaxed);
    let (final_statuses, _) = open(&store);
    let begin = Instant::now();
    for name in ["a", "b"] {
        final_statuses.note(&pod(name).build(), Ending::Ended, &failed("x"));
        final_statuses.written().await.unwrap();
        assert!(!final_statuses.is_stored(&name.into()), "{name} is not on disk, although nobody waits for it");
    }
    assert!(begin.elapsed() < Duration::from_secs(2));
    store.broken.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(store.kept.lock().len(), 2);
    assert!(final_statuses.is_stored(&"a".into()) && final_statuses.is_stored(&"b".into()));

    store.stuck.store(true, Ordering::Relaxed);
    final_statuses.note(&pod("c").build(), Ending::Ended, &failed("x"));
    let begin = Instant::now();
    final_statuses.written().await.unwrap();
    assert_eq!(begin.elapsed(), WRITE_TIMEOUT);
    assert!(!final_statuses.is_stored(&"c".into()));
    // However long the disk hangs, the queue stays bounded.
    for n in 0..2000 {
        final_statuses.note(&pod("c").build(), Ending::Ended, &failed(&n.to_string()));
        assert!(final_statuses.state.lock().lines.queued() <= 2 * 3 + OUTDATED_LINES);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_file_is_opened_again_writes_nothing_more_and_says_so() {
    let store = Arc::new(Slow::default());
    let (old, _) = open(&store);
    let note = |to: &FinalStatusStore, name: &str| to.note(&pod(name).build(), Ending::Ended, &failed("x"));
    note(&old, "a");
    old.written().await.unwrap();
    note(&old, "b");
    sleep(Duration::from_millis(500)).await;
    note(&old, "c");
    // The append of `b` is pending, and `c` is queued.
    let begin = Instant::now();
    let waits = tokio::spawn({
        let old = old.clone();
        async move { old.written().await }
    });
    let (new, restored_by_new) = open(&store);
    assert_eq!(restored_by_new, [("a".into(), failed("x"))]);
    note(&new, "d");
    new.written().await.unwrap();
    assert_eq!(waits.await.unwrap(), Err(Superseded));
    assert!(note(&old, "e"));
    assert!(note(&old, "e"), "the status is not on disk, although it was added before");
    assert_eq!(old.written().await, Err(Superseded));
    assert!(begin.elapsed() < WRITE_TIMEOUT, "nobody waits for the disk");
    assert_eq!(old.ending(&"e".into()), Some(Ending::Ended), "the decision remains in force");

    let begun = store.begun.load(Ordering::Relaxed);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(store.begun.load(Ordering::Relaxed), begun);
    assert_eq!(restored(&store), ["a", "d"].map(|name| (name.into(), failed("x"))));
    note(&new, "f");
    new.written().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_write_begins_after_the_node_has_stopped() {
    let store = Arc::new(Slow::default());
    let (final_statuses, _) = FinalStatusStore::open(&SlowStore(store.clone())).unwrap();
    let stop = CancellationToken::new();
    let mut run = std::pin::pin!(final_statuses.run(&stop));
    assert!(run.as_mut().now_or_never().is_none(), "there is nothing to write yet");
    final_statuses.note(&pod("a").build(), Ending::Ended, &failed("x"));
    stop.cancel();
    run.await;
    assert_eq!(store.begun.load(Ordering::Relaxed), 0);
}

#[test]
fn the_last_line_of_a_pod_gives_its_final_status() {
    let ended = |uid: &str, reason: &str| {
        format!(r#"{{"ending":"Ended","uid":"{uid}","pod":"n/p","status":{{"phase":"Failed","reason":"{reason}"}}}}"#)
    };
    let forgotten = |uid: &str| format!(r#"{{"ending":"Forgotten","uid":"{uid}"}}"#);
    let store = Slow::default();
    *store.kept.lock() = vec![
        ended("a", "1"),
        ended("b", "1"),
        ended("c", "1"),
        ended("a", "2"),
        forgotten("b"),
        forgotten("c"),
        ended("c", "2"),
        forgotten("d"),
    ];
    let (_, statuses) = FinalStatusStore::open(&SlowStore(Arc::new(store))).unwrap();
    let reasons: Vec<_> =
        statuses.iter().map(|(uid, status)| (uid.to_string(), status.reason.clone().unwrap())).collect();
    assert_eq!(reasons, [("a", "2"), ("c", "2")].map(|(uid, reason)| (uid.to_owned(), reason.to_owned())));
}

#[test]
fn an_unreadable_line_does_not_lose_other_final_statuses() {
    let good = |uid: &str| format!(r#"{{"uid":"{uid}","pod":"n/p","ending":"Ended","status":{{"phase":"Failed"}}}}"#);
    let store = Slow::default();
    *store.kept.lock() = vec![good("a"), r#"{"uid":"b","ending":"Vanished"}"#.into(), "x".into(), good("c")];
    let (final_statuses, statuses) = FinalStatusStore::open(&SlowStore(Arc::new(store))).unwrap();
    assert_eq!(statuses.len(), 2);
    assert_eq!(final_statuses.ending(&"b".into()), None);
}

#[test]
fn a_status_is_final_unless_a_static_pod_failed_by_a_node_shutdown_or_for_want_of_something() {
    let end = |phase: &str, reason: &str| {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        PodStatus { phase: Some(phase.into()), reason, ..PodStatus::default() }
    };
    for (is_static, policy, phase, reason, expected) in [
        (false, "Always", "Running", "", false),
        (false, "Always", "Failed", TERMINATED, true),
        (false, "Always", "Failed", NODE_SHUTDOWN, true),
        (true, "Never", "Succeeded", "", true),
        (true, "Always", "Failed", "Evicted", true),
        (true, "Always", "Failed", "NodeAffinity", true),
        (true, "Always", "Failed", "OutOfcpu", false),
        (true, "Never", "Failed", "NodePorts", false),
        (true, "Always", "Failed", "UnexpectedAdmissionError", false),
        (false, "Always", "Failed", "OutOfcpu", true),
        (true, "Always", "Failed", TERMINATED, false),
        (true, "OnFailure", "Failed", TERMINATED, false),
        (true, "OnFailure", "Succeeded", TERMINATED, true),
        (true, "Never", "Failed", TERMINATED, true),
        (true, "Never", "Failed", NODE_SHUTDOWN, false),
    ] {
        let pod = pod("p").spec(|spec| spec.restart_policy = Some(policy.into()));
        let pod = if is_static { pod.static_pod() } else { pod };
        assert_eq!(is_final(&pod.build(), &end(phase, reason)), expected, "{is_static} {policy} {phase} {reason}");
    }
}
