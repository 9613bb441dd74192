//! The types of the settings' values, and how they are parsed.

use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;

use crate::draw::Draw;

/// The type of a setting's value.
pub(super) trait Setting: Sized {
    /// A description of the valid values.
    const EXPECTED: &'static str;

    fn read(text: &str) -> Option<Self>;
}

/// A duration: a constant, or a random one between two bounds with equal probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    least: Duration,
    most: Duration,
}

impl Latency {
    /// No time.
    pub const ZERO: Latency = Latency::exactly(Duration::ZERO);

    /// A constant duration.
    pub const fn exactly(latency: Duration) -> Self {
        Latency { least: latency, most: latency }
    }

    /// A random duration between two bounds, in any order.
    pub fn between(one: Duration, other: Duration) -> Self {
        Latency { least: one.min(other), most: one.max(other) }
    }

    /// Whether the value depends on the attempt.
    pub(crate) fn varies(self) -> bool {
        self.least != self.most
    }

    /// The duration for one draw.
    pub(crate) fn draw(self, draw: Draw) -> Duration {
        self.least + (self.most - self.least).mul_f64(draw.fraction())
    }
}

/// The longest duration of a setting: ten years, which can be added to any clock.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

fn duration(text: &str) -> Option<Duration> {
    let parsed = text.trim().parse::<SignedDuration>().ok()?;
    Duration::try_from(parsed).ok().filter(|duration| *duration <= LONGEST)
}

impl Setting for Latency {
    const EXPECTED: &'static str = "a duration like 250ms, or a range like 10ms..1m30s";

    fn read(text: &str) -> Option<Self> {
        match text.split_once("..") {
            None => Some(Latency::exactly(duration(text)?)),
            Some((least, most)) => {
                let (least, most) = (duration(least)?, duration(most)?);
                (least <= most).then_some(Latency { least, most })
            }
        }
    }
}

/// How long a container runs until it ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunFor {
    /// The container does not end by itself.
    Forever,
    /// The container ends after this time.
    Time(Latency),
}

impl Setting for RunFor {
    const EXPECTED: &'static str = "a duration like 5s, a range like 5s..10s, or forever";

    fn read(text: &str) -> Option<Self> {
        match text {
            "forever" => Some(RunFor::Forever),
            _ => Latency::read(text).map(RunFor::Time),
        }
    }
}

/// How a container reacts to SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopLatency {
    /// The container ends after this time.
    After(Latency),
    /// The container ignores the signal and has to be killed.
    Never,
}

impl Setting for StopLatency {
    const EXPECTED: &'static str = "a duration like 2s, a range like 0s..5s, or never";

    fn read(text: &str) -> Option<Self> {
        match text {
            "never" => Some(StopLatency::Never),
            _ => Latency::read(text).map(StopLatency::After),
        }
    }
}

/// The attempts that a setting applies to. Attempts count from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// No attempt.
    Never,
    /// Every attempt.
    Always,
    /// The first attempts, this many.
    First(u32),
    /// Each attempt with this probability, between 0 and 1.
    Fraction(f64),
}

impl Share {
    /// Whether the value depends on the attempt.
    pub(crate) fn varies(self) -> bool {
        match self {
            Share::Never | Share::Always => false,
            Share::First(_) | Share::Fraction(_) => true,
        }
    }

    /// Whether the setting applies to this attempt.
    pub(crate) fn applies_to(self, attempt: u32, draw: Draw) -> bool {
        match self {
            Share::Never => false,
            Share::Always => true,
            Share::First(count) => attempt < count,
            Share::Fraction(fraction) => draw.fraction() < fraction,
        }
    }
}

impl Setting for Share {
    const EXPECTED: &'static str =
        "never, always, how many of the first attempts like 3, or the fraction of all like 0.05";

    fn read(text: &str) -> Option<Self> {
        match text {
            "never" => Some(Share::Never),
            "always" => Some(Share::Always),
            _ if text.contains('.') => {
                let fraction = f64::from_str(text).ok()?;
                (0.0..=1.0).contains(&fraction).then_some(Share::Fraction(fraction))
            }
            _ => text.parse().ok().map(Share::First),
        }
    }
}

impl Setting for u8 {
    const EXPECTED: &'static str = "an exit code from 0 to 255";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}
