//! The signals that the program that started this process ignores or blocks. `nohup` ignores SIGHUP, a shell ignores SIGINT and SIGQUIT
//! for the programs that a script starts in the background, and a supervisor may ignore SIGCHLD or block the signals that it handles.
//!
//! A program inherits ignored and blocked signals from the process that executes it, but not handlers. A container that inherits them
//! would not end at its stop signal. So this process blocks no signal, and it handles an ignored signal with a handler that does nothing.
//! The signal still has no effect on this process, and the programs that it executes have the default action.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nix::sys::signal::SigSet;
use signal_hook::consts::{FORBIDDEN, SIGPIPE};
use signal_hook::flag;

/// Unblocks all signals in this thread and in the threads and programs that it starts.
pub fn unblock_all() {
    // The call fails only for a set that cannot be read.
    let _ = SigSet::empty().thread_set_mask();
}

/// Gives the programs that this process executes the default action of the signals that this process ignores and that `is_reset` selects.
/// Signals that cannot have a handler stay ignored.
pub fn reset_ignored(is_reset: impl Fn(c_int) -> bool) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // The Rust runtime ignores SIGPIPE, and gives its default action to the programs that a process executes.
    let ignored = ignored(&status).filter(|signal| *signal != SIGPIPE && !FORBIDDEN.contains(signal));
    for signal in ignored.filter(|signal| is_reset(*signal)) {
        // The C library refuses the signals that it uses itself.
        let _ = flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
}

/// The ignored signals in the text of `/proc/PID/status`.
fn ignored(status: &str) -> impl Iterator<Item = c_int> {
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let mask = mask.unwrap_or(0);
    (1..=64).filter(move |signal| (mask >> (signal - 1)) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGHUP, SIGINT};

    use super::*;

    #[test]
    fn ignored_signals_are_the_bits_of_the_mask() {
        for (status, expected) in [
            ("SigBlk:\t0000000000000004\nSigIgn:\t8000000000001003\n", &[SIGHUP, SIGINT, SIGPIPE, 64][..]),
            ("SigIgn:\t0000000000000000\n", &[]),
            ("", &[]),
        ] {
            assert_eq!(ignored(status).collect::<Vec<_>>(), expected, "{status}");
        }
    }
}
