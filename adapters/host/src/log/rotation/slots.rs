//! Bounds how many logs are moved and compressed at once.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How many logs are moved and compressed at once. More would only compete for the same disk and CPUs.
const AT_ONCE: usize = 4;
/// How long the work on one log occupies a slot. Work that takes longer waits for a disk that hangs, and must not delay other logs.
const COUNTS_FOR: Duration = Duration::from_secs(30);

/// The slots for work that blocks on a disk.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
}

impl Default for Slots {
    fn default() -> Self {
        Slots { free: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Slots {
    /// Waits for a slot and does the work on a blocking thread. Work that takes too long gives its slot back before it ends.
    ///
    /// # Errors
    /// If the work panicked.
    pub(super) async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let slot = self.free.acquire().await.map_err(io::Error::other)?;
        let mut task = tokio::task::spawn_blocking(work);
        let done = match timeout(COUNTS_FOR, &mut task).await {
            Ok(done) => done,
            Err(_) => {
                drop(slot);
                task.await
            }
        };
        done.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    // A paused clock does not advance by itself while a blocking thread works.
    #[tokio::test(start_paused = true)]
    async fn hanging_work_gives_its_slot_back() {
        let slots = Slots::default();
        let releases: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let (release, disk) = std::sync::mpsc::channel::<()>();
                let slots = slots.clone();
                (release, tokio::spawn(async move { slots.work(move || disk.recv().is_err()).await }))
            })
            .collect();
        while slots.free.available_permits() > 0 {
            yield_now().await;
        }
        advance(COUNTS_FOR + Duration::from_secs(1)).await;
        // The tasks run on this thread, so each yield lets them continue.
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(slots.free.available_permits(), AT_ONCE, "hanging work keeps no slot");
        assert_eq!(slots.work(|| 7).await.unwrap(), 7);
        let (releases, hanging): (Vec<_>, Vec<_>) = releases.into_iter().unzip();
        drop(releases);
        assert!(join_all(hanging).await.into_iter().all(|done| done.unwrap().unwrap()));
    }
}
