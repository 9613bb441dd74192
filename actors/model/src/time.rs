//! Times and grace periods as plain values, so that pure code needs no clock.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Add;
use std::time::Duration;

/// A time in nanoseconds since the Unix epoch, read from a clock that never goes back.
///
/// The type serves both deadlines and the timestamps of a pod's status, because a crash backoff counts from the finish
/// time that a runtime reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(
    /// The nanoseconds plus one, so that `Option<Time>` has the same size; records hold several.
    NonZeroU64,
);

impl Time {
    /// The Unix epoch. Earlier times do not exist.
    pub const ZERO: Time = Time(NonZeroU64::MIN);

    /// The time `nanos` nanoseconds after the Unix epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Time(NonZeroU64::MIN.saturating_add(nanos))
    }

    /// The time `seconds` seconds after the Unix epoch.
    pub const fn from_secs(seconds: u64) -> Self {
        Time::from_nanos(seconds.saturating_mul(1_000_000_000))
    }

    /// The nanoseconds since the Unix epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// The duration since `earlier`; zero if `earlier` is in the future.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.as_nanos().saturating_sub(earlier.as_nanos()))
    }

    /// Converts to the type of API objects.
    pub fn to_timestamp(self) -> jiff::Timestamp {
        jiff::Timestamp::from_nanosecond(i128::from(self.as_nanos())).unwrap_or(jiff::Timestamp::MAX)
    }

    /// Converts from the type of API objects; times before the epoch become the epoch, and times after the year 2554 the latest time.
    pub fn from_timestamp(timestamp: jiff::Timestamp) -> Self {
        Time::from_nanos(u64::try_from(timestamp.as_nanosecond().max(0)).unwrap_or(u64::MAX))
    }

    /// Converts to a `metav1.Time`.
    pub fn to_api(self) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.to_timestamp())
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, later: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Default for Time {
    fn default() -> Self {
        Time::ZERO
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Time").field(&self.as_nanos()).finish()
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.to_timestamp())
    }
}

/// A grace period in whole seconds, at least one.
///
/// The API's zero means "at once" and becomes one second here, because zero would look like an unset grace
/// period (the kubelet's `calculateEffectiveGracePeriod`, 1.36).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Grace(NonZeroU32);

impl Grace {
    /// The shortest grace period: one second.
    pub const MIN: Grace = Grace(NonZeroU32::MIN);

    /// Converts from the API's seconds; values below one become one.
    pub fn from_seconds(seconds: i64) -> Self {
        let seconds = u32::try_from(seconds.max(1)).unwrap_or(u32::MAX);
        Grace(NonZeroU32::new(seconds).unwrap_or(NonZeroU32::MIN))
    }

    /// The grace period in seconds.
    pub const fn seconds(self) -> u32 {
        self.0.get()
    }

    /// The grace period as a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0.get() as u64)
    }
}

impl fmt::Display for Grace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_of_the_range_become_its_ends() {
        let at = |text: &str| Time::from_timestamp(text.parse().unwrap());
        assert_eq!(at("1969-12-31T23:59:59Z"), Time::ZERO);
        assert_eq!(at("2026-01-01T00:00:00Z"), Time::from_secs(1_767_225_600));
        let latest = Time::from_nanos(u64::MAX);
        assert_eq!((at("2555-01-01T00:00:00Z"), at("9999-12-30T22:00:00Z")), (latest, latest));
        assert_eq!(latest + Duration::from_secs(u64::MAX), latest);
        assert_eq!(latest.to_string(), "2554-07-21T23:34:33.709Z");
        assert!(latest.since(Time::ZERO) > Duration::from_secs(18_000_000_000));
    }
}
