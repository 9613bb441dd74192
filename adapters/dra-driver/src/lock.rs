//! Serializes the calls to prepare and unprepare, also across the processes of a rolling update.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::sleep;

/// The time between two attempts to lock the file. A thread that waits for the lock in the system could not be stopped.
const ATTEMPTS: Duration = Duration::from_millis(20);

/// The lock of a driver's calls.
#[derive(Clone, Debug)]
pub(super) enum CallLock {
    /// Calls run at the same time.
    Off,
    /// One call at a time.
    On {
        /// The calls of this process.
        process: Arc<Mutex<()>>,
        /// The file that all instances of the driver lock.
        file: Option<PathBuf>,
    },
}

/// Holds the lock.
#[derive(Debug, Default)]
pub(super) struct Locked {
    // The file comes first: it is closed, which ends its lock, before the next call of this process begins.
    _file: Option<File>,
    _process: Option<OwnedMutexGuard<()>>,
}

impl CallLock {
    /// Waits for the lock. Cancel safe.
    ///
    /// # Errors
    /// The system's error if the file cannot be opened or locked.
    pub(super) async fn lock(&self) -> io::Result<Locked> {
        let CallLock::On { process, file } = self else { return Ok(Locked::default()) };
        let process = process.clone().lock_owned().await;
        let file = match file {
            Some(path) => Some(lock_file(path).await?),
            None => None,
        };
        Ok(Locked { _file: file, _process: Some(process) })
    }
}

/// Locks a whole file for its open file description, as the Go library does. Such a lock and a lock by `flock` ignore each other.
async fn lock_file(path: &PathBuf) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    loop {
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&whole)) {
            Ok(_) => return Ok(file),
            Err(Errno::EAGAIN | Errno::EACCES | Errno::EINTR) => sleep(ATTEMPTS).await,
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn on(file: Option<PathBuf>) -> CallLock {
        CallLock::On { process: Arc::default(), file }
    }

    #[tokio::test]
    async fn second_call_of_a_process_waits() {
        let lock = on(None);
        let first = lock.lock().await.unwrap();
        assert!(lock.lock().now_or_never().is_none());
        drop(first);
        lock.lock().await.unwrap();
        let (_one, _two) = (CallLock::Off.lock().await.unwrap(), CallLock::Off.lock().await.unwrap());
    }

    /// Each lock opens the file anew, as another process does.
    #[tokio::test(start_paused = true)]
    async fn call_of_another_instance_waits_for_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("serialize.lock");
        let (ours, theirs) = (on(Some(path.clone())), on(Some(path)));
        let first = ours.lock().await.unwrap();
        let second = tokio::time::timeout(Duration::from_secs(1), theirs.lock()).await;
        assert!(second.is_err());
        drop(first);
        theirs.lock().await.unwrap();
    }
}
