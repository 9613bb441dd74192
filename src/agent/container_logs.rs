//! `logs`: what a container of a running agent writes.

use std::io::{self, Write};
use std::time::Duration;

use super::cli::LogsArgs;
use super::client::{AskError, follow};

/// Prints the log, for as long as it is followed. A reader that has seen enough (`| head`) is no error.
///
/// # Errors
/// [`AskError`].
pub(crate) fn logs(args: &LogsArgs) -> Result<(), AskError> {
    let mut query: Vec<(&str, String)> = Vec::new();
    if let Some(container) = &args.container {
        query.push(("container", container.clone()));
    }
    for (name, wanted) in [("follow", args.follow), ("previous", args.previous), ("timestamps", args.timestamps)] {
        if wanted {
            query.push((name, "true".to_owned()));
        }
    }
    query.extend(args.tail.map(|lines| ("tailLines", lines.to_string())));
    query.extend(args.since.map(|time| ("sinceSeconds", whole_seconds(time).to_string())));
    let mut out = io::stdout().lock();
    follow(args.admin.0, &format!("/logs/{}", args.pod), &query, |text| {
        out.write_all(text).and_then(|()| out.flush()).is_ok()
    })
}

/// Rounded up: rather a line too many.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
