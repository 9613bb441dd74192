//! Compares the available resources of the node with the thresholds. Pure: the caller passes the time.

use std::time::Duration;

use super::policy::{EvictionPolicy, Threshold};
use super::signals::{Pressure, Signal};
use super::thresholds::{amount, available_text};
use crate::ports::{FileSystemSpace, ResourceSpace};
use crate::time::Time;

/// The available resources of the node. A resource that could not be measured is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observations {
    pub(crate) memory: Option<ResourceSpace>,
    pub(crate) pids: Option<ResourceSpace>,
    /// The file system of volumes and logs.
    pub(crate) node: Option<FileSystemSpace>,
    /// The file system of images and writable layers. `None` without images.
    pub(crate) images: Option<FileSystemSpace>,
}

impl Observations {
    /// Whether images and writable layers have a file system of their own.
    pub(crate) fn has_dedicated_image_disk(&self) -> bool {
        self.images.zip(self.node).is_some_and(|(images, node)| images.device != node.device)
    }

    fn of(&self, signal: Signal) -> Option<ResourceSpace> {
        let bytes = |disk: FileSystemSpace| ResourceSpace::new(disk.capacity, disk.available);
        let inodes = |disk: FileSystemSpace| ResourceSpace::new(disk.inodes, disk.inodes_free);
        match signal {
            Signal::MemoryAvailable => self.memory,
            Signal::PidAvailable => self.pids,
            Signal::NodeFsAvailable => self.node.map(bytes),
            Signal::NodeFsInodesFree => self.node.map(inodes),
            Signal::ImageFsAvailable => self.images.map(bytes),
            Signal::ImageFsInodesFree => self.images.map(inodes),
        }
    }
}

/// A threshold that is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetThreshold {
    pub(crate) signal: Signal,
    /// The threshold in the form of messages. A percentage is converted to a number of bytes, inodes or processes.
    pub(crate) threshold: String,
    /// The available amount.
    pub(crate) available: String,
    /// Whether the threshold is a soft one.
    pub(crate) is_soft: bool,
}

/// The node lacks a resource, or lacked it within the last minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodePressure {
    /// The condition of the node.
    pub condition: Pressure,
    /// When a threshold was first met.
    pub since: Time,
    /// When a threshold was last met.
    pub last: Time,
    /// The signal of the last observation, such as `nodefs.available`.
    pub signal: &'static str,
    /// The value of the threshold.
    pub threshold: String,
    /// The available amount at the last observation.
    pub available: String,
}

/// The progress of the thresholds and the conditions of the node.
#[derive(Debug)]
pub(super) struct PressureTracker {
    policy: EvictionPolicy,
    /// One for each threshold of the policy.
    progress: Vec<ThresholdProgress>,
    /// One for each of [`Pressure::ALL`].
    conditions: [ConditionState; Pressure::ALL.len()],
}

#[derive(Clone, Copy, Debug, Default)]
struct ThresholdProgress {
    /// When the threshold was first met. `None` if it is not met now.
    first_met: Option<Time>,
    /// Whether the threshold has been met for its grace period.
    is_active: bool,
}

#[derive(Debug)]
struct ConditionState {
    /// When the condition began or ended last.
    changed: Time,
    pressure: Option<NodePressure>,
}

impl PressureTracker {
    pub(super) fn new(policy: EvictionPolicy, now: Time) -> Self {
        let progress = vec![ThresholdProgress::default(); policy.thresholds.len()];
        let conditions =
            [const { None }; Pressure::ALL.len()].map(|pressure| ConditionState { changed: now, pressure });
        PressureTracker { policy, progress, conditions }
    }

    /// The longest grace period of a pod that is evicted because of a soft threshold.
    pub(super) fn max_pod_grace(&self) -> Duration {
        self.policy.max_pod_grace
    }

    /// Compares the observations with the thresholds. Returns the thresholds that require an eviction, the most urgent one first.
    /// A threshold requires evictions once it has been met for its grace period, and until its signal has risen above it by the
    /// minimum to reclaim (upstream `synchronize`, kubelet 1.36).
    pub(super) fn observe(&mut self, observed: &Observations, now: Time) -> Vec<MetThreshold> {
        let (mut active, mut met) = (Vec::new(), Vec::new());
        for (threshold, progress) in self.policy.thresholds.iter().zip(&mut self.progress) {
            let Some(found) = threshold.compare(observed, progress.is_active) else {
                *progress = ThresholdProgress::default();
                continue;
            };
            let first = *progress.first_met.get_or_insert(now);
            progress.is_active = now.since(first) >= threshold.grace;
            if progress.is_active {
                active.push(found.clone());
            }
            met.push(found);
        }
        // Memory is reclaimed before all other resources (upstream `byEvictionPriority`). Hard thresholds come before soft ones,
        // because their pods must stop sooner.
        let order = |met: &MetThreshold| (met.signal.pressure() != Pressure::Memory, met.is_soft, met.signal);
        active.sort_by_key(order);
        met.sort_by_key(order);
        for (condition, kind) in self.conditions.iter_mut().zip(Pressure::ALL) {
            condition.update(kind, met.iter().find(|met| met.signal.pressure() == kind), now, self.policy.transition);
        }
        active
    }

