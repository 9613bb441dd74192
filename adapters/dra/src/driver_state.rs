//! The state of the drivers, for operators.

use std::fmt;
use std::time::Duration;

use podwright_model::ids::DriverName;

/// The state of a driver. It displays as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverState {
    /// The name.
    pub name: DriverName,
    /// The number of registered instances. 0 if only slices of the driver are left.
    pub instances: usize,
    /// The number of those that are connected.
    pub connected: usize,
    /// The streams of device health. `None` if the agent does not watch the health of devices.
    pub health: Option<HealthStreams>,
    /// The stream of node resources. `None` if the driver offers none, or the agent manages no slices.
    pub node_resources: Option<NodeResourcesStream>,
    /// The deletion of the driver's slices. `None` if they stay.
    pub deletion: Option<SliceDeletion>,
}

/// The streams of device health of a driver, one for each instance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthStreams {
    /// At least one is open.
    Open,
    /// None is open. The agent opens one when an instance is connected, and again after a failure, which has this text.
    Closed(Option<String>),
    /// The driver does not report the health of its devices.
    NotOffered,
}

/// The stream of node resources of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeResourcesStream {
    /// It is open, or waits for the connection of the driver.
    Open,
    /// It failed, and is opened again after this time.
    Delayed(Duration),
    /// The driver ended it. It is opened when an instance registers.
    Finished,
}

/// A deletion of slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SliceDeletion {
    /// The time until the next try. `None` while a try runs.
    pub next: Option<Duration>,
    /// The number of tries that failed.
    pub failures: u32,
}

impl fmt::Display for DriverState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DriverState { name, instances, connected, health, node_resources, deletion } = self;
        match instances {
            0 => write!(f, "DRA driver {name}: not registered")?,
            _ => write!(f, "DRA driver {name}: {connected} of {instances} instances connected")?,
        }
        match health {
            None | Some(HealthStreams::NotOffered) => {}
            Some(HealthStreams::Open) => write!(f, "; reports the health of its devices")?,
            Some(HealthStreams::Closed(None)) => write!(f, "; the stream of device health is not open yet")?,
            Some(HealthStreams::Closed(Some(error))) => write!(f, "; the stream of device health ended: {error}")?,
        }
        match node_resources {
            None => {}
            Some(NodeResourcesStream::Open) => write!(f, "; the stream of node resources is open")?,
            Some(NodeResourcesStream::Delayed(time)) => {
                write!(f, "; the stream of node resources failed, next in {} s", time.as_secs())?;
            }
            Some(NodeResourcesStream::Finished) => write!(f, "; the driver ended the stream of node resources")?,
        }
        match deletion {
            None => Ok(()),
            Some(deletion) => write!(f, "; its slices are deleted {deletion}"),
        }
    }
}

impl fmt::Display for SliceDeletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.next {
            Some(time) => write!(f, "in {} s", time.as_secs())?,
            None => write!(f, "now")?,
        }
        if self.failures > 0 {
            write!(f, " (failed tries: {})", self.failures)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_one_line() {
        let seconds = Duration::from_secs;
        let state = |instances, health, node_resources, deletion: Option<SliceDeletion>| {
            let connected = usize::from(deletion.is_none()).min(instances);
            DriverState { name: "gpu".into(), instances, connected, health, node_resources, deletion }.to_string()
        };
        assert_eq!(
            state(2, Some(HealthStreams::Open), Some(NodeResourcesStream::Open), None),
            "DRA driver gpu: 1 of 2 instances connected; reports the health of its devices; the stream of node resources is open"
        );
        let failed = HealthStreams::Closed(Some("broken pipe".to_owned()));
        let next = SliceDeletion { next: Some(seconds(23)), failures: 0 };
        assert_eq!(
            state(1, Some(failed), Some(NodeResourcesStream::Delayed(seconds(7))), Some(next)),
            "DRA driver gpu: 0 of 1 instances connected; the stream of device health ended: broken pipe; \
             the stream of node resources failed, next in 7 s; its slices are deleted in 23 s"
        );
        assert_eq!(
            state(1, Some(HealthStreams::Closed(None)), Some(NodeResourcesStream::Finished), None),
            "DRA driver gpu: 1 of 1 instances connected; the stream of device health is not open yet; \
             the driver ended the stream of node resources"
        );
        let running = SliceDeletion { next: None, failures: 2 };
        assert_eq!(
            state(0, None, None, Some(running)),
            "DRA driver gpu: not registered; its slices are deleted now (failed tries: 2)"
        );
        assert_eq!(state(1, Some(HealthStreams::NotOffered), None, None), "DRA driver gpu: 1 of 1 instances connected");
    }
}
