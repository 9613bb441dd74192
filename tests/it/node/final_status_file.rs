//! Two nodes over one file of final statuses.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use podwright::adapters::checkpoint::FileCheckpoint;
use podwright_actors::ports::Checkpoint;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::fake_ports::has_end_of;

use crate::support::fake_runtime::Script;
use crate::support::test_node::Setup;

/// Two nodes run one after the other over one `FileCheckpoint`. The first is dropped while one of its appends waits for the only
/// blocking thread and another final status is queued.
#[test]
fn dropped_node_writes_nothing_after_the_next_node_has_started() {
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    actix::System::with_tokio_rt(runtime).block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let stored = || {
            let lines: Vec<_> = std::fs::read_to_string(&path).unwrap_or_default().lines().map(str::to_owned).collect();
            ["a", "b", "c", "d"].map(|uid| has_end_of(&lines, uid))
        };
        let checkpoint: Arc<dyn Checkpoint> = Arc::new(FileCheckpoint::new(path.clone()));
        // Writes to a real file take real time, so time is not paused.
        let start = || Setup { checkpoint: Some(checkpoint.clone()), ..Setup::again(true) }.start();
        let rejected = |name: &str| pod(name).cpu("9");

        let old = start();
        old.runtime.script("done", Script::ends(0.05, 0));
        old.deliver(&[rejected("a")]).await;
        old.eventually(180.0, "the first rejection is published", || old.phase("a") == "Failed").await;
        let (free, occupied) = mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || occupied.recv());
        let done = pod("c").policy("Never").containers(&["done"]).of_file();
        old.deliver(&[rejected("a"), rejected("b"), done]).await;
        old.eventually(180.0, "the container has run", || {
            old.runtime.calls_of("c").iter().any(|c| c.contains("start"))
        })
        .await;
        old.wait(0.2).await;
        assert_eq!(stored(), [true, false, false, false]);

        drop(old);
        let new = start();
        drop(free);
        // The refused append has ended before the tasks of the old node run again.
        let (ended, last) = mpsc::channel();
        tokio::task::spawn_blocking(move || ended.send(()));
        last.recv_timeout(Duration::from_secs(180)).unwrap();
        new.wait(0.1).await;
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert_eq!(stored(), [true, false, false, false], "the old node writes nothing");

        new.deliver(&[rejected("a"), rejected("d")]).await;
        new.eventually(180.0, "the rejection is published", || new.phase("d") == "Failed").await;
        assert_eq!(stored(), [true, false, false, true]);
    });
}
