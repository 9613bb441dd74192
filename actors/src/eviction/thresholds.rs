//! Values of signals, in the syntax of the kubelet's `--eviction-*` flags. Pure.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::signals::{Signal, UNOBSERVED};
use crate::config::resource_amount::{binary, canonical, decimal};
use crate::quantity::Amount;

/// An amount of a resource.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ThresholdValue {
    Quantity(Quantity),
    /// A percentage of the capacity, in single precision as upstream.
    Percent(f32),
}

impl ThresholdValue {
    /// The amount on a node with this capacity. The kubelet multiplies the capacity by a percentage of single precision, and cuts
    /// the fraction off.
    pub(super) fn of_capacity(&self, capacity: u64) -> Amount {
        match self {
            ThresholdValue::Quantity(quantity) => Amount::of(quantity).unwrap_or_default(),
            ThresholdValue::Percent(percent) => amount((capacity as f64 * f64::from(percent / 100.0)) as u64),
        }
    }

    /// The amount in the form of messages.
    pub(super) fn text(&self, capacity: u64) -> String {
        match self {
            ThresholdValue::Quantity(quantity) => canonical(quantity),
            ThresholdValue::Percent(_) => binary(u64::try_from(self.of_capacity(capacity).units()).unwrap_or(0)),
        }
    }
}

impl fmt::Display for ThresholdValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ThresholdValue::Quantity(quantity) => f.write_str(&quantity.0),
            ThresholdValue::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// The available amount of a resource, in the form of messages.
pub(super) fn available_text(signal: Signal, left: u64) -> String {
    if signal.is_in_bytes() { binary(left) } else { decimal(left) }
}

pub(super) fn amount(number: u64) -> Amount {
    Amount::from_units(i64::try_from(number).unwrap_or(i64::MAX))
}

/// The amounts of the node's resources that must stay available: at most one value for each signal. The default is the kubelet's for
/// `--eviction-hard` (1.36):
/// `memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%`.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionThresholds {
    pub(super) values: Vec<(Signal, ThresholdValue)>,
    pub(super) unobserved: Vec<String>,
}

/// How long each soft threshold must be met before a pod is evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionGracePeriods(pub(super) Vec<(Signal, Duration)>);

/// How far above its threshold each signal must rise until no more pods are evicted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MinimumReclaim(pub(super) Vec<(Signal, ThresholdValue)>);

/// A text is not a list of signals with values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseThresholdsError {
    /// A part has another form.
    #[error("{part:?} is not of the form {form}")]
    Form {
        /// The part.
        part: String,
        /// The form, with an example.
        form: &'static str,
    },
    /// The signal does not exist.
    #[error(
        "signal {0:?} does not exist: use memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, \
         imagefs.inodesFree or pid.available"
    )]
    Signal(String),
    /// The value is neither a quantity nor a percentage.
    #[error("{value:?} of {signal} is neither a quantity nor a percentage: write it like 1Gi or 10%")]
    ThresholdValue {
        /// The signal.
        signal: String,
        /// The value.
        value: String,
    },
    /// The value is not a time span.
    #[error("{value:?} of {signal} is not a time span: write it like 90s or 1m30s")]
    Time {
        /// The signal.
        signal: String,
        /// The value.
        value: String,
    },
    /// The value is negative.
    #[error("{value:?} of {signal} is negative: use 0% to turn the threshold off")]
    Negative {
        /// The signal.
        signal: String,
        /// The value.
        value: String,
    },
    /// The signal has two values.
    #[error("{0} has two thresholds: keep one of them")]
    Twice(String),
}

const LESS: (char, &str) = ('<', "SIGNAL<QUANTITY: write it like nodefs.available<10% or nodefs.available<1Gi");
const PERIOD: (char, &str) = ('=', "SIGNAL=TIME: write it like memory.available=1m30s");
const RECLAIM: (char, &str) = ('=', "SIGNAL=QUANTITY: write it like imagefs.available=2Gi");

impl EvictionThresholds {
    /// No thresholds: no pod is evicted because the node lacks a resource.
    pub const fn none() -> Self {
        EvictionThresholds { values: Vec::new(), unobserved: Vec::new() }
    }

    /// Whether no threshold is set.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The name of each signal, with its threshold as a quantity or a percentage.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.values.iter().map(|(signal, value)| (signal.as_str(), value.to_string()))
    }
}

impl EvictionGracePeriods {
    /// The name of each signal, with its time.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        self.0.iter().map(|(signal, time)| (signal.as_str(), *time))
    }
}

impl MinimumReclaim {
    /// The name of each signal, with its amount as a quantity or a percentage.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.0.iter().map(|(signal, value)| (signal.as_str(), value.to_string()))
    }
}

impl Default for EvictionThresholds {
    fn default() -> Self {
        "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"
            .parse()
            .expect("a test parses the default")
    }
}

impl FromStr for EvictionThresholds {
    type Err = ParseThresholdsError;

    /// Parses thresholds that are separated by commas. An empty text has none. A threshold of 0% or of 100% and more is off, as
    /// upstream (`parseThresholdStatement`, kubelet 1.36).
    fn from_str(text: &str) -> Result<Self, ParseThresholdsError> {
        let (values, unobserved) = parse_list(text, LESS, parse_value)?;
        let values = values.into_iter().filter_map(|(signal, value)| Some((signal, value?))).collect();
        Ok(EvictionThresholds { values, unobserved })
    }
}

impl FromStr for EvictionGracePeriods {
    type Err = ParseThresholdsError;

