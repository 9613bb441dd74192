//! The trace of a simulation: its last lines as text, and a hash of all lines.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// The number of trace lines that a simulation keeps when many simulations run.
pub(super) const KEPT: usize = 250;

#[derive(Debug)]
pub(super) struct Trace {
    last: VecDeque<TraceLine>,
    kept: usize,
    hash: u64,
}

#[derive(Debug)]
struct TraceLine {
    /// Time since the simulation began.
    at: Duration,
    life: u32,
    what: String,
}

impl Trace {
    /// An empty trace that keeps this many lines.
    pub(super) fn keeping(kept: usize) -> Self {
        Trace { last: VecDeque::new(), kept, hash: 0xcbf2_9ce4_8422_2325 }
    }

    pub(super) fn note(&mut self, at: Duration, life: u32, what: String) {
        let nanos = u64::try_from(at.as_nanos()).unwrap();
        for byte in what.bytes().chain(nanos.to_le_bytes()) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.last.len() >= self.kept {
            self.last.pop_front();
        }
        self.last.push_back(TraceLine { at, life, what });
    }

    /// Equal traces have equal hashes.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for TraceLine { at, life, what } in &self.last {
            writeln!(f, "{:9.3} life {life} {what}", at.as_secs_f64())?;
        }
        Ok(())
    }
}
