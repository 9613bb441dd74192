//! The seed and the number of random inputs of tests, and the size of the worlds of the model checkers.
//!
//! All of these are the same in each test run, so that the verdict depends on the code alone. `make soak` sets the environment
//! variables [`SEED`], [`FACTOR`] and [`DEPTH`], and so tests new inputs and larger worlds.
//!
//! ```
//! use proptest::prelude::*;
//!
//! proptest! {
//!     #![proptest_config(podwright_random::cases(256))]
//!
//!     fn a_sum_does_not_depend_on_the_order(a in 0..100u32, b in 0..100u32) {
//!         prop_assert_eq!(a + b, b + a);
//!     }
//! }
//!
//! a_sum_does_not_depend_on_the_order();
//! ```

use std::env;

use proptest::test_runner::{Config, RngSeed};

/// The environment variable with the seed of all random inputs of a test run.
pub const SEED: &str = "PODWRIGHT_SEED";
/// The environment variable with the factor by which the number of random inputs of each test is multiplied.
pub const FACTOR: &str = "PODWRIGHT_FACTOR";
/// The environment variable with the number of faults that are added to the worlds of the model checkers. Above 0, some of them also
/// check further worlds.
pub const DEPTH: &str = "PODWRIGHT_DEPTH";

/// The configuration of a property with this number of random inputs.
///
/// # Panics
/// Under the conditions of [`seed`] and [`times`], or if there are 2^32 inputs or more.
pub fn cases(cases: u32) -> Config {
    let cases = u32::try_from(times(cases.into())).expect("fewer than 2^32 inputs");
    // The seed repeats a failure, so proptest writes no failures to files beside the sources.
    Config { cases, rng_seed: RngSeed::Fixed(seed()), failure_persistence: None, ..Config::default() }
}

/// The seed of this run: the value of [`SEED`], or 1. Prints the seed, so that the output of a failed test contains it.
///
/// # Panics
/// If [`SEED`] is not a whole number.
pub fn seed() -> u64 {
    let seed = number(SEED, 1);
    eprintln!("the random inputs are those of {SEED}={seed}");
    seed
}

/// The number of random inputs of a test: `count`, multiplied by the value of [`FACTOR`] if that is set.
///
/// # Panics
/// If [`FACTOR`] is not a whole number.
pub fn times(count: u64) -> u64 {
    count * number(FACTOR, 1)
}

/// The number of faults to add to the worlds of a model checker: the value of [`DEPTH`], or 0.
///
/// # Panics
/// If [`DEPTH`] is not a number below 256.
pub fn depth() -> u8 {
    number(DEPTH, 0).try_into().expect("the depth is below 256")
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a whole number")))
}
