//! What is mounted where, and who keeps it from being unmounted. Everything here blocks.

mod holders;

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

pub(super) use holders::holders;

/// Where the kernel tells what this process sees mounted (proc_pid_mountinfo(5)).
const TABLE: &str = "/proc/self/mountinfo";

/// Where a pod's directory has what its containers see of volumes by a `subPath`: `VOLUME/CONTAINER/N` for the Nth mount.
pub(super) const SUB_PATHS: &str = "volume-subpaths";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    /// Where, without links.
    pub(super) at: PathBuf,
    /// The kind of file system: `tmpfs`, `ext4`.
    pub(super) kind: String,
}

/// What is mounted at a path or below it, in the order in which it can be unmounted. The path may be a link itself, which is
/// not followed; links on the way to it are.
///
/// # Errors
/// As the system says. A path that is not there has nothing mounted below it.
pub(super) fn below(path: &Path) -> io::Result<Vec<Mounted>> {
    match exact(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(vec![]),
        path => at_or_below(&path?),
    }
}

/// What is mounted right at a path, if something is.
///
/// # Errors
/// As the system says.
pub(super) fn right_at(path: &Path) -> io::Result<Option<Mounted>> {
    let found = below(path)?;
    // Nothing at or below it is shorter.
    let exact = if found.is_empty() { return Ok(None) } else { exact(path)? };
    Ok(found.into_iter().find(|mounted| mounted.at == exact))
}

/// The path with no link on the way to its last part.
fn exact(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => fs::canonicalize(path),
    }
}

fn at_or_below(path: &Path) -> io::Result<Vec<Mounted>> {
    let mut found: Vec<_> = parse(&fs::read(TABLE)?).filter(|mounted| mounted.at.starts_with(path)).collect();
    // What was mounted last lies on top.
    found.reverse();
    Ok(found)
}

fn parse(table: &[u8]) -> impl Iterator<Item = Mounted> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let at = fields.nth(4)?;
        // The number of fields before the dash varies.
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some(Mounted { at: unescape(at).into(), kind: String::from_utf8_lossy(kind).into_owned() })
    })
}

/// Spaces, tabs, newlines and backslashes are written as three octal digits.
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

/// Something stays mounted.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnmountError {
    /// It is in use.
    #[error("something is mounted at {path} and in use: {held}", path = .path.display())]
    Busy {
        /// What cannot be unmounted.
        path: PathBuf,
        /// By what, for people.
        held: String,
    },
    /// The system refused.
    #[error("{path} cannot be unmounted: {error}", path = .path.display())]
    Refused {
        /// What cannot be unmounted.
        path: PathBuf,
        /// What it said.
        error: Errno,
    },
}

/// Unmounts what is mounted at a path; nothing mounted there is fine.
///
/// # Errors
/// [`UnmountError`], with what keeps it mounted.
pub(super) fn take_down(path: &Path) -> Result<(), UnmountError> {
    match unmount(path, UnmountFlags::NOFOLLOW) {
        // Not mounted, or not there.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(UnmountError::Busy { path: path.to_owned(), held: held_by(path) }),
        Err(error) => Err(UnmountError::Refused { path: path.to_owned(), error }),
    }
}

/// What keeps a mount in use: a mount below it, or processes.
fn held_by(path: &Path) -> String {
    let exact = exact(path).unwrap_or_else(|_| path.to_owned());
    let inner = at_or_below(&exact).unwrap_or_default().into_iter().find(|mounted| mounted.at != exact);
    if let Some(inner) = inner {
        return format!("a {} is mounted below, at {}: unmount it", inner.kind, inner.at.display());
    }
    match holders(path).as_slice() {
        [] => "nobody is seen to hold it: look for processes in other namespaces".to_owned(),
        found => format!("held by {}: end it", found.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_kernel_is_read() {
        let table = b"21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            40 21 0:33 / /a\\040b\\134c rw - tmpfs tmpfs rw,size=4k\n\
            41 40 8:1 /x /a\\040b\\134c/x rw shared:2 master:1 - ext4 /dev/sda1 rw\nnonsense\n";
        let found: Vec<_> = parse(table).map(|it| (it.at.to_str().unwrap().to_owned(), it.kind)).collect();
        let expected = [("/", "ext4"), ("/a b\\c", "tmpfs"), ("/a b\\c/x", "ext4")];
        assert_eq!(found, expected.map(|(at, kind)| (at.to_owned(), kind.to_owned())));
        assert_eq!(unescape(b"\\999\\04"), "\\999\\04");
    }
}
