//! Sources of static pods on real directories and a real HTTP server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_core::config::mux::{Change, SourceConfig};
use podwright_model::time::Time;
use podwright_ports::{
    Clock, NodeStopped, SOURCE_CHANNEL_DEPTH, SourceInbox, SourceKind, SourceSet, SourceUpdate, TokioClock,
};
use podwright_sources::{FileSource, SourceContext, UrlSource};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long a test waits for an update. The limit guards only against hanging.
const PATIENCE: Duration = Duration::from_secs(180);

/// Stands in for a node, which has stopped once the receiver is dropped.
struct Collector(mpsc::Sender<SourceUpdate>);

impl SourceInbox for Collector {
    fn send(&self, update: SourceUpdate) -> BoxFuture<'static, Result<(), NodeStopped>> {
        let updates = self.0.clone();
        async move { updates.send(update).await.map_err(|_| NodeStopped) }.boxed()
    }
}

/// A running source, and the sets that it sends.
struct Running {
    sets: mpsc::Receiver<SourceUpdate>,
    stop: CancellationToken,
}

impl Running {
    fn files(paths: &[PathBuf]) -> Running {
        // The periodic check runs too rarely to matter, so only the watch reports changes.
        let cx = SourceContext { check_frequency: Duration::from_secs(3600), ..context() };
        Running::start(|out, stop| FileSource::new(paths.to_vec(), cx).run(out, stop))
    }

    fn urls(urls: &[String], frequency: Duration) -> Running {
        let cx = SourceContext { check_frequency: frequency, ..context() };
        let urls: Vec<_> = urls.iter().map(|url| url.parse().unwrap()).collect();
        Running::start(|out, stop| UrlSource::new(urls, cx).run(out, stop))
    }

    fn start<F: Future<Output = ()> + Send + 'static>(
        run: impl FnOnce(Arc<dyn SourceInbox>, CancellationToken) -> F,
    ) -> Running {
        let (out, sets) = mpsc::channel(SOURCE_CHANNEL_DEPTH);
        let stop = CancellationToken::new();
        tokio::spawn(run(Arc::new(Collector(out)), stop.clone()));
        Running { sets, stop }
    }

    async fn next_update(&mut self) -> SourceUpdate {
        timeout(PATIENCE, self.sets.recv()).await.expect("no update arrived in time").unwrap()
    }

    async fn next(&mut self) -> SourceSet {
        match self.next_update().await {
            SourceUpdate::Set(set) => set,
            not_yet => panic!("no set: {not_yet:?}"),
        }
    }

    /// Returns the next set that is as expected. A change may cause other sets before it.
    async fn until(&mut self, expected: impl Fn(&SourceSet) -> bool) -> SourceSet {
        loop {
            let set = self.next().await;
            if expected(&set) {
                return set;
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn context() -> SourceContext {
    SourceContext::new("Node", Arc::new(TokioClock::new()))
}

fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
    )
}

/// `name image` of each pod.
fn held(set: &SourceSet) -> Vec<String> {
    let line = |pod: &Arc<podwright_model::pod::PodObject>| {
        format!("{} {}", pod.full_name().name(), pod.containers()[0].image.as_deref().unwrap())
    };
    set.pods.iter().map(line).collect()
}

fn blamed(set: &SourceSet) -> Vec<&Path> {
    set.problems.iter().map(|problem| Path::new(&problem.what)).collect()
}

fn replace(path: &Path, text: &str) {
    let temporary = path.with_file_name(".new");
    fs::write(&temporary, text).unwrap();
    fs::rename(temporary, path).unwrap();
}

#[tokio::test]
async fn manifest_directory_is_watched_file_by_file() {
    let dir = TempDir::new().unwrap();
    let (a, b) = (dir.path().join("a.yaml"), dir.path().join("b.json"));
    fs::write(&a, pod("a", "one")).unwrap();
    fs::write(dir.path().join(".hidden"), pod("hidden", "one")).unwrap();
    fs::write(dir.path().join("a.yaml~"), pod("a", "old")).unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("sub/c.yaml"), pod("sub", "one")).unwrap();

    let mut source = Running::files(&[dir.path().to_owned()]);
    let set = source.next().await;
    assert_eq!((set.source, held(&set), set.problems.len()), (SourceKind::File, vec!["a-node one".into()], 0));
    let first = set.pods[0].clone();
    assert!(first.is_static());

    fs::write(&b, pod("b", "one")).unwrap();
    let set = source.until(|set| set.pods.len() == 2).await;
    assert_eq!(held(&set), ["a-node one", "b-node one"]);
    assert!(Arc::ptr_eq(&first, &set.pods[0]));

    replace(&a, &pod("a", "two"));
    let set = source.until(|set| held(set)[0] == "a-node two").await;
    assert_ne!(set.pods[0].uid(), first.uid());

    fs::remove_file(&b).unwrap();
    assert_eq!(held(&source.until(|set| set.pods.len() == 1).await), ["a-node two"]);
}

