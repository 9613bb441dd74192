//! CPU time and memory of this process.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads of this process, user and system.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

/// From here on memory is allocated in pages of 4 KiB. A huge page counts 2 MiB for its first byte, which is
/// more than 1,000 pods use.
pub(crate) fn small_pages() {
    let _refused = rustix::thread::disable_transparent_huge_pages(true);
}

/// The resident memory of this process in bytes. From the page tables, because the counters behind `statm` lag by up to
/// 256 KiB on two cores, which is more than 110 pods use.
pub(crate) fn resident() -> u64 {
    kib_line("/proc/self/smaps_rollup", "Rss:")
}

/// The peak of the resident memory since the last [`reset_peak`], in bytes.
pub(crate) fn peak_resident() -> u64 {
    kib_line("/proc/self/status", "VmHWM:")
}

/// Resets the peak. If the kernel refuses, the peak since the start of the process stays, which is never lower.
pub(crate) fn reset_peak() {
    let _refused = fs::write("/proc/self/clear_refs", "5");
}

fn kib_line(path: &str, key: &str) -> u64 {
    let text = fs::read_to_string(path).expect("procfs is mounted wherever this runs");
    let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("the kernel writes this line");
    let kib = line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("the kernel writes a number");
    kib * 1024
}
