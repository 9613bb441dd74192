//! Parts of error texts: the limit for foreign text in them, and the remedy for a full disk.

use std::error::Error;
use std::io::{self, ErrorKind};

/// The maximum length of one problem in bytes: a path, a field and what is wrong with it.
pub(crate) const MAX_PROBLEM_BYTES: usize = 8192;

/// What the user can do about a full disk.
const FREE_SPACE: &str = "free disk space and inodes on its file system, or choose another root directory with --root";

/// The remedy for a system error: that for a full disk, or else `otherwise`.
pub(crate) fn remedy(error: &io::Error, otherwise: &'static str) -> &'static str {
    of_full_disk(error).unwrap_or(otherwise)
}

/// The remedy for an error whose cause is a full disk.
pub(crate) fn remedy_for_full_disk<'a>(chain: impl Iterator<Item = &'a (dyn Error + 'static)>) -> Option<&'static str> {
    chain.filter_map(|cause| cause.downcast_ref::<io::Error>()).find_map(of_full_disk)
}

fn of_full_disk(error: &io::Error) -> Option<&'static str> {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded).then_some(FREE_SPACE)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn full_disk_has_a_remedy_and_other_errors_keep_theirs() {
        for (errno, expected) in [(Errno::NOSPC, FREE_SPACE), (Errno::DQUOT, FREE_SPACE), (Errno::ACCESS, "x")] {
            assert_eq!(remedy(&errno.into(), "x"), expected, "{errno:?}");
        }
        let of_chain = |errno: Errno| {
            let error = anyhow::Error::new(io::Error::from(errno)).context("cannot open it");
            remedy_for_full_disk(error.chain())
        };
        assert_eq!((of_chain(Errno::NOSPC), of_chain(Errno::IO)), (Some(FREE_SPACE), None));
    }
}
