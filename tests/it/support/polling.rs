//! Polls conditions that send no notification.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a test waits for a condition. The limit guards only against hanging. A slow machine may need most of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// The pause between two checks of a condition in this process.
const INTERVAL: Duration = Duration::from_millis(5);
/// The pause between two requests to another process.
const REQUEST_INTERVAL: Duration = Duration::from_millis(50);

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    poll(what, INTERVAL, || std::future::ready(holds().then_some(()))).await;
}

/// Calls `poll` until it returns a value.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, poll: impl Fn() -> F) -> T {
    self::poll(what, REQUEST_INTERVAL, poll).await
}

async fn poll<T, F: Future<Output = Option<T>>>(what: &str, interval: Duration, poll: impl Fn() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(Instant::now() < deadline, "did not happen: {what}");
        sleep(interval).await;
    }
}
