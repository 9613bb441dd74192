//! The kinds of values that settings have, and how they are written.

use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;

use crate::adapters::simulated::draw::Draw;

/// A kind of value.
pub(super) trait Setting: Sized {
    /// What may be written.
    const EXPECTED: &'static str;

    fn read(text: &str) -> Option<Self>;
}

/// EndCause long something takes: always the same, or between two bounds, each as likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    least: Duration,
    most: Duration,
}

impl Latency {
    /// At once.
    pub const ZERO: Latency = Latency::exactly(Duration::ZERO);

    /// Always the same.
    pub const fn exactly(latency: Duration) -> Self {
        Latency { least: latency, most: latency }
    }

    /// Between two bounds; the greater one counts as the upper one.
    pub fn between(one: Duration, other: Duration) -> Self {
        Latency { least: one.min(other), most: one.max(other) }
    }

    /// Whether it depends on which attempt it is.
    pub(in super::super) fn varies(self) -> bool {
        self.least != self.most
    }

    /// One draw.
    pub(in super::super) fn draw(self, draw: Draw) -> Duration {
        self.least + (self.most - self.least).mul_f64(draw.fraction())
    }
}

/// Long enough for everything, short enough for every clock.
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

/// When a run ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunFor {
    /// Not.
    Forever,
    /// After so long.
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

/// EndCause a container takes SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopLatency {
    /// Ends after so long.
    After(Latency),
    /// Ignores it, and has to be killed.
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

/// Which of several attempts something befalls. Attempts count from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// None.
    Never,
    /// All.
    Always,
    /// So many, the first ones.
    First(u32),
    /// Each with this probability, between 0 and 1.
    Fraction(f64),
}

impl Share {
    /// Whether it depends on which attempt it is.
    pub(in super::super) fn varies(self) -> bool {
        match self {
            Share::Never | Share::Always => false,
            Share::First(_) | Share::Fraction(_) => true,
        }
    }

    /// Whether it befalls this attempt.
    pub(in super::super) fn befalls(self, attempt: u32, draw: Draw) -> bool {
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
