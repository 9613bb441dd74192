//! The laws of the API server's objects: what an agent may write. The server of the ports and the one of the adapters call them for each
//! write of an agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{Clock, ResourcePhase};

use super::checks::{self, CheckResult};
use super::disk::Disk;
use super::machine::Machine;

/// Checks the writes of an agent, and traces them.
#[derive(Clone)]
pub(super) struct Laws {
    machine: Arc<Machine>,
    disk: Arc<Disk>,
    /// The life in which each event was created, by the UID of the event.
    events: Arc<Mutex<BTreeMap<Option<String>, u32>>>,
}

impl Laws {
    pub(super) fn new(machine: &Arc<Machine>, disk: &Arc<Disk>) -> Self {
        Laws { machine: machine.clone(), disk: disk.clone(), events: Arc::default() }
    }

    fn require(&self, checked: CheckResult) {
        if let Err(what) = checked {
            self.machine.violated(what);
        }
    }

    /// An agent has changed a pod: its status, and nothing else.
    pub(super) fn pod_changed(&self, before: &PodObject, after: &PodObject) {
        if is_marked(before, after) {
            self.machine.note(format!("{} is marked for deletion", before.uid()));
            self.require(may_be_marked(before));
            return;
        }
        self.require(only_the_status_changes(before, after));
        self.status_written(before, after);
    }

    pub(super) fn status_written(&self, before: &PodObject, after: &PodObject) {
        let (uid, reason) = (after.uid(), after.status().and_then(|status| status.reason.as_deref()));
        self.machine.note(format!("{uid} status {:?} {reason:?}", after.phase()));
        self.require(self.status_may_be_written(before, after));
        self.require(checks::generation_is_decided(&self.machine, before, after));
        self.require(checks::times_have_passed(after, &self.machine.clock));
        self.require(checks::readiness_is_of_one_state(after));
        if self.machine.is_calm() {
            self.require(checks::transition_times_stay(before, after));
            self.require(checks::ended_pod_is_not_ready(after));
        }
    }

    pub(super) fn pod_deleted(&self, pod: &PodObject) {
        self.machine.note(format!("{} is deleted from the API server", pod.uid()));
        self.require(self.pod_may_be_deleted(pod));
    }

    pub(super) fn pod_created(&self, pod: &PodObject) {
        let name = pod.full_name().name();
        self.machine.note(format!("the mirror pod of {name} is created"));
        let what = || format!("the agent creates {name}, which is no mirror pod");
        self.require(if pod.is_mirror() { Ok(()) } else { Err(what()) });
    }

    pub(super) fn lease_written(&self, before: &Lease, after: &Lease) {
        self.require(lease_goes_on(before, after, self.machine.clock.now()));
    }

    pub(super) fn node_written(&self, before: &Node, after: &Node) {
        self.require(heartbeats_go_on(before, after, self.machine.clock.now()));
    }

    pub(super) fn event_created(&self, event: &Event) {
        self.events.lock().insert(event.metadata.uid.clone(), self.machine.life());
    }

    pub(super) fn event_written(&self, before: &Event, after: &Event) {
        let is_own = self.events.lock().get(&before.metadata.uid) == Some(&self.machine.life());
        self.require(event_goes_on(before, after, is_own, self.machine.clock.now()));
    }

    /// No status goes back, and a pod ends only after its containers and its claims (POD-I6, POD-I7).
    fn status_may_be_written(&self, before: &PodObject, after: &PodObject) -> CheckResult {
        let uid = before.uid();
        if before.is_mirror() {
            return Ok(());
        }
        let (old, new) = (before.phase(), after.phase());
        if old.is_terminal() && new != old {
            return Err(format!("{uid}: its status goes from {old:?} back to {new:?}"));
        }
        if new.is_terminal() && !old.is_terminal() {
            if self.machine.runtime_status(uid).has_running_container() {
                return Err(format!("{uid}: the API server receives {new:?} while containers run"));
            }
            checks::claims_are_released(&self.machine, &self.disk, uid)?;
        }
        Ok(())
    }

    fn pod_may_be_deleted(&self, pod: &PodObject) -> CheckResult {
        let uid = pod.uid();
        if pod.is_mirror() {
            return Ok(());
        }
        let holds_claims = self.machine.agent().is_some_and(|agent| agent.claims.holds(uid));
        if self.machine.runtime_status(uid).has_running_container() || holds_claims {
            return Err(format!("{uid}: is deleted from the API server while containers run or claims are held"));
        }
        if !pod.phase().is_terminal() || !pod.is_deleting() {
            return Err(format!("{uid}: is deleted from the API server, in phase {:?}", pod.phase()));
        }
        Ok(())
    }
}

/// Whether a pod is marked for deletion, or gets a shorter grace period.
fn is_marked(before: &PodObject, after: &PodObject) -> bool {
    let mark = |pod: &PodObject| {
        let metadata = pod.metadata();
        (metadata.deletion_timestamp.clone(), metadata.deletion_grace_period_seconds)
    };
    mark(before) != mark(after)
}

