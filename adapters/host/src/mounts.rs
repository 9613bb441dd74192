//! Mount points, and the processes that keep a mount in use. All functions here block.

mod holders;

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{self, UnmountFlags};

use holders::holders;

/// The kernel's table of the mounts in this thread's mount namespace (proc_pid_mountinfo(5)). A shim has a thread whose mount namespace
/// is that of a container.
const TABLE: &str = "/proc/thread-self/mountinfo";

/// The directory of the `subPath` mounts in a pod's directory. The mount point of a container's Nth mount is
/// `VOLUME/CONTAINER/N`.
pub const SUB_PATHS: &str = "volume-subpaths";

/// The mount point of a `subPath`. `number` is the index of the mount in the container's list of mounts.
pub fn sub_path(pods: &Path, uid: &str, volume: &str, container: &str, number: usize) -> PathBuf {
    pods.join(uid).join(SUB_PATHS).join(volume).join(container).join(number.to_string())
}

/// The end of the directory of a pod's `emptyDir` volumes, with the kubelet as with this agent.
const EMPTY_DIRS: &str = "volumes/kubernetes.io~empty-dir";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The mount point, without links.
    pub at: PathBuf,
    /// The directory of the file system that is mounted, as a path from the root of the file system.
    source: PathBuf,
    /// The type of the file system, such as `tmpfs` or `ext4`.
    pub kind: String,
}

impl Mounted {
    /// Whether this is the `emptyDir` of a pod on the disk, or a directory in it, as the containers of the pod have it.
    pub(crate) fn is_empty_dir(&self) -> bool {
        self.source.ancestors().skip(1).any(|above| above.ends_with(EMPTY_DIRS))
    }
}

/// The mounts at a path and below it, in the order in which they can be unmounted. Links in the path are followed, except
/// for its last component. A path that does not exist has no mounts.
///
/// # Errors
/// The system's error.
pub fn below(path: &Path) -> io::Result<Vec<Mounted>> {
    match exact(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(vec![]),
        path => at_or_below(&path?),
    }
}

/// The mount whose mount point is the path; `None` if nothing is mounted there.
///
/// # Errors
/// The system's error.
pub(crate) fn exactly_at(path: &Path) -> io::Result<Option<Mounted>> {
    let found = below(path)?;
    // If nothing is mounted at or below the path, the path need not be resolved again.
    let exact = if found.is_empty() { return Ok(None) } else { exact(path)? };
    Ok(found.into_iter().find(|mounted| mounted.at == exact))
}

/// The path with all links resolved, except for its last component.
fn exact(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => fs::canonicalize(path),
    }
}

fn at_or_below(path: &Path) -> io::Result<Vec<Mounted>> {
    let mut found: Vec<_> = parse(&fs::read(TABLE)?).filter(|mounted| mounted.at.starts_with(path)).collect();
    // The last mount is on top and has to be unmounted first.
    found.reverse();
    Ok(found)
}

fn parse(table: &[u8]) -> impl Iterator<Item = Mounted> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let (source, at) = (fields.nth(3)?, fields.next()?);
        // The number of fields before the dash varies.
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        let kind = String::from_utf8_lossy(kind).into_owned();
        Some(Mounted { at: unescape(at).into(), source: unescape(source).into(), kind })
    })
}

/// Decodes a path of the table, which has spaces, tabs, newlines and backslashes as a backslash and three octal digits.
fn unescape(text: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, more @ ..] = rest {
        let octal = more.first_chunk::<3>().filter(|_| *first == b'\\');
        let digit = |byte: &u8| byte.checked_sub(b'0').filter(|digit| *digit < 8);
        let byte = octal.and_then(|[a, b, c]| digit(a)?.checked_mul(64)?.checked_add(digit(b)? * 8 + digit(c)?));
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &more[3..] } else { more };
    }
    OsString::from_vec(bytes)
}

/// Why a mount could not be unmounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnmountError {
    /// The mount is in use.
    #[error("the mount at {path} is in use: {held}", path = .path.display())]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// What uses the mount, and the remedy.
        held: String,
    },
    /// The system refused to unmount it.
    #[error("cannot unmount {path}", path = .path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The system's error.
        source: Errno,
    },
}

/// Unmounts what is mounted at a path. Succeeds if nothing is mounted there.
///
/// # Errors
/// [`UnmountError`], with what uses the mount.
pub(crate) fn unmount(path: &Path) -> Result<(), UnmountError> {
    match mount::unmount(path, UnmountFlags::NOFOLLOW) {
        // Nothing is mounted at the path, or the path does not exist.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(UnmountError::Busy { path: path.to_owned(), held: held_by(path) }),
        Err(error) => Err(UnmountError::Refused { path: path.to_owned(), source: error }),
    }
}

/// What keeps a mount in use, with the remedy: a mount below it, or processes.
fn held_by(path: &Path) -> String {
    let exact = exact(path).unwrap_or_else(|_| path.to_owned());
    let inner = at_or_below(&exact).unwrap_or_default().into_iter().find(|mounted| mounted.at != exact);
    if let Some(inner) = inner {
        return format!("a {} is mounted below, at {}: unmount it", inner.kind, inner.at.display());
    }
    match holders(path).as_slice() {
        [] => "no process that uses it was found: search in other mount namespaces".to_owned(),
        found => format!("used by {}: end the process", found.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_of_the_kernel_is_parsed() {
        let table = b"21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            40 21 0:33 / /a\\040b\\134c rw - tmpfs tmpfs rw,size=4k\n\
            41 40 8:1 /x /a\\040b\\134c/x rw shared:2 master:1 - ext4 /dev/sda1 rw\nnonsense\n";
        let found: Vec<_> = parse(table).map(|it| (it.at.to_str().unwrap().to_owned(), it.kind)).collect();
        let expected = [("/", "ext4"), ("/a b\\c", "tmpfs"), ("/a b\\c/x", "ext4")];
        assert_eq!(found, expected.map(|(at, kind)| (at.to_owned(), kind.to_owned())));
        assert_eq!(unescape(b"\\999\\04"), "\\999\\04");
    }

    #[test]
    fn only_a_directory_of_an_empty_dir_is_one() {
        for (source, expected) in [
            ("/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/root", true),
            ("/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/root/below", true),
            ("/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir", false),
            ("/var/lib/kubelet/pods/u/volumes/kubernetes.io~host-path/root", false),
            ("/srv/kubernetes.io~empty-dir/root", false),
            ("/", false),
        ] {
            let line = format!("40 21 8:1 {source} /r rw - ext4 /dev/sda1 rw");
            assert_eq!(parse(line.as_bytes()).next().unwrap().is_empty_dir(), expected, "{source}");
        }
    }
}
