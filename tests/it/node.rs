//! Whole nodes over a runtime in memory, in paused time.

mod housekeeping;
