//! Random choices of simulated pods. Pure: a choice is a function of the seed, the pod's UID, the container's name and the
//! attempt, so a run repeats even if the pods' tasks run in another order. A new version of `fastrand` may change the choices.

/// A random number for one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw(u64);

/// The kind of a choice. Choices of different kinds about one container are independent.
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

/// The random choices for one container or sandbox of one pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws(u64);

impl Draws {
    /// `about` is a name within the pod, such as a container's name or an image.
    pub(super) fn new(seed: u64, pod: &str, about: &str) -> Self {
        let hash = fnv(FNV_BASIS, &seed.to_le_bytes());
        // 0xff separates the UID from the name: no UTF-8 text contains it.
        Draws(fnv(fnv(fnv(hash, pod.as_bytes()), &[0xff]), about.as_bytes()))
    }

    /// The draw for one attempt.
    pub(super) fn of(self, choice: Choice, attempt: u32) -> Draw {
        Draw(fnv(fnv(self.0, &[choice as u8]), &attempt.to_le_bytes()))
    }
}

impl Draw {
    /// At least 0, less than 1.
    pub(super) fn fraction(self) -> f64 {
        fastrand::Rng::with_seed(self.0).f64()
    }
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a. Unlike the standard library's hash it is the same in every process and for every compiler.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_evenly_spread_and_differ_in_every_argument() {
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
