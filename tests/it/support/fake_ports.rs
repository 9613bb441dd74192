//! Storage, network and events of a node, in memory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_actors::ids::PodUid;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{
    Checkpoint, CheckpointError, CheckpointWriter, EventRecorder, GrpcHealth, GrpcTarget, HttpTarget, NetworkClient,
    NetworkError, OpenCheckpoint, PodEvent, PodStorage, StorageError, TcpTarget, Unused, VolumeMounts,
};

/// Whether the last record of a pod in a journal is a final status.
pub(crate) fn has_end_of(records: &[String], uid: &str) -> bool {
    let uid = format!("\"uid\":\"{uid}\"");
    records.iter().rfind(|record| record.contains(&uid)).is_some_and(|record| !record.contains("\"Forgotten\""))
}

/// A store of final statuses in memory. Tests can make it fail.
#[derive(Default)]
pub(crate) struct FakeFinalStatuses(Arc<FakeJournal>);

/// The content of the store, which its writers share.
#[derive(Default)]
struct FakeJournal {
    records: Mutex<Vec<String>>,
    broken: AtomicBool,
    panics: AtomicBool,
    writes: AtomicUsize,
    slow: AtomicU64,
    openings: AtomicUsize,
}

impl FakeFinalStatuses {
    /// The stored records.
    pub(crate) fn records(&self) -> Vec<String> {
        self.0.records.lock().clone()
    }

    /// Whether the final status of a pod is stored.
    pub(crate) fn has(&self, uid: &str) -> bool {
        has_end_of(&self.0.records.lock(), uid)
    }

    pub(crate) fn plant(&self, record: &str) {
        self.0.records.lock().push(record.to_owned());
    }

    /// Makes all writes fail, or succeed again.
    pub(crate) fn broken(&self, broken: bool) {
        self.0.broken.store(broken, Ordering::Relaxed);
    }

    /// Makes all writes panic, or succeed again.
    pub(crate) fn panics(&self, panics: bool) {
        self.0.panics.store(panics, Ordering::Relaxed);
    }

    /// Makes each write take this many milliseconds.
    pub(crate) fn slow(&self, millis: u64) {
        self.0.slow.store(millis, Ordering::Relaxed);
    }

    /// The number of writes.
    pub(crate) fn writes(&self) -> usize {
        self.0.writes.load(Ordering::Relaxed)
    }
}

impl Checkpoint for FakeFinalStatuses {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        let opening = self.0.openings.fetch_add(1, Ordering::Relaxed) + 1;
        let writer = Box::new(FakeJournalWriter { journal: self.0.clone(), opening });
        Ok(OpenCheckpoint { records: self.records(), writer })
    }
}

struct FakeJournalWriter {
    journal: Arc<FakeJournal>,
    opening: usize,
}

impl FakeJournalWriter {
    async fn write(&self, all: bool, records: Vec<Arc<str>>) -> Result<(), CheckpointError> {
        let slow = self.journal.slow.load(Ordering::Relaxed);
        if slow > 0 {
            tokio::time::sleep(Duration::from_millis(slow)).await;
        }
        if self.journal.openings.load(Ordering::Relaxed) != self.opening {
            return Err(CheckpointError::Superseded { path: "/journal".into() });
        }
        assert!(!self.journal.panics.load(Ordering::Relaxed), "the test makes the write panic");
        if self.journal.broken.load(Ordering::Relaxed) {
            return Err(CheckpointError::new("/journal", "no space is left"));
        }
        self.journal.writes.fetch_add(1, Ordering::Relaxed);
        let mut kept = self.journal.records.lock();
        if all {
            kept.clear();
        }
        kept.extend(records.iter().map(|record| record.to_string()));
        Ok(())
    }
}

impl CheckpointWriter for FakeJournalWriter {
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.write(true, records).boxed()
    }

    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.write(false, records).boxed()
    }
}

/// Pod directories in memory. Volumes are mounted and unmounted at once, unless a test changes that.
#[derive(Default)]
pub(crate) struct FakeStorage(Mutex<Directories>);

#[derive(Default)]
struct Directories {
    pods: BTreeSet<PodUid>,
    mounted: BTreeSet<PodUid>,
    stuck: bool,
    missing: bool,
    refused: Option<StorageError>,
    hung: BTreeSet<PodUid>,
    slow: Duration,
}

impl FakeStorage {
    /// Adds a directory with volumes that an earlier agent left.
    pub(crate) fn plant(&self, uid: &str) {
        let mut state = self.0.lock();
        state.pods.insert(uid.into());
        state.mounted.insert(uid.into());
    }

    /// Makes unmounting fail, or succeed again.
    pub(crate) fn stuck(&self, stuck: bool) {
        self.0.lock().stuck = stuck;
    }

    /// Makes mounting fail, or succeed again.
    pub(crate) fn missing(&self, missing: bool) {
        self.0.lock().missing = missing;
    }

    /// Makes mounting fail with this error.
    pub(crate) fn refuse(&self, error: StorageError) {
        self.0.lock().refused = Some(error);
    }

    /// Makes calls for the directory of this pod hang.
    pub(crate) fn hang(&self, uid: &str) {
        self.0.lock().hung.insert(uid.into());
    }

