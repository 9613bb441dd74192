//! The number of evictions in the condition of the limit.

use std::fmt;

use super::super::status::plural;

/// The part of a message of the condition that a later leader reads: the evictions that count for the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct CountedEvictions {
    /// The evictions that were performed or have begun, with those that earlier leaders had reserved.
    pub(in super::super) counted: u64,
    /// The further evictions that may begin before the next write.
    pub(in super::super) ahead: u64,
}

impl CountedEvictions {
    const COUNTED: &str = " counted";
    const AHEAD: &str = " more reserved";

    /// The number that a later leader counts.
    pub(in super::super) fn all(self) -> u64 {
        self.counted.saturating_add(self.ahead)
    }

    /// Reads the beginning of a message.
    pub(in super::super) fn read(message: &str) -> Option<Self> {
        let number = |piece: &str, end: &str| piece.strip_suffix(end)?.split(' ').next()?.parse::<u64>().ok();
        let mut pieces = message.split("; ");
        let counted = number(pieces.next()?, Self::COUNTED)?;
        let ahead = pieces.next().and_then(|piece| number(piece, Self::AHEAD)).unwrap_or(0);
        Some(CountedEvictions { counted, ahead })
    }
}

impl fmt::Display for CountedEvictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", plural(self.counted, "eviction", "evictions"), Self::COUNTED)?;
        if self.ahead > 0 {
            write!(f, "; {}{}", self.ahead, Self::AHEAD)?;
        }
        Ok(())
    }
}
