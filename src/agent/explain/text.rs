//! An explanation for people.

use std::fmt;

use podwright::actors::status::short_age;
use podwright::actors::time::Time;

use super::{Explanation, Wait};

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.heading(f)?;
        writeln!(f, "\nwaits for")?;
        for wait in &self.waits {
            write_wait(f, wait, self.now, 1)?;
        }
        if !self.transitions.is_empty() {
            writeln!(f, "\nmoves")?;
            for step in &self.transitions {
                writeln!(f, "  {:>10}  {:<12} {}", ago(self.now, step.at), step.to, step.cause)?;
            }
        }
        if !self.events.is_empty() {
            writeln!(f, "\nevents")?;
            for event in &self.events {
                let times = if event.count > 1 { format!(" (x{})", event.count) } else { String::new() };
                writeln!(
                    f,
                    "  {:>10}  {:<7} {}{times}: {}",
                    ago(self.now, event.last),
                    event.kind,
                    event.reason,
                    event.message
                )?;
            }
        }
        if !self.problems.is_empty() {
            writeln!(f, "\nproblems of its source (what runs is the last good version)")?;
            for problem in &self.problems {
                writeln!(f, "  {problem}")?;
            }
        }
        Ok(())
    }
}

impl Explanation {
    fn heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source.as_deref() {
            Some("file") => "static pod from a file, ",
            Some("http") => "static pod from a URL, ",
            Some(_) => "",
            None => "known to the runtime only, ",
        };
        writeln!(f, "{}/{} ({source}uid {})", self.namespace, self.name, self.uid)?;
        write!(f, "  {}", self.phase)?;
        if self.state != self.phase {
            write!(f, " ({})", self.state)?;
        }
        if let Some(containers) = &self.tally {
            let times = if containers.restarts == 1 { "restart" } else { "restarts" };
            write!(f, ", {} of {} ready, {} {times}", containers.ready, containers.all, containers.restarts)?;
        }
        if !self.age.is_empty() {
            write!(f, ", age {}", self.age)?;
        }
        writeln!(f)?;
        match (&self.reason, &self.message) {
            (Some(reason), Some(message)) => writeln!(f, "  {reason}: {message}")?,
            (Some(text), None) | (None, Some(text)) => writeln!(f, "  {text}")?,
            (None, None) => {}
        }
        if let Some(stands) = &self.lifecycle {
            write!(f, "  lifecycle: {} for {}", stands.state, short_age(self.now.since(stands.since)))?;
            let notes = [
                (stands.deleted, "deleted"),
                (stands.evicted, "evicted"),
                (stands.restart_requested, "to be started again"),
                (!self.desired, "no source wants it"),
            ];
            for (_, note) in notes.iter().filter(|(holds, _)| *holds) {
                write!(f, ", {note}")?;
            }
            writeln!(f)?;
        }
        for other in &self.others {
            let stands = other.lifecycle.map(|state| format!(", {state}")).unwrap_or_default();
            writeln!(f, "  also known under this name: uid {}{stands}", other.uid)?;
        }
        Ok(())
    }
}

/// One wait a line, what it waits for in turn below it.
fn write_wait(f: &mut fmt::Formatter<'_>, wait: &Wait, now: Time, depth: usize) -> fmt::Result {
    let indent = "  ".repeat(depth);
    write!(f, "{indent}{}", wait.what)?;
    if let Some(since) = wait.since {
        write!(f, "; for {}", short_age(now.since(since)))?;
    }
    if let Some(tries) = wait.tries {
        write!(f, "; {tries} {} so far", if tries == 1 { "try" } else { "tries" })?;
    }
    match wait.until {
        Some(until) if until > now => write!(f, "; next in {}", short_age(until.since(now)))?,
        Some(_) => write!(f, "; next now")?,
        None => {}
    }
    writeln!(f)?;
    writeln!(f, "{indent}  released by: {}", wait.released_by)?;
    wait.because.iter().try_for_each(|inner| write_wait(f, inner, now, depth + 1))
}

fn ago(now: Time, at: Time) -> String {
    format!("{} ago", short_age(now.since(at)))
}
