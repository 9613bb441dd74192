//! Finds the full logs. The disk of a log may hang, so the logs are inspected on threads that do not wait for one another.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::log::OpenLog;

/// How long the inspection of a log may take before another thread continues with the next log. It usually takes microseconds.
const HANGS_AFTER: Duration = Duration::from_secs(1);
/// How many threads may hang. The threads that tokio has for blocking calls are limited (512 by default).
const MOST_HANGING: usize = 64;

/// The logs of one round.
#[derive(Debug, Default)]
pub(super) struct SortedLogs {
    /// The logs to rotate.
    pub(super) full: Vec<OpenLog>,
    /// The logs that need no rotation.
    pub(super) small: Vec<OpenLog>,
    /// The logs whose inspection began to hang in this round.
    pub(super) hanging: Vec<PathBuf>,
}

/// Sorts logs by whether they are full. A log whose inspection hangs is left out of all rounds until the inspection ends.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    /// The logs that a thread inspects now.
    inspected: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Sorter {
    /// Sorts the logs. `is_full` may block.
    pub(super) async fn sort(
        &self,
        logs: impl IntoIterator<Item = OpenLog>,
        is_full: impl Fn(&OpenLog) -> bool + Clone + Send + 'static,
    ) -> SortedLogs {
        let before = self.inspected.lock().clone();
        let queue: VecDeque<OpenLog> = logs.into_iter().filter(|log| !before.contains(&log.path())).collect();
        let (mut left, queue) = (queue.len(), Arc::new(Mutex::new(queue)));
        let (sender, mut answers) = mpsc::unbounded_channel();
        let mut sorted = SortedLogs::default();
        let start_thread = || {
            let (queue, inspected) = (Arc::clone(&queue), Arc::clone(&self.inspected));
            let (sender, is_full) = (sender.clone(), is_full.clone());
            tokio::task::spawn_blocking(move || {
                loop {
                    let Some(log) = queue.lock().pop_front() else { return };
                    inspected.lock().insert(log.path());
                    // A log whose inspection panics must not stay out of the later rounds.
                    let inspection = Inspection { path: log.path(), inspected: &inspected };
                    let full = is_full(&log);
                    drop(inspection);
                    // The round may have ended.
                    let _ = sender.send((log, full));
                }
            });
        };
        if left > 0 {
            start_thread();
        }
        while left > 0 {
            match timeout(HANGS_AFTER, answers.recv()).await {
                Ok(Some((log, full))) => {
                    left -= 1;
                    if full { &mut sorted.full } else { &mut sorted.small }.push(log);
                }
                Ok(None) => break,
                Err(_) if queue.lock().is_empty() || self.inspected.lock().len() >= MOST_HANGING => break,
                Err(_) => start_thread(),
            }
        }
        // The logs that are left are inspected in the next round.
        queue.lock().clear();
        let inspected = self.inspected.lock();
        sorted.hanging = inspected.difference(&before).cloned().collect();
        sorted
    }
}

/// Ends the inspection of a log when it is dropped.
struct Inspection<'a> {
    path: PathBuf,
    inspected: &'a Mutex<BTreeSet<PathBuf>>,
}

impl Drop for Inspection<'_> {
    fn drop(&mut self) {
        self.inspected.lock().remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;
    use crate::log::LogDir;

    fn log(name: &str) -> OpenLog {
        OpenLog { container: name.into(), dir: LogDir::new("/logs", name), file: "0.log".into() }
    }

    fn names(logs: &[OpenLog]) -> Vec<&str> {
        let mut names: Vec<&str> = logs.iter().map(|log| log.container.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// Advances the clock by the time after which an inspection counts as hanging, whenever all threads inspect a log that hangs. A
    /// paused clock does not advance by itself while a blocking thread works.
    async fn advance_while_all_hang(sorter: &Sorter) {
        loop {
            let all_hang = {
                let inspected = sorter.inspected.lock();
                // Each thread has a reference to the set. While the set is locked, no thread can change it or end.
                let threads = Arc::strong_count(&sorter.inspected) - 1;
                let is_hanging =
                    |path: &PathBuf| path.starts_with("/logs/hangs-1") || path.starts_with("/logs/hangs-2");
                threads > 0 && threads == inspected.len() && inspected.iter().all(is_hanging)
            };
            if all_hang {
                advance(HANGS_AFTER).await;
            }
            yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn log_whose_inspection_panicked_is_inspected_in_the_next_round() {
        let sorter = Sorter::default();
        sorter.sort([log("a")], |_| panic!("the inspection panics")).await;
        assert_eq!(names(&sorter.sort([log("a")], |_| true).await.full), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_logs_delay_no_other_log() {
        let sorter = Sorter::default();
        let (release, disk): (Sender<()>, Receiver<()>) = channel();
        let disk = Arc::new(Mutex::new(disk));
        let is_full = move |log: &OpenLog| {
            if log.container.as_str().starts_with("hangs") {
                // Returns an error after the release.
                let _ = disk.lock().recv();
            }
            log.container.as_str() == "full"
        };
        let logs = || ["hangs-1", "a", "hangs-2", "full", "b"].map(log);
        let sorted = tokio::select! {
            sorted = sorter.sort(logs(), is_full.clone()) => sorted,
            () = advance_while_all_hang(&sorter) => unreachable!("it never ends"),
        };
        assert_eq!((names(&sorted.full), names(&sorted.small)), (vec!["full"], vec!["a", "b"]));
        assert_eq!(sorted.hanging, ["/logs/hangs-1/0.log", "/logs/hangs-2/0.log"].map(PathBuf::from));
        // The next round neither waits for these logs nor reports them again.
        let sorted = sorter.sort(logs(), is_full.clone()).await;
        assert_eq!((names(&sorted.full), names(&sorted.small)), (vec!["full"], vec!["a", "b"]));
        assert_eq!(sorted.hanging, [""; 0].map(PathBuf::from));
        drop(release);
        while !sorter.inspected.lock().is_empty() {
            yield_now().await;
        }
        assert_eq!(sorter.sort(logs(), is_full).await.small.len(), 4);
    }
}
