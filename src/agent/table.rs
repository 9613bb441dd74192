//! Text tables of pods.

use std::borrow::Cow;

use podwright_actors::explain::{Inspection, PodFacts, PodLine};
use podwright_core::status::short_age;
use podwright_model::text::plain;
use podwright_model::time::Time;

/// Spaces between two columns.
const GAP: usize = 3;
/// The maximum length of a cell in bytes. The longest pod name has 253.
const MAX_CELL_BYTES: usize = 512;

/// The columns of the live table.
pub(crate) const COLUMNS: [&str; 7] = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "WAITS FOR"];

/// One row of the live table.
pub(crate) fn row(pod: &PodFacts, inspection: &Inspection<'_>) -> Vec<String> {
    let waits = inspection.line(pod).wait;
    let mut row = vec![pod.full_name.namespace().to_owned(), pod.full_name.name().to_owned()];
    match pod.summary(inspection.at()) {
        Some(summary) => {
            row.extend([summary.ready_column(), pod.state(&summary), summary.restarts_column(), summary.age_column()])
        }
        // A runtime-only pod.
        None => row.extend(["".into(), "Terminating".into(), "".into(), "".into()]),
    }
    row.push(waits);
    row
}

/// The columns of the table of `explain` without a pod.
const EXPLAIN_COLUMNS: [&str; 7] = ["NAMESPACE", "NAME", "STATUS", "LIFECYCLE", "RESTARTS", "FOR", "WAITS FOR"];

/// A table of all pods and what they wait for.
pub(crate) fn explain_table(pods: &[PodLine], now: Time) -> Vec<String> {
    let row = |pod: &PodLine| {
        let since = pod.since.filter(|_| !pod.wait.is_empty()).map(|since| short_age(now.since(since)));
        let lifecycle = pod.lifecycle.unwrap_or_default().to_owned();
        let (restarts, wait) = (pod.restarts.to_string(), pod.wait.clone());
        let (namespace, name, state) = (pod.namespace.clone(), pod.name.clone(), pod.state.clone());
        vec![namespace, name, state, lifecycle, restarts, since.unwrap_or_default(), wait]
    };
    lines(&EXPLAIN_COLUMNS, &pods.iter().map(row).collect::<Vec<_>>())
}

/// Aligns the columns; the last one is not padded. Cells are escaped, because they may hold text of a runtime or a
/// manifest.
pub(crate) fn lines(columns: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let rows: Vec<Vec<Cow<'_, str>>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell, MAX_CELL_BYTES)).collect()).collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(column, name)| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([name.chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, width) in cells.zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width + GAP - cell.chars().count()));
        }
        line.trim_end().to_owned()
    };
    let header = line(&mut columns.iter().copied());
    let rows = rows.iter().map(|row| line(&mut row.iter().map(AsRef::as_ref)));
    std::iter::once(header).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_as_wide_as_their_widest_cell() {
        let rows =
            [vec!["a".to_owned(), "längere".to_owned(), "x".to_owned()], vec!["bbbb".into(), "".into(), "".into()]];
        assert_eq!(lines(&["N", "WHAT", "Z"], &rows), ["N      WHAT      Z", "a      längere   x", "bbbb"]);
    }

    #[test]
    fn a_table_cell_cannot_move_the_cursor_or_end_its_line() {
        let rows = [vec!["a".to_owned(), "image x\x1b[2J\ny".to_owned()]];
        assert_eq!(lines(&["N", "WHAT"], &rows), ["N   WHAT", "a   image x\\u{1b}[2J\\ny"]);
    }
}
