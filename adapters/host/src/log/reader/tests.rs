use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use podwright_fixtures::hostile_files::{clear, plants};

use super::*;

fn logs(dir: &Path) -> LogDir {
    LogDir::new(dir, ".")
}

fn line(n: u64) -> String {
    let at = Timestamp::from_second(1_800_000_000 + i64::try_from(n).unwrap()).unwrap();
    format!("{at} stdout F line {n}\n")
}

fn lines(range: std::ops::Range<u64>) -> String {
    range.map(line).collect()
}

/// A log of twelve lines in four files, and files that do not belong to it.
fn rotated() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    pack(&dir.path().join("1.log.20261121-000001.gz"), &lines(0..3));
    pack(&dir.path().join("1.log.20261121-000002.gz"), &lines(3..6));
    fs::write(dir.path().join("1.log.20261121-000003"), lines(6..9)).unwrap();
    fs::write(dir.path().join("1.log"), lines(9..12)).unwrap();
    for other in ["0.log", "0.log.20261121-000001", "1.log.20261121-000002.gz.tmp", "11.log"] {
        fs::write(dir.path().join(other), lines(70..80)).unwrap();
    }
    dir
}

fn pack(path: &Path, text: &str) {
    let mut encoder = GzEncoder::new(File::create(path).unwrap(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap();
}

/// The text up to the current end of the log.
fn rest(reader: &mut Reader) -> String {
    let mut text = Vec::new();
    while let LogRead::Text(more) = reader.read().unwrap() {
        text.extend(more);
    }
    String::from_utf8(text).unwrap()
}

fn read(dir: &Path, options: ReadOptions) -> Vec<u64> {
    let mut reader = Reader::open(&logs(dir), 1, options).unwrap();
    let mut text = rest(&mut reader);
    text.push_str(std::str::from_utf8(&reader.finish()).unwrap());
    text.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

/// The last lines of the log.
fn last(dir: &Path, lines: u64) -> String {
    let options = ReadOptions { tail: Some(lines), ..ReadOptions::default() };
    let mut reader = Reader::open(&logs(dir), 1, options).unwrap();
    let text = rest(&mut reader);
    text + std::str::from_utf8(&reader.finish()).unwrap()
}

#[test]
fn rotated_log_files_are_read_as_one_log() {
    let dir = rotated();
    assert_eq!(runs(&logs(dir.path())).unwrap(), [0, 1, 11]);
    assert_eq!(runs(&logs(&dir.path().join("none"))).unwrap(), [0; 0]);
    let all: Vec<u64> = (0..12).collect();
    assert_eq!(read(dir.path(), ReadOptions::default()), all);
    for tail in [0, 1, 3, 4, 8, 12, 100] {
        let options = ReadOptions { tail: Some(tail), ..ReadOptions::default() };
        assert_eq!(read(dir.path(), options), all[all.len().saturating_sub(tail as usize)..], "the last {tail}");
    }
    for since in [0, 5, 6, 11, 12] {
        let since = Timestamp::from_second(1_800_000_000 + since).unwrap();
        let options = ReadOptions { since: Some(since), ..ReadOptions::default() };
        // Lines are chosen by their times, although all files were modified later.
        set_modified(dir.path(), since);
        let expected: Vec<u64> =
            all.iter().copied().filter(|n| *n as i64 >= since.as_second() - 1_800_000_000).collect();
        assert_eq!(read(dir.path(), options), expected, "{since}");
    }
    assert_eq!(Reader::open(&logs(dir.path()), 2, ReadOptions::default()).err().unwrap().kind(), ErrorKind::NotFound);
}

#[test]
fn a_line_without_an_end_is_one_of_the_last_lines() {
    let dir = tempfile::tempdir().unwrap();
    let tail = |records: &str, lines| {
        fs::write(dir.path().join("1.log"), records).unwrap();
        last(dir.path(), lines)
    };
    // The prompt of a shell, and one more record that is not complete yet.
    let prompt = "T stdout F a\nT stdout P b\nT stdout F c\nT stdout P $ \nT stdout P ls\nT std";
    for (lines, text) in [(0, ""), (1, "$ ls\n"), (2, "bc\n$ ls\n"), (3, "a\nbc\n$ ls\n"), (9, "a\nbc\n$ ls\n")] {
        assert_eq!(tail(prompt, lines), text, "the last {lines}");
    }
    let both = "T stdout F a\nT stdout P b\nT stderr F c\nT stderr P d\n";
    for (lines, text) in [(1, "d\n"), (2, "c\nd\n"), (3, "b\nc\nd\n"), (4, "a\nb\nc\nd\n")] {
        assert_eq!(tail(both, lines), text, "the last {lines}");
    }
}

#[test]
fn a_line_over_several_files_is_one_of_the_last_lines() {
    let dir = tempfile::tempdir().unwrap();
    let write = |oldest: &str, old: &str, newest: &str| {
        pack(&dir.path().join("1.log.20261121-000001.gz"), oldest);
        fs::write(dir.path().join("1.log.20261121-000002"), old).unwrap();
        fs::write(dir.path().join("1.log"), newest).unwrap();
    };
    write("T stdout F a\nT stdout P b\n", "T stdout P c\n", "T stdout F d\nT stdout F e\n");
    for (lines, text) in [(0, ""), (1, "e\n"), (2, "bcd\ne\n"), (3, "a\nbcd\ne\n"), (9, "a\nbcd\ne\n")] {
        assert_eq!(last(dir.path(), lines), text, "the last {lines}");
    }
    // A line of the other stream waits for the end of the line.
    write("T stdout F a\n", "T stdout P b\nT stderr F c\n", "T stdout F d\n");
    for (lines, text) in [(0, ""), (1, "c\n"), (2, "bd\nc\n"), (3, "a\nbd\nc\n")] {
        assert_eq!(last(dir.path(), lines), text, "the last {lines}");
    }
}

fn set_modified(dir: &Path, at: Timestamp) {
    for file in fs::read_dir(dir).unwrap().flatten() {
        let file = File::options().append(true).open(file.path()).unwrap();
        file.set_modified(SystemTime::from(at) + Duration::from_secs(1)).unwrap();
    }
}

#[test]
fn log_files_older_than_since_are_not_opened() {
    let dir = rotated();
    let since = Timestamp::from_second(1_800_000_009).unwrap();
    for old in ["1.log.20261121-000001.gz", "1.log.20261121-000002.gz"] {
        let path = dir.path().join(old);
        fs::write(&path, "no archive").unwrap();
        File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .set_modified(SystemTime::from(since) - Duration::from_secs(9))
            .unwrap();
    }
    assert_eq!(read(dir.path(), ReadOptions { since: Some(since), ..ReadOptions::default() }), [9, 10, 11]);
    assert!(
        Reader::open(&logs(dir.path()), 1, ReadOptions::default()).unwrap().read().is_err(),
        "a read of the whole log needs them"
    );
}

#[test]
fn log_file_that_is_removed_after_it_was_listed_is_left_out() {
    let some = |time| ReadOptions { since: Some(Timestamp::from_second(time).unwrap()), ..ReadOptions::default() };
    let tail = |lines| ReadOptions { tail: Some(lines), ..ReadOptions::default() };
    for (options, expected) in [
        (ReadOptions::default(), 3..12),
        (some(1_800_000_000), 3..12),
        (tail(12), 3..12),
        (tail(8), 4..12),
        (tail(1), 11..12),
    ] {
        let dir = rotated();
        set_modified(dir.path(), Timestamp::from_second(1_800_000_012).unwrap());
        let mut reader = Reader::open(&logs(dir.path()), 1, ReadOptions::default()).unwrap();
        let listed = reader.open_current().unwrap();
        fs::remove_file(dir.path().join("1.log.20261121-000001.gz")).unwrap();
        reader.start(listed, options).unwrap();
        assert_eq!(rest(&mut reader), expected.map(|n| format!("line {n}\n")).collect::<String>(), "{options:?}");
    }
}

#[test]
fn following_a_log_continues_in_the_next_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.log");
    let open = || File::options().create(true).append(true).open(&path).unwrap();
    let moved = |n: u64| dir.path().join(format!("1.log.20261121-00000{n}"));
    let mut writer = open();
    let mut next = 0;
    let mut write = |writer: &mut File| {
        writer.write_all(line(next).as_bytes()).unwrap();
        next += 1;
    };
    write(&mut writer);
    let mut reader = Reader::open(&logs(dir.path()), 1, ReadOptions::default()).unwrap();
    let looks = |reader: &mut Reader| {
        let text = [rest(reader), rest(reader), rest(reader)].concat();
        text.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(looks(&mut reader), [0]);
    // The file is moved away, and the container writes to it until it opens the new one.
    fs::rename(&path, moved(1)).unwrap();
    write(&mut writer);
    assert_eq!(looks(&mut reader), [1]);
    write(&mut writer);
    writer = open();
    write(&mut writer);
    assert_eq!(looks(&mut reader), [2, 3]);
    // Two rotations happen between two reads, and the first file is compressed already.
    write(&mut writer);
    fs::rename(&path, moved(2)).unwrap();
    writer = open();
    write(&mut writer);
    fs::rename(&path, moved(3)).unwrap();
    writer = open();
    write(&mut writer);
    let text = fs::read_to_string(moved(2)).unwrap();
    pack(&moved(2).with_extension("log.20261121-000002.gz"), "");
    pack(&dir.path().join("1.log.20261121-000002.gz"), &text);
    fs::remove_file(moved(2)).unwrap();
    assert_eq!(looks(&mut reader), [4, 5, 6]);
    // The file is moved away, and there is no new file yet.
    fs::rename(&path, moved(4)).unwrap();
    assert_eq!(read(dir.path(), ReadOptions { tail: Some(2), ..ReadOptions::default() }), [5, 6]);
}

#[test]
fn only_regular_log_files_are_read() {
    let dir = rotated();
    let planted = dir.path().join("2.log");
    for (what, plant) in plants(Path::new("/etc/passwd")) {
        plant(&planted);
        assert!(Reader::open(&logs(dir.path()), 2, ReadOptions::default()).is_err(), "{what}");
        clear(&planted);
        let rotated = dir.path().join("1.log.20261121-000009");
        plant(&rotated);
        assert_eq!(read(dir.path(), ReadOptions::default()), (0..12).collect::<Vec<u64>>(), "{what}");
        clear(&rotated);
    }
    std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
    let through_a_link = LogDir::new(dir.path(), "link");
    assert!(Reader::open(&through_a_link, 1, ReadOptions::default()).is_err());
    assert!(runs(&through_a_link).is_err());
}
