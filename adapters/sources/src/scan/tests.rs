use std::fs::File;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use notify::event::{AccessKind, AccessMode, CreateKind, DataChange, ModifyKind, RemoveKind, RenameMode};
use notify::{Event, EventKind};
use podwright_ports::TokioClock;

use super::*;

const CREATED: EventKind = EventKind::Create(CreateKind::File);
const WRITTEN: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
const CLOSED: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
const REMOVED: EventKind = EventKind::Remove(RemoveKind::File);
const MOVED_OUT: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::From));
const MOVED_IN: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::To));

fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
    )
}

/// A scan of a directory at times and with events that the test chooses. Times are milliseconds since the first scan.
struct Rig {
    dir: tempfile::TempDir,
    scan: Scan,
    events: FileEvents,
    start: Instant,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let cx = SourceContext::new("node", Arc::new(TokioClock::new()));
        let scan = Scan::new(vec![dir.path().to_owned()], cx, start);
        Rig { dir, scan, events: FileEvents::default(), start }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// Writes a file that somebody is said to have modified at this time.
    fn write_at(&self, file: &str, text: &str, modified: SystemTime) {
        fs::write(self.path(file), text).unwrap();
        File::options().write(true).open(self.path(file)).unwrap().set_modified(modified).unwrap();
    }

    fn write(&self, file: &str, text: &str, events: &[EventKind], at: u64) {
        fs::write(self.path(file), text).unwrap();
        self.note(file, events, at);
    }

    fn note(&self, file: &str, events: &[EventKind], at: u64) {
        for kind in events {
            self.events.note(&Event::new(*kind).add_path(self.path(file)), self.start + Duration::from_millis(at));
        }
    }

    fn rename(&self, from: &str, to: &str, at: u64) {
        fs::rename(self.path(from), self.path(to)).unwrap();
        self.note(from, &[MOVED_OUT], at);
        self.note(to, &[MOVED_IN], at);
    }

    fn remove(&self, file: &str, at: u64) {
        fs::remove_file(self.path(file)).unwrap();
        self.note(file, &[REMOVED], at);
    }

    /// Scans. Returns `name image` of each pod, and the beginning of the only problem.
    fn scan_with_problem(&mut self, at: u64) -> (Option<Vec<String>>, Option<String>) {
        let set = self.scan.run(&self.events, self.start + Duration::from_millis(at)).set;
        let problem = set.as_ref().and_then(|set| {
            let [problem] = &set.problems[..] else { panic!("{:?}", set.problems) };
            let text = problem.to_string();
            text.strip_prefix(self.dir.path().to_str().unwrap())?
                .split_once(" and move")
                .map(|(text, _)| text.to_owned())
        });
        (set.as_ref().map(lines), problem)
    }

    /// Scans. Returns `name image` of each pod, and when the next file may be read.
    fn scan(&mut self, at: u64) -> (Option<Vec<String>>, Option<u64>) {
        let Scanned { set, next } = self.scan.run(&self.events, self.start + Duration::from_millis(at));
        let pods = set.map(|set| {
            assert_eq!(set.problems, []);
            lines(&set)
        });
        (pods, next.map(|next| u64::try_from((next - self.start).as_millis()).unwrap()))
    }
}

fn lines(set: &SourceSet) -> Vec<String> {
    let line = |pod: &Arc<podwright_model::pod::PodObject>| {
        format!("{} {}", pod.full_name().name(), pod.containers()[0].image.as_deref().unwrap())
    };
    set.pods.iter().map(line).collect()
}

fn pods(lines: &[&str]) -> Option<Vec<String>> {
    Some(lines.iter().map(|line| (*line).to_owned()).collect())
}

#[tokio::test]
async fn first_set_waits_until_every_manifest_is_whole() {
    let hour = Duration::from_secs(3600);
    let mut rig = Rig::new();
    rig.write_at("old.yaml", &pod("old", "one"), SystemTime::now() - hour);
    assert_eq!(rig.scan(0), (pods(&["old-node one"]), None), "nobody writes to an old file");

    let mut rig = Rig::new();
    rig.write_at("old.yaml", &pod("old", "one"), SystemTime::now() - hour);
    // The wall clock was set back after the file was written.
    rig.write_at("new.yaml", &pod("new", "one"), SystemTime::now() + hour);
    assert_eq!(rig.scan(0), (None, Some(1000)));
    rig.write("new.yaml", &pod("new", "half"), &[WRITTEN], 900);
    assert_eq!(rig.scan(950), (None, Some(10_950)));
    assert_eq!(rig.scan(10_950), (pods(&["new-node half", "old-node one"]), None), "its writer does not go on");
}