// POD-W27.
#[tokio::test]
async fn invalid_manifest_keeps_its_pod_while_the_file_exists() {
    let dir = TempDir::new().unwrap();
    let (a, b) = (dir.path().join("a.yaml"), dir.path().join("b.yaml"));
    fs::write(&a, pod("a", "one")).unwrap();
    fs::write(&b, pod("b", "one")).unwrap();
    let mut source = Running::files(&[dir.path().to_owned()]);
    let before = source.next().await;
    assert_eq!(held(&before), ["a-node one", "b-node one"]);

    let text = pod("a", "two").replace("name: c,", "name: C,");
    for broken in ["", "kind: [", &text] {
        replace(&a, broken);
        let set = source.until(|set| !set.problems.is_empty()).await;
        assert_eq!((held(&set), blamed(&set)), (held(&before), vec![a.as_path()]), "{broken:?}");
        assert!(set.pods.iter().zip(&before.pods).all(|(new, old)| Arc::ptr_eq(new, old)));
        replace(&a, &pod("a", "one"));
        source.until(|set| set.problems.is_empty()).await;
    }

    // Not even root can read this file.
    fs::remove_file(&a).unwrap();
    std::os::unix::fs::symlink("/nonexistent/target", dir.path().join(".link")).unwrap();
    fs::rename(dir.path().join(".link"), &a).unwrap();
    let set = source.until(|set| !set.problems.is_empty()).await;
    assert_eq!((held(&set), blamed(&set)), (held(&before), vec![a.as_path()]));
    // A broken manifest does not delay the others.
    replace(&b, &pod("b", "two"));
    let set = source.until(|set| held(set)[1] == "b-node two").await;
    assert_eq!(held(&set), ["a-node one", "b-node two"]);

    fs::remove_file(&a).unwrap();
    assert_eq!(held(&source.until(|set| set.pods.len() == 1).await), ["b-node two"]);
}

#[tokio::test]
async fn unlistable_manifest_directory_keeps_its_pods() {
    let parent = TempDir::new().unwrap();
    let dir = parent.path().join("pods");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a.yaml"), pod("a", "one")).unwrap();
    let mut source = Running::files(std::slice::from_ref(&dir));
    assert_eq!(held(&source.next().await), ["a-node one"]);

    fs::rename(&dir, parent.path().join("aside")).unwrap();
    // Nobody can list a link to itself.
    std::os::unix::fs::symlink(&dir, &dir).unwrap();
    let set = source.until(|set| !set.problems.is_empty()).await;
    assert_eq!((held(&set), blamed(&set)), (vec!["a-node one".to_owned()], vec![dir.as_path()]));

    fs::remove_file(&dir).unwrap();
    fs::rename(parent.path().join("aside"), &dir).unwrap();
    let set = source.until(|set| set.problems.is_empty()).await;
    assert_eq!(held(&set), ["a-node one"]);
    // The watch follows the directory that came back.
    fs::write(dir.join("b.yaml"), pod("b", "one")).unwrap();
    assert_eq!(source.until(|set| set.pods.len() == 2).await.problems, []);
}

#[tokio::test]
async fn missing_manifest_path_is_an_empty_set_until_it_exists() {
    let parent = TempDir::new().unwrap();
    let (dir, file) = (parent.path().join("later/pods"), parent.path().join("single.yaml"));
    let mut source = Running::files(&[dir.clone(), file.clone()]);
    let set = source.next().await;
    assert_eq!((set.pods.len(), set.problems.len()), (0, 0));

    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("a.yaml"), pod("a", "one")).unwrap();
    assert_eq!(held(&source.until(|set| set.pods.len() == 1).await), ["a-node one"]);
    fs::write(&file, pod("s", "one")).unwrap();
    assert_eq!(held(&source.until(|set| set.pods.len() == 2).await), ["a-node one", "s-node one"]);
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(held(&source.until(|set| set.pods.len() == 1).await), ["s-node one"]);
}

