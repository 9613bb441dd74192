//! Notifies of new files in a directory (inotify).

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::{Interest, unix::AsyncFd};

/// Watches a directory for files that appear in it, and for files in it that a writer closes.
#[derive(Debug)]
pub struct DirWatch(AsyncFd<OwnedFd>);

impl DirWatch {
    /// Begins to watch a directory. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// The system's error, also if the user has too many watches.
    pub fn new(dir: &Path) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let events = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE;
        inotify::add_watch(&fd, dir, events | WatchFlags::ONLYDIR)?;
        #[expect(
            deprecated,
            reason = "the replacement is `unsafe` because a descriptor could close while it is registered; here the \
                      registration owns the descriptor"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(DirWatch(fd))
    }

    /// Waits for a change since the watch began, or since the last call that returned. Cancel safe.
    pub async fn changed(&self) -> io::Result<()> {
        let mut events = [0; 4096];
        let mut is_changed = false;
        loop {
            let mut ready = self.0.readable().await?;
            loop {
                match rustix::io::read(self.0.get_ref(), &mut events) {
                    Ok(_) => is_changed = true,
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            ready.clear_ready();
            if is_changed {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn new_and_closed_files_are_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let watch = DirWatch::new(dir.path()).unwrap();
        assert!(watch.changed().now_or_never().is_none());
        let file = fs::File::create(&path).unwrap();
        let changed = || tokio::time::timeout(Duration::from_secs(180), watch.changed());
        changed().await.unwrap().unwrap();
        assert!(watch.changed().now_or_never().is_none());
        drop(fs::File::open(&path).unwrap());
        // `now_or_never` may miss an event that exists already, because tokio polls the file descriptor later.
        let reader = tokio::time::timeout(Duration::from_millis(200), watch.changed()).await;
        assert!(reader.is_err(), "a reader is no change");
        drop(file);
        changed().await.unwrap().unwrap();
        fs::rename(&path, dir.path().join("b")).unwrap();
        changed().await.unwrap().unwrap();
    }
}
