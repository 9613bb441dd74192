//! The socket address of a container runtime.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The absolute path of a container runtime's Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

impl Endpoint {
    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// The form of the kubelet's flags: `unix:///run/containerd/containerd.sock`.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

/// The text is not the path of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a Unix socket: write unix:// and its absolute path, like unix:///run/containerd/containerd.sock")]
pub struct ParseEndpointError(String);

/// The scheme `unix://` is optional, as in the kubelet's flags.
impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let path = text.strip_prefix("unix://").unwrap_or(text);
        if path.starts_with('/') && !path.ends_with('/') && !path.contains('\0') {
            Ok(Endpoint(path.into()))
        } else {
            Err(ParseEndpointError(text.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_absolute_path_with_or_without_its_scheme() {
        for text in ["unix:///run/c.sock", "/run/c.sock"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), "unix:///run/c.sock");
        }
        for bad in ["", "unix://", "unix:///", "unix://run/c.sock", "c.sock", "tcp://127.0.0.1:80", "unix:/run/c.sock"]
        {
            let error = bad.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains("unix:///run/"), "{bad}: {error}");
        }
    }
}
