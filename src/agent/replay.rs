//! `replay`: runs a recording again, and tells what happened.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::actors::ids::FullName;
use crate::actors::pod_worker::Lifecycle;
use crate::actors::recorder::ReadError;
use crate::actors::replay::{Difference, Line, Pick, Replay, replay as run_again};
use crate::actors::text::plain;
use crate::actors::time::Time;
use serde_json::{Value, json};

use super::cli::{ExplainOutput, RecordingSize, ReplayArgs};
use super::explain::nearest;
use super::root::reason;

/// The most bytes of a line.
const LONGEST: usize = 16 << 10;
/// The most bytes of a recording that are read, 1 GiB: a pipe may have no end.
const MOST: u64 = 2 * RecordingSize::LARGEST.0 as u64;
/// How many bytes tell whether a file is a recording, with some to spare.
const BEGINNING: u64 = 64;

/// A recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error("{} cannot be read ({}): check the path", .0.display(), reason(.1))]
    File(PathBuf, io::Error),
    #[error("{} has more than {} MiB, which no recording has: check the path", .file.display(), .most >> 20)]
    TooLarge { file: PathBuf, most: u64 },
    #[error("{}: {}", .file.display(), plain(&.why.to_string(), LONGEST))]
    Recording { file: PathBuf, why: ReadError },
    #[error("{}: no pod {wanted} is in the recording{near}", .file.display())]
    NoPod { file: PathBuf, wanted: String, near: String },
}

/// What is printed.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) text: String,
    /// Whether every state was reached again.
    pub(crate) agrees: bool,
}

/// Replays a file.
///
/// # Errors
/// [`ReplayError`].
pub(crate) fn replay(args: &ReplayArgs) -> Result<Told, ReplayError> {
    let file = || args.file.clone();
    let bytes = read(&args.file, MOST)?;
    let pick = args.pod.as_deref().map_or(Pick::Nobody, pick);
    let run = run_again(&bytes, &pick).map_err(|why| ReplayError::Recording { file: file(), why })?;
    if let (Some(wanted), true) = (&args.pod, run.timeline.iter().all(|line| line.uid.is_none())) {
        return Err(ReplayError::NoPod { file: file(), wanted: wanted.clone(), near: near(&pick, &run) });
    }
    let text = match args.output {
        ExplainOutput::Text => text(&run),
        ExplainOutput::Json => format!("{:#}", value(&run)),
    };
    Ok(Told { text, agrees: run.difference.is_none() })
}

/// A whole file or pipe; of what is no recording, and may have no end, only the beginning.
fn read(path: &Path, most: u64) -> Result<Vec<u8>, ReplayError> {
    let failed = |error| ReplayError::File(path.to_owned(), error);
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    (&mut file).take(BEGINNING).read_to_end(&mut bytes).map_err(failed)?;
    if !matches!(run_again(&bytes, &Pick::Nobody), Err(ReadError::Foreign)) {
        // One more than may be, to see that there is more.
        file.take(most + 1 - BEGINNING.min(most)).read_to_end(&mut bytes).map_err(failed)?;
    }
    if bytes.len() as u64 > most {
        return Err(ReplayError::TooLarge { file: path.to_owned(), most });
    }
    Ok(bytes)
}

fn pick(pod: &str) -> Pick {
    pod.parse::<FullName>().map_or_else(|_| Pick::Uid(pod.into()), Pick::Named)
}

fn near(pick: &Pick, run: &Replay) -> String {
    let near = match pick {
        Pick::Named(wanted) => nearest(wanted, run.names.iter().cloned()),
        Pick::Uid(_) | Pick::Nobody => Vec::new(),
    };
    match (near.is_empty(), run.names.is_empty()) {
        (false, _) => format!(": near to it is {}", list(&near)),
        (true, false) => format!(": it has {}", list(&run.names)),
        (true, true) => ": it has none".to_owned(),
    }
}

fn list(names: &[FullName]) -> String {
    const MOST: usize = 10;
    let text = names.iter().take(MOST).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut text = plain(&text, LONGEST).into_owned();
    if names.len() > MOST {
        let _infallible = write!(text, " and {} more", names.len() - MOST);
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
        push(&mut text, &moment(line, start));
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
        None => push(&mut text, "every state was reached again"),
        Some(difference) => differs(difference).iter().for_each(|line| push(&mut text, line)),
    }
    text.truncate(text.trim_end().len());
    text
}

/// Adds a line. A recording may come from anywhere, and holds what containers and runtimes said.
fn push(text: &mut String, line: &str) {
    text.push_str(&plain(line, LONGEST));
    text.push('\n');
}

fn moment(line: &Line, start: Time) -> String {
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

/// Seconds from the first event on.
fn offset(start: Time, at: Time) -> String {
    format!("+{:.3} s", at.since(start).as_secs_f64())
}

fn differs(difference: &Difference) -> [String; 3] {
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
    fn a_recording_without_end_is_not_read_for_ever() {
        let recording = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = b"podrec\r\n".iter().copied().chain(std::iter::repeat_n(0, 2_000)).collect();
        std::fs::write(&recording, &bytes).unwrap();
        let whole = |most| read(recording.path(), most);
        assert_eq!(whole(2_008).unwrap(), bytes);
        let told = whole(2_007).unwrap_err().to_string();
        assert!(told.contains("has more than"), "{told}");
    }
}
