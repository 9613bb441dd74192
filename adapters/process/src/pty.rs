//! Pseudo-terminals. One end belongs to a command, and the other end to the process that serves it: the agent or a shim.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use podwright_host::streaming::WindowSize;
use rustix::fs::{Mode, OFlags, fchown};
use rustix::process::Uid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Opens a terminal. Returns the end of this process, and the command's end, which belongs to the command's user.
pub(super) fn open(user: u32) -> io::Result<(OwnedFd, OwnedFd)> {
    let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&own)?;
    unlockpt(&own)?;
    let name = ptsname(&own, Vec::new())?;
    let command = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    if rustix::process::geteuid().is_root() {
        fchown(&command, Some(Uid::from_raw(user)), None)?;
    }
    Ok((own, command))
}

/// Sets the size of the window.
pub(super) fn resize(terminal: impl AsFd, WindowSize { width, height }: WindowSize) {
    let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
    // The terminal of a command that has ended has no size.
    let _ = tcsetwinsize(terminal, size);
}