    /// Whether every signal is above its threshold by the minimum to reclaim, so that no pod needs to be evicted.
    pub(super) fn is_relieved(&self, observed: &Observations) -> bool {
        self.policy.thresholds.iter().all(|threshold| threshold.compare(observed, true).is_none())
    }

    /// The conditions that the node has now.
    pub(super) fn pressures(&self) -> impl Iterator<Item = &NodePressure> {
        self.conditions.iter().filter_map(|condition| condition.pressure.as_ref())
    }

    /// Every condition, when it began or ended last, and whether the node has it.
    pub(super) fn conditions(&self) -> impl Iterator<Item = (Pressure, Time, bool)> {
        let conditions = Pressure::ALL.into_iter().zip(&self.conditions);
        conditions.map(|(kind, condition)| (kind, condition.changed, condition.pressure.is_some()))
    }
}

impl ConditionState {
    /// The condition ends once no threshold was met for `transition`.
    fn update(&mut self, kind: Pressure, met: Option<&MetThreshold>, now: Time, transition: Duration) {
        let was_present = self.pressure.is_some();
        match met {
            Some(met) => {
                let since = self.pressure.as_ref().map_or(now, |pressure| pressure.since);
                let (threshold, available) = (met.threshold.clone(), met.available.clone());
                let signal = met.signal.as_str();
                self.pressure = Some(NodePressure { condition: kind, since, last: now, signal, threshold, available });
            }
            None if self.pressure.as_ref().is_some_and(|pressure| now.since(pressure.last) >= transition) => {
                self.pressure = None;
            }
            None => {}
        }
        if was_present != self.pressure.is_some() {
            self.changed = now;
        }
    }
}