    /// How long mounting takes, whether it succeeds or fails.
    pub(crate) fn slow(&self, by: Duration) {
        self.0.lock().slow = by;
    }

    pub(crate) fn has(&self, uid: &str) -> bool {
        self.0.lock().pods.contains(&uid.into())
    }
}

impl PodStorage for FakeStorage {
    fn set_up<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<VolumeMounts, StorageError>> {
        let mut state = self.0.lock();
        state.pods.insert(pod.uid().clone());
        state.mounted.insert(pod.uid().clone());
        let (missing, slow, hung) = (state.missing, state.slow, state.hung.contains(pod.uid()));
        let refused = state.refused.clone();
        let volumes = pod.spec().volumes.iter().flatten();
        let below = Path::new("/pods").join(pod.uid().to_string()).join("volumes");
        let mounts = volumes.map(|volume| (volume.name.clone(), below.join(&volume.name))).collect();
        async move {
            if hung {
                std::future::pending::<()>().await;
            }
            if !slow.is_zero() {
                tokio::time::sleep(slow).await;
            }
            if let Some(error) = refused {
                return Err(error);
            }
            match missing {
                false => Ok(mounts),
                true => Err(StorageError::volume("data", "no such directory")),
            }
        }
        .boxed()
    }

    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), StorageError>> {
        let hung = self.0.lock().hung.contains(uid);
        async move {
            if hung {
                std::future::pending::<()>().await;
            }
            let mut state = self.0.lock();
            if state.stuck {
                return Err(StorageError::volume("data", "it is busy"));
            }
            state.mounted.remove(uid);
            Ok(())
        }
        .boxed()
    }

    fn under_way(&self, uid: &PodUid) -> Option<PathBuf> {
        Some(Path::new("/pods").join(uid.to_string()))
    }

    fn remove_pod<'a>(&'a self, uid: &'a PodUid, unused: Unused) -> BoxFuture<'a, Result<(), StorageError>> {
        let hung = self.0.lock().hung.contains(uid);
        async move {
            if hung {
                std::future::pending::<()>().await;
            }
            if !unused() {
                return Ok(());
            }
            let mut state = self.0.lock();
            if state.stuck {
                return Err(StorageError::volume("data", "it is busy"));
            }
            state.mounted.remove(uid);
            state.pods.remove(uid);
            Ok(())
        }
        .boxed()
    }

    fn pods(&self) -> BoxFuture<'_, Result<Vec<PodUid>, StorageError>> {
        async { Ok(self.0.lock().pods.iter().cloned().collect()) }.boxed()
    }

    fn restarts_by_log<'a>(&'a self, _: &'a PodObject, _: &'a str) -> BoxFuture<'a, Option<u32>> {
        async { None }.boxed()
    }
}

/// A network in which no server answers.
pub(crate) struct NoNetwork;

impl NetworkClient for NoNetwork {
    fn http_get(&self, _: HttpTarget, timeout: Duration) -> BoxFuture<'_, Result<(u16, String), NetworkError>> {
        async move { Err(NetworkError::Timeout(timeout)) }.boxed()
    }

    fn tcp_connect(&self, _: TcpTarget, timeout: Duration) -> BoxFuture<'_, Result<(), NetworkError>> {
        async move { Err(NetworkError::Timeout(timeout)) }.boxed()
    }

    fn grpc_check(&self, _: GrpcTarget, timeout: Duration) -> BoxFuture<'_, Result<GrpcHealth, NetworkError>> {
        async move { Err(NetworkError::Timeout(timeout)) }.boxed()
    }
}

/// Events as `name: Reason`, the same events in full, and the reason of the events of the node that panic.
#[derive(Default)]
pub(crate) struct Events(Mutex<Vec<String>>, Mutex<Vec<PodEvent>>, Mutex<Option<String>>);

impl Events {
    /// Makes events of the node with this reason panic.
    pub(crate) fn panic_on(&self, reason: &str) {
        *self.2.lock() = Some(reason.to_owned());
    }

    pub(crate) fn has(&self, pod: &str, reason: &str) -> bool {
        self.count(pod, reason) > 0
    }

    /// The events with this reason, of any pod.
    pub(crate) fn of(&self, reason: &str) -> Vec<PodEvent> {
        self.1.lock().iter().filter(|event| event.reason == reason).cloned().collect()
    }

    /// The events of this test, oldest first.
    pub(crate) fn all(&self) -> Vec<PodEvent> {
        self.1.lock().clone()
    }

    pub(crate) fn count(&self, pod: &str, reason: &str) -> usize {
        let expected = format!("{pod}: {reason}");
        self.0.lock().iter().filter(|event| **event == expected).count()
    }
}

impl EventRecorder for Events {
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent) {
        self.1.lock().push(event.clone());
        self.0.lock().push(format!("{}: {}", pod.full_name().name(), event.reason));
    }

    fn record_of_node(&self, event: PodEvent) {
        assert!(self.2.lock().as_deref() != Some(&*event.reason), "the test makes the event panic");
        self.0.lock().push(format!("node: {}", event.reason));
        self.1.lock().push(event);
    }
}