/// An agent deletes a pod without a grace period, once the pod has ended. If the agent deletes its Node object, the garbage collector marks
/// the mirror pods of the node.
fn may_be_marked(pod: &PodObject) -> CheckResult {
    if pod.is_mirror() { Ok(()) } else { Err(format!("{}: the agent deletes it with a grace period", pod.uid())) }
}

/// A write of a status changes nothing else of the pod.
fn only_the_status_changes(before: &PodObject, after: &PodObject) -> CheckResult {
    let metadata = |pod: &PodObject| ObjectMeta { resource_version: None, ..pod.metadata().clone() };
    if metadata(before) != metadata(after) || before.spec() != after.spec() {
        return Err(format!("{}: a write of its status changes {:?} to {:?}", before.uid(), before.pod(), after.pod()));
    }
    Ok(())
}

/// The time of a lease does not go back, unless the clock was set back: only then, the old time is later than the clock.
fn lease_goes_on(before: &Lease, after: &Lease, now: Time) -> CheckResult {
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    let (old, new) = (renewed(before), renewed(after));
    let may_go_back = old.as_ref().is_some_and(|old| Time::from_timestamp(old.0) > now);
    if new < old && !may_go_back { Err(format!("the lease goes from {old:?} back to {new:?}")) } else { Ok(()) }
}

/// No heartbeat of a condition goes back, unless the clock was set back.
fn heartbeats_go_on(before: &Node, after: &Node, now: Time) -> CheckResult {
    let conditions =
        |node: &Node| node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let new = conditions(after);
    let may_go_back =
        |old: &NodeCondition| old.last_heartbeat_time.as_ref().is_some_and(|at| Time::from_timestamp(at.0) > now);
    for old in conditions(before).into_iter().filter(|old| !may_go_back(old)) {
        let found = new.iter().find(|condition| condition.type_ == old.type_);
        if let Some(found) = found.filter(|found| found.last_heartbeat_time < old.last_heartbeat_time) {
            return Err(format!("the heartbeat of the node goes back from {old:?} to {found:?}"));
        }
    }
    Ok(())
}

/// An event that is repeated happens more often and later. The name of an event has its time. An agent that is killed and starts again at the
/// same instant, which only a simulated clock allows, may use a name of the earlier agent, whose count it does not know. So may an agent that
/// reads a clock that was set back.
fn event_goes_on(before: &Event, after: &Event, is_own: bool, now: Time) -> CheckResult {
    let may_go_back = before.last_timestamp.as_ref().is_some_and(|at| Time::from_timestamp(at.0) > now);
    let goes_back = after.last_timestamp < before.last_timestamp && !may_go_back;
    if (is_own && after.count < before.count) || goes_back {
        return Err(format!("an event goes back from {before:?} to {after:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::api::core::v1::NodeStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    #[test]
    fn an_event_that_goes_back_is_reported() {
        let event = |count, second| {
            let last_timestamp = Some(Time::from_secs(second).to_api());
            Event { count: Some(count), last_timestamp, ..Event::default() }
        };
        let before = event(3, 10);
        // Rows: the new count and its time; whether the agent that created the event may write them; whether a later one may.
        for (count, second, by_creator, by_later) in
            [(4, 11, true, true), (3, 10, true, true), (2, 10, false, true), (4, 9, false, false)]
        {
            let after = event(count, second);
            let allowed =
                [true, false].map(|is_own| event_goes_on(&before, &after, is_own, Time::from_secs(11)).is_ok());
            assert_eq!(allowed, [by_creator, by_later], "{count} at {second}");
        }
        let set_back = Time::from_secs(9);
        assert_eq!(event_goes_on(&before, &event(4, 9), false, set_back), Ok(()), "the clock was set back");
    }

    #[test]
    fn a_lease_and_a_heartbeat_go_back_only_with_the_clock() {
        let lease = |second| {
            let renew_time = Some(MicroTime(Time::from_secs(second).to_timestamp()));
            Lease { spec: Some(LeaseSpec { renew_time, ..LeaseSpec::default() }), ..Lease::default() }
        };
        let node = |second| {
            let last_heartbeat_time = Some(Time::from_secs(second).to_api());
            let ready = NodeCondition { type_: "Ready".to_owned(), last_heartbeat_time, ..NodeCondition::default() };
            Node {
                status: Some(NodeStatus { conditions: Some(vec![ready]), ..NodeStatus::default() }),
                ..Node::default()
            }
        };
        // Rows: the time before, the time after, the clock; whether the write is allowed.
        for (old, new, now, allowed) in
            [(10, 20, 20, true), (20, 10, 20, false), (20, 10, 10, true), (20, 10, 19, true)]
        {
            let now = Time::from_secs(now);
            assert_eq!(lease_goes_on(&lease(old), &lease(new), now).is_ok(), allowed, "{old} {new} {now}");
            assert_eq!(heartbeats_go_on(&node(old), &node(new), now).is_ok(), allowed, "{old} {new} {now}");
        }
    }
}
