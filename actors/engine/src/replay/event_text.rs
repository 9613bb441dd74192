//! Events and states as phrases for people.

use crate::pod_worker::state::Record;
use crate::pod_worker::step::{Effects, Event, Outcome};
use crate::pod_worker::{Target, Update, UpdateKind, WaitFor};
use crate::recorder::capture::RoundCounts;

/// The facts of an event that its phrase needs, because the step consumes the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventSummary {
    Update { kind: UpdateKind, runtime_only: bool, details: Vec<String> },
    Take { may_start: bool },
    Done { result: String },
    Due,
    Known { desired: bool },
}

impl EventSummary {
    pub(super) fn of(event: &Event) -> Self {
        match event {
            Event::Update(update) => EventSummary::of_update(update),
            Event::Take { may_start, .. } => EventSummary::Take { may_start: *may_start },
            Event::Done(outcome) => EventSummary::Done {
                result: match outcome {
                    Outcome::Continues { check_at: None } => "succeeded".to_owned(),
                    Outcome::Continues { check_at: Some(at) } => format!("succeeded, next sync at {at}"),
                    Outcome::Ended => "found that the pod ended".to_owned(),
                    Outcome::Succeeded => "succeeded".to_owned(),
                    Outcome::Cancelled => "was cancelled".to_owned(),
                    Outcome::Failed { error, .. } => format!("failed: {error}"),
                },
            },
            Event::Due => EventSummary::Due,
            Event::Known { desired } => EventSummary::Known { desired: *desired },
        }
    }

    pub(super) fn of_update(update: &Update) -> Self {
        let mut details = Vec::new();
        if let Target::Config(config) = &update.target {
            if config.pod.is_static() {
                details.push("static".to_owned());
            }
            if config.pod.phase().is_terminal() {
                details.push(format!("phase {}", config.pod.phase().as_str()));
            }
            if config.pod.is_deleting() {
                let grace = config.pod.deletion_grace().map_or(String::new(), |grace| format!(" with grace {grace} s"));
                details.push(format!("deleted{grace}"));
            }
        }
        if let Some(options) = &update.options {
            details.extend(options.grace.map(|grace| format!("grace {grace}")));
            if options.evict {
                details.push("evict".to_owned());
            }
            if options.completed.is_some() {
                details.push("a caller waits for the stop".to_owned());
            }
        }
        let runtime_only = matches!(update.target, Target::Runtime(_));
        EventSummary::Update { kind: update.kind, runtime_only, details }
    }

    /// The event with its effects. `hook` is the hook that ran before it, and `record` the record after it.
    pub(super) fn describe(&self, effects: &Effects, hook: Option<&'static str>, record: &Record) -> String {
        let mut text = match self {
            EventSummary::Update { kind, runtime_only, details } => {
                let kind = match kind {
                    UpdateKind::Create => "create",
                    UpdateKind::Update => "update",
                    UpdateKind::Sync => "resync",
                    UpdateKind::Kill => "stop",
                };
                let of = if *runtime_only { " a runtime-only pod" } else { "" };
                let details = if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
                format!("{kind}{of}{details}")
            }
            EventSummary::Take { may_start: false } => "blocked: another pod has its full name".to_owned(),
            EventSummary::Take { may_start: true } => match &effects.call {
                Some(call) => format!("calls {}", call.hook().as_str()),
                None => "takes the pending update".to_owned(),
            },
            EventSummary::Done { result } => format!("{} {result}", hook.unwrap_or("a hook")),
            EventSummary::Due => "due time reached".to_owned(),
            EventSummary::Known { desired: true } => {
                "housekeeping: desired again, so its record starts anew".to_owned()
            }
            EventSummary::Known { desired: false } => "housekeeping: orphaned, no source has it".to_owned(),
        };
        if effects.cancel {
            text.push_str("; the running call is cancelled");
        }
        if effects.forget {
            text.push_str("; its record is dropped");
        } else if let Some(last) = record.transitions().next_back().filter(|_| record.is_termination_requested()) {
            let grace = record.grace().map_or(String::new(), |grace| format!(", grace {grace}"));
            text.push_str(&format!(" [{}{grace}]", last.cause.as_str()));
        }
        text
    }
}

/// The plain rounds of a record. Whether its setup fails is the same before and after them.
pub(super) fn describe_rounds(RoundCounts { updates, syncs }: RoundCounts, record: &Record) -> String {
    let requests = match updates {
        0 => String::new(),
        1 => ", requested once".to_owned(),
        more => format!(", requested {more} times"),
    };
    match (syncs, record.failure()) {
        (0, _) => format!("resync{requests}"),
        (1, None) => format!("resync{requests}: succeeded"),
        (more, None) => format!("resync{requests}: succeeded {more} times"),
        (1, Some(failure)) => format!("resync{requests}: failed as before: {}", failure.error),
        (more, Some(failure)) => format!("resync{requests}: failed {more} times as before: {}", failure.error),
    }
}

/// What a pod waits for.
pub(super) fn describe_wait(record: &Record) -> String {
    let wait = record.wait();
    let next = wait.next.map_or(String::new(), |next| format!(", at the latest at {next}"));
    match wait.what {
        WaitFor::Worker => "its worker's turn".to_owned(),
        WaitFor::FullName { .. } => format!("its full name{next}"),
        WaitFor::HookCall(hook) => format!("the end of {}", hook.as_str()),
        WaitFor::Retry { hook, error: _ } => match wait.next {
            Some(next) => format!("a retry of {} at {next}, failures so far: {}", hook.as_str(), wait.tries),
            None => format!("a retry of {}", hook.as_str()),
        },
        WaitFor::Resync => format!("the next resync{next}"),
        WaitFor::Removal => "its source to remove it".to_owned(),
    }
}
