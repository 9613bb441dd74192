//! What a row of the page says, and which rows changed. Pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::actors::explain::{Health, NodeState, PodFacts, is_stuck};
use crate::actors::ids::PodUid;
use crate::actors::pod::Phase;
use crate::actors::pod_worker::Lifecycle;
use crate::actors::status::PodSummary;
use crate::actors::time::Time;
use k8s_openapi::api::core::v1::PodStatus;
use serde::Serialize;

use super::nearest::is_called;

/// Milliseconds since the Unix epoch, as scripts have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Millis(u64);

impl From<Time> for Millis {
    fn from(time: Time) -> Self {
        Millis(time.as_nanos() / 1_000_000)
    }
}

/// One pod's row. It says when, never how long ago: a row that nothing happened to stays equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    uid: String,
    namespace: String,
    name: String,
    pub(super) health: Health,
    phase: &'static str,
    /// One word, as tables show it.
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lifecycle: Option<&'static str>,
    ready: usize,
    containers: usize,
    restarts: u32,
    /// When a container ended last that was started again.
    #[serde(skip_serializing_if = "Option::is_none")]
    restarted: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    born: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait: Option<RowWait>,
}

/// The nearest wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RowWait {
    /// In a few words.
    pub(super) short: String,
    /// In a sentence.
    pub(super) what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<Millis>,
    /// Whether it changes only with what is known of the pod itself.
    #[serde(skip)]
    pub(super) own: bool,
    /// Whether it should have ended by itself.
    #[serde(skip)]
    pub(super) overdue: bool,
}

/// What differs from what was last told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Change {
    /// New or different rows.
    #[serde(serialize_with = "all")]
    pub(super) rows: Vec<Arc<Row>>,
    /// Pods that have gone.
    pub(super) gone: Vec<String>,
}

/// Rows, each behind its pointer.
pub(super) fn all<S: serde::Serializer>(rows: &[Arc<Row>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(rows.iter().map(|row| &**row))
}

impl Change {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.gone.is_empty()
    }
}

/// Tells what a pod waits for, if that is worth telling.
pub(super) type Nearest<'a> = dyn Fn(&PodFacts) -> Option<RowWait> + 'a;

/// The rows as they were told last, and the facts they were made of.
#[derive(Debug, Default)]
pub(super) struct Board {
    node: Option<NodeState>,
    pods: HashMap<PodUid, (PodFacts, Arc<Row>)>,
}

impl Board {
    /// Takes what is true now, and `nearest`, which tells what a pod waits for; says what differs. A pod with the same
    /// facts as before costs a comparison, unless what holds for every pod changed: then each may wait for that, or no more.
    pub(super) fn take(&mut self, node: NodeState, pods: Vec<PodFacts>, now: Time, nearest: &Nearest<'_>) -> Change {
        let is_like = self.node.as_ref().is_some_and(|last| last.is_like(&node));
        self.node = Some(node);
        let mut before = std::mem::take(&mut self.pods);
        let mut change = Change::default();
        self.pods.reserve(pods.len());
        for pod in pods {
            let known = before.remove(&pod.uid);
            let row = match known {
                Some((facts, row))
                    if is_like && is_same(&facts, &pod) && row.wait.as_ref().is_none_or(|wait| wait.own) =>
                {
                    row
                }
                known => {
                    let row = row(&pod, now, nearest(&pod));
                    match known {
                        Some((_, told)) if *told == row => told,
                        _ => {
                            let row = Arc::new(row);
                            change.rows.push(row.clone());
                            row
                        }
                    }
                }
            };
            self.pods.insert(pod.uid.clone(), (pod, row));
        }
        change.gone = before.into_keys().map(|uid| uid.to_string()).collect();
        change
    }

    /// All rows, the worst first.
    pub(super) fn rows(&self) -> Vec<Arc<Row>> {
        let mut rows: Vec<Arc<Row>> = self.pods.values().map(|(_, row)| row.clone()).collect();
        rows.sort_by(|a, b| (a.health, &a.namespace, &a.name).cmp(&(b.health, &b.namespace, &b.name)));
        rows
    }
}

/// Whether a row made of these would be the same; while a call is under way that depends on how long it takes. Objects and
/// statuses are never changed in place.
fn is_same(a: &PodFacts, b: &PodFacts) -> bool {
    is_one(&a.object, &b.object)
        && is_one(&a.status, &b.status)
        && a.desired == b.desired
        && a.stop == b.stop
        && a.activities == b.activities
        && a.start_errors == b.start_errors
        && a.pulls == b.pulls
        && a.snapshot == b.snapshot
        && !is_called(b)
}

fn is_one<T>(a: &Option<Arc<T>>, b: &Option<Arc<T>>) -> bool {
    a.as_ref().map(Arc::as_ptr) == b.as_ref().map(Arc::as_ptr)
}

fn row(pod: &PodFacts, now: Time, wait: Option<RowWait>) -> Row {
    let summary = pod.summary(now);
    let ago = |ago: Option<Duration>| {
        let nanos = ago.map(|ago| u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX));
        nanos.map(|nanos| Millis::from(Time::from_nanos(now.as_nanos().saturating_sub(nanos))))
    };
    let of = |count: fn(&PodSummary) -> usize| summary.as_ref().map_or(0, count);
    Row {
        uid: pod.uid.to_string(),
        namespace: pod.full_name.namespace().to_owned(),
        name: pod.full_name.name().to_owned(),
        health: health(pod, wait.as_ref()),
        phase: pod.phase().as_str(),
        state: summary.as_ref().map_or_else(|| "Terminating".to_owned(), |summary| pod.state(summary)),
        lifecycle: pod.lifecycle().map(Lifecycle::as_str),
        ready: of(|summary| summary.ready),
        containers: of(|summary| summary.containers),
        restarts: summary.as_ref().map_or(0, |summary| summary.restarts),
        restarted: ago(summary.as_ref().and_then(|summary| summary.last_restart)),
        born: ago(summary.as_ref().and_then(|summary| summary.age)),
        wait,
    }
}

fn health(pod: &PodFacts, wait: Option<&RowWait>) -> Health {
    // It stays while the hook is called again.
    let fails = pod.snapshot.as_ref().is_some_and(|snapshot| snapshot.failure.is_some());
    let over = pod.phase().is_terminal() || pod.lifecycle() == Some(Lifecycle::Finished);
    let overdue = wait.is_some_and(|wait| wait.overdue);
    if fails || overdue || pod.phase() == Phase::Failed || (!over && pod.status.as_deref().is_some_and(has_stuck)) {
        Health::Failing
    } else if wait.is_some() {
        Health::Waiting
    } else if over {
        Health::Finished
    } else {
        Health::Healthy
    }
}

/// Whether a container waits because something went wrong.
fn has_stuck(status: &PodStatus) -> bool {
    let inits = status.init_container_statuses.iter().flatten();
    inits.chain(status.container_statuses.iter().flatten()).any(is_stuck)
}

#[cfg(test)]
pub(super) mod tests;
