//! Decides when a service account token is renewed.

use std::time::Duration;

use crate::time::Time;

/// The longest time by which a renewal comes early, so that the tokens of many pods are not renewed at once (upstream `maxJitter`,
/// `pkg/kubelet/token/token_manager.go`, 1.36).
pub const MAX_JITTER: Duration = Duration::from_secs(10);

/// The longest time that a token is used (upstream `maxTTL`).
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// Whether a token is renewed now: less than a fifth of its lifetime is left, or it is a day old. `lifetime` is the time that the
/// server granted, and `jitter` is at most [`MAX_JITTER`].
pub fn needs_renewal(now: Time, expires: Time, lifetime: Duration, jitter: Duration) -> bool {
    let left = expires.since(now);
    let age = lifetime.saturating_sub(left);
    left < lifetime / 5 + jitter || age + jitter > MAX_AGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_renewed_after_four_fifths_of_its_lifetime_or_a_day() {
        let hour = 3600;
        for (lifetime, age, jitter, renewed) in [
            (hour, 0, 0, false),
            (hour, 2879, 0, false),
            (hour, 2881, 0, true),
            (hour, 2872, 10, true),
            (hour, 2869, 10, false),
            (hour, 3700, 0, true),
            // The token lives for a year.
            (8760 * hour, 24 * hour - 1, 0, false),
            (8760 * hour, 24 * hour + 1, 0, true),
            (8760 * hour, 24 * hour - 5, 10, true),
        ] {
            let seconds = Duration::from_secs;
            let expires = Time::from_secs(1_800_000_000 + lifetime);
            let now = Time::from_secs(1_800_000_000 + age);
            assert_eq!(
                needs_renewal(now, expires, seconds(lifetime), seconds(jitter)),
                renewed,
                "{lifetime} {age} {jitter}"
            );
        }
    }
}