// Some versions may be skipped, but the last edit is always delivered (POD-S31).
#[tokio::test]
async fn last_of_many_manifest_edits_is_delivered() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, pod("a", "v0")).unwrap();
    let mut source = Running::files(&[dir.path().to_owned()]);
    let mut config = SourceConfig::new();
    let _ = config.apply(source.next().await.pods);
    for version in 1..=300 {
        fs::write(&file, pod("a", &format!("v{version}"))).unwrap();
    }
    let mut sets = 0;
    loop {
        let set = source.next().await;
        sets += 1;
        assert_eq!(set.problems, [], "a file is not read while it is being written");
        let last = held(&set) == ["a-node v300"];
        let changes = config.apply(set.pods).changes;
        assert!(matches!(&changes[..], [Change::Remove(old), Change::Add(new)] if old.len() == 1 && new.len() == 1));
        if last {
            break;
        }
    }
    assert!(sets < 30, "quick edits are not merged: {sets} sets");
    let uid = config.pods().next().unwrap().uid().clone();
    // The same manifest has the same UID in another run of the agent.
    let again = Running::files(&[dir.path().to_owned()]).next().await;
    assert_eq!(*again.pods[0].uid(), uid);
}

#[tokio::test]
async fn manifest_edit_with_fixed_uid_is_an_update() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.yaml");
    let text = |image| pod("a", image).replace("name: a", "name: a, uid: fixed");
    fs::write(&file, text("one")).unwrap();
    let mut source = Running::files(&[dir.path().to_owned()]);
    let mut config = SourceConfig::new();
    let set = source.next().await;
    let first_seen = set.pods[0].first_seen();
    let _ = config.apply(set.pods);
    replace(&file, &text("two"));
    let changes = config.apply(source.next().await.pods).changes;
    assert!(matches!(&changes[..], [Change::Update(pods)] if pods[0].first_seen() == first_seen));
}

#[tokio::test]
async fn manifest_is_read_when_its_writer_closes_it() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, pod("a", "one")).unwrap();
    let mut source = Running::files(&[dir.path().to_owned()]);
    assert_eq!(held(&source.next().await), ["a-node one"]);

    // The first part is a manifest too.
    let mut writer = fs::File::create(&file).unwrap();
    writer.write_all(pod("a", "two").as_bytes()).unwrap();
    replace(&dir.path().join("b.yaml"), &pod("b", "one"));
    assert_eq!(held(&source.next().await), ["a-node one", "b-node one"]);
    writer.write_all(format!("---\n{}", pod("c", "two")).as_bytes()).unwrap();
    drop(writer);
    assert_eq!(held(&source.next().await), ["a-node two", "c-node two", "b-node one"]);
}

#[tokio::test]
async fn copy_of_a_manifest_does_not_replace_its_pod() {
    let dir = TempDir::new().unwrap();
    let (web, copy) = (dir.path().join("web.yaml"), dir.path().join("a-copy.yaml"));
    fs::write(&web, pod("web", "one")).unwrap();
    let mut source = Running::files(&[dir.path().to_owned()]);
    let first = source.next().await.pods;

    fs::copy(&web, &copy).unwrap();
    let set = source.next().await;
    assert!(Arc::ptr_eq(&set.pods[0], &first[0]));
    assert_eq!((set.pods.len(), blamed(&set)), (1, vec![copy.as_path()]));
    assert!(set.problems[0].message.contains(web.to_str().unwrap()), "{}", set.problems[0]);

    replace(&web, &pod("web", "two"));
    assert_eq!(held(&source.next().await), ["web-node two"]);
    fs::remove_file(&web).unwrap();
    let set = source.next().await;
    assert_eq!((held(&set), set.problems), (vec!["web-node one".to_owned()], vec![]));
}

#[tokio::test]
async fn named_pipe_in_a_manifest_directory_blocks_nothing() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("a.yaml"), pod("a", "one")).unwrap();
    let made = tokio::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status().await.unwrap();
    assert!(made.success());
    let set = Running::files(&[dir.path().to_owned()]).next().await;
    assert_eq!((held(&set), blamed(&set)), (vec!["a-node one".to_owned()], vec![dir.path().join("pipe").as_path()]));
}

#[tokio::test]
async fn every_example_manifest_is_valid() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let set = Running::files(&[examples]).next().await;
    assert_eq!(set.problems, []);
    assert!(set.pods.len() >= 8, "{}", set.pods.len());
    assert!(SourceConfig::new().apply(set.pods).refused.is_empty());
}

