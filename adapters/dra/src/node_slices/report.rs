//! The state of the slices, for operators.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_model::ids::DriverName;
use podwright_model::time::Time;
use tokio::time::Instant;

use super::state::NodeSlices;
use super::stream::Stream;
use super::wiping::PendingDeletion;
use crate::driver_state::{NodeResourcesStream, SliceDeletion};

/// The last state of the slices, which the task sets and others read.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlicesReport(Arc<Mutex<Report>>);

#[derive(Debug, Default)]
struct Report {
    /// When the time of the states below began. `None` before the first state.
    started: Option<Instant>,
    startup: Option<PendingDeletion>,
    drivers: BTreeMap<DriverName, (Option<PendingDeletion>, Option<StreamReport>)>,
}

#[derive(Clone, Copy, Debug)]
enum StreamReport {
    Open,
    Delayed(Time),
    Finished,
}

impl SlicesReport {
    pub(super) fn set<I: Clone + PartialEq>(&self, core: &NodeSlices<I>, started: Instant) {
        let stream = |stream: &Stream<I>| match stream {
            Stream::Closed => None,
            Stream::Open { .. } => Some(StreamReport::Open),
            Stream::Delayed { due, .. } => Some(StreamReport::Delayed(*due)),
            Stream::Finished { .. } => Some(StreamReport::Finished),
        };
        let drivers = core.drivers().map(|(name, deletion, of)| (name.clone(), (deletion, stream(of)))).collect();
        *self.0.lock() = Report { started: Some(started), startup: core.startup_deletion(), drivers };
    }

    /// The deletion of the slices that an earlier agent left, until it has succeeded.
    pub(crate) fn startup_deletion(&self) -> Option<SliceDeletion> {
        let report = self.0.lock();
        report.startup.map(|pending| report.deletion(pending))
    }

    /// The drivers that are registered or have slices that will be deleted.
    pub(crate) fn drivers(&self) -> BTreeMap<DriverName, (Option<SliceDeletion>, Option<NodeResourcesStream>)> {
        let report = self.0.lock();
        let stream = |stream: &StreamReport| match stream {
            StreamReport::Open => NodeResourcesStream::Open,
            StreamReport::Delayed(due) => NodeResourcesStream::Delayed(report.until(*due)),
            StreamReport::Finished => NodeResourcesStream::Finished,
        };
        let driver = |(name, (deletion, of)): (&DriverName, &(Option<PendingDeletion>, Option<StreamReport>))| {
            (name.clone(), (deletion.map(|pending| report.deletion(pending)), of.as_ref().map(stream)))
        };
        report.drivers.iter().map(driver).collect()
    }
}

impl Report {
    fn deletion(&self, pending: PendingDeletion) -> SliceDeletion {
        SliceDeletion { next: pending.due.map(|due| self.until(due)), failures: pending.failures }
    }

    fn until(&self, due: Time) -> Duration {
        let elapsed = self.started.map(|started| started.elapsed()).unwrap_or_default();
        due.since(Time::ZERO + elapsed)
    }
}
