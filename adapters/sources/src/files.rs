//! Manifests from files and directories.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use podwright_ports::SourceInbox;
use tokio::sync::Notify;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::scan::{Scan, Scanned};
use super::settle::STEPS;
use super::watch::Watch;
use super::{ChangeFilter, SourceContext};

/// The pods of several files and directories, as one source.
#[derive(Debug)]
pub struct FileSource {
    roots: Vec<PathBuf>,
    cx: SourceContext,
}

impl FileSource {
    /// A source of the manifests at these paths. Relative paths are made absolute now.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>, cx: SourceContext) -> Self {
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        FileSource { roots: paths.into_iter().map(absolute).collect(), cx }
    }

    /// Sends updates until `stop` is cancelled or the node has stopped.
    pub async fn run(self, out: Arc<dyn SourceInbox>, stop: CancellationToken) {
        // Stopping the source must not wait for a file system that hangs.
        stop.run_until_cancelled(self.send_updates(out)).await;
    }

    async fn send_updates(self, out: Arc<dyn SourceInbox>) {
        let changed = Arc::new(Notify::new());
        let mut reader = WatchedScan {
            watch: Watch::new(&self.roots, changed.clone()),
            scan: Scan::new(self.roots, self.cx.clone(), Instant::now()),
        };
        let mut filter = ChangeFilter::default();
        loop {
            let begun = Instant::now();
            let scanned;
            (reader, scanned) = match reader.read().await {
                Ok(done) => done,
                Err(error) => {
                    return error!(%error, "reading manifests panicked, changes of manifests are ignored from now on");
                }
            };
            if let Some(set) = scanned.set
                && let Some(update) = filter.if_changed(set.into())
                && out.send(self.cx.adopt(update).await).await.is_err()
            {
                return;
            }
            let periodic = reader.scan.read_all_at();
            let next = scanned.next.map_or(periodic, |next| next.min(periodic));
            tokio::select! {
                () = changed.notified() => {}
                () = sleep_until(next.into()) => {}
            }
            // Changes come in bursts. None of them may be read sooner.
            sleep_until((begun + STEPS).into()).await;
        }
    }
}

struct WatchedScan {
    watch: Watch,
    scan: Scan,
}

impl WatchedScan {
    async fn read(mut self) -> Result<(Self, Scanned), JoinError> {
        spawn_blocking(move || {
            self.watch.refresh();
            let scanned = self.scan.run(self.watch.events(), Instant::now());
            (self, scanned)
        })
        .await
    }
}
