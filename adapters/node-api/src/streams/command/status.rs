//! The status of a command that has ended, as the client reads it from the error stream.

use serde_json::{Value, json};

use crate::streams::SessionTarget;
use podwright_host::streaming::CommandEnd;
use podwright_model::texts::streams::{
    EXIT_CODE, NON_ZERO_EXIT_CODE, cannot_attach, cannot_execute, internal_error, non_zero_exit,
};

/// The `metav1.Status` in JSON.
pub(super) fn json(end: &CommandEnd, target: &SessionTarget) -> Vec<u8> {
    if let CommandEnd::Status(status) = end {
        return status.clone();
    }
    status(end, target).to_string().into_bytes()
}

/// The text of an error. `None` if the command succeeded.
pub(super) fn text(end: &CommandEnd, target: &SessionTarget) -> Option<Vec<u8>> {
    let status = match end {
        CommandEnd::Status(status) => serde_json::from_slice(status).unwrap_or_default(),
        end => status(end, target),
    };
    let failed = status["status"] != "Success";
    failed.then(|| status["message"].as_str().unwrap_or_default().as_bytes().to_vec())
}

fn status(end: &CommandEnd, target: &SessionTarget) -> Value {
    match end {
        CommandEnd::Exited(0) => json!({"metadata": {}, "status": "Success"}),
        CommandEnd::Exited(code) => {
            let command = match target {
                SessionTarget::Exec(command) => &command[..],
                SessionTarget::Attach | SessionTarget::Ports { .. } => &[],
            };
            json!({
                "metadata": {},
                "status": "Failure",
                "message": non_zero_exit(command, *code),
                "reason": NON_ZERO_EXIT_CODE,
                "details": {"causes": [{"reason": EXIT_CODE, "message": code.to_string()}]},
            })
        }
        CommandEnd::Failed(reason) => {
            let reason = match target {
                SessionTarget::Attach => cannot_attach(reason),
                SessionTarget::Exec(_) | SessionTarget::Ports { .. } => cannot_execute(reason),
            };
            json!({
                "metadata": {},
                "status": "Failure",
                "message": internal_error(&reason),
                "reason": "InternalError",
                "details": {"causes": [{"message": reason}]},
                "code": 500,
            })
        }
        CommandEnd::Status(_) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_is_the_cause_of_a_failure() {
        let target = SessionTarget::Exec(vec!["sh".into(), "-c".into(), "exit 3".into()]);
        let status: Value = serde_json::from_slice(&json(&CommandEnd::Exited(3), &target)).unwrap();
        assert_eq!(status["details"]["causes"], json!([{"reason": "ExitCode", "message": "3"}]));
        assert_eq!((&status["status"], &status["reason"]), (&json!("Failure"), &json!("NonZeroExitCode")));
        assert_eq!(json(&CommandEnd::Exited(0), &target), br#"{"metadata":{},"status":"Success"}"#);
        assert_eq!(text(&CommandEnd::Exited(0), &target), None);
        let text = String::from_utf8(text(&CommandEnd::Exited(3), &target).unwrap()).unwrap();
        assert!(text.ends_with("error executing command [sh -c exit 3], exit code 3"), "{text}");
    }
}
