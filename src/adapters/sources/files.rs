//! Manifests from files and directories.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;
use podwright_actors::ports::{SourceSet, SourceUpdate};
use tokio::sync::Notify;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::scan::Scan;
use super::watch::Watch;
use super::{ChangeFilter, SourceContext};

/// How long the files must stay unchanged before they are read. An editor writes a file in several steps.
const QUIET: Duration = Duration::from_millis(100);
/// The longest delay between the first change and the reading of the files.
const MAX_DELAY: Duration = Duration::from_secs(1);

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

    /// Sends updates until `stop` is cancelled or the receiver is closed.
    pub async fn run(self, out: Recipient<SourceUpdate>, stop: CancellationToken) {
        // Stopping the source must not wait for a file system that hangs.
        stop.run_until_cancelled(self.send_updates(out)).await;
    }

    async fn send_updates(self, out: Recipient<SourceUpdate>) {
        let changed = Arc::new(Notify::new());
        let mut reader = WatchedScan {
            watch: Watch::new(&self.roots, changed.clone()),
            scan: Scan::new(self.roots, self.cx.clone()),
        };
        let mut filter = ChangeFilter::default();
        loop {
            let read;
            (reader, read) = match reader.read().await {
                Ok(done) => done,
                Err(error) => {
                    return error!(%error, "reading manifests panicked, changes of manifests are ignored from now on");
                }
            };
            if let Some(update) = filter.if_changed(read.into())
                && out.send(self.cx.adopt(update).await).await.is_err()
            {
                return;
            }
            tokio::select! {
                () = changed.notified() => wait_until_quiet(&changed).await,
                () = tokio::time::sleep(self.cx.check_frequency) => {}
            }
        }
    }
}

struct WatchedScan {
    watch: Watch,
    scan: Scan,
}

impl WatchedScan {
    async fn read(mut self) -> Result<(Self, SourceSet), JoinError> {
        spawn_blocking(move || {
            self.watch.refresh();
            let set = self.scan.run();
            (self, set)
        })
        .await
    }
}

/// Waits until no file has changed for [`QUIET`], but not longer than [`MAX_DELAY`].
async fn wait_until_quiet(changed: &Notify) {
    let latest = Instant::now() + MAX_DELAY;
    loop {
        let quiet = (Instant::now() + QUIET).min(latest);
        tokio::select! {
            biased;
            () = sleep_until(quiet) => return,
            () = changed.notified() => {}
        }
    }
}
