//! Measurements besides the wall clock, and statistics of samples.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use alloc_tracker::Session;

/// The pause between two checks whether the engine is quiescent.
const SCAN_PAUSE: Duration = Duration::from_micros(100);

/// Blocks until `done` returns true. Checks every 100 µs.
pub(crate) fn scan_until(done: impl Fn() -> bool) {
    while !done() {
        pause(SCAN_PAUSE);
    }
}

/// Blocks the thread.
#[expect(clippy::disallowed_methods, reason = "a workload is defined by pauses of real time")]
pub(crate) fn pause(duration: Duration) {
    thread::sleep(duration);
}

/// The number of heap allocations of all threads during `work`. A reallocation counts as one.
pub(crate) fn allocations<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let session = Session::new().no_stdout().no_file();
    let span = session.operation("work").measure_process().iterations(1);
    let result = work();
    drop(span);
    let report = session.to_report();
    (result, report.operations().map(|(_, operation)| operation.total_allocations_count()).sum())
}

/// How long a thread was ready to run and had no core. The rest of a call's duration is its own work and its waits for
/// locks.
pub(crate) struct RunDelay(File);

impl RunDelay {
    /// The delay of the calling thread. Only this thread may read it.
    pub(crate) fn of_this_thread() -> Self {
        RunDelay(File::open("/proc/thread-self/schedstat").expect("procfs is mounted wherever this runs"))
    }

    /// In nanoseconds, since the thread began.
    pub(crate) fn nanos(&self) -> u64 {
        let mut text = [0; 64];
        let length = self.0.read_at(&mut text, 0).unwrap_or(0);
        let text = str::from_utf8(&text[..length]).unwrap_or_default();
        text.split(' ').nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
    }
}

/// Durations of single calls, in nanoseconds; one longer than 4 s counts as 4 s.
pub(crate) struct Samples(Vec<u32>);

impl Samples {
    /// Room for `n`, already in memory: a page fault would count for the call that is measured.
    pub(crate) fn with_room(n: usize) -> Self {
        let mut samples = vec![1; n];
        samples.clear();
        Samples(samples)
    }

    pub(crate) fn push(&mut self, nanos: u64) {
        self.0.push(u32::try_from(nanos).unwrap_or(u32::MAX));
    }

    /// The samples in sorted order.
    pub(crate) fn sorted(mut self) -> Sorted {
        self.0.sort_unstable();
        Sorted(self.0)
    }
}

/// Sorted samples.
pub(crate) struct Sorted(Vec<u32>);

impl Sorted {
    /// The quantile of the samples in microseconds, or zero without samples.
    pub(crate) fn micros_at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let index = (last as f64 * share).round() as usize;
        self.0.get(index.min(last)).map_or(0.0, |nanos| f64::from(*nanos) / 1e3)
    }

    /// The largest, in microseconds.
    pub(crate) fn max_micros(&self) -> f64 {
        self.micros_at(1.0)
    }
}

/// The median, or zero without values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}
