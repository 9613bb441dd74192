//! Converts the gRPC status of a failed call to a [`RuntimeError`].
//!
//! Where possible, the gRPC code decides. All functions that search the status text are in this file, each with the reason
//! and the source of the text.

use std::error::Error;
use std::io;
use std::time::Duration;

use podwright_grpc_socket::code_name;
use podwright_model::texts::images::{REGISTRY_UNAVAILABLE, SIGNATURE_VALIDATION_FAILED};
use podwright_ports::{ImageError, RuntimeError};
use tonic::{Code, Status};

use crate::endpoint::Endpoint;

/// The gRPC status with which the runtime answered a call.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.message())]
struct RuntimeAnswer(Status);

/// The error of a call that ended with `status`. `limit` is the call's time limit.
pub(super) fn classify(endpoint: &Endpoint, call: &'static str, limit: Duration, status: &Status) -> RuntimeError {
    // A status with a source was created by this process: the connection failed.
    if let Some(source) = status.source() {
        let (why, denied) = innermost_cause(source);
        let remedy = if denied {
            "run the agent as root, or give its user access to the socket"
        } else {
            "start the container runtime there, or correct --runtime"
        };
        return RuntimeError::unreachable(format!("{endpoint}: {why}: {remedy}"));
    }
    let message = status.message();
    match status.code() {
        Code::Unavailable => {
            RuntimeError::unreachable(format!("{endpoint}: {message}: see the log of the container runtime"))
        }
        Code::Unimplemented if names_unknown_service(message) => RuntimeError::unreachable(format!(
            "{endpoint} has no container runtime interface of version 1 ({message}): use containerd 1.6, CRI-O 1.20 or newer, \
             and check that its CRI plugin is enabled"
        )),
        Code::Unimplemented => RuntimeError::unsupported(RuntimeAnswer(status.clone())),
        Code::NotFound => {
            let what = message.strip_suffix("not found").map_or(message, |what| what.trim_end_matches([':', ' ']));
            RuntimeError::NotFound(if what.is_empty() { call.to_owned() } else { what.to_owned() })
        }
        Code::DeadlineExceeded => RuntimeError::Timeout { call, after: limit },
        code => RuntimeError::Status { code: code_name(code), message: message.to_owned() },
    }
}

/// The error of a failed pull. Unlike other calls, a pull keeps each code, because the container's waiting message shows it.
pub(super) fn classify_pull(endpoint: &Endpoint, call: &'static str, limit: Duration, status: &Status) -> RuntimeError {
    match status.code() {
        _ if status.source().is_some() => classify(endpoint, call, limit, status),
        code => RuntimeError::Status { code: code_name(code), message: status.message().to_owned() },
    }
}

/// The failure of an image pull. `text` is the runtime's error, and `image` is the image as the spec names it.
///
/// The CRI has no codes for a registry that does not answer and for a refused signature. The runtime starts its error text with a
/// fixed word for each (`cri-api/pkg/errors`, `ErrRegistryUnavailable`, `ErrSignatureValidationFailed`; the kubelet's
/// `evalCRIPullErr`, 1.36).
pub(crate) fn pull_failure(image: &str, text: String) -> ImageError {
    let image = image.to_owned();
    if let Some(rest) = text.strip_prefix(REGISTRY_UNAVAILABLE) {
        ImageError::RegistryUnavailable { image, rest: rest.to_owned() }
    } else if let Some(rest) = text.strip_prefix(SIGNATURE_VALIDATION_FAILED) {
        ImageError::SignatureValidationFailed { image, rest: rest.to_owned() }
    } else {
        ImageError::pull(text)
    }
}

/// The text of a failed pull. The code `Unknown` says nothing and is left out (`cri-client/pkg/remote_image.go`,
/// `pullImageV1`).
pub(crate) fn pull_text(error: &RuntimeError) -> String {
    match error {
        RuntimeError::Status { code: "Unknown", message } => message.clone(),
        error => error.of_runtime(),
    }
}

