//! `podwright logs`: prints the log of a container, or the logs of all containers of a pod.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use super::{QueryError, pods};
use crate::agent::cli::LogsArgs;
use crate::agent::client::{Agent, RequestError};

type Query = Vec<(&'static str, String)>;

/// Prints the requested log or logs. With `--follow`, it prints until the containers end or the reader closes standard output
/// (`| head`), which is no error.
///
/// # Errors
/// [`QueryError`] if the agent does not answer, or has no such log.
pub(crate) fn logs(args: &LogsArgs) -> Result<(), QueryError> {
    let agent = args.agent.agent()?;
    let path = format!("/logs/{}", args.pod());
    let containers =
        if args.all_containers { pods::containers(&agent, &args.pod(), args.uid.as_deref())? } else { vec![] };
    if containers.is_empty() {
        // The answer for a pod without containers is the error text for a pod that does not exist.
        return Ok(agent.follow(&path, &query(args, args.container()), print)?);
    }
    let queries: Vec<Query> = containers.iter().map(|container| query(args, Some(container))).collect();
    let answers = if args.follow { follow_all(&agent, &path, &queries) } else { print_all(&agent, &path, &queries) };
    let mut missing = Vec::new();
    for answer in answers {
        match answer {
            Ok(()) => {}
            Err(RequestError::Refused(why) | RequestError::NotFound(why)) => missing.push(why),
            Err(error) => return Err(error.into()),
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(QueryError::MissingLogs(missing.join("\n"))) }
}

fn query(args: &LogsArgs, container: Option<&str>) -> Query {
    let mut query: Query = Vec::new();
    query.extend(container.map(|container| ("container", container.to_owned())));
    query.extend(args.uid.as_ref().map(|uid| ("uid", uid.clone())));
    for (name, is_set) in [("follow", args.follow), ("previous", args.previous), ("timestamps", args.timestamps)] {
        if is_set {
            query.push((name, "true".to_owned()));
        }
    }
    query.extend(args.tail().map(|lines| ("tailLines", lines.to_string())));
    query.extend(args.since.map(|time| ("sinceSeconds", seconds_rounded_up(time).to_string())));
    query.extend(args.since_time.map(|time| ("sinceTime", time.to_string())));
    query
}

/// Whole seconds, rounded up so that no line of the time span is missing.
fn seconds_rounded_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Prints one log after the other.
fn print_all(agent: &Agent, path: &str, queries: &[Query]) -> Vec<Result<(), RequestError>> {
    let mut is_open = true;
    let mut answers = Vec::new();
    for query in queries {
        if is_open {
            answers.push(agent.follow(path, query, |text| {
                is_open = print(text);
                is_open
            }));
        }
    }
    answers
}

/// Prints the lines of several logs as they are written.
fn follow_all(agent: &Agent, path: &str, queries: &[Query]) -> Vec<Result<(), RequestError>> {
    thread::scope(|scope| {
        let followers = queries.iter().map(|query| {
            scope.spawn(move || {
                let mut lines = WholeLines::default();
                let answer = agent.follow(path, query, |text| lines.take(text).is_none_or(|lines| print(&lines)));
                print(&lines.rest);
                answer
            })
        });
        // All of them run before the first one is awaited.
        let followers: Vec<_> = followers.collect();
        followers.into_iter().filter_map(|follower| follower.join().ok()).collect()
    })
}

/// Returns false once nobody reads standard output.
fn print(text: &[u8]) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).is_ok()
}

/// The longest part of a line that waits for its end, in bytes. A longer line may mix with those of other logs.
const MAX_REST: usize = 64 << 10;

/// The parts of one log, cut at the ends of lines, so that the lines of several logs do not mix.
#[derive(Debug, Default)]
struct WholeLines {
    rest: Vec<u8>,
}

impl WholeLines {
    /// Takes the next part, and returns the lines that end in it, or all that it has of a line that is too long.
    fn take(&mut self, part: &[u8]) -> Option<Vec<u8>> {
        let after = part.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let (ended, rest) = part.split_at(after);
        if after > 0 || self.rest.len() + rest.len() > MAX_REST {
            self.rest.extend_from_slice(ended);
            return Some(std::mem::replace(&mut self.rest, rest.to_vec()));
        }
        self.rest.extend_from_slice(rest);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_log_are_cut_at_the_ends_of_lines() {
        let mut lines = WholeLines::default();
        let taken: Vec<_> = ["a", "b\nc\nd", "", "e\n", "f"].map(|part| lines.take(part.as_bytes())).into();
        assert_eq!(taken, [None, Some(b"ab\nc\n".to_vec()), None, Some(b"de\n".to_vec()), None]);
        assert_eq!(lines.rest, b"f");
    }

    #[test]
    fn line_without_an_end_is_printed_in_parts() {
        let mut lines = WholeLines::default();
        let part = vec![b'x'; MAX_REST / 2];
        let taken: Vec<_> = (0..100).filter_map(|_| lines.take(&part)).collect();
        assert!(lines.rest.len() <= MAX_REST, "{} bytes", lines.rest.len());
        assert_eq!(taken.concat().len() + lines.rest.len(), 100 * part.len());
    }
}
