//! The rows of `podwright get pods`.

use std::sync::Arc;

use crate::agent::table;
use podwright_core::status::PodSummary;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;

/// The state in the row of a pod that is gone.
const REMOVED: &str = "Removed";
/// The column with the state.
const STATUS: usize = 3;

/// The table of pods, with its header.
pub(super) fn table(pods: &[Arc<PodObject>], now: Time, is_wide: bool) -> Vec<String> {
    if pods.is_empty() {
        return vec!["no pods".to_owned()];
    }
    lines(&pods.iter().map(|pod| Row::new(pod, now, is_wide)).collect::<Vec<_>>(), is_wide)
}

fn lines(rows: &[Row], is_wide: bool) -> Vec<String> {
    let mut columns = vec!["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"];
    if is_wide {
        columns.extend(["IP", "NODE", "UID"]);
    }
    table::lines(&columns, &rows.iter().map(|row| row.cells.clone()).collect::<Vec<_>>())
}

/// The row of a pod.
#[derive(Clone, Debug)]
struct Row {
    uid: String,
    cells: Vec<String>,
    /// The row is printed again when this changes. It has no age, because ages change all the time.
    state: (String, usize, usize, u32, Option<String>),
}

impl Row {
    fn new(pod: &PodObject, now: Time, is_wide: bool) -> Self {
        let no_status = Default::default();
        let status = pod.status().unwrap_or(&no_status);
        let summary = PodSummary::new(pod, status, now);
        let mut cells = vec![
            pod.full_name().namespace().to_owned(),
            pod.full_name().name().to_owned(),
            summary.ready_column(),
            summary.state.clone(),
            summary.restarts_column(),
            summary.age_column(),
        ];
        if is_wide {
            let or_none = |text: Option<&String>| text.map_or("<none>", String::as_str).to_owned();
            cells.extend([
                or_none(status.pod_ip.as_ref()),
                or_none(pod.spec().node_name.as_ref()),
                pod.uid().to_string(),
            ]);
        }
        let ip = status.pod_ip.clone().filter(|_| is_wide);
        let state = (summary.state, summary.ready, summary.containers, summary.restarts, ip);
        Row { uid: pod.uid().to_string(), cells, state }
    }
}

/// The rows that were printed last.
#[derive(Debug)]
pub(super) struct WatchedRows {
    rows: Vec<Row>,
    /// Whether the header was printed. A table without pods has none.
    has_header: bool,
    is_wide: bool,
}

impl WatchedRows {
    pub(super) fn new(pods: &[Arc<PodObject>], now: Time, is_wide: bool) -> Self {
        let rows = pods.iter().map(|pod| Row::new(pod, now, is_wide)).collect();
        WatchedRows { rows, has_header: !pods.is_empty(), is_wide }
    }

    /// The lines of the pods that are new, have changed or are gone. The first ones follow the header.
    pub(super) fn changes(&mut self, pods: &[Arc<PodObject>], now: Time) -> Vec<String> {
        let is_wide = self.is_wide;
        let rows: Vec<Row> = pods.iter().map(|pod| Row::new(pod, now, is_wide)).collect();
        let before = std::mem::replace(&mut self.rows, rows.clone());
        let is_new = |row: &Row| !before.iter().any(|old| old.uid == row.uid && old.state == row.state);
        let mut is_printed: Vec<bool> = rows.iter().map(is_new).collect();
        let mut all = rows;
        for mut row in before.iter().filter(|old| self.rows.iter().all(|row| row.uid != old.uid)).cloned() {
            row.cells[STATUS] = REMOVED.to_owned();
            all.push(row);
            is_printed.push(true);
        }
        // All rows are aligned, so that the columns stay where they are.
        let is_header_due = !self.has_header && is_printed.contains(&true);
        self.has_header |= is_header_due;
        let is_printed = [is_header_due].into_iter().chain(is_printed);
        let lines = lines(&all, is_wide).into_iter().zip(is_printed);
        lines.filter_map(|(line, is_printed)| is_printed.then_some(line)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, phase: &str) -> Arc<PodObject> {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "c"}], "nodeName": "n1"},
            "status": {"phase": phase, "podIP": "10.0.0.1"},
        });
        PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn table_has_a_row_for_each_pod() {
        let now = Time::from_secs(60);
        assert_eq!(table(&[], now, false), ["no pods"]);
        assert_eq!(
            table(&[pod("a", "Running")], now, true),
            [
                "NAMESPACE   NAME   READY   STATUS    RESTARTS   AGE   IP         NODE   UID",
                "default     a      0/1     Running   0          60s   10.0.0.1   n1     a",
            ]
        );
    }

    #[test]
    fn watch_of_no_pods_prints_the_header_with_the_first_row() {
        let (mut rows, now) = (WatchedRows::new(&[], Time::ZERO, false), Time::from_secs(20));
        assert_eq!(rows.changes(&[], now), [""; 0]);
        let header = "NAMESPACE   NAME   READY   STATUS    RESTARTS   AGE";
        let row = "default     a      0/1     Pending   0          20s";
        assert_eq!(rows.changes(&[pod("a", "Pending")], now), [header, row]);
        assert_eq!(rows.changes(&[pod("a", "Running")], now), [row.replace("Pending", "Running")]);
    }

    #[test]
    fn watch_prints_new_changed_and_removed_pods() {
        let mut rows = WatchedRows::new(&[pod("a", "Pending"), pod("b", "Pending")], Time::from_secs(10), false);
        let later = Time::from_secs(20);
        assert_eq!(rows.changes(&[pod("a", "Pending"), pod("b", "Pending")], later), [""; 0], "an age is no change");
        assert_eq!(
            rows.changes(&[pod("a", "Running"), pod("b", "Pending"), pod("c", "Pending")], later),
            [
                "default     a      0/1     Running   0          20s",
                "default     c      0/1     Pending   0          20s"
            ]
        );
        assert_eq!(
            rows.changes(&[pod("b", "Pending"), pod("c", "Pending")], later),
            ["default     a      0/1     Removed   0          20s"]
        );
        assert_eq!(rows.changes(&[pod("b", "Pending"), pod("c", "Pending")], later), [""; 0]);
    }
}
