//! Decides when a value of the API server is requested again, such as a token, and whether its reader waits for the answer.

use std::time::Duration;

use crate::time::Time;

/// The longest time by which a renewal comes early, so that the tokens of many pods are not renewed at once (upstream `maxJitter`,
/// `pkg/kubelet/token/token_manager.go`, 1.36).
pub const MAX_JITTER: Duration = Duration::from_secs(10);

/// The longest time that a token is used (upstream `maxTTL`).
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// The smallest age at which a token is renewed, unless half of its lifetime is less. A renewal causes a sync, and a sync renews a token
/// that is due. Without this limit, a node whose clock is ahead would renew its tokens without a pause.
const MIN_AGE: Duration = Duration::from_secs(60);
/// The pause after the first failure. Each further failure doubles it.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause while there is a usable value.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause without a usable value: the pod waits for one.
const MAX_PAUSE_WITHOUT: Duration = Duration::from_secs(5);

/// When a value is renewed, and how long it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewalTimes {
    /// From this time on, a read requests the value again.
    pub renew_from: Time,
    /// From this time on, the value is not used. `None` if it is used until another value replaces it.
    pub expires: Option<Time>,
}

impl RenewalTimes {
    /// The times of a token: it is renewed when less than a fifth of its lifetime is left, or when it is a day old. `lifetime` is the time
    /// that the server granted, and `jitter` is at most [`MAX_JITTER`].
    pub fn of_token(obtained: Time, expires: Time, lifetime: Duration, jitter: Duration) -> Self {
        let left = (lifetime / 5).max(lifetime.saturating_sub(MAX_AGE)) + jitter;
        let due = Time::ZERO + expires.since(Time::ZERO).saturating_sub(left);
        let earliest = obtained + MIN_AGE.min(lifetime / 2).max(PAUSE);
        RenewalTimes { renew_from: due.max(earliest).min(expires), expires: Some(expires) }
    }

    /// Whether the value can be used.
    pub fn is_usable(&self, now: Time) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// The failed requests since the last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failures {
    count: u32,
    /// The end of the pause after the last one.
    until: Time,
}

impl Failures {
    /// Adds a failure to those before it. `is_usable` says whether there is a value that can be used.
    pub fn after(earlier: Option<Failures>, now: Time, is_usable: bool) -> Self {
        let before = earlier.map_or(0, |failures| failures.count);
        let longest = if is_usable { MAX_PAUSE } else { MAX_PAUSE_WITHOUT };
        let pause = PAUSE.saturating_mul(1 << before.min(6)).min(longest);
        Failures { count: before.saturating_add(1), until: now + pause }
    }

    /// Whether there is only one.
    pub fn is_first(&self) -> bool {
        self.count == 1
    }
}

/// What the read of a value leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    /// Whether the value has to be requested. A request that runs already is enough.
    pub request: bool,
    /// Whether the reader waits for the answer. Otherwise it gets the value or, if that cannot be used, the error of the last request.
    pub wait: bool,
}

impl ReadPlan {
    /// Decides on a read. `times` are those of the value, if there is one.
    ///
    /// A reader waits only if there is no usable value and no request has failed since the last answer. So an API server that does not answer
    /// delays one sync of a pod, and not each of them. The pod is synced again when the value is there.
    pub fn of(now: Time, times: Option<RenewalTimes>, failures: Option<Failures>) -> Self {
        let is_fresh = times.is_some_and(|times| now < times.renew_from);
        let is_usable = times.is_some_and(|times| times.is_usable(now));
        let request = !is_fresh && failures.is_none_or(|failures| now >= failures.until);
        ReadPlan { request, wait: request && !is_usable && failures.is_none() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_secs(1_800_000_000);

    fn after(seconds: u64) -> Time {
        START + Duration::from_secs(seconds)
    }

    #[test]
    fn token_is_renewed_after_four_fifths_of_its_lifetime_or_a_day() {
        let hour = 3600;
        for (lifetime, jitter, renewed_after) in [
            (hour, 0, 2880),
            (hour, 10, 2870),
            // The token lives for a year.
            (8760 * hour, 0, 24 * hour),
            (8760 * hour, 10, 24 * hour - 10),
            (600, 10, 470),
        ] {
            let seconds = Duration::from_secs;
            let times = RenewalTimes::of_token(START, after(lifetime), seconds(lifetime), seconds(jitter));
            let expected = RenewalTimes { renew_from: after(renewed_after), expires: Some(after(lifetime)) };
            assert_eq!(times, expected, "{lifetime} {jitter}");
        }
    }

    #[test]
    fn new_token_is_not_renewed_at_once() {
        let renewed_after = |expires: u64, lifetime| {
            let lifetime = Duration::from_secs(lifetime);
            RenewalTimes::of_token(START, after(expires), lifetime, MAX_JITTER).renew_from.since(START).as_millis()
        };
        assert_eq!(renewed_after(600, 3600), 60_000, "the clock of the node is 50 minutes ahead");
        assert_eq!(renewed_after(5, 5), 2500, "the token lives for 5 s");
        assert_eq!(renewed_after(1, 0), 1000, "the server granted no lifetime");
        assert_eq!(renewed_after(0, 3600), 0, "the token has expired");
    }

    #[test]
    fn reader_waits_only_while_there_is_nothing_to_use_and_no_request_has_failed() {
        let times = RenewalTimes { renew_from: after(100), expires: Some(after(200)) };
        // Each pause of these failures ends 10 s after the read before.
        let failed = |now: u64, pauses: bool| Failures { count: 3, until: after(now + u64::from(pauses) * 10) };
        let read = |now, times, failures| {
            let ReadPlan { request, wait } = ReadPlan::of(after(now), times, failures);
            (request, wait)
        };
        for (what, now, times, failures, expected) in [
            ("fresh", 99, Some(times), None, (false, false)),
            ("due", 100, Some(times), None, (true, false)),
            ("due, a renewal has failed", 150, Some(times), Some(false), (true, false)),
            ("due, in the pause", 150, Some(times), Some(true), (false, false)),
            ("expired", 200, Some(times), None, (true, true)),
            ("expired, a renewal has failed", 200, Some(times), Some(false), (true, false)),
            ("expired, in the pause", 200, Some(times), Some(true), (false, false)),
            ("no value", 0, None, None, (true, true)),
            ("no value, a request has failed", 0, None, Some(false), (true, false)),
            ("no value, in the pause", 0, None, Some(true), (false, false)),
        ] {
            assert_eq!(read(now, times, failures.map(|pauses| failed(now, pauses))), expected, "{what}");
        }
    }

    #[test]
    fn pause_doubles_to_a_minute_or_to_five_seconds_without_a_value() {
        for (is_usable, expected) in [(true, [1, 2, 4, 8, 16, 32, 60, 60]), (false, [1, 2, 4, 5, 5, 5, 5, 5])] {
            let mut failures = None;
            for pause in expected {
                let next = Failures::after(failures, START, is_usable);
                assert_eq!(next.until, after(pause), "{is_usable} {failures:?}");
                assert_eq!(next.is_first(), failures.is_none());
                failures = Some(next);
            }
        }
    }
}
