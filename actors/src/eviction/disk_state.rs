//! What was measured last: the disk space of pods, and whether the node is short of disk space.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::limits::PodUsage;
use super::thresholds::MetThreshold;
use crate::admission::{AdmissionHandler, Admitted, Rejection};
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::texts::evictions::{DISK_PRESSURE, EVICTED, node_had_condition};
use crate::time::Time;

/// The last measurements. The evictor writes them; `explain` and admission read them.
#[derive(Debug, Default)]
pub struct DiskState(Mutex<Measurements>);

#[derive(Debug, Default)]
struct Measurements {
    /// The pods with a limit.
    pods: HashMap<PodUid, MeasuredPod>,
    pressure: Option<DiskPressure>,
    dedicated_image_disk: bool,
}

/// The last measurement of a pod.
#[derive(Clone, Debug)]
pub struct MeasuredPod {
    /// When the measurement ended.
    pub at: Time,
    /// The used space. That of an earlier measurement if the last one failed.
    pub usage: Arc<PodUsage>,
    /// Why the last measurement failed, or what it lacks.
    pub error: Option<String>,
    /// Whether writable layers have a disk of their own.
    pub dedicated_image_disk: bool,
}

/// The node is short of disk space or inodes, or was so within the last minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPressure {
    /// When it was observed first.
    pub since: Time,
    /// When it was observed last.
    pub last: Time,
    /// The signal of the last observation, such as `nodefs.available`.
    pub signal: &'static str,
    /// The value of the threshold.
    pub threshold: String,
    /// What was left.
    pub available: String,
}

impl DiskState {
    /// The last measurement of a pod. `None` for a pod without limits, and before the first measurement.
    pub fn pod(&self, uid: &PodUid) -> Option<MeasuredPod> {
        self.0.lock().pods.get(uid).cloned()
    }

    /// Whether the node counts as short of disk space, and why.
    pub fn pressure(&self) -> Option<DiskPressure> {
        self.0.lock().pressure.clone()
    }

    pub(super) fn has_dedicated_image_disk(&self) -> bool {
        self.0.lock().dedicated_image_disk
    }

    pub(super) fn set_dedicated_image_disk(&self, is_dedicated: bool) {
        self.0.lock().dedicated_image_disk = is_dedicated;
    }

    /// Stores a measurement. Returns whether the error is the first one in a row.
    pub(super) fn note_pod(&self, uid: &PodUid, at: Time, usage: Option<Arc<PodUsage>>, error: Option<String>) -> bool {
        let mut state = self.0.lock();
        let dedicated_image_disk = state.dedicated_image_disk;
        let last = state.pods.get(uid);
        let is_first = error.is_some() && last.is_none_or(|last| last.error.is_none());
        let usage = usage.or_else(|| last.map(|last| last.usage.clone())).unwrap_or_default();
        state.pods.insert(uid.clone(), MeasuredPod { at, usage, error, dedicated_image_disk });
        is_first
    }

    /// Forgets the pods that `is_kept` does not name.
    pub(super) fn retain(&self, is_kept: impl Fn(&PodUid) -> bool) {
        self.0.lock().pods.retain(|uid, _| is_kept(uid));
    }

    /// Stores the met threshold, if one is met. The pressure ends once none was met for `transition`. Returns whether the pressure
    /// began or ended.
    pub(super) fn note_disks(&self, met: Option<&MetThreshold>, now: Time, transition: Duration) -> bool {
        let pressure = &mut self.0.lock().pressure;
        let was_short = pressure.is_some();
        match met {
            Some(met) => {
                let since = pressure.as_ref().map_or(now, |pressure| pressure.since);
                let (threshold, available) = (met.threshold.clone(), met.available.clone());
                *pressure = Some(DiskPressure { since, last: now, signal: met.signal.as_str(), threshold, available });
            }
            None if pressure.as_ref().is_some_and(|pressure| now.since(pressure.last) >= transition) => {
                *pressure = None
            }
            None => {}
        }
        was_short != pressure.is_some()
    }
}

/// Rejects new pods while the node is short of disk space, except critical ones (upstream `managerImpl.Admit`, kubelet 1.36).
#[derive(Debug)]
pub(crate) struct PressureGate(pub(crate) Arc<DiskState>);

impl AdmissionHandler for PressureGate {
    fn admit(&self, pod: &PodObject, _: &Admitted) -> Result<(), Rejection> {
        if pod.is_critical() || self.0.0.lock().pressure.is_none() {
            return Ok(());
        }
        Err(Rejection::new(EVICTED, node_had_condition(&[DISK_PRESSURE])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::thresholds::DiskSignal;
    use crate::testing::pod;

    #[test]
    fn pressure_lasts_until_no_threshold_was_met_for_the_transition_period() {
        let state = DiskState::default();
        let met = |available: &str| MetThreshold {
            signal: DiskSignal::NodeFsAvailable,
            threshold: "100Mi".to_owned(),
            available: available.to_owned(),
        };
        let transition = Duration::from_secs(300);
        let note = |now, met: Option<&MetThreshold>| state.note_disks(met, Time::from_secs(now), transition);
        assert!(!note(0, None));
        assert!(note(10, Some(&met("9Mi"))));
        assert!(!note(20, Some(&met("8Mi"))));
        let pressure = state.pressure().unwrap();
        assert_eq!((pressure.since, pressure.last), (Time::from_secs(10), Time::from_secs(20)));
        assert_eq!((pressure.signal, pressure.available.as_str()), ("nodefs.available", "8Mi"));
        let gate = PressureGate(Arc::new(DiskState::default()));
        assert!(gate.admit(&pod("a").build(), &Admitted::default()).is_ok());
        gate.0.note_disks(Some(&met("1")), Time::from_secs(1), transition);
        let rejection = gate.admit(&pod("a").build(), &Admitted::default()).unwrap_err();
        assert_eq!(
            (rejection.reason.as_str(), rejection.message.as_str()),
            ("Evicted", "The node had condition: [DiskPressure]. ")
        );
        assert!(gate.admit(&pod("a").static_pod().build(), &Admitted::default()).is_ok(), "a critical pod");
        assert!(!note(319, None));
        assert!(note(320, None));
        assert_eq!(state.pressure(), None);
    }
}
