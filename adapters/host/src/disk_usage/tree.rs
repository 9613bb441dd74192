//! The scan of a tree with rests between its steps.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use podwright_ports::UsedSpace;

use super::scan::Scan;

/// The number of entries that one step reads: about a millisecond of work if the directories are cached.
const ENTRIES_PER_STEP: usize = 1000;
/// A scan rests for this many times the time that its step took.
pub(super) const REST: u32 = 3;
/// The longest rest, so that one slow step does not stop a scan for minutes.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// The disk space of the tree at `path`, without file systems that are mounted in it; none if the path does not exist. A file
/// system that is mounted at the path itself is measured as a whole.
///
/// Cancel safe: a scan whose future is dropped ends with its current step.
///
/// # Errors
/// The error of the file system, with the path.
pub async fn of_tree(path: PathBuf) -> io::Result<UsedSpace> {
    let at = path.clone();
    let mut scan = match blocking(move || Scan::open(&at)).await? {
        Some(scan) => scan,
        None => return Ok(UsedSpace::default()),
    };
    loop {
        let start = Instant::now();
        let (next, is_done) = blocking(move || {
            let is_done = scan.step(ENTRIES_PER_STEP)?;
            Ok((scan, is_done))
        })
        .await?;
        if is_done {
            return Ok(next.used());
        }
        scan = next;
        tokio::time::sleep((start.elapsed() * REST).min(LONGEST_REST)).await;
    }
}

/// Runs work that blocks on a blocking thread.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
