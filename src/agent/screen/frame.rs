//! What is on the screen, fitted to its size. Pure.

use crate::actors::text::plain;

use crate::agent::table;

/// The fewest lines that logs get while there are any.
const LOGS: usize = 6;
/// The most bytes of a line, before it is cut to the width: more than the widest terminal shows.
const LONGEST: usize = 8192;
/// The most lines that problems get.
const PROBLEMS: usize = 4;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: u16,
    pub(super) rows: u16,
}

/// What there is to show.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) title: String,
    /// The pods' cells, at least as many as fit.
    pub(super) rows: Vec<Vec<String>>,
    /// How many pods there are.
    pub(super) pods: usize,
    pub(super) problems: Vec<String>,
    pub(super) logs: Vec<String>,
}

/// The lines of the screen, at most as many as it has, none longer than it is wide.
pub(super) fn compose(content: &Content, size: Size, color: bool) -> Vec<String> {
    let height = usize::from(size.rows);
    let fit = |text: &str| fit(text, usize::from(size.columns));
    let style = |code: &str, text: String| if color { format!("\x1b[{code}m{text}\x1b[0m") } else { text };

    let problems = told(&content.problems, PROBLEMS, "more problems");
    let problem_lines = if problems.is_empty() { 0 } else { problems.len() + 1 };
    let log_lines = if content.logs.is_empty() { 0 } else { content.logs.len().min(LOGS) + 1 };
    // Title, a blank line and the header stand above the pods.
    let room = height.saturating_sub(3 + problem_lines + log_lines).max(1);

    let mut lines = vec![style("1", fit(&content.title)), String::new()];
    if content.pods == 0 {
        lines.push(fit("no pods"));
    } else {
        let all = content.pods <= room;
        let shown = if all { content.pods } else { room.saturating_sub(1) };
        let rows = &content.rows[..shown.min(content.rows.len())];
        let mut table = table::lines(&table::COLUMNS, rows).into_iter();
        lines.extend(table.next().map(|header| style("2", fit(&header))));
        lines.extend(table.map(|row| fit(&row)));
        if !all {
            lines.push(fit(&format!("… and {} more", content.pods - rows.len())));
        }
    }
    if !problems.is_empty() {
        lines.push(String::new());
        lines.extend(problems.iter().map(|problem| style("31", fit(&format!("! {problem}")))));
    }
    let left = height.saturating_sub(lines.len() + 1);
    if left > 0 && !content.logs.is_empty() {
        lines.push(String::new());
        let skip = content.logs.len().saturating_sub(left);
        lines.extend(content.logs[skip..].iter().map(|line| style("2", fit(line))));
    }
    lines.truncate(height);
    lines
}

/// The first few, and how many more there are.
fn told(all: &[String], most: usize, more: &str) -> Vec<String> {
    if all.len() <= most {
        return all.to_vec();
    }
    let mut some = all[..most - 1].to_vec();
    some.push(format!("… and {} {more}", all.len() - some.len()));
    some
}

/// Cut to a width. What a program wrote must not move the cursor.
fn fit(text: &str, columns: usize) -> String {
    let text = plain(text, LONGEST);
    if text.chars().count() <= columns {
        return text.into_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content(pods: usize, problems: usize, logs: usize) -> Content {
        let row = |n: usize| vec!["default".to_owned(), format!("pod-{n}"), "1/1".into(), "Running".into()];
        Content {
            title: "podwright".into(),
            rows: (0..pods).map(row).collect(),
            pods,
            problems: (0..problems).map(|n| format!("/m/{n}.yaml: broken")).collect(),
            logs: (0..logs).map(|n| format!("log {n}")).collect(),
        }
    }

    proptest! {
        #[test]
        fn nothing_is_ever_larger_than_the_screen(
            pods in 0usize..40, problems in 0usize..9, logs in 0usize..30, columns in 1u16..120, rows in 1u16..50,
        ) {
            let lines = compose(&content(pods, problems, logs), Size { columns, rows }, false);
            prop_assert!(lines.len() <= usize::from(rows));
            prop_assert!(lines.iter().all(|line| line.chars().count() <= usize::from(columns)));
        }
    }

    #[test]
    fn pods_that_do_not_fit_are_counted() {
        let lines = compose(&content(30, 0, 0), Size { columns: 80, rows: 10 }, false);
        assert_eq!(lines.len(), 10);
        assert_eq!(lines[9], "… and 24 more");
        let lines = compose(&content(7, 0, 0), Size { columns: 80, rows: 10 }, false);
        assert!(lines[9].contains("pod-6"), "{lines:?}");
    }

    #[test]
    fn logs_get_what_pods_and_problems_leave() {
        let lines = compose(&content(2, 1, 30), Size { columns: 80, rows: 20 }, false);
        assert_eq!(lines.len(), 20);
        assert!(lines.contains(&"! /m/0.yaml: broken".to_owned()));
        assert_eq!(lines[19], "log 29");
        let lines = compose(&content(50, 0, 30), Size { columns: 80, rows: 20 }, false);
        assert_eq!(lines.iter().filter(|line| line.starts_with("log")).count(), LOGS, "{lines:?}");
    }

    #[test]
    fn what_a_program_wrote_cannot_move_the_cursor() {
        assert_eq!(fit("a\x1b[2Jb", 80), "a\\u{1b}[2Jb");
        assert_eq!(fit("abcdef", 4), "abc…");
    }

    #[test]
    fn colours_can_be_had_without() {
        let size = Size { columns: 80, rows: 10 };
        assert!(compose(&content(1, 1, 1), size, true).concat().contains('\x1b'));
        assert!(!compose(&content(1, 1, 1), size, false).concat().contains('\x1b'));
    }
}