#[tokio::test]
async fn manifest_that_is_written_for_long_is_left_out_and_reported() {
    let mut rig = Rig::new();
    rig.write_at("old.yaml", &pod("old", "one"), SystemTime::UNIX_EPOCH);
    let half = pod("new", "half");
    for at in [0, 5_000, 12_000, 19_000] {
        rig.write("new.yaml", &format!("{half}# {at}"), &[WRITTEN], at);
        assert_eq!(rig.scan(at).0, None, "at {at}");
    }
    let problem = "/new.yaml: is still being written and was not read: write it elsewhere";
    assert_eq!(rig.scan_with_problem(20_000), (pods(&["old-node one"]), Some(problem.to_owned())));
    rig.write("new.yaml", &pod("new", "one"), &[WRITTEN, CLOSED], 25_000);
    assert_eq!(rig.scan_with_problem(25_000).0, pods(&["old-node one"]));
    assert_eq!(rig.scan(26_000), (pods(&["new-node one", "old-node one"]), None));

    for at in [30_000, 39_000, 48_000] {
        rig.write("new.yaml", &format!("{half}# {at}"), &[WRITTEN], at);
        assert_eq!(rig.scan(at).0, pods(&["new-node one", "old-node one"]), "at {at}");
    }
    let problem = "/new.yaml: is still being written and was not read; its last pods are kept: write it elsewhere";
    assert_eq!(rig.scan_with_problem(50_000), (pods(&["new-node one", "old-node one"]), Some(problem.to_owned())));
    assert_eq!(rig.scan(58_000), (pods(&["new-node half", "old-node one"]), None));
}

#[tokio::test]
async fn manifests_that_other_users_can_change_are_not_read() {
    let mut rig = Rig::new();
    let scan = |rig: &mut Rig, at| {
        let set = rig.scan.run(&rig.events, rig.start + Duration::from_millis(at)).set.unwrap();
        (lines(&set).join(" "), set.problems.iter().map(ToString::to_string).collect::<String>())
    };
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let (dir, file) = (rig.dir.path().to_owned(), rig.path("a.yaml"));
    rig.write_at("a.yaml", &pod("a", "one"), SystemTime::UNIX_EPOCH);
    assert_eq!(scan(&mut rig, 0), ("a-node one".into(), String::new()));
    rig.write_at("a.yaml", &pod("a", "two"), SystemTime::UNIX_EPOCH);

    set_mode(&dir, 0o707);
    let (pods, problem) = scan(&mut rig, 20_000);
    assert_eq!(pods, "a-node one");
    assert!(problem.contains("other users can write to") && problem.contains("(mode 0707)"), "{problem}");
    set_mode(&dir, 0o700);

    set_mode(&file, 0o606);
    scan(&mut rig, 40_000);
    let (pods, problem) = scan(&mut rig, 42_000);
    assert_eq!(pods, "a-node one");
    assert!(problem.contains("(mode 0606)") && problem.contains("its last pods are kept"), "{problem}");
    set_mode(&file, 0o640);
    scan(&mut rig, 62_000);
    assert_eq!(scan(&mut rig, 64_000), ("a-node two".into(), String::new()));
}

#[tokio::test]
async fn mended_manifest_is_not_reported_as_one_that_is_written_for_long() {
    let mut rig = Rig::new();
    symlink(rig.path("gone"), rig.path("web.yaml")).unwrap();
    rig.scan(0);
    assert_eq!(rig.scan_with_problem(100), (pods(&[]), None), "the link cannot be read");
    rig.remove("web.yaml", 60_000);
    rig.write("web.yaml", &pod("web", "one"), &[CREATED, WRITTEN], 60_000);
    assert_eq!(rig.scan_with_problem(60_000), (pods(&[]), None), "a writer has just begun");
    assert_eq!(rig.scan(70_000), (pods(&["web-node one"]), None));
}

#[tokio::test]
async fn scan_reads_only_the_changed_files_between_two_checks() {
    let mut rig = Rig::new();
    rig.write_at("a.yaml", &pod("a", "one"), SystemTime::UNIX_EPOCH);
    assert_eq!(rig.scan(0), (pods(&["a-node one"]), None));
    let path = rig.path("a.yaml");
    let read_at_start = rig.scan.files[&path];
    for at in [10_000, 10_100, 19_900] {
        rig.write("b.yaml", &format!("# {at}"), &[WRITTEN], at);
        assert_eq!(rig.scan(at).0, pods(&["a-node one"]), "at {at}");
        assert_eq!(rig.scan.files[&path], read_at_start, "at {at}");
    }
    rig.scan(20_000);
    let read_again = rig.scan.files[&path];
    assert_ne!(read_again, read_at_start, "every 20 s, all files are read");
    rig.note("a.yaml", &[CLOSED], 20_500);
    rig.scan(21_000);
    let read_after_event = rig.scan.files[&path];
    assert!(
        read_after_event != read_again && read_after_event.is_current(),
        "two writes within one tick of the clock leave the same stamp"
    );
}

