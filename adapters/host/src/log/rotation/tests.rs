//! The rotation of files of a temporary directory. The time of the asynchronous tests is paused, and stands still during a blocking call.
//! So no log counts as one that hangs because the machine is slow.

use std::fs::{self, File, OpenOptions};
use std::io::Write;

use futures_util::FutureExt;
use jiff::civil::date;
use parking_lot::Mutex;
use podwright_fixtures::hostile_files::{clear, plants};
use podwright_model::ids::ContainerId;
use podwright_ports::RuntimeFuture;

use super::*;
use crate::log::LogDir;

/// A plan for a directory of regular files.
fn plan(current: &str, files: &[String], max_files: usize, now: Option<DateTime>) -> RotationPlan {
    super::plan(current, &LogNames { files: files.to_vec(), others: vec![] }, max_files, now)
}

fn names(text: &[&str]) -> Vec<String> {
    text.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn rotation_plan_removes_old_files_and_compresses_the_others() {
    let now = date(2026, 11, 21).at(20, 30, 0, 0);
    let on = |day: &str| format!("0.log.202611{day}-000000");
    let days = |days: &[&str]| days.iter().map(|day| on(day)).collect::<Vec<_>>();
    let packed = |day: &str| (on(day), format!("{}.gz", on(day)));
    let none: Vec<String> = Vec::new();
    let moved = Some("0.log.20261121-203000".to_owned());

    let first = plan("0.log", &names(&["0.log", "1.log", "1.log.20261101-000000"]), 5, Some(now));
    assert_eq!(first, RotationPlan { rotate: moved.clone(), ..RotationPlan::default() });

    // Three of the four rotated files are kept: five files, minus the file that is rotated now and the new file.
    let files =
        [days(&["03", "04"]), names(&["0.log", "0.log.20261101-000000.gz", "0.log.20261102-000000.gz"])].concat();
    let next = plan("0.log", &files, 5, Some(now));
    let expected = RotationPlan {
        remove: names(&["0.log.20261101-000000.gz"]),
        compress: vec![packed("03"), packed("04")],
        rotate: moved.clone(),
        not_regular: none.clone(),
    };
    assert_eq!(next, expected);
    assert_eq!(plan("0.log", &days(&["03", "04"]), 2, Some(now)).remove, days(&["03", "04"]), "no room for any");

    // The last rotation was in the same second, or the clock was set back since.
    for last in ["0.log.20261121-203000", "0.log.20261121-235959.gz"] {
        let stamped = plan("0.log", &names(&[last]), 5, Some(now)).rotate.unwrap();
        assert!(stamped.as_str() > last.trim_end_matches(".gz"), "{stamped}");
    }

    // The remains of an interrupted rotation are removed; nothing else changes if nothing is rotated.
    let doubled = format!("{}.gz", on("03"));
    let left = [days(&["03"]), vec![doubled, "0.log.20261103-000000.gz.tmp".into(), "2.log.tmp".into()]].concat();
    let tidied = plan("0.log", &left, 2, None);
    assert_eq!(tidied.remove, [on("03"), "0.log.20261103-000000.gz.tmp".to_owned()]);
    assert_eq!((tidied.compress, tidied.rotate), (vec![], None));
    assert_eq!(plan("0.log", &[], 5, None).remove, none);
}

/// A container that reopens its log path on request.
struct Writer {
    path: PathBuf,
    file: Mutex<File>,
    /// Whether a reopen request fails.
    refuses: Mutex<bool>,
    /// Whether a reopen request removes the rotated logs, as the removal of the pod does.
    gone: Mutex<bool>,
}

impl Writer {
    fn new(path: PathBuf) -> Arc<Self> {
        let file = Mutex::new(Writer::open(&path));
        Arc::new(Writer { path, file, refuses: Mutex::new(false), gone: Mutex::new(false) })
    }

    fn open(path: &Path) -> File {
        OpenOptions::new().create(true).append(true).open(path).unwrap()
    }

    fn write(&self, text: &str) {
        self.file.lock().write_all(text.as_bytes()).unwrap();
    }

    fn log(&self) -> OpenLog {
        OpenLog { container: "c".into(), dir: LogDir::new(self.path.parent().unwrap(), "."), file: "0.log".into() }
    }

    fn rotator(self: &Arc<Self>, max_files: usize) -> Rotator {
        Rotator::new(self.clone(), Limits { max_size: 10, max_files })
    }
}

impl WritesLogs for Writer {
    fn open_logs(&self) -> RuntimeFuture<'_, Vec<OpenLog>> {
        async { Ok(vec![self.log()]) }.boxed()
    }

    fn reopen_log<'a>(&'a self, _: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        if *self.gone.lock() {
            let dir = self.path.parent().unwrap();
            for file in files(dir).iter().filter(|file| file.starts_with("0.log.2")) {
                fs::remove_file(dir.join(file)).unwrap();
            }
        }
        if *self.refuses.lock() {
            return async { Err(RuntimeError::failed("refused")) }.boxed();
        }
        *self.file.lock() = Writer::open(&self.path);
        async { Ok(()) }.boxed()
    }
}

