//! Random choices that a run repeats, whatever the order in which pods get their turn.

/// One number, as good as random, that depends on nothing but what it was drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw(u64);

/// What is drawn for, so that two choices about one run are independent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    SandboxLatency,
    SandboxFailure,
    NetworkFailure,
    PullLatency,
    PullFailure,
    StartLatency,
    StartFailure,
    RunFor,
    Exit,
    StopLatency,
}

/// Draws for one container or sandbox of one pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws(u64);

impl Draws {
    /// `about` is a name within the pod.
    pub(super) fn new(seed: u64, pod: &str, about: &str) -> Self {
        let hash = fnv(FNV_BASIS, &seed.to_le_bytes());
        // 0xff ends the UID: no UTF-8 text holds it.
        Draws(fnv(fnv(fnv(hash, pod.as_bytes()), &[0xff]), about.as_bytes()))
    }

    /// The draw for one attempt.
    pub(super) fn of(self, choice: Choice, attempt: u32) -> Draw {
        let hash = fnv(fnv(self.0, &[choice as u8]), &attempt.to_le_bytes());
        Draw(mix(hash))
    }
}

impl Draw {
    /// At least 0, less than 1.
    pub(super) fn fraction(self) -> f64 {
        // The upper 53 bits: what a double holds exactly.
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a. Unlike the standard library's hash it stays what it is, so that a seed means the same in the next version.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The end of SplitMix64 (Steele, Lea, Flood 2014): spreads what FNV leaves in the lower bits.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_spread_evenly_and_differ_by_all_that_they_depend_on() {
        let share = |seed: u64, choice: Choice| {
            let below = |pod: &u32| Draws::new(seed, &format!("pod-{pod}"), "web").of(choice, 0).fraction() < 0.1;
            (0..10_000).filter(below).count()
        };
        for (seed, choice) in [(0, Choice::Exit), (0, Choice::StartFailure), (1, Choice::Exit)] {
            assert!((900..1100).contains(&share(seed, choice)), "{seed} {choice:?}: {}", share(seed, choice));
        }
        let draw = |seed, pod, about, choice, attempt| Draws::new(seed, pod, about).of(choice, attempt);
        let base = draw(0, "a", "web", Choice::Exit, 0);
        assert_eq!(base, draw(0, "a", "web", Choice::Exit, 0));
        for other in [
            draw(1, "a", "web", Choice::Exit, 0),
            draw(0, "b", "web", Choice::Exit, 0),
            draw(0, "a", "proxy", Choice::Exit, 0),
            draw(0, "a", "web", Choice::RunFor, 0),
            draw(0, "a", "web", Choice::Exit, 1),
        ] {
            assert_ne!(base, other);
        }
    }
}
