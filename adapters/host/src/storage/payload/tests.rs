use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use super::*;

fn payload(files: &[(&str, &str)]) -> Payload {
    let mut payload = Payload::of(None);
    files.iter().for_each(|(path, text)| payload.add(path, *text, 0o644, None).unwrap());
    payload
}

/// All files below a directory with their content. Links are followed.
fn files_below(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(files_below(&path).into_iter().map(|(below, text)| (format!("{name}/{below}"), text)));
        } else {
            found.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
    found
}

/// The files for readers, without the agent's own entries.
fn payload_files(dir: &Path) -> BTreeMap<String, String> {
    files_below(dir).into_iter().filter(|(name, _)| !name.starts_with("..")).collect()
}

fn expected(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn files_removed_from_a_payload_are_removed_from_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    for files in [
        &[("a", "1"), ("b/c", "2"), ("b/d", "3")][..],
        &[("a", "1"), ("b/d", "3")],
        &[("b/d", "4"), ("e", "5")],
        &[("b", "now a file")],
        &[],
        &[("a", "again")],
    ] {
        payload(files).write(dir.path()).unwrap();
        assert_eq!(payload_files(dir.path()), expected(files));
        let set = fs::read_link(dir.path().join(DATA)).unwrap();
        payload(files).write(dir.path()).unwrap();
        assert_eq!(fs::read_link(dir.path().join(DATA)).unwrap(), set, "the same is not written again");
        let own = fs::read_dir(dir.path())
            .unwrap()
            .filter(|it| it.as_ref().unwrap().file_name().as_bytes().starts_with(OWN_PREFIX));
        assert_eq!(own.count(), 2, "..data and its target");
    }
}

/// Copies a directory with its links.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        match fs::symlink_metadata(&path).unwrap().file_type() {
            kind if kind.is_symlink() => symlink(fs::read_link(&path).unwrap(), to).unwrap(),
            kind if kind.is_dir() => copy(&path, &to),
            _ => drop(fs::copy(&path, to).unwrap()),
        }
    }
}

/// Does the first steps of a write, as many as an interrupted write did, and writes again.
#[test]
fn payload_write_interrupted_at_any_step_shows_one_set() {
    let old = [("gone", "1"), ("kept", "2")];
    let new = [("kept", "3"), ("new/file", "4")];
    let root = tempfile::tempdir().unwrap();
    let before = root.path().join("before");
    fs::create_dir(&before).unwrap();
    payload(&old).write(&before).unwrap();
    let steps: [&dyn Fn(&Path); 6] = [
        // The directory of the set is created.
        &|dir| fs::create_dir(dir.join("..2000_01_01_00_00_00.1")).unwrap(),
        // One file of the set is partly written.
        &|dir| fs::write(dir.join("..2000_01_01_00_00_00.1/kept"), "").unwrap(),
        // The set is complete.
        &|dir| {
            let set = dir.join("..2000_01_01_00_00_00.1");
            fs::create_dir(set.join("new")).unwrap();
            new.iter().for_each(|(path, text)| fs::write(set.join(path), text).unwrap());
        },
        &|dir| symlink("..2000_01_01_00_00_00.1", dir.join(NEW_DATA)).unwrap(),
        &|dir| fs::rename(dir.join(NEW_DATA), dir.join(DATA)).unwrap(),
        &|dir| symlink("..data/new", dir.join("new")).unwrap(),
    ];
    for last in 0..=steps.len() {
        let dir = root.path().join(format!("after-{last}"));
        copy(&before, &dir);
        steps[..last].iter().for_each(|step| step(&dir));
        let text = fs::read_to_string(dir.join("kept")).unwrap();
        assert_eq!(text, if last < 5 { "2" } else { "3" }, "after step {last}");
        // The next write may have the new set or the old one.
        for (next, then) in [(&new, &old), (&old, &new)] {
            let dir = root.path().join(format!("next-{last}-{}", next[0].0));
            copy(&root.path().join(format!("after-{last}")), &dir);
            for files in [next, then] {
                payload(files).write(&dir).unwrap();
                assert_eq!(payload_files(&dir), expected(files), "after step {last}");
                assert_eq!(fs::read_dir(&dir).unwrap().count(), 4, "links, ..data and one set, after step {last}");
            }
        }
    }
}

