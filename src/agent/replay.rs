//! `podwright replay`: runs a recording through the cores again and reports what happened.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use podwright_core::pod_worker::Lifecycle;
use podwright_engine::recorder::ReadError;
use podwright_engine::replay::{Difference, Line, Pick, Replay, replay as run_again};
use podwright_model::ids::FullName;
use podwright_model::text::{plain, reason};
use podwright_model::time::Time;
use serde_json::{Value, json};

use super::cli::{ExplainOutput, RecordingSize, ReplayArgs};
use super::pod_names::similar_names;

/// The maximum length of a printed line in bytes.
const MAX_LINE_BYTES: usize = 16 << 10;
/// The maximum size of a recording, 1 GiB. A limit is needed because a pipe may have no end.
const MAX_RECORDING_BYTES: u64 = 2 * RecordingSize::LARGEST.0 as u64;
/// How many bytes are needed to check whether a file is a recording.
const HEADER_BYTES: u64 = 64;

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error("{} cannot be read ({}): check the path", .0.display(), reason(.1))]
    File(PathBuf, io::Error),
    #[error("{} has more than {} MiB, and no recording is larger: check the path", .file.display(), .limit >> 20)]
    TooLarge { file: PathBuf, limit: u64 },
    #[error("{}: {}", .file.display(), plain(&.why.to_string(), MAX_LINE_BYTES))]
    Recording { file: PathBuf, why: ReadError },
    #[error("{}: pod {pod} is not in the recording{hint}", .file.display())]
    NoPod { file: PathBuf, pod: String, hint: String },
}

/// The output of a replay.
#[derive(Debug)]
pub(crate) struct ReplayReport {
    pub(crate) text: String,
    /// Whether the replay reached every recorded state.
    pub(crate) agrees: bool,
}

/// Replays a recording.
///
/// # Errors
/// [`ReplayError`] if the file is not a complete recording, or does not contain the pod.
pub(crate) fn replay(args: &ReplayArgs) -> Result<ReplayReport, ReplayError> {
    let file = || args.file.clone();
    let bytes = read(&args.file, MAX_RECORDING_BYTES)?;
    let pick = args.pod.as_deref().map_or(Pick::None, pick);
    let run = run_again(&bytes, &pick).map_err(|why| ReplayError::Recording { file: file(), why })?;
    if let (Some(pod), true) = (&args.pod, run.timeline.iter().all(|line| line.uid.is_none())) {
        return Err(ReplayError::NoPod { file: file(), pod: pod.clone(), hint: pods_hint(&pick, &run) });
    }
    let text = match args.output {
        ExplainOutput::Text => text(&run),
        ExplainOutput::Json => format!("{:#}", value(&run)),
    };
    Ok(ReplayReport { text, agrees: run.difference.is_none() })
}

