//! The random inputs of tests, and how far tests search: the same in each test run, so that the verdict depends on the code
//! alone, and new inputs and larger worlds in `make soak`, which sets the variables [`SEED`], [`FACTOR`] and [`DEPTH`].
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
/// The environment variable with a factor for the number of random inputs of each test.
pub const FACTOR: &str = "PODWRIGHT_FACTOR";
/// The environment variable with the number of faults that the worlds of the model checkers have in addition.
pub const DEPTH: &str = "PODWRIGHT_DEPTH";

/// The configuration of a property with this number of random inputs.
///
/// # Panics
/// As [`seed`] and [`times`].
pub fn cases(cases: u32) -> Config {
    let cases = u32::try_from(times(cases.into())).expect("fewer than 2^32 inputs");
    // Failures are not written to files in the sources: the seed repeats them.
    Config { cases, rng_seed: RngSeed::Fixed(seed()), failure_persistence: None, ..Config::default() }
}

/// The seed of this run: [`SEED`], or 1. Prints how to repeat the run, which is a part of the output of a test that fails.
///
/// # Panics
/// If [`SEED`] is not a whole number.
pub fn seed() -> u64 {
    let seed = number(SEED, 1);
    eprintln!("the random inputs are those of {SEED}={seed}");
    seed
}

/// The number of random inputs of a test that takes this many in a test run.
///
/// # Panics
/// If [`FACTOR`] is not a whole number.
pub fn times(count: u64) -> u64 {
    count * number(FACTOR, 1)
}

/// The number of faults that the worlds of a model checker have in addition: 0 in a test run.
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
