//! The rows of the page, and which of them changed. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use podwright_actors::explain::{NodeState, PodFacts};
use podwright_model::ids::PodUid;
use podwright_model::time::Time;
use serde::Serialize;

use super::row::{PodRow, RowWait, is_syncing};

/// Finds the wait to show in the row of a pod.
pub(super) type NearestWait<'a> = dyn Fn(&PodFacts) -> Option<RowWait> + 'a;

/// The rows as last published, with the facts that they were made from.
#[derive(Debug, Default)]
pub(super) struct PodRows {
    node: Option<NodeState>,
    pods: HashMap<PodUid, (PodFacts, Arc<PodRow>)>,
}

/// The difference between two updates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct RowChanges {
    /// New and changed rows.
    #[serde(serialize_with = "serialize_rows")]
    pub(super) rows: Vec<Arc<PodRow>>,
    /// UIDs of pods that are no longer known.
    pub(super) gone: Vec<String>,
}

impl PodRows {
    /// Replaces the rows, and returns what changed. A pod whose facts did not change costs one comparison, unless the state
    /// of the node changed: then the nearest wait of each pod may have changed too.
    pub(super) fn update(
        &mut self,
        node: NodeState,
        pods: Vec<PodFacts>,
        now: Time,
        nearest_wait: &NearestWait<'_>,
    ) -> RowChanges {
        let same_node = self.node.as_ref().is_some_and(|last| last.is_like(&node));
        self.node = Some(node);
        let mut before = std::mem::take(&mut self.pods);
        let mut change = RowChanges::default();
        self.pods.reserve(pods.len());
        for pod in pods {
            let row = match before.remove(&pod.uid) {
                Some((facts, row)) if same_node && is_unchanged(&facts, &pod, &row) => row,
                last => {
                    let row = PodRow::new(&pod, now, nearest_wait(&pod));
                    match last {
                        Some((_, published)) if *published == row => published,
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

    /// All rows: the worst health first, then by full name.
    pub(super) fn rows(&self) -> Vec<Arc<PodRow>> {
        let mut rows: Vec<Arc<PodRow>> = self.pods.values().map(|(_, row)| row.clone()).collect();
        rows.sort_by(|a, b| (a.health, &a.namespace, &a.name).cmp(&(b.health, &b.namespace, &b.name)));
        rows
    }
}

/// Whether a new row of a pod would equal this one. While a sync runs, the row depends on how long the sync takes. Objects
/// and statuses are never changed in place, so pointers are compared.
fn is_unchanged(last: &PodFacts, pod: &PodFacts, row: &PodRow) -> bool {
    row.wait.as_ref().is_none_or(|wait| wait.depends_only_on_pod)
        && is_same_object(&last.object, &pod.object)
        && is_same_object(&last.status, &pod.status)
        && last.desired == pod.desired
        && last.stop == pod.stop
        && last.activities == pod.activities
        && last.start_errors == pod.start_errors
        && last.pulls == pod.pulls
        && last.snapshot == pod.snapshot
        && !is_syncing(pod)
}

fn is_same_object<T>(a: &Option<Arc<T>>, b: &Option<Arc<T>>) -> bool {
    a.as_ref().map(Arc::as_ptr) == b.as_ref().map(Arc::as_ptr)
}

impl RowChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.gone.is_empty()
    }
}

/// Serializes the rows that the pointers refer to.
pub(super) fn serialize_rows<S: serde::Serializer>(rows: &[Arc<PodRow>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(rows.iter().map(|row| &**row))
}

#[cfg(test)]
pub(super) mod tests;
