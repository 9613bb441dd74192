//! `podwright preview`: shows what a DeviceTaintRule would do, before it is applied.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use podwright_controllers::device_taint_eviction::RulePreview;

use super::cli::{ExplainOutput, PreviewArgs};
use crate::adapters::kube::{ConnectError, ListError, PreviewedCluster, connect};
use podwright_model::text::plain;
use podwright_ports::{Clock, SystemClock};
use podwright_sources::manifest::{Fault, read_rule};

/// The maximum length of a warning in bytes.
const MAX_WARNING: usize = 8192;

/// Why there is no preview.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PreviewError {
    #[error("cannot read {path}: correct the file or --filename", path = .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{path} has no valid DeviceTaintRule:{faults}", path = .path.display(), faults = Lines(.faults))]
    Rule { path: PathBuf, faults: Vec<Fault> },
    #[error("there is no kubeconfig{found}: name one with --kubeconfig, or set KUBECONFIG", found = Searched(.0))]
    NoKubeconfig(Vec<PathBuf>),
    #[error("KUBECONFIG names several kubeconfigs, which are not merged: name one of them with --kubeconfig")]
    SeveralKubeconfigs,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    List(#[from] ListError),
    #[error("cannot start threads")]
    Runtime(#[source] io::Error),
    #[error("cannot write the preview as JSON")]
    Json(#[from] serde_json::Error),
}

/// Prints each fault in a line of its own.
struct Lines<'a>(&'a [Fault]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

/// Prints the paths at which there is no kubeconfig.
struct Searched<'a>(&'a [PathBuf]);

impl fmt::Display for Searched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [" at "].into_iter().chain(std::iter::repeat(" or "));
        self.0.iter().zip(words).try_for_each(|(path, word)| write!(f, "{word}{}", path.display()))
    }
}

/// The kubeconfig that kubectl would use: the one that `KUBECONFIG` names, and without that variable `.kube/config` of the home
/// directory. kubectl merges several files. Here they are refused, because the user should know which cluster is shown.
fn default_kubeconfig(listed: Option<&OsStr>, home: Option<&OsStr>) -> Result<PathBuf, PreviewError> {
    let mut paths: Vec<_> = listed.into_iter().flat_map(env::split_paths).collect();
    paths.retain(|path| !path.as_os_str().is_empty());
    if paths.is_empty() {
        let home = home.filter(|home| !home.is_empty());
        paths.extend(home.map(|home| Path::new(home).join(".kube/config")));
    }
    let mut existing = paths.iter().filter(|path| path.exists());
    match (existing.next(), existing.next()) {
        (Some(path), None) => Ok(path.clone()),
        (Some(_), Some(_)) => Err(PreviewError::SeveralKubeconfigs),
        (None, _) => Err(PreviewError::NoKubeconfig(paths)),
    }
}

/// The output of `preview`.
///
/// # Errors
/// [`PreviewError`] if the file has no valid rule, if there is no kubeconfig, or if the objects of the cluster cannot be listed.
pub(crate) fn preview(args: &PreviewArgs) -> Result<String, PreviewError> {
    let path = args.file.clone();
    let bytes =
        podwright_sources::contents(&path).map_err(|source| PreviewError::File { path: path.clone(), source })?;
    let rule = read_rule(&bytes).map_err(|faults| PreviewError::Rule { path, faults })?;
    let kubeconfig = match &args.kubeconfig {
        Some(path) => path.clone(),
        None => default_kubeconfig(env::var_os("KUBECONFIG").as_deref(), env::var_os("HOME").as_deref())?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(PreviewError::Runtime)?;
    let now = SystemClock::new().now();
    let cluster = runtime.block_on(async {
        let client = connect(&kubeconfig).await?;
        Ok::<_, PreviewError>(PreviewedCluster::read(&client, args.settings(), now).await?)
    })?;
    for warning in &cluster.warnings {
        // If standard error is closed, nobody can read the warning.
        let _ = writeln!(io::stderr(), "podwright: warning: {}", plain(warning, MAX_WARNING));
    }
    render(&cluster.core.preview(&rule, now), args.output)
}

fn render(preview: &RulePreview, output: ExplainOutput) -> Result<String, PreviewError> {
    Ok(match output {
        ExplainOutput::Text => preview.to_string().trim_end().to_owned(),
        ExplainOutput::Json => serde_json::to_string_pretty(preview)?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn kubeconfig_is_the_one_of_kubectl() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let found = |listed: &[&str], home: &str| {
            let listed =
                env::join_paths(listed.iter().map(|name| if name.is_empty() { PathBuf::new() } else { path(name) }));
            let listed = listed.unwrap();
            default_kubeconfig(Some(&*listed), Some(path(home).as_os_str())).map_err(|error| error.to_string())
        };
        fs::create_dir_all(path("home/.kube")).unwrap();
        for name in ["home/.kube/config", "a", "b"] {
            fs::write(path(name), "").unwrap();
        }
        assert_eq!(default_kubeconfig(None, Some(path("home").as_os_str())).unwrap(), path("home/.kube/config"));
        assert_eq!(found(&[], "home").unwrap(), path("home/.kube/config"), "the variable is empty");
        assert_eq!(found(&["a"], "home").unwrap(), path("a"));
        assert_eq!(found(&["", "absent", "b"], "home").unwrap(), path("b"));
        assert!(found(&["a", "b"], "home").unwrap_err().contains("name one of them with --kubeconfig"));
        for (listed, absent) in [(&["absent"][..], "absent"), (&[][..], "nobody/.kube/config")] {
            let error = found(listed, "nobody").unwrap_err();
            let expected = format!("no kubeconfig at {}: name one with --kubeconfig, or set", path(absent).display());
            assert!(error.contains(&expected), "{error}");
        }
        let error = default_kubeconfig(None, None).unwrap_err().to_string();
        assert!(error.starts_with("there is no kubeconfig: name one"), "{error}");
    }
}