/// Whether the runtime lacks the whole service. A gRPC server returns the code `Unimplemented` for an unknown service and for an
/// unknown method; only the text differs (grpc-go, `server.go`, `handleStream`).
fn names_unknown_service(message: &str) -> bool {
    message.contains("unknown service")
}

/// Whether a creation failed because the name is already taken, perhaps by an earlier creation of this agent. containerd and
/// CRI-O return the code `Unknown` for it; only the text says why (containerd `pkg/registrar/registrar.go`: `name "X" is
/// reserved for "Y"`; CRI-O `internal/registrar/registrar.go`: `name is reserved`).
pub(crate) fn is_name_taken(error: &RuntimeError) -> bool {
    matches!(error, RuntimeError::Status { message, .. }
        if message.contains("is reserved for") || message.contains("name is reserved"))
}

/// Whether a removal failed because containerd still has a task of the container. containerd 1.6 returns the code `Unknown` for
/// it; only the text says why (`container.go`, `Delete`). Used only to add a remedy to the error.
pub(crate) fn names_running_task(why: &str) -> bool {
    why.contains("cannot delete running task")
}

/// The text of the innermost cause, and whether it is a permission error. The outer errors say only that the transport failed.
fn innermost_cause(error: &(dyn Error + 'static)) -> (String, bool) {
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
    fn the_first_word_of_a_failed_pull_tells_registry_and_signature_apart() {
        let of = |code, message: &str| {
            let status = Status::new(code, message);
            let endpoint = "unix:///run/x.sock".parse::<Endpoint>().unwrap();
            pull_failure("a:1", pull_text(&classify_pull(&endpoint, "pull_image", Duration::from_secs(3), &status)))
        };
        for (message, reason, text) in [
            (
                "RegistryUnavailable: no route",
                "RegistryUnavailable",
                "image pull failed for a:1 because the registry is unavailable: no route",
            ),
            (
                "SignatureValidationFailed: bad key",
                "SignatureValidationFailed",
                "image pull failed for a:1 because the signature validation failed: bad key",
            ),
            ("failed: RegistryUnavailable", "ErrImagePull", "failed: RegistryUnavailable"),
        ] {
            let error = of(Code::Unknown, message);
            assert_eq!((error.reason(), &*error.to_string()), (Some(reason), text));
        }
        // Another code stays in the text, which then begins with it.
        let coded = of(Code::Unavailable, "RegistryUnavailable: no route");
        assert_eq!(coded.reason(), Some("ErrImagePull"));
        assert_eq!(coded.to_string(), "rpc error: code = Unavailable desc = RegistryUnavailable: no route");
    }

    #[test]
    fn grpc_codes_become_runtime_errors_with_a_remedy() {
        let endpoint = "unix:///run/x.sock".parse::<Endpoint>().unwrap();
        let of =
            |code, message: &str| classify(&endpoint, "version", Duration::from_secs(3), &Status::new(code, message));
        let old = of(Code::Unimplemented, "unknown service runtime.v1.RuntimeService");
        assert!(matches!(&old, RuntimeError::Unreachable(why) if why.to_string().contains("containerd 1.6")), "{old}");
        assert!(matches!(of(Code::Unavailable, "server is not initialized yet"), RuntimeError::Unreachable(_)));
        assert_eq!(of(Code::NotFound, "container \"x\": not found"), RuntimeError::NotFound("container \"x\"".into()));
        let late = RuntimeError::Timeout { call: "version", after: Duration::from_secs(3) };
        assert_eq!(of(Code::DeadlineExceeded, ""), late);
        // A runtime that lacks one method has version 1 of the interface all the same.
        assert!(matches!(of(Code::Unimplemented, "unknown method RuntimeConfig"), RuntimeError::Unsupported(_)));
        assert!(is_name_taken(&of(Code::Unknown, "name \"a_b_0\" is reserved for \"x\"")));
    }
}
