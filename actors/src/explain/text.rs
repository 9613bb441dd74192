//! Formats an explanation as text. Pure.

use std::fmt;

use super::{Explanation, Wait, WaitKind};
use crate::status::short_age;
use crate::text::plain;
use crate::time::Time;

/// The maximum length of a line in bytes: a container's termination message (4 KiB, API field
/// `terminationMessagePath`), twice for its escapes and the surrounding text.
const LINE: usize = 8192;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.heading(f)?;
        writeln!(f, "\nwaits for")?;
        self.chain.iter().try_for_each(|wait| write_wait(f, wait, self.at))?;
        if let Some(storage) = &self.local_storage {
            writeln!(f, "\nlocal storage, measured {} ago", short_age(self.at.since(storage.at)))?;
            storage.lines().iter().try_for_each(|text| line(f, &format!("  {text}")))?;
        }
        if !self.transitions.is_empty() {
            writeln!(f, "\ntransitions")?;
        }
        for step in &self.transitions {
            let from = step.from.map(|from| format!("{from} -> ")).unwrap_or_default();
            writeln!(f, "  {}  {:<26} {}", when(self.at, step.at), format!("{from}{}", step.to), step.cause)?;
        }
        if !self.events.is_empty() {
            writeln!(f, "\nevents")?;
        }
        for event in &self.events {
            let times = if event.count > 1 { format!(" (x{})", event.count) } else { String::new() };
            let (kind, reason, message) = (event.kind, &event.reason, &event.message);
            let of = event.field_path.as_ref().map(|path| format!(" {path}")).unwrap_or_default();
            line(f, &format!("  {}  {kind:<7} {reason}{of}{times}: {message}", when(self.at, event.last)))?;
            for (key, value) in event.annotations.iter().flat_map(|all| all.iter()) {
                line(f, &format!("      {key}: {value}"))?;
            }
        }
        if !self.problems.is_empty() {
            writeln!(f, "\nproblems of its source (what runs is the last good version)")?;
        }
        self.problems.iter().try_for_each(|problem| line(f, &format!("  {problem}")))
    }
}

/// Writes one line with control characters escaped and without blanks at its end. Containers, runtimes and manifests supply parts of
/// it, and a terminal may show it.
fn line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    writeln!(f, "{}", plain(text.trim_end(), LINE))
}

impl Explanation {
    fn heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, &format!("{}/{}: {}", self.namespace, self.name, self.summary))?;
        write!(f, "  phase {}", self.phase)?;
        if let Some(lifecycle) = &self.lifecycle {
            write!(f, ", lifecycle {} for {}", lifecycle.state, short_age(self.at.since(lifecycle.since)))?;
            let notes = [
                (lifecycle.deleted, "deleted"),
                (lifecycle.evicted, "evicted"),
                (lifecycle.restart_requested, "created again"),
                (!self.desired, "no source desires it"),
            ];
            notes.iter().filter(|(holds, _)| *holds).try_for_each(|(_, note)| write!(f, ", {note}"))?;
        }
        writeln!(f)?;
        if let Some((ready, all, restarts)) = self.ready {
            let times = if restarts == 1 { "restart" } else { "restarts" };
            writeln!(f, "  {ready} of {all} ready, {restarts} {times}, age {}", self.age)?;
        }
        match (&self.reason, &self.message) {
            (Some(reason), Some(message)) => line(f, &format!("  {reason}: {message}"))?,
            (Some(text), None) | (None, Some(text)) => line(f, &format!("  {text}"))?,
            (None, None) => {}
        }
        let source = match self.source.as_deref() {
            Some("file") => "static pod from a file",
            Some("http") => "static pod from a URL",
            Some(_) => "pod from the API server",
            None => "known to the runtime only",
        };
        line(f, &format!("  {source}, uid {}", self.uid))?;
        for other in &self.others {
            let lifecycle = other.lifecycle.map(|state| format!(", {state}")).unwrap_or_default();
            line(f, &format!("  also known under this name: uid {}{lifecycle}", other.uid))?;
        }
        Ok(())
    }
}

/// Writes a wait in one line, and below it the start, the tries, the next try and what ends the wait.
fn write_wait(f: &mut fmt::Formatter<'_>, wait: &Wait, now: Time) -> fmt::Result {
    let indent = "  ".repeat(wait.depth + 1);
    let cause = if wait.depth > 0 { "cause: " } else { "" };
    line(f, &format!("{indent}{cause}{}", wait.detail))?;
    let mut facts = Vec::new();
    if let Some(since) = wait.since {
        facts.push(format!("for {} (since {})", short_age(now.since(since)), clock(since)));
    }
    if let Some(tries) = wait.tries {
        facts.push(format!("{tries} {}", if tries == 1 { "try" } else { "tries" }));
    }
    match wait.next {
        Some(next) if next > now => {
            let word = if is_limit(wait.what) { "at the latest" } else { "next" };
            facts.push(format!("{word} in {} (at {})", short_age(next.since(now)), clock(next)));
        }
        Some(_) => facts.push("any moment".to_owned()),
        None => {}
    }
    if !facts.is_empty() {
        writeln!(f, "{indent}  {}", facts.join(", "))?;
    }
    line(f, &format!("{indent}  released by: {}", wait.released_by))
}

/// Whether `next` is the latest end of a wait, which can also end before.
fn is_limit(what: WaitKind) -> bool {
    matches!(
        what,
        WaitKind::Grace
            | WaitKind::ContainerStop
            | WaitKind::StopOrder
            | WaitKind::LifecycleHook(_)
            | WaitKind::Shutdown
    )
}

/// The date and time, and how long ago.
fn when(now: Time, at: Time) -> String {
    let ago = format!("{} ago", short_age(now.since(at)));
    format!("{}  {ago:>10}", at.to_timestamp().strftime("%Y-%m-%dT%H:%M:%SZ"))
}

fn clock(at: Time) -> String {
    at.to_timestamp().strftime("%H:%M:%SZ").to_string()
}
