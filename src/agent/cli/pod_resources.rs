//! The flag for the pod-resources socket.

use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The path of the socket below the root directory (`<root>/pod-resources/kubelet.sock`, kubelet 1.36).
const DEFAULT: &str = "pod-resources/kubelet.sock";

/// Where the agent serves the resources of its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum PodResourcesSocket {
    /// Below the root directory.
    #[default]
    Default,
    /// Nowhere.
    Off,
    /// At this absolute path.
    At(PathBuf),
}

impl PodResourcesSocket {
    /// The path of the socket; `None` if it is off.
    pub(crate) fn path(&self, root: &Path) -> Option<PathBuf> {
        match self {
            PodResourcesSocket::Default => Some(root.join(DEFAULT)),
            PodResourcesSocket::Off => None,
            PodResourcesSocket::At(path) => Some(path.clone()),
        }
    }
}

impl FromStr for PodResourcesSocket {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let path = Path::new(text);
        match text {
            "off" => Ok(PodResourcesSocket::Off),
            _ if path.is_absolute() && path.file_name().is_some() => Ok(PodResourcesSocket::At(path.to_owned())),
            _ => Err(
                "not an absolute path of a socket: write it like /var/lib/kubelet/pod-resources/kubelet.sock, or off"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_below_the_root_directory_unless_the_flag_names_another_path() {
        let path = |socket: PodResourcesSocket| socket.path(Path::new("/r"));
        assert_eq!(path(PodResourcesSocket::default()), Some("/r/pod-resources/kubelet.sock".into()));
        assert_eq!(path("/a/b.sock".parse().unwrap()), Some("/a/b.sock".into()));
        assert_eq!(path("off".parse().unwrap()), None);
        for bad in ["", "a.sock", "on", "/"] {
            assert!(bad.parse::<PodResourcesSocket>().unwrap_err().contains("or off"), "{bad}");
        }
    }
}
