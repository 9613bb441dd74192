//! Manifests from files and directories.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use podwright_ports::SourceInbox;
use tokio::sync::Notify;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::scan::{Scan, Scanned};
use super::settle::STEPS;
use super::watch::Watch;
use super::{ChangeFilter, SourceContext, blocking};

/// The pods of several files and directories, as one source. Clones share what they have read: if a run panics, the run of a clone keeps
/// the last good content of each file.
#[derive(Clone, Debug)]
pub struct FileSource {
    roots: Vec<PathBuf>,
    cx: SourceContext,
    changed: Arc<Notify>,
    /// `None` until the first run.
    reader: Arc<Mutex<Option<WatchedScan>>>,
}

#[derive(Debug)]
struct WatchedScan {
    watch: Watch,
    scan: Scan,
}

impl FileSource {
    /// A source of the manifests at these paths. Relative paths are made absolute now.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>, cx: SourceContext) -> Self {
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let roots = paths.into_iter().map(absolute).collect();
        FileSource { roots, cx, changed: Arc::default(), reader: Arc::default() }
    }

    /// Sends updates until `stop` is cancelled or the node has stopped. Only one clone may run at a time.
    ///
    /// # Panics
    /// If reading a manifest panics.
    pub async fn run(self, out: Arc<dyn SourceInbox>, stop: CancellationToken) {
        // Stopping the source must not wait for a file system that hangs.
        stop.run_until_cancelled(self.send_updates(out)).await;
    }

    async fn send_updates(self, out: Arc<dyn SourceInbox>) {
        let mut filter = ChangeFilter::default();
        loop {
            let begun = Instant::now();
            let source = self.clone();
            let Some((scanned, periodic)) = blocking(move || source.scan()).await else { return };
            if let Some(set) = scanned.set
                && let Some(update) = filter.if_changed(set.into())
                && out.send(self.cx.adopt(update).await).await.is_err()
            {
                return;
            }
            let next = scanned.next.map_or(periodic, |next| next.min(periodic));
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep_until(next.into()) => {}
            }
            // Changes come in bursts. None of them may be read sooner.
            sleep_until((begun + STEPS).into()).await;
        }
    }

    /// Reads the files that have changed. Also returns when every file is read again. Blocks.
    fn scan(&self) -> (Scanned, Instant) {
        let mut reader = self.reader.lock();
        let WatchedScan { watch, scan } = reader.get_or_insert_with(|| WatchedScan {
            watch: Watch::new(&self.roots, self.changed.clone()),
            scan: Scan::new(self.roots.clone(), self.cx.clone(), Instant::now()),
        });
        watch.refresh();
        let scanned = scan.run(watch.events(), Instant::now());
        (scanned, scan.read_all_at())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::future::ready;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use podwright_model::time::Time;
    use podwright_ports::{Clock, NodeStopped, SourceSet, SourceUpdate, TokioClock};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;

    /// A clock that panics while the flag is set. A source reads the clock for each pod of a new text.
    struct FaultyClock(TokioClock, AtomicBool);

    impl Clock for FaultyClock {
        fn now(&self) -> Time {
            assert!(!self.1.load(Ordering::SeqCst), "a faulty clock");
            self.0.now()
        }
    }

    struct Collector(UnboundedSender<SourceUpdate>);

    impl SourceInbox for Collector {
        fn send(&self, update: SourceUpdate) -> BoxFuture<'static, Result<(), NodeStopped>> {
            ready(self.0.send(update).map_err(|_| NodeStopped)).boxed()
        }
    }

    async fn next(updates: &mut UnboundedReceiver<SourceUpdate>) -> SourceSet {
        match updates.recv().await {
            Some(SourceUpdate::Set(set)) => set,
            other => panic!("no set: {other:?}"),
        }
    }

    #[tokio::test]
    async fn run_after_a_panic_keeps_the_pods_of_the_run_before() {
        let dir = tempfile::tempdir().unwrap();
        let write = |image: &str| {
            let text = format!("spec: {{containers: [{{name: c, image: {image}}}]}}\n");
            let new = dir.path().join(".new");
            fs::write(&new, format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\n{text}")).unwrap();
            fs::rename(new, dir.path().join("a.yaml")).unwrap();
        };
        let clock = Arc::new(FaultyClock(TokioClock::new(), AtomicBool::new(false)));
        let source = FileSource::new([dir.path().to_owned()], SourceContext::new("node", clock.clone()));
        let (out, mut updates) = unbounded_channel();
        let (out, stop) = (Arc::new(Collector(out)), CancellationToken::new());
        write("one");
        let first = tokio::spawn(source.clone().run(out.clone(), stop.clone()));
        let before = next(&mut updates).await;

        clock.1.store(true, Ordering::SeqCst);
        write("two");
        assert!(first.await.unwrap_err().is_panic(), "the panic is that of the run, which a part begins again");

        let second = tokio::spawn(source.run(out, stop.clone()));
        let after = next(&mut updates).await;
        assert!(before.pods.len() == 1 && after.pods.len() == 1 && Arc::ptr_eq(&before.pods[0], &after.pods[0]));
        assert!(after.problems[0].message.contains("panicked"), "{:?}", after.problems);
        stop.cancel();
        second.await.unwrap();
    }
}