/// The errors of a round with the writer's log.
async fn rotated(rotator: &mut Rotator, writer: &Writer) -> Vec<String> {
    let ended = rotator.round(&[writer.log()]).await;
    ended.iter().flat_map(|rotation| &rotation.errors).map(|error| error_chain(error).to_string()).collect()
}

/// The errors that a round with the writer's log reports, and the number of all its errors.
async fn reports(rotator: &mut Rotator, writer: &Writer) -> (Vec<String>, usize) {
    let ended = rotator.round(&[writer.log()]).await;
    let all = ended.iter().map(|rotation| rotation.errors.len()).sum();
    (ended.into_iter().flat_map(|rotation| rotator.unreported(rotation)).collect(), all)
}

fn files(dir: &Path) -> Vec<String> {
    let mut files: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    files
}

/// The content of all files of a log, oldest first.
fn whole(dir: &Path) -> String {
    let mut text = String::new();
    let (mut old, current): (Vec<_>, Vec<_>) = files(dir).into_iter().partition(|name| name != "0.log");
    old.sort();
    for name in old.into_iter().chain(current) {
        let bytes = fs::read(dir.join(&name)).unwrap();
        if name.ends_with(".gz") {
            let mut decoder = flate2::read::GzDecoder::new(&bytes[..]);
            io::Read::read_to_string(&mut decoder, &mut text).unwrap();
        } else {
            text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }
    text
}

#[tokio::test(start_paused = true)]
async fn full_log_is_rotated_without_losing_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::new(dir.path().join("0.log"));
    let mut rotator = writer.rotator(4);
    let mut expected = String::new();
    for round in 0..3 {
        let text = format!("round {round}: more than ten bytes\n");
        writer.write(&text);
        expected.push_str(&text);
        assert_eq!(rotated(&mut rotator, &writer).await, [""; 0]);
        assert_eq!(fs::metadata(&writer.path).unwrap().len(), 0);
        assert_eq!(whole(dir.path()), expected);
    }
    let kinds: Vec<bool> = files(dir.path())[1..].iter().map(|name| name.ends_with(".gz")).collect();
    assert_eq!(kinds, [true, true, false], "{:?}", files(dir.path()));
    // A log that is not full is not rotated. The next rotation removes the oldest file.
    writer.write("few\n");
    assert_eq!(rotated(&mut rotator, &writer).await, [""; 0]);
    assert_eq!(files(dir.path()).len(), 4);
    writer.write("more than ten bytes\n");
    assert_eq!(rotated(&mut rotator, &writer).await, [""; 0]);
    assert_eq!(files(dir.path()).len(), 4);
    assert_eq!(
        whole(dir.path()),
        expected[expected.find("round 1").unwrap()..].to_owned() + "few\nmore than ten bytes\n"
    );
}

#[tokio::test(start_paused = true)]
async fn interrupted_log_rotation_is_finished_by_the_next_agent() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::new(dir.path().join("0.log"));
    // The file was moved away, and the container still writes to it.
    writer.write("before\n");
    fs::rename(&writer.path, dir.path().join("0.log.20261121-000000")).unwrap();
    writer.write("between\n");
    assert_eq!(rotated(&mut writer.rotator(5), &writer).await, [""; 0]);
    writer.write("after\n");
    assert_eq!(whole(dir.path()), "before\nbetween\nafter\n");
    assert_eq!(fs::read_to_string(&writer.path).unwrap(), "after\n");
    // The compression was interrupted.
    fs::write(dir.path().join("0.log.20261121-000000.gz.tmp"), "half").unwrap();
    assert_eq!(rotated(&mut writer.rotator(5), &writer).await, [""; 0]);
    assert_eq!(files(dir.path()), ["0.log", "0.log.20261121-000000"]);
}

