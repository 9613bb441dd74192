//! What a failed call means.

use std::error::Error;
use std::io;
use std::time::Duration;

use podwright_actors::ports::RuntimeError;
use tonic::{Code, Status};

use crate::adapters::cri::endpoint::Endpoint;

/// The error of a call that a status ended.
pub(super) fn classify(endpoint: &Endpoint, call: &'static str, limit: Duration, status: &Status) -> RuntimeError {
    // What was not said by the runtime has a cause on our side.
    if let Some(cause) = status.source() {
        let (why, denied) = causes(cause);
        let remedy = match denied {
            true => "run as root, or let this user use the socket",
            false => "start the container runtime there, or correct --runtime",
        };
        return RuntimeError::Unreachable(format!("{endpoint}: {why}: {remedy}"));
    }
    let said = status.message();
    match status.code() {
        Code::Unavailable => {
            RuntimeError::Unreachable(format!("{endpoint}: {said}: see the log of the container runtime"))
        }
        Code::Unimplemented if said.contains("unknown service") => RuntimeError::Unreachable(format!(
            "{endpoint} has no container runtime interface of version 1 ({said}): use containerd 1.6, CRI-O 1.20 or newer, \
             and see that its CRI plugin is enabled"
        )),
        Code::Unimplemented => RuntimeError::Unsupported(said.to_owned()),
        Code::NotFound => {
            let what = said.strip_suffix("not found").map_or(said, |what| what.trim_end_matches([':', ' ']));
            RuntimeError::NotFound(if what.is_empty() { call.to_owned() } else { what.to_owned() })
        }
        Code::DeadlineExceeded => RuntimeError::Timeout { call, after: limit },
        _ => RuntimeError::Failed(said.to_owned()),
    }
}

/// Whether a creation failed because the runtime holds the name for another one, which may be ours: containerd and CRI-O
/// say so in words only.
pub(in crate::adapters::cri) fn is_name_taken(error: &RuntimeError) -> bool {
    matches!(error, RuntimeError::Failed(said) if said.contains("is reserved for") || said.contains("name is reserved"))
}

/// The innermost cause says what happened, those around it only that a transport failed. And whether it is that something
/// is not allowed.
fn causes(error: &(dyn Error + 'static)) -> (String, bool) {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    let denied =
        innermost.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    let text = innermost.to_string();
    (text.split(" (os error").next().unwrap_or_default().to_owned(), denied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart_by_code_and_come_with_a_remedy() {
        let endpoint = "unix:///run/x.sock".parse::<Endpoint>().unwrap();
        let of = |code, said: &str| classify(&endpoint, "version", Duration::from_secs(3), &Status::new(code, said));
        let old = of(Code::Unimplemented, "unknown service runtime.v1.RuntimeService");
        assert!(matches!(&old, RuntimeError::Unreachable(why) if why.contains("containerd 1.6")), "{old}");
        assert!(matches!(of(Code::Unavailable, "server is not initialized yet"), RuntimeError::Unreachable(_)));
        assert_eq!(of(Code::NotFound, "container \"x\": not found"), RuntimeError::NotFound("container \"x\"".into()));
        let late = RuntimeError::Timeout { call: "version", after: Duration::from_secs(3) };
        assert_eq!(of(Code::DeadlineExceeded, ""), late);
        // One call that is missing does not make a runtime too old.
        assert!(matches!(of(Code::Unimplemented, "unknown method RuntimeConfig"), RuntimeError::Unsupported(_)));
        assert!(is_name_taken(&of(Code::Unknown, "name \"a_b_0\" is reserved for \"x\"")));
    }
}
