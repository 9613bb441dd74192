//! The processes that use files below a path.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::{exact, unescape};

/// The maximum number of processes in the result.
const MAX_HOLDERS: usize = 3;

/// Descriptions of at most three processes that use a file or directory below a path as working directory, root directory,
/// program or open file. A process in another mount namespace may use the same file by another path. So if the path is the
/// mount point of a file system, every process that uses that file system counts.
///
/// Only files of `/proc` are read. Another process may have opened a file of a file system that does not answer, and reading
/// the status of that file would block.
pub(super) fn holders(path: &Path) -> Vec<String> {
    let Ok(path) = exact(path) else { return vec![] };
    let own = begins_at(&table(Path::new("/proc/self")), &path);
    let is_below = |link: &Path| fs::read_link(link).is_ok_and(|to| to.starts_with(&path));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let processes = processes
        .filter(|dir| dir.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<u32>().is_ok()));
    let holds = |dir: &Path| {
        // The mounts in the process's own mount namespace, to which its paths and files refer.
        let mounts = own.as_ref().map(|_| table(dir)).unwrap_or_default();
        let is_own = |mount: Option<&Mount>| mount.is_some_and(|mount| Some(&mount.device) == own.as_ref());
        let is_at =
            |link: &Path| is_below(link) || fs::read_link(link).is_ok_and(|to| is_own(containing(&mounts, &to)));
        let is_open = |number: &OsStr| {
            let through_own = || {
                let id = mount_of_file(&dir.join("fdinfo").join(number));
                id.is_some_and(|id| is_own(mounts.iter().find(|mount| mount.id == id)))
            };
            is_below(&dir.join("fd").join(number)) || (own.is_some() && through_own())
        };
        let how = [("cwd", "its working directory"), ("root", "its root"), ("exe", "its program")];
        let how = how.into_iter().find(|(link, _)| is_at(&dir.join(link))).map(|(_, how)| how);
        let open = || {
            let mut files = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
            files.any(|file| is_open(&file.file_name())).then_some("an open file")
        };
        how.or_else(open)
    };
    let named = processes.filter_map(|dir| {
        let how = holds(&dir)?;
        let name = fs::read_to_string(dir.join("comm")).unwrap_or_default();
        Some(format!("process {} ({}, {how})", dir.file_name()?.to_str()?, name.trim_end()))
    });
    named.take(MAX_HOLDERS).collect()
}

/// A mount in the mount namespace of a process (proc_pid_mountinfo(5)).
struct Mount {
    id: String,
    /// The device of the file system, `MAJOR:MINOR`.
    device: String,
    /// The directory of the file system that is mounted.
    root: PathBuf,
    at: PathBuf,
}

/// The mounts in the mount namespace of a process, the topmost last.
fn table(process: &Path) -> Vec<Mount> {
    let table = fs::read(process.join("mountinfo")).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mount = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let (id, device) = (text(fields.next()?), text(fields.nth(1)?));
        Some(Mount { id, device, root: unescape(fields.next()?).into(), at: unescape(fields.next()?).into() })
    };
    table.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// The mount that contains a path.
fn containing<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    above.max_by_key(|mount| mount.at.as_os_str().len())
}

/// The device of the file system whose root is mounted at a path; `None` if the path is in a larger file system.
fn begins_at(mounts: &[Mount], path: &Path) -> Option<String> {
    let mount = containing(mounts, path).filter(|mount| mount.at == path && mount.root == Path::new("/"))?;
    let around = containing(mounts, path.parent()?).map(|around| &around.device);
    (around != Some(&mount.device)).then(|| mount.device.clone())
}

/// The id of the mount through which a file was opened (proc_pid_fdinfo(5)).
fn mount_of_file(info: &Path) -> Option<String> {
    let info = fs::read_to_string(info).ok()?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(|id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use super::*;

    #[test]
    fn holders_names_a_process_with_an_open_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("held");
        fs::create_dir(&path).unwrap();
        assert_eq!(holders(&path), [""; 0]);
        let _open = File::create(path.join("file")).unwrap();
        let found = holders(&path);
        let own = format!("process {} (", std::process::id());
        assert!(found.len() == 1 && found[0].starts_with(&own) && found[0].ends_with("an open file)"), "{found:?}");
    }

    // A process in another mount namespace opens the same file by another path.
    #[test]
    fn holders_names_a_process_that_opened_the_file_by_another_path() {
        let dir = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().join("here"), dir.path().join("there"));
        fs::create_dir(&here).unwrap();
        fs::create_dir(&there).unwrap();
        let ran = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        if !ran(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&here)) {
            eprintln!("skipped: not allowed to mount");
            return;
        }
        assert!(ran(Command::new("mount").arg("--bind").args([&here, &there])));
        let before = holders(&here);
        let open = File::create(there.join("file")).unwrap();
        let (found, apart) = (holders(&here), holders(&dir.path().join("elsewhere")));
        drop(open);
        let mut child = Command::new("sleep").arg("1000").current_dir(&there).spawn().unwrap();
        let works = holders(&here);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ran(Command::new("umount").arg(&there)) && ran(Command::new("umount").arg(&here)));
        assert_eq!((before, apart), (vec![], vec![]));
        assert!(found.len() == 1 && found[0].ends_with("an open file)"), "{found:?}");
        assert!(works.len() == 1 && works[0].ends_with("its working directory)"), "{works:?}");
    }
}
