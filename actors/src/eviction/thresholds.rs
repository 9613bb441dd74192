//! The thresholds of the node's disks, in the syntax of the kubelet's `--eviction-hard`. Pure.

use std::fmt;
use std::str::FromStr;

use crate::config::quantity::Amount;
use crate::config::resource_amount::{binary, canonical, decimal};
use crate::ports::FileSystemSpace;
use crate::texts::evictions::{EPHEMERAL_STORAGE, INODES};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// What a threshold is about. The order is the one in which short resources are reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum DiskSignal {
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
}

/// The signals that the kubelet has too, and that this node does not observe (`eviction/api/types.go`, kubelet 1.36).
const UNOBSERVED: &[&str] = &[
    "memory.available",
    "allocatableMemory.available",
    "pid.available",
    "containerfs.available",
    "containerfs.inodesFree",
];

impl DiskSignal {
    const ALL: [DiskSignal; 4] = [
        DiskSignal::NodeFsAvailable,
        DiskSignal::NodeFsInodesFree,
        DiskSignal::ImageFsAvailable,
        DiskSignal::ImageFsInodesFree,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            DiskSignal::NodeFsAvailable => "nodefs.available",
            DiskSignal::NodeFsInodesFree => "nodefs.inodesFree",
            DiskSignal::ImageFsAvailable => "imagefs.available",
            DiskSignal::ImageFsInodesFree => "imagefs.inodesFree",
        }
    }

    /// Whether the signal is about the disk of images.
    pub(crate) const fn is_of_images(self) -> bool {
        matches!(self, DiskSignal::ImageFsAvailable | DiskSignal::ImageFsInodesFree)
    }

    /// Whether the signal is about files and not about bytes.
    pub(crate) const fn is_of_inodes(self) -> bool {
        matches!(self, DiskSignal::NodeFsInodesFree | DiskSignal::ImageFsInodesFree)
    }

    /// The resource in messages.
    pub(crate) const fn resource(self) -> &'static str {
        if self.is_of_inodes() { INODES } else { EPHEMERAL_STORAGE }
    }
}

/// The value that what is left must not fall below.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Quantity(Quantity),
    /// A part of the capacity. Single precision, as upstream.
    Percent(f32),
}

/// When pods are evicted because the node's disks are full: at most one threshold for each signal. The default is the kubelet's
/// (1.36): `nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%`.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionThresholds {
    thresholds: Vec<(DiskSignal, Value)>,
    unobserved: Vec<String>,
}

/// A text that is no list of thresholds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseThresholdsError {
    /// A part has another form.
    #[error("{0:?} is not of the form SIGNAL<QUANTITY: write it like nodefs.available<10% or nodefs.available<1Gi")]
    Form(String),
    /// The signal does not exist.
    #[error(
        "signal {0:?} does not exist: use nodefs.available, nodefs.inodesFree, imagefs.available or imagefs.inodesFree"
    )]
    Signal(String),
    /// The value is neither a quantity nor a percentage.
    #[error("{value:?} of {signal} is neither a quantity nor a percentage: write it like 1Gi or 10%")]
    Value {
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
    /// The signal has two thresholds.
    #[error("{0} has two thresholds: keep one of them")]
    Twice(String),
}

impl EvictionThresholds {
    /// No thresholds: no pod is evicted because a disk is full.
    pub const fn none() -> Self {
        EvictionThresholds { thresholds: Vec::new(), unobserved: Vec::new() }
    }

    /// Whether no threshold of a disk is set.
    pub fn is_empty(&self) -> bool {
        self.thresholds.is_empty()
    }

    /// The signals of the text that this node does not observe, such as `memory.available`. Their thresholds have no effect.
    pub fn unobserved(&self) -> &[String] {
        &self.unobserved
    }

    /// The thresholds that are met, the one to reclaim first at the front.
    pub(crate) fn met(&self, disks: &NodeDisks) -> Vec<MetThreshold> {
        self.thresholds.iter().filter_map(|(signal, value)| MetThreshold::of(*signal, value, disks)).collect()
    }
}

impl Default for EvictionThresholds {
    fn default() -> Self {
        "nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"
            .parse()
            .expect("a test parses the default")
    }
}

impl FromStr for EvictionThresholds {
    type Err = ParseThresholdsError;

    /// Parses thresholds that are separated by commas. An empty text has none. A threshold of 0% or of 100% and more is off, as
    /// upstream (`parseThresholdStatement`, kubelet 1.36).
    fn from_str(text: &str) -> Result<Self, ParseThresholdsError> {
        let mut found = EvictionThresholds::none();
        let mut names: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            let (name, value) = part.split_once('<').ok_or_else(|| ParseThresholdsError::Form(part.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            if names.contains(&name) {
                return Err(ParseThresholdsError::Twice(name.to_owned()));
            }
            names.push(name);
            let threshold = parse_value(name, value)?;
            match DiskSignal::ALL.into_iter().find(|signal| signal.as_str() == name) {
                Some(signal) => found.thresholds.extend(threshold.map(|value| (signal, value))),
                None if UNOBSERVED.contains(&name) => found.unobserved.push(name.to_owned()),
                None => return Err(ParseThresholdsError::Signal(name.to_owned())),
            }
        }
        found.thresholds.sort_by_key(|(signal, _)| *signal);
        Ok(found)
    }
}

/// `None` for a threshold that is off.
fn parse_value(signal: &str, text: &str) -> Result<Option<Value>, ParseThresholdsError> {
    let (signal, value) = (signal.to_owned(), text.to_owned());
    if let Some(percent) = text.strip_suffix('%') {
        return match percent.parse::<f32>() {
            Ok(percent) if percent < 0.0 => Err(ParseThresholdsError::Negative { signal, value }),
            Ok(percent) if percent == 0.0 || percent >= 100.0 => Ok(None),
            Ok(percent) if percent.is_finite() => Ok(Some(Value::Percent(percent))),
            _ => Err(ParseThresholdsError::Value { signal, value }),
        };
    }
    match Amount::parse(text) {
        Ok(amount) if amount.is_negative() => Err(ParseThresholdsError::Negative { signal, value }),
        Ok(amount) if amount == Amount::ZERO => Ok(None),
        Ok(_) => Ok(Some(Value::Quantity(Quantity(value)))),
        Err(_) => Err(ParseThresholdsError::Value { signal, value }),
    }
}

impl fmt::Display for EvictionThresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (signal, value)) in self.thresholds.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            match value {
                Value::Quantity(quantity) => write!(f, "{comma}{}<{}", signal.as_str(), quantity.0)?,
                Value::Percent(percent) => write!(f, "{comma}{}<{percent}%", signal.as_str())?,
            }
        }
        Ok(())
    }
}