/// Reads a whole file or pipe. If it is not a recording, only its first bytes are read, because it may have no end.
fn read(path: &Path, limit: u64) -> Result<Vec<u8>, ReplayError> {
    let failed = |error| ReplayError::File(path.to_owned(), error);
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    (&mut file).take(HEADER_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    if !matches!(run_again(&bytes, &Pick::None), Err(ReadError::Foreign)) {
        // One byte above the limit shows that the file is too large.
        file.take(limit + 1 - HEADER_BYTES.min(limit)).read_to_end(&mut bytes).map_err(failed)?;
    }
    if bytes.len() as u64 > limit {
        return Err(ReplayError::TooLarge { file: path.to_owned(), limit });
    }
    Ok(bytes)
}

fn pick(pod: &str) -> Pick {
    pod.parse::<FullName>().map_or_else(|_| Pick::Uid(pod.into()), Pick::Named)
}

/// The end of the error text for a pod that the recording does not contain: similar names, or else the names that it
/// contains.
fn pods_hint(pick: &Pick, run: &Replay) -> String {
    let similar = match pick {
        Pick::Named(name) => similar_names(name, run.names.iter().cloned()),
        Pick::Uid(_) | Pick::None => Vec::new(),
    };
    if !similar.is_empty() {
        format!(": similar names are {}", list(&similar))
    } else if !run.names.is_empty() {
        format!(": it has {}", list(&run.names))
    } else {
        ": it has no pods".to_owned()
    }
}

fn list(names: &[FullName]) -> String {
    const MAX_LISTED: usize = 10;
    let text = names.iter().take(MAX_LISTED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut text = plain(&text, MAX_LINE_BYTES).into_owned();
    if names.len() > MAX_LISTED {
        let _infallible = write!(text, " and {} more", names.len() - MAX_LISTED);
    }
    text
}

fn text(run: &Replay) -> String {
    let (start, end) = run.span;
    let mut text = String::new();
    let mut uid = None;
    for line in &run.timeline {
        if line.uid.is_some() && line.uid != uid {
            uid = line.uid.clone();
            push(&mut text, &format!("pod {}", line.uid.as_ref().map_or_else(String::new, ToString::to_string)));
        }
        push(&mut text, &timeline_line(line, start));
    }
    if !run.timeline.is_empty() {
        text.push('\n');
    }
    push(
        &mut text,
        &format!(
            "{} events of {} pods, {} plans, from {start} to {end} ({})",
            run.events,
            run.pods,
            run.plans,
            offset(start, end)
        ),
    );
    push(
        &mut text,
        &format!("recorded by {}, saved at {}; {} older frames were dropped", run.build, run.saved_at, run.dropped),
    );
    match &run.difference {
        None => push(&mut text, "the replay reached every recorded state"),
        Some(difference) => difference_lines(difference).iter().for_each(|line| push(&mut text, line)),
    }
    text.truncate(text.trim_end().len());
    text
}

/// Adds a line, escaped for a terminal: a recording may come from anywhere and holds text of containers and runtimes.
fn push(text: &mut String, line: &str) {
    text.push_str(&plain(line, MAX_LINE_BYTES));
    text.push('\n');
}

fn timeline_line(line: &Line, start: Time) -> String {
    let mut text = format!("{}  {:>9}  {}", line.at, offset(start, line.at), line.event);
    match (line.before.map(Lifecycle::as_str), line.after.map(Lifecycle::as_str)) {
        (Some(before), Some(after)) if before != after => text.push_str(&format!("; {before} -> {after}")),
        (Some(before), None) => text.push_str(&format!("; {before} -> gone")),
        (None, Some(after)) => text.push_str(&format!("; {after}")),
        (Some(_), Some(_)) | (None, None) => {}
    }
    if let Some(waits) = &line.waits {
        text.push_str(&format!("; waits for {waits}"));
    }
    text
}

/// The time since the first event, in seconds.
fn offset(start: Time, at: Time) -> String {
    format!("+{:.3} s", at.since(start).as_secs_f64())
}

fn difference_lines(difference: &Difference) -> [String; 3] {
    let Difference { number, offset, at, uid, pod, event, expected, got } = difference;
    let pod = pod.as_ref().map_or_else(|| "a pod".to_owned(), ToString::to_string);
    [
        format!("the first difference is event {number}, at {at}, before byte {offset}: {pod} ({uid}), {event}"),
        format!("  recorded: {expected}"),
        format!("  replayed: {got}"),
    ]
}

fn value(run: &Replay) -> Value {
    let lifecycle = |lifecycle: Option<Lifecycle>| lifecycle.map(Lifecycle::as_str);
    let (start, end) = run.span;
    let timeline = run.timeline.iter().map(|line| {
        json!({
            "event": line.number,
            "at": line.at.to_string(),
            "offsetSeconds": line.at.since(start).as_secs_f64(),
            "uid": line.uid.as_ref().map(ToString::to_string),
            "what": line.event,
            "before": lifecycle(line.before),
            "after": lifecycle(line.after),
            "waitsFor": line.waits,
        })
    });
    json!({
        "build": run.build,
        "savedAt": run.saved_at.to_string(),
        "from": start.to_string(),
        "to": end.to_string(),
        "events": run.events,
        "plans": run.plans,
        "pods": run.pods,
        "droppedFrames": run.dropped,
        "difference": run.difference.as_ref().map(|difference| json!({
            "event": difference.number,
            "offset": difference.offset,
            "at": difference.at.to_string(),
            "uid": difference.uid.to_string(),
            "pod": difference.pod.as_ref().map(ToString::to_string),
            "what": difference.event,
            "recorded": difference.expected,
            "replayed": difference.got,
        })),
        "timeline": timeline.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_reads_no_more_than_the_maximum_recording_size() {
        let recording = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = b"podrec\r\n".iter().copied().chain(std::iter::repeat_n(0, 2_000)).collect();
        std::fs::write(&recording, &bytes).unwrap();
        let whole = |limit| read(recording.path(), limit);
        assert_eq!(whole(2_008).unwrap(), bytes);
        let error = whole(2_007).unwrap_err().to_string();
        assert!(error.contains("has more than"), "{error}");
    }
}
