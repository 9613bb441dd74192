//! The errors of a client of an API server, as people read them.

use std::error::Error;
use std::fmt;

use kube::core::Status;
use kube::runtime::watcher;
use podwright_model::text::error_chain;

/// An API server did not perform a call, or a watch failed.
///
/// The text is one sentence. It contains the texts of all causes, so the error has no source. [`kube::Error`] cannot be shown to people:
/// its text contains the answer of the server twice, once as a Rust value, and its source contains the answer again.
#[derive(Debug)]
pub struct KubeError(Box<kube::Error>);

impl KubeError {
    /// The answer of the server. `None` if no answer came, or one that cannot be read.
    pub fn status(&self) -> Option<&Status> {
        match &*self.0 {
            kube::Error::Api(status) => Some(&**status),
            _ => None,
        }
    }

    /// The status code of the answer.
    pub fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }
}

impl fmt::Display for KubeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            kube::Error::Api(status) if status.message.is_empty() => {
                write!(f, "the API server answered with status {}", status.code)
            }
            kube::Error::Api(status) => f.write_str(&status.message),
            // These variants only add their own names to the texts of their sources.
            kube::Error::Service(source) => write!(f, "{}", error_chain(&**source)),
            kube::Error::HyperError(source) => write!(f, "{}", error_chain(source)),
            other => write!(f, "{}", error_chain(other)),
        }
    }
}

impl Error for KubeError {}

impl From<kube::Error> for KubeError {
    fn from(error: kube::Error) -> Self {
        KubeError(Box::new(error))
    }
}

impl From<watcher::Error> for KubeError {
    fn from(error: watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => kube::Error::Api(status).into(),
            watcher::Error::NoResourceVersion => {
                kube::Error::Service("the API server sent an object without a resource version".into()).into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use serde_json::json;

    use super::*;

    fn answer(code: u16, message: &str) -> kube::Error {
        let status = json!({"status": "Failure", "code": code, "reason": "Forbidden", "message": message});
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    fn refused_connection() -> kube::Error {
        kube::Error::Service(Box::new(io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused")))
    }

    #[test]
    fn each_error_is_one_sentence() {
        let missing = || serde_json::from_str::<u8>("").unwrap_err();
        let texts = [
            (answer(403, "pods \"web\" is forbidden: no").into(), "pods \"web\" is forbidden: no".to_owned()),
            (KubeError::from(answer(502, "")), "the API server answered with status 502".to_owned()),
            (refused_connection().into(), "connection refused".to_owned()),
            (kube::Error::SerdeError(missing()).into(), format!("Error deserializing response: {}", missing())),
            (watcher::Error::InitialListFailed(answer(500, "no leader")).into(), "no leader".to_owned()),
            (watcher::Error::WatchStartFailed(refused_connection()).into(), "connection refused".to_owned()),
            (watcher::Error::WatchFailed(answer(404, "gone")).into(), "gone".to_owned()),
            (
                watcher::Error::WatchError(Status::failure("too old", "Expired").with_code(410).boxed()).into(),
                "too old".to_owned(),
            ),
            (
                watcher::Error::NoResourceVersion.into(),
                "the API server sent an object without a resource version".to_owned(),
            ),
        ];
        for (error, text) in texts {
            assert_eq!(error_chain(&error).to_string(), text);
        }
    }

    #[test]
    fn status_is_the_answer_of_the_server() {
        let refused = KubeError::from(watcher::Error::InitialListFailed(answer(403, "no")));
        assert_eq!(refused.status().map(|status| &*status.reason), Some("Forbidden"));
        assert_eq!((refused.code(), KubeError::from(refused_connection()).code()), (Some(403), None));
    }
}