/// The disks of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeDisks {
    /// The file system of volumes and logs.
    pub(crate) node: FileSystemSpace,
    /// The file system of images and writable layers. `None` without images.
    pub(crate) images: Option<FileSystemSpace>,
}

impl NodeDisks {
    /// Whether images and writable layers have a file system of their own.
    pub(crate) fn has_dedicated_image_disk(&self) -> bool {
        self.images.is_some_and(|images| images.device != self.node.device)
    }
}

/// A threshold that is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetThreshold {
    pub(crate) signal: DiskSignal,
    /// The threshold as messages have it. A percentage is a number of bytes or inodes.
    pub(crate) threshold: String,
    /// What is left.
    pub(crate) available: String,
}

impl MetThreshold {
    fn of(signal: DiskSignal, value: &Value, disks: &NodeDisks) -> Option<Self> {
        let disk = if signal.is_of_images() { disks.images? } else { disks.node };
        let (capacity, left) =
            if signal.is_of_inodes() { (disk.inodes, disk.inodes_free) } else { (disk.capacity, disk.available) };
        let (limit, threshold) = match value {
            Value::Quantity(quantity) => (Amount::of(quantity).ok()?, canonical(quantity)),
            Value::Percent(percent) => {
                // The kubelet multiplies the capacity by a percentage of single precision, and cuts the fraction off.
                let limit = (capacity as f64 * f64::from(percent / 100.0)) as u64;
                (amount(limit), binary(limit))
            }
        };
        let available = if signal.is_of_inodes() { decimal(left) } else { binary(left) };
        (amount(left) < limit).then_some(MetThreshold { signal, threshold, available })
    }
}

fn amount(number: u64) -> Amount {
    Amount::from_units(i64::try_from(number).unwrap_or(i64::MAX))
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
            "nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"
        );
        let parse = |text: &str| text.parse::<EvictionThresholds>();
        assert_eq!(parse("").unwrap(), EvictionThresholds::none());
        assert!(parse("nodefs.available<0%,imagefs.available<100%,nodefs.inodesFree<0").unwrap().is_empty(), "off");
        let some = parse("imagefs.available<2Gi, memory.available<100Mi, nodefs.available<12.5%").unwrap();
        assert_eq!(some.to_string(), "nodefs.available<12.5%,imagefs.available<2Gi");
        assert_eq!(some.unobserved(), ["memory.available"]);
        for (text, says) in [
            ("nodefs.available", "SIGNAL<QUANTITY"),
            ("nodefs.available>10%", "SIGNAL<QUANTITY"),
            ("nodefs.available<10%,", "SIGNAL<QUANTITY"),
            ("disk<10%", "use nodefs.available"),
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

    fn disk(device: u64, available: u64, inodes_free: u64) -> FileSystemSpace {
        FileSystemSpace { device, capacity: 1000 << 20, available, inodes: 1000, inodes_free }
    }

    #[test]
    fn a_threshold_is_met_below_its_value() {
        let disks = |node: (u64, u64), images: (u64, u64)| NodeDisks {
            node: disk(1, node.0 << 20, node.1),
            images: Some(disk(2, images.0 << 20, images.1)),
        };
        let met = |disks: &NodeDisks| {
            let met = EvictionThresholds::default().met(disks);
            met.into_iter()
                .map(|it| format!("{} {} {}", it.signal.as_str(), it.threshold, it.available))
                .collect::<Vec<_>>()
        };
        assert_eq!(met(&disks((101, 51), (151, 51))), [""; 0]);
        // A percentage of single precision is a little more than the number.
        assert_eq!(
            met(&disks((99, 49), (149, 49))),
            [
                "nodefs.available 104857601 99Mi",
                "nodefs.inodesFree 50 49",
                "imagefs.available 157286406 149Mi",
                "imagefs.inodesFree 50 49",
            ]
        );
        let without = |images| NodeDisks { images, ..disks((200, 500), (0, 0)) };
        assert_eq!(met(&without(None)), [""; 0], "a node without images");
        assert!(!without(None).has_dedicated_image_disk());
        assert!(!without(Some(disk(1, 0, 0))).has_dedicated_image_disk());
        assert!(without(Some(disk(2, 0, 0))).has_dedicated_image_disk());
        let absolute: EvictionThresholds = "nodefs.available<1024Mi".parse().unwrap();
        let met = absolute.met(&without(None));
        assert_eq!((met[0].threshold.as_str(), met[0].available.as_str()), ("1Gi", "200Mi"));
        // A file system without a fixed number of inodes never lacks them.
        let endless =
            NodeDisks { node: FileSystemSpace { inodes: 0, inodes_free: 0, ..disk(1, 1 << 30, 0) }, images: None };
        assert_eq!(EvictionThresholds::default().met(&endless), []);
    }
}