/// A server with one answer, which the test can change.
struct Server {
    url: String,
    answer: Arc<Mutex<(StatusCode, String)>>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    async fn start(status: StatusCode, body: &str) -> Server {
        let answer = Arc::new(Mutex::new((status, body.to_owned())));
        let requests = Arc::new(AtomicUsize::new(0));
        let state = (answer.clone(), requests.clone());
        let handler = move || {
            let (answer, requests) = state.clone();
            async move {
                requests.fetch_add(1, Ordering::SeqCst);
                answer.lock().unwrap().clone()
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://user:secret@{}/pods", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/pods", get(handler))).await });
        Server { url, answer, requests }
    }

    fn answer(&self, status: StatusCode, body: &str) {
        *self.answer.lock().unwrap() = (status, body.to_owned());
    }

    async fn requested_again(&self) {
        let before = self.requests.load(Ordering::SeqCst);
        while self.requests.load(Ordering::SeqCst) < before + 2 {
            tokio::task::yield_now().await;
        }
    }
}

const OFTEN: Duration = Duration::from_millis(5);

#[tokio::test]
async fn url_source_keeps_its_last_pods_while_requests_fail() {
    let server = Server::start(StatusCode::OK, &pod("a", "one")).await;
    let mut source = Running::urls(std::slice::from_ref(&server.url), OFTEN);
    let set = source.next().await;
    assert_eq!((set.source, held(&set)), (SourceKind::Http, vec!["a-node one".into()]));
    let uid = set.pods[0].uid().clone();

    // The source does not send an unchanged set again.
    server.requested_again().await;
    assert!(source.sets.try_recv().is_err());

    for (status, body) in [
        (StatusCode::SERVICE_UNAVAILABLE, pod("a", "two")),
        (StatusCode::OK, String::new()),
        (StatusCode::OK, "x".repeat((10 << 20) + 1)),
    ] {
        server.answer(status, &body);
        let set = source.until(|set| !set.problems.is_empty()).await;
        assert_eq!(held(&set), ["a-node one"]);
        assert!(!set.problems[0].to_string().contains("secret"), "{}", set.problems[0]);
        server.answer(StatusCode::OK, &pod("a", "one"));
        let set = source.until(|set| set.problems.is_empty()).await;
        assert_eq!(*set.pods[0].uid(), uid);
    }

    server.answer(StatusCode::OK, &pod("a", "two"));
    assert_eq!(held(&source.until(|set| set.problems.is_empty()).await), ["a-node two"]);
    server.answer(StatusCode::OK, "apiVersion: v1\nkind: PodList\nitems: []\n");
    assert_eq!(source.next().await.pods.len(), 0);
}

/// A clock that records the threads that read it.
struct WatchedClock(TokioClock, Arc<Mutex<Vec<std::thread::ThreadId>>>);

impl Clock for WatchedClock {
    fn now(&self) -> Time {
        self.1.lock().unwrap().push(std::thread::current().id());
        self.0.now()
    }
}

// The source shares its thread with the engine, and a manifest may have 10 MiB.
#[tokio::test]
async fn manifests_of_urls_are_parsed_on_another_thread() {
    let server = Server::start(StatusCode::OK, &pod("a", "one")).await;
    // The source reads the clock for each pod that it parses.
    let threads = Arc::new(Mutex::new(vec![]));
    let clock = Arc::new(WatchedClock(TokioClock::new(), threads.clone()));
    let (urls, cx) = (vec![server.url.parse().unwrap()], SourceContext::new("node", clock));
    let mut source = Running::start(|out, stop| UrlSource::new(urls, cx).run(out, stop));
    assert_eq!(source.next().await.pods.len(), 1);
    let threads = threads.lock().unwrap();
    assert!(!threads.is_empty() && !threads.contains(&std::thread::current().id()));
}

// A source that was never reached has not delivered. Pods of an earlier agent must not be stopped for that reason.
#[tokio::test]
async fn first_url_set_waits_until_every_url_answered() {
    let (up, down) = (
        Server::start(StatusCode::OK, &pod("a", "one")).await,
        Server::start(StatusCode::SERVICE_UNAVAILABLE, "").await,
    );
    let mut source = Running::urls(&[up.url.clone(), down.url.clone()], OFTEN);
    let SourceUpdate::NotYet { source: SourceKind::Http, problems } = source.next_update().await else {
        panic!("a set")
    };
    let messages: Vec<_> = problems.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(
        messages,
        ["answered 503 Service Unavailable; the URL is requested again every 0 s"],
        "the update reports the reason"
    );
    down.requested_again().await;
    assert!(source.sets.try_recv().is_err(), "the update is sent once");
    down.answer(StatusCode::OK, &pod("b", "one"));
    assert_eq!(held(&source.next().await), ["a-node one", "b-node one"]);
}

#[tokio::test]
async fn manifest_source_ends_when_cancelled() {
    let dir = TempDir::new().unwrap();
    let mut source = Running::files(&[dir.path().to_owned()]);
    source.next().await;
    source.stop.cancel();
    assert!(timeout(PATIENCE, source.sets.recv()).await.unwrap().is_none());
}

#[tokio::test]
async fn manifest_source_ends_when_the_node_has_stopped() {
    let dir = TempDir::new().unwrap();
    let (node, updates) = mpsc::channel(1);
    drop(updates);
    let source = FileSource::new([dir.path().to_owned()], context());
    let run = source.run(Arc::new(Collector(node)), CancellationToken::new());
    assert!(timeout(PATIENCE, run).await.is_ok(), "the source sends to a node that has stopped");
}