#[test]
fn payload_refuses_paths_that_leave_the_volume_or_use_its_names() {
    for path in ["", ".", "/", "/etc/passwd", "..", "../x", "a/../../x", "..data", "..2026_01_01", "./..data", "a\0b"] {
        assert!(Payload::of(None).add(path, "", 0o644, None).is_err(), "{path:?}");
    }
    for path in ["a", ".hidden", "a/b", "a/..b", "./a//b/.", "a..b", "..."] {
        let added = Payload::of(None).add(path, "", 0o644, None);
        assert_eq!(added.is_ok(), !path.starts_with(".."), "{path:?}");
    }
}

/// Runs `work` in a thread without root's permissions. The user of other threads does not change.
fn without_root(dir: &Path, work: impl FnOnce() + Send) {
    let nobody = 65534;
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(dir, Some(nobody), Some(nobody)).unwrap();
    }
    std::thread::scope(|scope| {
        let work = move || {
            if is_root {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(nobody)).unwrap();
            }
            work();
        };
        scope.spawn(work).join().unwrap();
    });
}

#[test]
fn payload_is_written_although_a_container_removed_permissions() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path();
    let files = [("a", "1"), ("b/c", "2")];
    without_root(volume, || {
        for part in ["", "..data/", "..data/b"] {
            payload(&files).write(volume).unwrap();
            fs::set_permissions(volume.join(part), Permissions::from_mode(0o000)).unwrap();
            payload(&files).write(volume).unwrap();
            assert_eq!(payload_files(volume), expected(&files), "{part:?}");
        }
    });
}

#[test]
fn whatever_a_container_puts_into_a_volume_is_replaced_and_never_followed() {
    use podwright_fixtures::hostile_files::plants;
    let elsewhere = tempfile::tempdir().unwrap();
    let secret = elsewhere.path().join("a");
    let files = [("a", "1"), ("b/c", "2")];
    for (what, plant) in plants(elsewhere.path()) {
        for name in ["a", "..data", "..data_tmp", "SET", "SET/a", "SET/b", "SET/b/c"] {
            fs::write(&secret, "secret").unwrap();
            let dir = tempfile::tempdir().unwrap();
            payload(&files).write(dir.path()).unwrap();
            fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
            let set = fs::read_link(dir.path().join(DATA)).unwrap();
            let path = dir.path().join(name.replace("SET", set.to_str().unwrap()));
            let _absent = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
            plant(&path);
            payload(&files).write(dir.path()).unwrap();
            assert_eq!(payload_files(dir.path()), expected(&files), "{what} at {name}");
            assert_eq!(fs::read_to_string(&secret).unwrap(), "secret", "{what} at {name}");
            assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1, "{what} at {name}");
            assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o7777, 0o755);
        }
    }
}

#[test]
fn containers_cannot_write_to_a_volume_or_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut writable = payload(&[("a", "1")]);
    writable.add("b", "2", 0o777, None).unwrap();
    writable.write(dir.path()).unwrap();
    assert_eq!(fs::metadata(dir.path().join("b")).unwrap().mode() & 0o7777, 0o755);
    if rustix::process::geteuid().is_root() {
        let elsewhere = tempfile::tempdir().unwrap();
        without_root(elsewhere.path(), || {
            for name in ["a", "b", "new", "..data/new"] {
                assert!(fs::write(dir.path().join(name), "changed").is_err(), "{name}");
            }
            assert!(fs::rename(dir.path().join(DATA), dir.path().join("x")).is_err());
        });
    }
}

#[test]
fn file_belongs_to_the_user_of_its_pod() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may give files away");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let owned_by = |owner| {
        let mut payload = Payload::of(None);
        payload.add("token", "1", 0o600, owner).unwrap();
        payload.add("in/ca.crt", "2", 0o644, None).unwrap();
        payload.write(dir.path()).unwrap();
        let found = |path: &str| {
            let meta = fs::metadata(dir.path().join(path)).unwrap();
            (meta.uid(), meta.mode() & 0o7777)
        };
        (found("token"), found("in/ca.crt"), fs::read_link(dir.path().join(DATA)).unwrap())
    };
    let (token, other, set) = owned_by(Some(1000));
    assert_eq!((token, other), ((1000, 0o600), (0, 0o644)));
    assert_eq!(owned_by(Some(1000)).2, set, "the same is not written again");
    assert_eq!(owned_by(Some(1001)).0, (1001, 0o600), "a file of another owner is written again");
    assert_eq!(owned_by(None).0, (0, 0o600));
}
