//! Lays out the live table for the size of the terminal. Pure.

use podwright_model::text::plain;

use crate::agent::table;

/// The fewest lines for logs while there are any.
const MIN_LOG_LINES: usize = 6;
/// The maximum length of a line in bytes before it is cut to the width. No terminal is as wide.
const MAX_LINE_BYTES: usize = 8192;
/// The most lines for problems.
const MAX_PROBLEM_LINES: usize = 4;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TerminalSize {
    pub(super) columns: u16,
    pub(super) rows: u16,
}

/// The content of the screen.
#[derive(Clone, Debug, Default)]
pub(super) struct ScreenContent {
    pub(super) title: String,
    /// The link to the page.
    pub(super) link: Option<String>,
    /// The rows of the pods; at least as many as fit.
    pub(super) rows: Vec<Vec<String>>,
    /// How many pods there are.
    pub(super) pods: usize,
    pub(super) problems: Vec<String>,
    pub(super) logs: Vec<String>,
}

/// The lines of the screen: no more than it has rows, none longer than it is wide.
pub(super) fn compose(content: &ScreenContent, size: TerminalSize, color: bool) -> Vec<String> {
    let height = usize::from(size.rows);
    let fit = |text: &str| fit(text, usize::from(size.columns));
    let style = |code: &str, text: String| if color { format!("\x1b[{code}m{text}\x1b[0m") } else { text };

    let problems = first_few(&content.problems, MAX_PROBLEM_LINES, "more problems");
    let problem_lines = if problems.is_empty() { 0 } else { problems.len() + 1 };
    let log_lines = if content.logs.is_empty() { 0 } else { content.logs.len().min(MIN_LOG_LINES) + 1 };
    let mut lines = vec![style("1", fit(&content.title))];
    lines.extend(content.link.iter().map(|link| fit(&format!("page: {link}"))));
    lines.push(String::new());
    // The lines above and the header are above the pods.
    let room = height.saturating_sub(lines.len() + 1 + problem_lines + log_lines).max(1);

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

/// The first lines, and a last line with the number of the rest.
fn first_few(all: &[String], limit: usize, more: &str) -> Vec<String> {
    if all.len() <= limit {
        return all.to_vec();
    }
    let mut some = all[..limit - 1].to_vec();
    some.push(format!("… and {} {more}", all.len() - some.len()));
    some
}

/// Cuts text to a width. Control characters are escaped, so that the text cannot move the cursor.
fn fit(text: &str, columns: usize) -> String {
    let text = plain(text, MAX_LINE_BYTES);
    if text.chars().count() <= columns {
        return text.into_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content(pods: usize, problems: usize, logs: usize) -> ScreenContent {
        let row = |n: usize| vec!["default".to_owned(), format!("pod-{n}"), "1/1".into(), "Running".into()];
        ScreenContent {
            link: (pods == 2).then(|| "http://127.0.0.1:10255/#token=secret".to_owned()),
            title: "podwright".into(),
            rows: (0..pods).map(row).collect(),
            pods,
            problems: (0..problems).map(|n| format!("/m/{n}.yaml: broken")).collect(),
            logs: (0..logs).map(|n| format!("log {n}")).collect(),
        }
    }

    proptest! {
        #![proptest_config(podwright_random::cases(256))]

        #[test]
        fn the_live_table_never_exceeds_the_screen(
            pods in 0usize..40, problems in 0usize..9, logs in 0usize..30, columns in 1u16..120, rows in 1u16..50,
        ) {
            let lines = compose(&content(pods, problems, logs), TerminalSize { columns, rows }, false);
            prop_assert!(lines.len() <= usize::from(rows));
            prop_assert!(lines.iter().all(|line| line.chars().count() <= usize::from(columns)));
        }
    }

    #[test]
    fn pods_that_do_not_fit_on_the_screen_are_counted() {
        let lines = compose(&content(30, 0, 0), TerminalSize { columns: 80, rows: 10 }, false);
        assert_eq!(lines.len(), 10);
        assert_eq!(lines[9], "… and 24 more");
        let lines = compose(&content(7, 0, 0), TerminalSize { columns: 80, rows: 10 }, false);
        assert!(lines[9].contains("pod-6"), "{lines:?}");
    }

    #[test]
    fn log_lines_fill_the_rows_below_pods_and_problems() {
        let lines = compose(&content(2, 1, 30), TerminalSize { columns: 80, rows: 20 }, false);
        assert_eq!(lines.len(), 20);
        assert!(lines.contains(&"! /m/0.yaml: broken".to_owned()));
        assert_eq!(lines[19], "log 29");
        let lines = compose(&content(50, 0, 30), TerminalSize { columns: 80, rows: 20 }, false);
        assert_eq!(lines.iter().filter(|line| line.starts_with("log")).count(), MIN_LOG_LINES, "{lines:?}");
    }

    #[test]
    fn text_of_a_program_cannot_move_the_cursor() {
        assert_eq!(fit("a\x1b[2Jb", 80), "a\\u{1b}[2Jb");
        assert_eq!(fit("abcdef", 4), "abc…");
    }

    #[test]
    fn the_live_table_can_be_drawn_without_colours() {
        let size = TerminalSize { columns: 80, rows: 10 };
        assert!(compose(&content(1, 1, 1), size, true).concat().contains('\x1b'));
        assert!(!compose(&content(1, 1, 1), size, false).concat().contains('\x1b'));
    }
}