#[tokio::test(start_paused = true)]
async fn log_is_moved_back_if_its_container_does_not_reopen_it() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::new(dir.path().join("0.log"));
    writer.write("more than ten bytes\n");
    *writer.refuses.lock() = true;
    let errors = rotated(&mut writer.rotator(5), &writer).await;
    assert!(errors[0].contains("0.log: the container did not open a new log file: refused"), "{errors:?}");
    writer.write("later\n");
    assert_eq!(files(dir.path()), ["0.log"]);
    assert_eq!(whole(dir.path()), "more than ten bytes\nlater\n");

    // The container may just have ended. The second failure in a row is reported once, and again after a success.
    let mut rotator = writer.rotator(5);
    let mut reported = Vec::new();
    for refuses in [true, true, true, false, true, true] {
        *writer.refuses.lock() = refuses;
        writer.write("more than ten bytes\n");
        reported.push(reports(&mut rotator, &writer).await.0.len());
    }
    assert_eq!(reported, [0, 1, 0, 0, 0, 1]);

    // Another failure of the same log does not report this one again.
    fs::create_dir(dir.path().join("0.log.x.tmp")).unwrap();
    let mut reported = Vec::new();
    for _ in 0..4 {
        writer.write("more than ten bytes\n");
        let (reports, all) = reports(&mut rotator, &writer).await;
        assert_eq!(all, 2);
        reported.push(reports.len());
    }
    assert_eq!(reported, [1, 0, 0, 0]);
    // Logs that are removed with their pod are not a failure.
    *writer.gone.lock() = true;
    assert_eq!(reports(&mut rotator, &writer).await.1, 1);
}

#[tokio::test(start_paused = true)]
async fn rotation_errors_name_the_path_and_affect_no_other_log() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::new(dir.path().join("0.log"));
    writer.write("more than ten bytes\n");
    fs::create_dir(dir.path().join("0.log.x.tmp")).unwrap();
    let below_a_file = OpenLog { container: "d".into(), dir: LogDir::new(dir.path(), "0.log"), file: "1.log".into() };
    let mut rotator = writer.rotator(5);
    let ended = rotator.round(&[below_a_file, writer.log()]).await;
    let mut texts: Vec<String> = ended.into_iter().flat_map(|rotation| rotator.unreported(rotation)).collect();
    texts.sort();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("0.log.x.tmp: it is not a regular file"), "{texts:?}");
    assert!(texts[1].contains("0.log/1.log: Not a directory"), "{texts:?}");
    assert_eq!(fs::metadata(&writer.path).unwrap().len(), 0, "the other log was rotated");
}

// A container or a log collector that can change the directory must not make the agent block, or write elsewhere.
#[tokio::test(start_paused = true)]
async fn planted_files_stop_no_rotation_and_are_not_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    for name in ["0.log.20261121-000000", "0.log.99991231-235959", "0.log.20261121-000000.gz.tmp"] {
        for (what, plant) in plants(&secret) {
            let writer = Writer::new(dir.path().join("0.log"));
            let mut rotator = writer.rotator(3);
            plant(&dir.path().join(name));
            for round in ["first", "second", "third"] {
                writer.write(&format!("{round}: more than ten bytes\n"));
                let errors = rotated(&mut rotator, &writer).await;
                assert_eq!(errors.len(), 1, "{what} {name}: {errors:?}");
                assert!(errors[0].contains("it is not a regular file"), "{what}: {errors:?}");
                assert_eq!(fs::metadata(&writer.path).unwrap().len(), 0, "{what} {name}");
            }
            assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
            for name in files(dir.path()).iter().filter(|name| *name != "secret") {
                clear(&dir.path().join(name));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn log_that_is_not_a_regular_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    fs::write(&secret, "more than ten bytes").unwrap();
    let writer = Writer::new(dir.path().join("0.log"));
    for (what, plant) in plants(&secret) {
        clear(&writer.path);
        plant(&writer.path);
        let errors = rotated(&mut writer.rotator(3), &writer).await;
        assert_eq!(errors.len(), 1, "{what}");
        assert!(errors[0].contains("0.log: it is not a regular file: remove it"), "{what}: {errors:?}");
        assert_eq!(files(dir.path()), ["0.log", "secret"], "{what}");
    }
}

/// A runtime whose first container never opens a new log file.
struct StuckWriter(Arc<Writer>);

impl WritesLogs for StuckWriter {
    fn open_logs(&self) -> RuntimeFuture<'_, Vec<OpenLog>> {
        let stuck = self.0.path.parent().unwrap().join("stuck");
        let stuck = OpenLog { container: "stuck".into(), dir: LogDir::new(stuck, "."), file: "0.log".into() };
        async move { Ok(vec![stuck, self.0.log()]) }.boxed()
    }

    fn reopen_log<'a>(&'a self, container: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        match container.as_str() {
            "stuck" => std::future::pending().boxed(),
            _ => self.0.reopen_log(container),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_stuck_container_delays_no_other_log() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("stuck")).unwrap();
    fs::write(dir.path().join("stuck/0.log"), "more than ten bytes").unwrap();
    let writer = Writer::new(dir.path().join("0.log"));
    let rotator = Rotator::new(Arc::new(StuckWriter(writer.clone())), Limits { max_size: 10, max_files: 9 });
    let running = tokio::spawn(rotator.run());
    for round in 1..4 {
        writer.write("more than ten bytes\n");
        sleep(INTERVAL * 2).await;
        assert_eq!(files(dir.path()).iter().filter(|name| name.starts_with("0.log.")).count(), round);
    }
    running.abort();
}
