//! `podwright preview`: shows what a DeviceTaintRule would do, before it is applied.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;

use super::cli::{ExplainOutput, PreviewArgs};
use crate::actors::controllers::device_taint_eviction::RulePreview;
use crate::actors::ports::{Clock, SystemClock};
use crate::actors::text::plain;
use crate::adapters::kube::{ConnectError, ListError, PreviewedCluster, connect};
use crate::adapters::manifest::{Fault, read_rule};
use crate::adapters::sources;

/// The maximum length of a warning in bytes.
const MAX_WARNING: usize = 8192;

/// Why there is no preview.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PreviewError {
    #[error("cannot read {path}: correct the file or --filename", path = .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{path} has no valid DeviceTaintRule:{faults}", path = .path.display(), faults = Lines(.faults))]
    Rule { path: PathBuf, faults: Vec<Fault> },
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

/// The output of `preview`.
///
/// # Errors
/// [`PreviewError`] if the file has no valid rule, or if the objects of the cluster cannot be listed.
pub(crate) fn preview(args: &PreviewArgs) -> Result<String, PreviewError> {
    let path = args.file.clone();
    let bytes = sources::contents(&path).map_err(|source| PreviewError::File { path: path.clone(), source })?;
    let rule = read_rule(&bytes).map_err(|faults| PreviewError::Rule { path, faults })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(PreviewError::Runtime)?;
    let now = SystemClock::new().now();
    let cluster = runtime.block_on(async {
        let client = connect(&args.kubeconfig).await?;
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
