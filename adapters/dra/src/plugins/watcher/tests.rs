use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;

use super::*;

struct Fixture {
    dir: tempfile::TempDir,
    watcher: Option<Watcher>,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let watcher = Some(Watcher::new(dir.path().join("plugins_registry/")));
        Fixture { dir, watcher }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("plugins_registry")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// The names of all sockets, and of those that were created since the last listing.
    async fn list(&mut self) -> (Vec<String>, Vec<String>) {
        let (listing, watcher) = self.watcher.take().unwrap().list().await;
        self.watcher = Some(watcher);
        let (listing, problem) = listing.unwrap();
        assert!(problem.is_none(), "{problem:?}");
        let root = self.root();
        let name = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        (listing.sockets.keys().map(name).collect(), listing.created.iter().map(name).collect())
    }

    async fn error(&mut self) -> WatchError {
        let (listing, watcher) = self.watcher.take().unwrap().list().await;
        self.watcher = Some(watcher);
        listing.unwrap_err()
    }

    async fn changed(&mut self) {
        let changed = self.watcher.as_mut().unwrap().changed();
        tokio::time::timeout(Duration::from_secs(60), changed).await.expect("a change is noticed");
    }

    async fn is_quiet(&mut self) -> bool {
        let changed = self.watcher.as_mut().unwrap().changed();
        tokio::time::timeout(Duration::from_millis(100), changed).await.is_err()
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn the_directory_is_created_for_the_agent_and_its_group() {
    let mut node = Fixture::new();
    assert_eq!(node.list().await, (vec![], vec![]));
    assert_eq!(fs::metadata(node.root()).unwrap().mode() & 0o7777, 0o750);
}

/// DRA-R2: sockets in new and nested directories are found; files, hidden names and links are not.
#[tokio::test]
async fn sockets_are_found_at_any_depth() {
    let mut node = Fixture::new();
    node.list().await;
    let _a = UnixListener::bind(node.path("a.sock")).unwrap();
    node.changed().await;
    assert_eq!(node.list().await, (names(&["a.sock"]), names(&["a.sock"])));
    assert!(node.is_quiet().await, "the events were read by the walk");
    fs::create_dir_all(node.path("x/y")).unwrap();
    let _b = UnixListener::bind(node.path("x/y/b.sock")).unwrap();
    node.changed().await;
    let found = node.list().await.0;
    assert_eq!(found, names(&["a.sock", "x/y/b.sock"]));
    fs::create_dir(node.path(".hidden")).unwrap();
    let _c = UnixListener::bind(node.path(".hidden/c.sock")).unwrap();
    let _d = UnixListener::bind(node.path(".d.sock")).unwrap();
    fs::write(node.path("file"), "").unwrap();
    symlink(node.path("a.sock"), node.path("link.sock")).unwrap();
    symlink(node.path(".hidden"), node.path("link")).unwrap();
    assert_eq!(node.list().await.0, found);
    let _e = UnixListener::bind(node.path("x/y/e.sock")).unwrap();
    node.changed().await;
    assert_eq!(node.list().await.1, names(&["x/y/e.sock"]), "new directories are watched");
    fs::remove_dir_all(node.path("x")).unwrap();
    node.changed().await;
    assert_eq!(node.list().await.0, names(&["a.sock"]));
}

#[tokio::test]
async fn a_socket_that_was_created_again_between_two_walks_is_new() {
    let mut node = Fixture::new();
    node.list().await;
    let first = UnixListener::bind(node.path("a.sock")).unwrap();
    node.list().await;
    drop(first);
    fs::remove_file(node.path("a.sock")).unwrap();
    let _second = UnixListener::bind(node.path("a.sock")).unwrap();
    assert_eq!(node.list().await, (names(&["a.sock"]), names(&["a.sock"])));
    fs::rename(node.path("a.sock"), node.path("b.sock")).unwrap();
    node.changed().await;
    assert_eq!(node.list().await, (names(&["b.sock"]), names(&["b.sock"])));
}

#[tokio::test]
async fn a_registry_directory_that_is_replaced_is_watched_again() {
    let mut node = Fixture::new();
    node.list().await;
    let _a = UnixListener::bind(node.path("a.sock")).unwrap();
    fs::rename(node.root(), node.dir.path().join("old")).unwrap();
    node.changed().await;
    assert_eq!(node.list().await.0, names(&[]));
    let _b = UnixListener::bind(node.path("b.sock")).unwrap();
    node.changed().await;
    assert_eq!(node.list().await.0, names(&["b.sock"]));
}

#[tokio::test]
async fn a_registry_directory_that_cannot_be_trusted_is_not_used() {
    let mut node = Fixture::new();
    fs::write(node.root(), "").unwrap();
    assert!(matches!(node.error().await, WatchError::NotDirectory(_)));
    fs::remove_file(node.root()).unwrap();
    symlink(node.dir.path(), node.root()).unwrap();
    assert!(matches!(node.error().await, WatchError::NotDirectory(_)), "a link");
    fs::remove_file(node.root()).unwrap();
    fs::create_dir(node.root()).unwrap();
    for mode in [0o770, 0o757, 0o1777] {
        fs::set_permissions(node.root(), fs::Permissions::from_mode(mode)).unwrap();
        let error = node.error().await;
        assert!(matches!(error, WatchError::Untrusted { why: Distrust::Mode(found), .. } if found == mode), "{error}");
    }
    fs::set_permissions(node.root(), fs::Permissions::from_mode(0o755)).unwrap();
    node.list().await;
}

#[tokio::test]
async fn sockets_of_other_users_are_ignored() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give files to other users");
        return;
    }
    let mut node = Fixture::new();
    node.list().await;
    let _a = UnixListener::bind(node.path("a.sock")).unwrap();
    chown(node.path("a.sock"), Some(65534), None).unwrap();
    fs::create_dir(node.path("theirs")).unwrap();
    let _b = UnixListener::bind(node.path("theirs/b.sock")).unwrap();
    chown(node.path("theirs"), Some(65534), None).unwrap();
    fs::create_dir(node.path("open")).unwrap();
    let _c = UnixListener::bind(node.path("open/c.sock")).unwrap();
    fs::set_permissions(node.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(node.list().await.0, names(&[]));
    chown(node.path("a.sock"), Some(0), None).unwrap();
    node.changed().await;
    assert_eq!(node.list().await.0, names(&["a.sock"]));
}

/// A directory whose path is too long for the system cannot be listed, also not by root.
fn make_unreadable(parent: &Path) {
    let part = "x".repeat(250);
    let open =
        |dir: &OwnedFd| rustix::fs::openat(dir, &*part, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty());
    let mut dir: OwnedFd = fs::File::open(parent).unwrap().into();
    for _ in 0..17 {
        rustix::fs::mkdirat(&dir, &*part, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        dir = open(&dir).unwrap();
    }
}

/// A part of the registry directory that cannot be read stops no plugin of another part.
#[tokio::test]
async fn unreadable_directory_hides_only_its_own_sockets() {
    let mut node = Fixture::new();
    node.list().await;
    let _a = UnixListener::bind(node.path("a.sock")).unwrap();
    assert_eq!(node.list().await.0, names(&["a.sock"]));
    fs::create_dir(node.path("deep")).unwrap();
    make_unreadable(&node.path("deep"));
    let _b = UnixListener::bind(node.path("b.sock")).unwrap();
    assert_eq!(node.list().await.0, names(&["a.sock", "b.sock"]));
    drop(fs::remove_file(node.path("a.sock")));
    assert_eq!(node.list().await.0, names(&["b.sock"]));
}

/// What was found in a directory stays known while the directory cannot be read.
#[test]
fn sockets_below_an_unreadable_path_stay_known() {
    let mut watcher = Watcher::new("/registry".into());
    let identity = Identity { device: 1, inode: 2, born: None };
    for path in ["/registry/a.sock", "/registry/x/b.sock", "/registry/xy.sock"] {
        watcher.known.insert(path.into(), identity);
    }
    let mut walk = Walk::default();
    watcher.keep_known(&mut walk, "/registry/x".into(), &io::ErrorKind::PermissionDenied.into());
    assert_eq!(walk.sockets.keys().collect::<Vec<_>>(), [Path::new("/registry/x/b.sock")]);
}