    /// Parses time spans that are separated by commas, such as `memory.available=1m30s`.
    fn from_str(text: &str) -> Result<Self, ParseThresholdsError> {
        let parse = |signal: &str, text: &str| {
            let (signal, value) = (signal.to_owned(), text.to_owned());
            let time = || text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
            time().ok_or(ParseThresholdsError::Time { signal, value })
        };
        Ok(EvictionGracePeriods(parse_list(text, PERIOD, parse)?.0))
    }
}

impl FromStr for MinimumReclaim {
    type Err = ParseThresholdsError;

    /// Parses amounts that are separated by commas, such as `imagefs.available=2Gi`.
    fn from_str(text: &str) -> Result<Self, ParseThresholdsError> {
        let (values, _) = parse_list(text, RECLAIM, parse_value)?;
        Ok(MinimumReclaim(values.into_iter().filter_map(|(signal, value)| Some((signal, value?))).collect()))
    }
}

/// The values of the observed signals in the order of the signals, and the names of the others.
type Values<T> = (Vec<(Signal, T)>, Vec<String>);

fn parse_list<T>(
    text: &str,
    (separator, form): (char, &'static str),
    parse: impl Fn(&str, &str) -> Result<T, ParseThresholdsError>,
) -> Result<Values<T>, ParseThresholdsError> {
    let (mut values, mut unobserved) = (Vec::new(), Vec::new());
    let mut names: Vec<&str> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
        let (name, value) =
            part.split_once(separator).ok_or_else(|| ParseThresholdsError::Form { part: part.to_owned(), form })?;
        let (name, value) = (name.trim(), value.trim());
        if names.contains(&name) {
            return Err(ParseThresholdsError::Twice(name.to_owned()));
        }
        names.push(name);
        match Signal::ALL.into_iter().find(|signal| signal.as_str() == name) {
            Some(signal) => values.push((signal, parse(name, value)?)),
            None if UNOBSERVED.contains(&name) => {
                parse(name, value)?;
                unobserved.push(name.to_owned());
            }
            None => return Err(ParseThresholdsError::Signal(name.to_owned())),
        }
    }
    values.sort_by_key(|(signal, _)| *signal);
    Ok((values, unobserved))
}

/// `None` for a value that turns a threshold off.
fn parse_value(signal: &str, text: &str) -> Result<Option<ThresholdValue>, ParseThresholdsError> {
    let (signal, value) = (signal.to_owned(), text.to_owned());
    if let Some(percent) = text.strip_suffix('%') {
        return match percent.parse::<f32>() {
            Ok(percent) if percent < 0.0 => Err(ParseThresholdsError::Negative { signal, value }),
            Ok(percent) if percent == 0.0 || percent >= 100.0 => Ok(None),
            Ok(percent) if percent.is_finite() => Ok(Some(ThresholdValue::Percent(percent))),
            _ => Err(ParseThresholdsError::ThresholdValue { signal, value }),
        };
    }
    match Amount::parse(text) {
        Ok(amount) if amount.is_negative() => Err(ParseThresholdsError::Negative { signal, value }),
        Ok(amount) if amount == Amount::ZERO => Ok(None),
        Ok(_) => Ok(Some(ThresholdValue::Quantity(Quantity(value)))),
        Err(_) => Err(ParseThresholdsError::ThresholdValue { signal, value }),
    }
}

impl fmt::Display for EvictionThresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.values.iter().map(|(signal, value)| format!("{}<{value}", signal.as_str()));
        f.write_str(&texts.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_have_the_syntax_of_the_kubelet() {
        let default = EvictionThresholds::default();
        assert_eq!(default.to_string().parse(), Ok(default.clone()));
        assert_eq!(
            default.to_string(),
            "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"
        );
        let parse = |text: &str| text.parse::<EvictionThresholds>();
        assert_eq!(parse("").unwrap(), EvictionThresholds::none());
        assert!(parse("nodefs.available<0%,imagefs.available<100%,nodefs.inodesFree<0").unwrap().is_empty(), "off");
        let some = parse("imagefs.available<2Gi, containerfs.available<100Mi, nodefs.available<12.5%").unwrap();
        assert_eq!(some.to_string(), "nodefs.available<12.5%,imagefs.available<2Gi");
        assert_eq!(some.unobserved, ["containerfs.available"]);
        for (text, says) in [
            ("nodefs.available", "SIGNAL<QUANTITY"),
            ("nodefs.available>10%", "SIGNAL<QUANTITY"),
            ("nodefs.available<10%,", "SIGNAL<QUANTITY"),
            ("disk<10%", "nodefs.available"),
            ("nodefs.available<much", "10%"),
            ("nodefs.available<%", "10%"),
            ("nodefs.available<NaN%", "10%"),
            ("nodefs.available<-1%", "negative"),
            ("nodefs.available<-1Gi", "negative"),
            ("nodefs.available<1Gi,nodefs.available<2Gi", "two thresholds"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn grace_periods_and_amounts_to_reclaim_have_the_syntax_of_the_kubelet() {
        let periods: EvictionGracePeriods = "pid.available=90s,memory.available=1m30s".parse().unwrap();
        let span = Duration::from_secs(90);
        assert_eq!(periods.0, [(Signal::MemoryAvailable, span), (Signal::PidAvailable, span)]);
        let reclaim: MinimumReclaim = "imagefs.available=2Gi,memory.available=0".parse().unwrap();
        assert_eq!(reclaim.0, [(Signal::ImageFsAvailable, ThresholdValue::Quantity(Quantity("2Gi".into())))]);
        let period = |text: &str| text.parse::<EvictionGracePeriods>().unwrap_err().to_string();
        for (text, says) in [
            ("memory.available<1m", "SIGNAL=TIME"),
            ("memory.available=-1m", "1m30s"),
            ("memory.available=soon", "1m30s"),
            ("memory=1m", "memory.available"),
        ] {
            assert!(period(text).contains(says), "{text}: {}", period(text));
        }
    }
}
