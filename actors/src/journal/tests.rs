use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::*;

/// How the disk answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Full,
    /// An append writes its first record and fails, and a save succeeds.
    TornAppend,
    Hangs,
    Panics,
    Superseded,
}

/// A disk whose writes take a second.
#[derive(Clone)]
struct Disk(Arc<DiskState>);

struct DiskState {
    answer: Mutex<Answer>,
    begun: AtomicUsize,
    file: Mutex<Vec<String>>,
    /// For each successful write: whether it was a save, and the number of its records.
    writes: Mutex<Vec<(bool, usize)>>,
}

impl Disk {
    fn new(answer: Answer) -> Self {
        Disk(Arc::new(DiskState {
            answer: Mutex::new(answer),
            begun: AtomicUsize::new(0),
            file: Mutex::default(),
            writes: Mutex::default(),
        }))
    }

    fn set(&self, answer: Answer) {
        *self.0.answer.lock() = answer;
    }

    fn answer(&self) -> Answer {
        *self.0.answer.lock()
    }

    fn begun(&self) -> usize {
        self.0.begun.load(Ordering::Relaxed)
    }

    fn writes(&self) -> Vec<(bool, usize)> {
        self.0.writes.lock().clone()
    }

    async fn write(&self, all: bool, records: Vec<Arc<str>>) -> Result<(), CheckpointError> {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        sleep(secs(1)).await;
        while self.answer() == Answer::Hangs {
            sleep(secs(1)).await;
        }
        let full = || Err(CheckpointError::new("/file", "no space is left"));
        match self.answer() {
            Answer::Done | Answer::Hangs => {}
            Answer::TornAppend if all => {}
            Answer::TornAppend => {
                self.0.file.lock().extend(records.first().map(|record| record.to_string()));
                return full();
            }
            Answer::Full => return full(),
            Answer::Panics => panic!("the disk panics"),
            Answer::Superseded => return Err(CheckpointError::Superseded { path: "/file".into() }),
        }
        let mut file = self.0.file.lock();
        if all {
            file.clear();
        }
        file.extend(records.iter().map(|record| record.to_string()));
        self.0.writes.lock().push((all, records.len()));
        Ok(())
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

/// A store of numbers by name.
struct Numbers {
    state: Mutex<(BTreeMap<&'static str, u32>, Lines)>,
    journal: Journal,
    /// The last version that the journal has reported as stored.
    known: Mutex<u64>,
    log: Mutex<Vec<String>>,
}

impl Numbers {
    fn new(disk: &Disk, patience: Patience) -> Arc<Self> {
        let journal = Journal::new(Box::new(disk.clone()), patience);
        Arc::new(Numbers { state: Mutex::default(), journal, known: Mutex::default(), log: Mutex::default() })
    }

    /// A store whose journal runs.
    fn running(disk: &Disk, patience: Patience) -> Arc<Self> {
        let store = Numbers::new(disk, patience);
        let running = store.clone();
        tokio::spawn(async move { running.journal.run(&*running, &CancellationToken::new()).await });
        store
    }

    fn put(&self, name: &'static str, number: u32) -> u64 {
        let mut state = self.state.lock();
        let (numbers, lines) = &mut *state;
        let version = lines.push(Some(format!("{name}={number}").into()), numbers.len());
        numbers.insert(name, number);
        drop(state);
        self.journal.wake();
        version
    }

    async fn put_and_wait(&self, name: &'static str, number: u32) -> Result<(), NotStored> {
        let version = self.put(name, number);
        self.journal.written(version).await
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }
}

impl Journaled for Numbers {
    const RECORDS: &'static str = "the numbers";
    const STORE: &'static str = "the store of numbers";

    fn next_write(&self, stored: u64) -> Option<(u64, Write)> {
        let mut state = self.state.lock();
        let (numbers, lines) = &mut *state;
        let line = |(name, number): (&&'static str, &u32)| Arc::from(format!("{name}={number}"));
        let all = || numbers.iter().map(line).collect::<Vec<Arc<str>>>();
        (lines.version() > stored).then(|| (lines.version(), lines.take(numbers.len(), all)))
    }

    fn forget_file(&self) {
        self.state.lock().1.forget_file();
    }

    fn on_stored(&self, version: u64) {
        *self.known.lock() = version;
    }

    fn log_failure(&self, error: &CheckpointError) {
        self.log.lock().push(error_chain(error).to_string());
    }

    fn log_superseded(&self, path: &Path) {
        self.log.lock().push(format!("{} is superseded", path.display()));
    }
}

/// What the next agent reads: the last line of a name counts.
fn read(disk: &Disk) -> BTreeMap<String, String> {
    let file = disk.0.file.lock();
    let entry = |line: &String| line.split_once('=').map(|(name, number)| (name.to_owned(), number.to_owned()));
    file.iter().filter_map(entry).collect()
}

fn numbers(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|(name, number)| ((*name).to_owned(), (*number).to_owned())).collect()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn changes_during_a_write_are_written_together_and_the_callers_are_woken_in_order() {
    let disk = Disk::new(Answer::Done);
    let store = Numbers::running(&disk, Patience::Full);
    let woken = Arc::new(Mutex::new(Vec::new()));
    let mut callers = Vec::new();
    for (name, at) in [("a", 0), ("d", 400), ("b", 200), ("c", 300)] {
        let (store, woken) = (store.clone(), woken.clone());
        callers.push(tokio::spawn(async move {
            sleep(Duration::from_millis(at)).await;
            let version = store.put(name, 1);
            assert_eq!(store.journal.written(version).await, Ok(()));
            assert!(*store.known.lock() >= version, "the store knows first");
            woken.lock().push(name);
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(*woken.lock(), ["a", "b", "c", "d"]);
    assert_eq!(disk.writes(), [(true, 1), (false, 3)]);
    assert_eq!(read(&disk).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn torn_append_is_repaired_by_a_save_at_once() {
    let disk = Disk::new(Answer::Done);
    let store = Numbers::running(&disk, Patience::UntilFailure);
    store.put_and_wait("a", 1).await.unwrap();
    disk.set(Answer::TornAppend);
    let begin = Instant::now();
    assert_eq!(store.put_and_wait("a", 2).await, Ok(()));
    assert!(begin.elapsed() < secs(3), "{:?}", begin.elapsed());
    disk.set(Answer::Done);
    store.put_and_wait("b", 1).await.unwrap();
    assert_eq!(disk.writes(), [(true, 1), (true, 1), (false, 1)]);
    assert_eq!(*disk.0.file.lock(), ["a=2", "b=1"]);
    assert!(store.log().is_empty(), "nothing follows from it");
}

#[tokio::test(start_paused = true)]
async fn full_disk_is_tried_again_and_gets_the_newest_state() {
    let disk = Disk::new(Answer::Full);
    let store = Numbers::running(&disk, Patience::UntilFailure);
    assert_eq!(store.put_and_wait("a", 1).await, Err(NotStored::Failed));
    store.put("a", 2);
    store.put("b", 1);
    sleep(secs(58)).await;
    let tries = disk.begun();
    assert!((10..=12).contains(&tries), "{tries} tries in a minute, of 6 s each");
    assert_eq!((store.journal.stored(), store.log()), (0, vec!["/file: no space is left".to_owned()]), "one report");

    disk.set(Answer::Done);
    sleep(secs(7)).await;
    assert_eq!(read(&disk), numbers(&[("a", "2"), ("b", "1")]));
    assert_eq!((store.journal.stored(), disk.writes()), (3, vec![(true, 2)]));
    assert_eq!(store.put_and_wait("c", 1).await, Ok(()));

    disk.set(Answer::Full);
    assert_eq!(store.put_and_wait("d", 1).await, Err(NotStored::Failed));
    assert_eq!(store.log().len(), 2, "the next failure is reported again");
}

/// Two changes, the second one this many milliseconds after the first. Returns the result of the second and its time in milliseconds.
async fn second_wait(patience: Patience, answer: Answer, at: u64) -> (Result<(), NotStored>, u128) {
    let store = Numbers::running(&Disk::new(answer), patience);
    let first = store.clone();
    tokio::spawn(async move { first.put_and_wait("first", 1).await });
    sleep(Duration::from_millis(at)).await;
    let begin = Instant::now();
    let end = store.put_and_wait("second", 1).await;
    // Timers may be a millisecond late.
    (end, (begin.elapsed().as_millis() + 50) / 100 * 100)
}

// On a full disk the tries are at 0 s and at 6 s, and each takes a second.
#[tokio::test(start_paused = true)]
async fn patience_decides_how_long_a_caller_waits_for_a_bad_disk() {
    use Answer::{Done, Full, Hangs};
    let (failed, late) = (Err(NotStored::Failed), Err(NotStored::TooLate));
    for (patience, answer, at, expected) in [
        (Patience::Full, Done, 500, (Ok(()), 1_500)),
        (Patience::Full, Full, 500, (late, 10_000)),
        (Patience::Full, Full, 2_000, (late, 10_000)),
        (Patience::Full, Hangs, 500, (late, 10_000)),
        (Patience::Full, Hangs, 12_000, (late, 10_000)),
        (Patience::UntilFailure, Done, 500, (Ok(()), 1_500)),
        (Patience::UntilFailure, Full, 500, (failed, 500)),
        (Patience::UntilFailure, Full, 2_000, (failed, 0)),
        (Patience::UntilFailure, Full, 6_500, (failed, 500)),
        (Patience::UntilFailure, Hangs, 500, (late, 10_000)),
        (Patience::UntilFailure, Hangs, 12_000, (late, 10_000)),
        (Patience::WhileWritable, Done, 500, (Ok(()), 1_500)),
        (Patience::WhileWritable, Full, 500, (failed, 500)),
        (Patience::WhileWritable, Full, 2_000, (failed, 0)),
        (Patience::WhileWritable, Full, 6_500, (failed, 0)),
        // The first caller waits for 10 s, and nobody waits after it.
        (Patience::WhileWritable, Hangs, 500, (failed, 9_500)),
        (Patience::WhileWritable, Hangs, 12_000, (failed, 0)),
    ] {
        let found = second_wait(patience, answer, at).await;
        assert_eq!(found, expected, "{patience:?} {answer:?} {at}");
    }
}

// A caller that continued after a failed save may ask again while the next save hangs.
#[tokio::test(start_paused = true)]
async fn change_that_was_given_up_is_not_waited_for_again() {
    let disk = Disk::new(Answer::Full);
    let store = Numbers::running(&disk, Patience::UntilFailure);
    let first = store.put("a", 1);
    assert_eq!(store.journal.written(first).await, Err(NotStored::Failed));
    let second = store.put("b", 1);
    disk.set(Answer::Hangs);
    sleep(secs(7)).await;
    assert_eq!(disk.begun(), 2, "the next save hangs");
    let begin = Instant::now();
    for version in [first, second] {
        assert_eq!(store.journal.written(version).await, Err(NotStored::Failed), "{version}");
    }
    assert_eq!(begin.elapsed(), Duration::ZERO);
    disk.set(Answer::Done);
    assert_eq!(store.put_and_wait("c", 1).await, Ok(()), "a change after the begin of the save is waited for");
}

#[tokio::test(start_paused = true)]
async fn disk_that_hung_is_waited_for_again_once_it_has_answered() {
    let disk = Disk::new(Answer::Hangs);
    let store = Numbers::running(&disk, Patience::WhileWritable);
    assert_eq!(store.put_and_wait("a", 1).await, Err(NotStored::TooLate));
    assert_eq!(store.put_and_wait("a", 2).await, Err(NotStored::Failed));
    disk.set(Answer::Done);
    sleep(secs(3)).await;
    assert_eq!(read(&disk), numbers(&[("a", "2")]));
    assert_eq!(store.put_and_wait("a", 3).await, Ok(()));
    assert!(store.log().is_empty(), "no write has failed");
}

#[tokio::test(start_paused = true)]
async fn write_that_panics_is_tried_again() {
    let disk = Disk::new(Answer::Panics);
    let store = Numbers::running(&disk, Patience::Full);
    let wait = store.put_and_wait("a", 1);
    let healed = async {
        sleep(secs(3)).await;
        disk.set(Answer::Done);
    };
    assert_eq!(tokio::join!(wait, healed).0, Ok(()));
    assert_eq!((disk.begun(), store.log()), (2, vec!["the store of numbers: it panicked".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn superseded_journal_writes_nothing_more_and_nobody_waits_for_it() {
    for patience in [Patience::Full, Patience::UntilFailure, Patience::WhileWritable] {
        let disk = Disk::new(Answer::Done);
        let store = Numbers::new(&disk, patience);
        let (running, stop) = (store.clone(), CancellationToken::new());
        let run = tokio::spawn(async move { running.journal.run(&*running, &stop).await });
        let first = store.put("a", 1);
        store.journal.written(first).await.unwrap();
        disk.set(Answer::Superseded);
        let begin = Instant::now();
        assert_eq!(store.put_and_wait("b", 1).await, Err(NotStored::Superseded), "{patience:?}");
        run.await.unwrap();
        disk.set(Answer::Done);
        assert_eq!(store.put_and_wait("c", 1).await, Err(NotStored::Superseded), "{patience:?}");
        assert_eq!(store.journal.written(first).await, Ok(()), "the file has it");
        assert!(begin.elapsed() < secs(2) && store.journal.is_superseded());
        assert_eq!((disk.begun(), store.log()), (2, vec!["/file is superseded".to_owned()]));
    }
}

// Nobody writes the change any more, so its caller must not continue as after a failed save.
#[tokio::test(start_paused = true)]
async fn takeover_after_a_failed_save_is_reported_to_each_caller() {
    for patience in [Patience::Full, Patience::UntilFailure, Patience::WhileWritable] {
        let disk = Disk::new(Answer::Full);
        let store = Numbers::running(&disk, patience);
        let version = store.put("a", 1);
        sleep(secs(2)).await;
        disk.set(Answer::Superseded);
        sleep(secs(6)).await;
        assert!(store.journal.is_superseded(), "{patience:?}");
        assert_eq!(store.journal.written(version).await, Err(NotStored::Superseded), "{patience:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stopped_journal_begins_no_write_and_waits_for_no_disk() {
    let disk = Disk::new(Answer::Hangs);
    for has_begun in [false, true] {
        let (store, stop) = (Numbers::new(&disk, Patience::Full), CancellationToken::new());
        let mut run = std::pin::pin!(store.journal.run(&*store, &stop));
        assert!(run.as_mut().now_or_never().is_none(), "there is nothing to write yet");
        store.put("a", 1);
        if has_begun {
            assert!(run.as_mut().now_or_never().is_none(), "the disk hangs");
        }
        stop.cancel();
        let begin = Instant::now();
        run.await;
        assert_eq!((begin.elapsed(), disk.begun()), (Duration::ZERO, usize::from(has_begun)));
    }
}

/// A store with one value, which is always saved.
struct Latest(Mutex<(u32, u64)>);

impl Journaled for Latest {
    const RECORDS: &'static str = "the values";
    const STORE: &'static str = "the store of one value";

    fn next_write(&self, stored: u64) -> Option<(u64, Write)> {
        let (value, version) = *self.0.lock();
        (version > stored).then(|| (version, Write::Save(vec![value.to_string().into()])))
    }

    fn forget_file(&self) {}

    fn log_failure(&self, _: &CheckpointError) {}

    fn log_superseded(&self, _: &Path) {}
}

#[tokio::test(start_paused = true)]
async fn last_value_of_a_store_that_is_always_saved_wins() {
    let (disk, stop) = (Disk::new(Answer::Done), CancellationToken::new());
    let journal = Journal::new(Box::new(disk.clone()), Patience::Full);
    let store = Latest(Mutex::default());
    let changes = async {
        for version in 1..=4_u32 {
            *store.0.lock() = (10 * version, version.into());
            journal.wake();
            sleep(Duration::from_millis(300)).await;
        }
        assert_eq!(journal.written(4).await, Ok(()));
        stop.cancel();
    };
    tokio::join!(journal.run(&store, &stop), changes);
    assert_eq!((disk.writes(), disk.0.file.lock().clone()), (vec![(true, 1); 2], vec!["40".to_owned()]));
}