#[tokio::test]
async fn manifest_is_not_read_while_it_is_being_written() {
    let mut rig = Rig::new();
    let (half, whole) = (pod("a", "two"), format!("{}---\n{}", pod("a", "two"), pod("b", "two")));
    rig.write_at("a.yaml", &pod("a", "one"), SystemTime::UNIX_EPOCH);
    assert_eq!(rig.scan(0), (pods(&["a-node one"]), None));

    rig.write("a.yaml", &half, &[WRITTEN], 20_000);
    assert_eq!(rig.scan(20_000), (pods(&["a-node one"]), Some(30_000)));
    assert_eq!(rig.scan(24_000), (pods(&["a-node one"]), Some(30_000)));
    rig.write("a.yaml", &whole, &[WRITTEN, CLOSED], 24_000);
    assert_eq!(rig.scan(24_000), (pods(&["a-node one"]), Some(24_100)));
    assert_eq!(rig.scan(24_100), (pods(&["a-node two", "b-node two"]), None));

    // Without events, for example on a network file system.
    rig.write("a.yaml", &half, &[], 0);
    assert_eq!(rig.scan(30_000), (pods(&["a-node two", "b-node two"]), Some(31_000)));
    rig.write("a.yaml", &pod("a", "three"), &[], 0);
    assert_eq!(rig.scan(30_900), (pods(&["a-node two", "b-node two"]), Some(31_900)));
    assert_eq!(rig.scan(31_900), (pods(&["a-node three"]), None));
}

#[tokio::test]
async fn temporary_manifest_that_is_renamed_within_a_second_starts_nothing() {
    let mut rig = Rig::new();
    assert_eq!(rig.scan(0), (pods(&[]), None));
    rig.write("__tmp", &pod("web", "one"), &[CREATED, WRITTEN, CLOSED], 20_000);
    assert_eq!(rig.scan(20_000), (pods(&[]), Some(21_000)));
    rig.rename("__tmp", "web.yaml", 20_900);
    assert_eq!(rig.scan(20_900), (pods(&[]), Some(21_000)));
    let scanned = rig.scan.run(&rig.events, rig.start + Duration::from_millis(21_000));
    let set = scanned.set.unwrap();
    assert_eq!((set.pods.len(), set.problems.len(), scanned.next), (1, 0, None));
    let uid = set.pods[0].uid().clone();

    // The same with a file that exists already.
    rig.write("__tmp", &pod("web", "two"), &[CREATED, WRITTEN, CLOSED], 30_000);
    assert_eq!(rig.scan(30_000), (pods(&["web-node one"]), Some(31_000)));
    rig.rename("__tmp", "web.yaml", 30_500);
    assert_eq!(rig.scan(30_500), (pods(&["web-node one"]), Some(30_600)));
    assert_eq!(rig.scan(30_600), (pods(&["web-node two"]), None));
    let set = rig.scan.run(&rig.events, rig.start + Duration::from_millis(30_700)).set.unwrap();
    assert_ne!(*set.pods[0].uid(), uid);
}

#[tokio::test]
async fn manifest_that_is_replaced_in_steps_stays() {
    let mut rig = Rig::new();
    rig.write_at("web.yaml", &pod("web", "one"), SystemTime::UNIX_EPOCH);
    assert_eq!(rig.scan(0), (pods(&["web-node one"]), None));
    // An editor moves the file away and writes a new one.
    rig.rename("web.yaml", "web.yaml~", 20_000);
    assert_eq!(rig.scan(20_000), (pods(&["web-node one"]), Some(20_100)));
    rig.write("web.yaml", &pod("web", "two"), &[CREATED, WRITTEN, CLOSED], 20_050);
    assert_eq!(rig.scan(20_100), (pods(&["web-node one"]), Some(20_200)));
    assert_eq!(rig.scan(20_200), (pods(&["web-node two"]), None));

    rig.remove("web.yaml", 30_000);
    assert_eq!(rig.scan(30_000), (pods(&["web-node two"]), Some(30_100)));
    assert_eq!(rig.scan(30_100), (pods(&[]), None));
}