impl Threshold {
    /// The threshold if it is met. With `reclaim`, the signal must also rise by the minimum to reclaim.
    fn compare(&self, observed: &Observations, reclaim: bool) -> Option<MetThreshold> {
        let ResourceSpace { capacity, available } = observed.of(self.signal)?;
        let more = self.reclaim.as_ref().filter(|_| reclaim);
        let limit = self.value.of_capacity(capacity);
        let limit = more.map_or(limit, |more| limit.plus(more.of_capacity(capacity)));
        (amount(available) < limit).then(|| MetThreshold {
            signal: self.signal,
            threshold: self.value.text(capacity),
            available: available_text(self.signal, available),
            is_soft: !self.grace.is_zero(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::EvictionThresholds;

    fn disk(device: u64, available: u64, inodes_free: u64) -> FileSystemSpace {
        FileSystemSpace { device, capacity: 1000 << 20, available: available << 20, inodes: 1000, inodes_free }
    }

    fn disks(node: (u64, u64), images: (u64, u64)) -> Observations {
        let (node, images) = (Some(disk(1, node.0, node.1)), Some(disk(2, images.0, images.1)));
        Observations { node, images, ..Observations::default() }
    }

    fn texts(met: &[MetThreshold]) -> Vec<String> {
        met.iter().map(|it| format!("{} {} {}", it.signal.as_str(), it.threshold, it.available)).collect()
    }

    fn tracker(policy: impl Into<EvictionPolicy>) -> PressureTracker {
        PressureTracker::new(policy.into(), Time::ZERO)
    }

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    #[test]
    fn a_threshold_is_met_below_its_value() {
        let met = |observed: &Observations| texts(&tracker(EvictionPolicy::default()).observe(observed, at(1)));
        assert_eq!(met(&disks((101, 51), (151, 51))), [""; 0]);
        // A percentage has single precision, so the threshold is slightly larger than the exact number.
        assert_eq!(
            met(&disks((99, 49), (149, 49))),
            [
                "nodefs.available 104857601 99Mi",
                "nodefs.inodesFree 50 49",
                "imagefs.available 157286406 149Mi",
                "imagefs.inodesFree 50 49",
            ]
        );
        let without = |images| Observations { images, ..disks((200, 500), (0, 0)) };
        assert_eq!(met(&without(None)), [""; 0], "a node without images");
        assert!(!without(None).has_dedicated_image_disk());
        assert!(!without(Some(disk(1, 0, 0))).has_dedicated_image_disk());
        assert!(without(Some(disk(2, 0, 0))).has_dedicated_image_disk());
        let absolute: EvictionThresholds = "nodefs.available<1024Mi".parse().unwrap();
        assert_eq!(texts(&tracker(absolute).observe(&without(None), at(1))), ["nodefs.available 1Gi 200Mi"]);
        // A file system without a fixed number of inodes never lacks them.
        let endless = FileSystemSpace { inodes: 0, inodes_free: 0, ..disk(1, 1000, 0) };
        assert_eq!(met(&Observations { node: Some(endless), ..Observations::default() }), [""; 0]);
    }

    #[test]
    fn memory_is_reclaimed_first_and_hard_thresholds_before_soft_ones() {
        let hard: EvictionThresholds = "nodefs.available<10%,memory.available<1Mi,pid.available<10".parse().unwrap();
        let soft = "memory.available<2Mi,nodefs.inodesFree<10%".parse().unwrap();
        let periods = "memory.available=1s,nodefs.inodesFree=1s".parse().unwrap();
        let mut tracker = tracker(EvictionPolicy::new(hard).soft(soft, &periods).unwrap());
        let observed = Observations {
            memory: Some(ResourceSpace::new(1 << 30, 1000)),
            pids: Some(ResourceSpace::new(4000, 9)),
            ..disks((1, 1), (1, 1))
        };
        tracker.observe(&observed, at(0));
        assert_eq!(
            texts(&tracker.observe(&observed, at(1))),
            [
                "memory.available 1Mi 1k",
                "memory.available 2Mi 1k",
                "nodefs.available 104857601 1Mi",
                "pid.available 10 9",
                "nodefs.inodesFree 100 1"
            ]
        );
        assert_eq!(tracker.pressures().map(|it| it.condition).collect::<Vec<_>>(), Pressure::ALL);
    }

    #[test]
    fn a_soft_threshold_evicts_after_it_was_met_for_its_grace_period() {
        let policy = EvictionPolicy::new(EvictionThresholds::none());
        let policy = policy.soft("nodefs.available<50%".parse().unwrap(), &"nodefs.available=1m".parse().unwrap());
        let mut tracker = tracker(policy.unwrap());
        let mut evicts = |seconds, left| !tracker.observe(&disks((left, 900), (900, 900)), at(seconds)).is_empty();
        assert!(!evicts(0, 400));
        assert!(!evicts(50, 400));
        // The time begins again after the threshold was not met.
        assert!(!evicts(59, 501));
        assert!(!evicts(60, 400));
        assert!(!evicts(119, 400));
        assert!(evicts(120, 400));
        // The condition begins with the first observation, not after the grace period.
        assert_eq!(tracker.pressures().map(|it| it.since).collect::<Vec<_>>(), [at(0)]);
    }

    #[test]
    fn evictions_continue_until_the_minimum_is_reclaimed() {
        let hard: EvictionThresholds = "nodefs.available<100Mi".parse().unwrap();
        let policy = EvictionPolicy::new(hard).minimum_reclaim("nodefs.available=50Mi".parse().unwrap());
        let mut tracker = tracker(policy);
        let observed = |left| disks((left, 900), (900, 900));
        let mut evicts = |left| !tracker.observe(&observed(left), at(1)).is_empty();
        assert!(!evicts(140), "the threshold was never met");
        assert!(evicts(99));
        assert!(evicts(149));
        assert!(!evicts(150));
        assert!(!evicts(140));
        assert!(!tracker.is_relieved(&observed(149)));
        assert!(tracker.is_relieved(&observed(150)));
    }

    #[test]
    fn pressure_lasts_until_no_threshold_was_met_for_the_transition_period() {
        let mut tracker = tracker(EvictionPolicy::default());
        let observe = |tracker: &mut PressureTracker, now, left| {
            tracker.observe(&disks((left, 900), (900, 900)), at(now));
            tracker.pressures().next().cloned()
        };
        assert_eq!(observe(&mut tracker, 0, 900), None);
        observe(&mut tracker, 10, 9);
        let pressure = observe(&mut tracker, 20, 8).unwrap();
        assert_eq!((pressure.since, pressure.last), (at(10), at(20)));
        assert_eq!((pressure.signal, pressure.available.as_str()), ("nodefs.available", "8Mi"));
        assert!(observe(&mut tracker, 319, 900).is_some());
        let changes = |tracker: &PressureTracker| tracker.conditions().map(|(_, at, _)| at).collect::<Vec<_>>();
        assert_eq!(changes(&tracker), [at(0), at(10), at(0)]);
        assert_eq!(observe(&mut tracker, 320, 900), None);
        assert_eq!(changes(&tracker), [at(0), at(320), at(0)]);
    }
}
