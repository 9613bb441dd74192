//! `podwright run`: builds the node from its flags and runs it until a signal arrives or until all pods have finished.

mod signals;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::actors::container_manager::ContainersConfig;
use crate::actors::node::{Node, NodePorts, StartNodeError};
use crate::actors::ports::{Clock, SourceKind, SourceUpdate, SystemClock};
use crate::actors::recorder::{Note, Recorder};
use crate::actors::time::Time;
use crate::adapters::adoption::Adoption;
use crate::adapters::checkpoint::FileCheckpoint;
use crate::adapters::log::rotation::{Limits, Rotator};
use crate::adapters::sources::{FileSource, Origin, SourceContext, UrlSource};
use crate::adapters::storage::FileStorage;
use crate::metrics::Metrics;
use actix::Recipient;
use reqwest::Url;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::admin::{self, AdminEndpoints, AdminError, AdminServer, TlsSettings};
use super::boot::{self, BootChange};
use super::cli::{AdminAddress, AdminArgs, NodeName, RunArgs};
use super::events::EventLog;
use super::http::TlsFiles;
use super::logging::{self, LogLines};
use super::machine;
use super::page::{AgentInfo, ManifestLocation};
use super::root::{DefaultDirectories, RootDirectory, RootError, replaceable_by_all};
use super::runtime_ports::{OpenRuntimeError, RuntimeConfig, RuntimePorts};
use super::screen::{Screen, Terminal};
use super::until::{PodsOutcome, outcome};
use super::view::NodeView;
use signals::Signals;

/// The file below the root directory that keeps the final statuses of pods.
const JOURNAL: &str = "journal";

/// With `--until-finished`, the agent inspects all pods this long after a status change.
const INSPECT_DELAY: Duration = Duration::from_millis(20);
/// The delay grows by this for each pod. The pause is then about ten times as long as the inspection, so that inspections
/// take about a tenth of one CPU.
const INSPECT_DELAY_PER_POD: Duration = Duration::from_micros(20);

/// Why the agent cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("there is no manifest at {}: correct --manifests, because --until-finished does not wait for a missing path", .0.display())]
    NoManifest(PathBuf),
    #[error(transparent)]
    Node(#[from] StartNodeError),
    #[error("cannot install signal handlers")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Runtime(#[from] OpenRuntimeError),
    #[cfg(feature = "cri")]
    #[error(transparent)]
    ImageGc(#[from] crate::actors::image_gc::InvalidImageGcPolicy),
}

/// The paths and URLs that manifests are read from.
#[derive(Debug, Default)]
struct ManifestSources {
    paths: Vec<PathBuf>,
    urls: Vec<Url>,
}

/// Runs the agent and returns its exit code.
///
/// # Errors
/// [`RunError`] if the agent cannot start.
pub(crate) fn run(args: RunArgs) -> Result<ExitCode, RunError> {
    let defaults = DefaultDirectories::of_process();
    let root = match &args.root {
        Some(root) => root.clone(),
        None => defaults.root()?,
    };
    let root = RootDirectory::lock(&root)?;
    let manifests = ManifestSources::of(&args, &defaults)?;
    let admin = admin_server(&args.admin, &root)?;

    let lines = Arc::new(LogLines::default());
    let terminal = Terminal::enter().map(Arc::new);
    match &terminal {
        Some(_) => logging::to_lines(args.log_format, lines.clone()),
        None => logging::to_stdout(args.log_format),
    }
    let code = actix::System::new().block_on(serve(args, &root, manifests, admin, terminal.clone(), lines.clone()));
    if let Some(terminal) = &terminal {
        terminal.leave();
    }
    code
}

/// Reads the files of the admin endpoints. `None` if the endpoints are off.
fn admin_server(args: &AdminArgs, root: &RootDirectory) -> Result<Option<AdminServer>, AdminError> {
    let AdminAddress::Listen(address) = args.admin else {
        admin::remove_leftovers(root.path());
        return Ok(None);
    };
    // The command line admits either all three files or none.
    let tls = match (&args.admin_tls_cert, &args.admin_tls_key, &args.admin_token_file) {
        (Some(certificate), Some(key), Some(token)) => Some(TlsSettings {
            files: TlsFiles { certificate: certificate.clone(), key: key.clone() },
            token: token.clone(),
        }),
        _ => None,
    };
    AdminEndpoints { address, tls }.open(root.path()).map(Some)
}

impl ManifestSources {
    fn of(args: &RunArgs, defaults: &DefaultDirectories) -> Result<Self, RunError> {
        let mut manifests = ManifestSources::default();
        for origin in &args.manifests {
            match origin {
                Origin::Path(path) => manifests.paths.push(path.clone()),
                Origin::Url(url) => manifests.urls.push(url.clone()),
            }
        }
        if args.manifests.is_empty() {
            manifests.paths.push(defaults.manifests()?);
        }
        match manifests.paths.iter().find(|path| !path.exists()) {
            Some(path) if args.until_finished => Err(RunError::NoManifest(path.clone())),
            _ => Ok(manifests),
        }
    }

    fn kinds(&self) -> Vec<SourceKind> {
        let mut kinds = Vec::new();
        if !self.paths.is_empty() {
            kinds.push(SourceKind::File);
        }
        if !self.urls.is_empty() {
            kinds.push(SourceKind::Http);
        }
        kinds
    }

    /// The locations as the page shows them. A URL is shown without its user name and password.
    fn locations(&self) -> Vec<ManifestLocation> {
        let paths = self
            .paths
            .iter()
            .map(|path| ManifestLocation { source: SourceKind::File, location: path.display().to_string() });
        let urls = self.urls.iter().map(|url| {
            let mut url = url.clone();
            // These calls fail only for a URL that has no host, and such a URL holds no user name.
            let _ = (url.set_username(""), url.set_password(None));
            ManifestLocation { source: SourceKind::Http, location: url.to_string() }
        });
        paths.chain(urls).collect()
    }

    /// Starts the sources. They send their pods to `to` until `stop` is cancelled.
    fn start(self, cx: &SourceContext, to: &Recipient<SourceUpdate>, stop: &CancellationToken) {
        for path in self.paths.iter().filter(|path| !path.exists()) {
            tracing::warn!(path = %path.display(), "manifest path does not exist yet; pods start once it holds manifests");
        }
        if !self.paths.is_empty() {
            actix::spawn(FileSource::new(self.paths, cx.clone()).run(to.clone(), stop.clone()));
        }
        if !self.urls.is_empty() {
            actix::spawn(UrlSource::new(self.urls, cx.clone()).run(to.clone(), stop.clone()));
        }
    }
}

async fn serve(
    args: RunArgs,
    root: &RootDirectory,
    manifests: ManifestSources,
    admin: Option<AdminServer>,
    terminal: Option<Arc<Terminal>>,
    lines: Arc<LogLines>,
) -> Result<ExitCode, RunError> {
    let mut signals = Signals::listen().map_err(RunError::Signals)?;
    let name = args.node_name.clone().map_or_else(machine::node_name, |NodeName(name)| name);
    let (view, adoption) = node(&args, root, &name, &manifests).await?;

    let stop = CancellationToken::new();
    let sources = stop.child_token();
    let cx = SourceContext {
        unknown_fields: args.manifest_fields.into(),
        adoption,
        ..SourceContext::new(name.clone(), view.clock.clone())
    };
    tracing::info!(node = name, root = %root.path().display(), "agent started");
    if let Some(above) = replaceable_by_all(root.path()) {
        tracing::warn!(
            directory = %above.display(),
            "every user can replace the root directory, because all may write to a directory above it: remove that \
             permission (chmod o-w), or set the sticky bit (chmod +t)"
        );
    }
    let info = AgentInfo {
        name: name.clone(),
        started: view.now(),
        locations: manifests.locations(),
        stopping: sources.clone(),
    };
    manifests.start(&cx, &view.node.sources(), &sources);
    let mut link = admin.as_ref().map(AdminServer::link);
    if terminal.is_none()
        && let Some(link) = link.clone()
    {
        actix::spawn(print_link(link));
    }
    let admin = admin.map(|admin| actix::spawn(admin.serve(view.clone(), info, stop.clone())));
    let screen = terminal.clone().map(|terminal| {
        let title = format!("podwright on {name}: admin {}, root {}", args.admin.admin, root.path().display());
        let screen = Screen { terminal, view: view.clone(), lines: lines.clone(), title, link: link.take() };
        actix::spawn(screen.run(stop.clone()))
    });

    // The containers of a container runtime keep running for the next agent.
    let deadline = if args.runtime.containers_outlive_agent() { Duration::ZERO } else { args.shutdown_grace.0.total };
    let code = tokio::select! {
        signal = signals.next() => {
            if let Some(recorder) = view.node.engine().recorder() {
                recorder.note(view.now(), &Note::AgentStops { why: signal.name.to_owned() });
            }
            tracing::info!(signal = signal.name, "stopping; a second signal ends the agent at once");
            sources.cancel();
            tokio::select! {
                _report = view.node.shutdown(deadline) => ExitCode::SUCCESS,
                second = signals.next_after_stop() => {
                    if let Some(terminal) = &terminal {
                        terminal.leave();
                    }
                    // This ends the graceful stop. The next agent adopts the containers that still run.
                    std::process::exit(second.exit_code());
                }
            }
        }
        outcome = finished(&view), if args.until_finished => log_outcome(&outcome),
    };
    stop.cancel();
    if let Some(admin) = admin {
        let _files_removed = admin.await;
    }
    if let Some(screen) = screen {
        let _drawn = screen.await;
    }
    if let Some(terminal) = &terminal {
        terminal.leave();
        print(&Screen::final_table(&view));
    }
    Ok(code)
}

/// Opens the runtime and the other ports, and starts the node on them. Also returns what adopts pods of a kubelet.
async fn node(
    args: &RunArgs,
    root: &RootDirectory,
    name: &str,
    manifests: &ManifestSources,
) -> Result<(NodeView, Option<Adoption>), RunError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut booted = Time::ZERO;
    match boot::compare(root.path()) {
        Ok(BootChange::First | BootChange::Same) => {}
        Ok(BootChange::New) => {
            tracing::warn!("the machine rebooted since the last agent ran: containers of that agent have ended");
            booted = machine::booted(clock.now());
        }
        Err(error) => tracing::warn!(%error, "cannot find out whether the machine rebooted since the last agent ran"),
    }
    let host_ips = machine::host_ips();
    let machine = machine::capacity(args.max_pods, root.path());
    let capacity = args.runtime.allocatable(machine, &args.admission.reservations());
    let metrics = Metrics::new();
    let events = Arc::new(EventLog::new(clock.clone()));
    let allocatable = machine::quantities(&capacity);
    let runtime_name = args.runtime.name();
    let logs = root.logs();
    let runtime_config = RuntimeConfig {
        root: root.path(),
        logs: &logs,
        addresses: host_ips.clone(),
        clock: &clock,
        name: &runtime_name,
        metrics: &metrics,
        events: &events,
        open_files: machine::raise_open_files(),
    };
    let RuntimePorts { runtime, images, network, cgroups, log_writer, adoption, strict_groups } =
        RuntimePorts::open(args, runtime_config).await?;
    if let Some(log_writer) = log_writer {
        let limits =
            Limits { max_size: args.container_log_max_size.0 as u64, max_files: args.container_log_max_files as usize };
        actix::spawn(Rotator::new(log_writer, limits).run());
    }
    let storage = args.runtime.storage(FileStorage::new(root.path(), allocatable.clone()), &logs);
    let mut ports = NodePorts::new(runtime, network, Arc::new(storage.clone()))
        .final_statuses(Arc::new(FileCheckpoint::new(root.path().join(JOURNAL))))
        .events(events.clone())
        .clock(clock.clone())
        .metrics(metrics.clone());
    ports = args.admission.handlers(name, capacity, strict_groups).into_iter().fold(ports, NodePorts::admission);
    if args.runtime.uses_disk() {
        let thresholds = &args.eviction_hard;
        if !thresholds.unobserved().is_empty() {
            let signals = thresholds.unobserved().join(", ");
            tracing::warn!(signals, "these signals of --eviction-hard are not observed and have no effect");
        }
        ports = ports.disks(Arc::new(storage.clone()));
    }
    if let Some(images) = images {
        ports = ports.images(images);
    }
    if let Some(cgroups) = cgroups {
        ports = ports.cgroups(cgroups);
    }
    if args.recording_size.0 > 0 {
        let recorder = Arc::new(Recorder::new(args.recording_size.0));
        let build = format!("podwright {}", env!("CARGO_PKG_VERSION"));
        recorder.note(clock.now(), &Note::AgentStarted { build, node: name.to_owned() });
        ports = ports.recorder(recorder);
    }
    let node = Node::builder(ports)
        .name(name)
        .host_ips(host_ips)
        .runtime_name(runtime_name)
        .allocatable(allocatable)
        .sources(manifests.kinds())
        .containers(ContainersConfig::default().booted(booted))
        .long_wait_after(args.explain_event_after)
        .eviction_thresholds(args.eviction_hard.clone())
        .eviction_pressure_transition(args.eviction_pressure_transition_period)
        .critical_shutdown(args.shutdown_grace.0.critical);
    #[cfg(feature = "cri")]
    let node = node.image_gc(args.images.gc_policy()?);
    let node = Arc::new(node.start()?);
    Ok((NodeView { node, events, clock, metrics, logs: storage }, adoption))
}

/// Resolves once every source has delivered and every pod has finished.
async fn finished(view: &NodeView) -> PodsOutcome {
    let mut changes = view.node.statuses().subscribe();
    loop {
        let inspected = view.clone();
        // The inspection runs on a blocking thread, because it visits every pod and this thread also starts pods.
        let inspection = tokio::task::spawn_blocking(move || {
            // `is_ready` comes first: the list of pods then includes everything that was delivered before it.
            let delivered = inspected.node.desired().is_ready();
            let pods = inspected.pods();
            (outcome(delivered, &pods, &inspected.problems()), pods.len())
        });
        let pods = match inspection.await {
            Ok((Some(outcome), _)) => return outcome,
            Ok((None, pods)) => pods,
            Err(_) => 0,
        };
        // Cleanup publishes a status just before the record becomes finished, and publishes nothing after that. The delay
        // usually covers this gap. If it does not, the timeout below causes another inspection.
        let pause = INSPECT_DELAY + INSPECT_DELAY_PER_POD * u32::try_from(pods).unwrap_or(u32::MAX);
        tokio::select! {
            _ = changes.changed() => tokio::time::sleep(pause).await,
            () = tokio::time::sleep(pause + Duration::from_millis(500)) => {}
        }
    }
}

/// Prints the link to the page on standard error if that is a terminal. The link contains the page's token, so it does not
/// belong in logs.
async fn print_link(mut link: watch::Receiver<Option<String>>) {
    if !io::stderr().is_terminal() {
        return;
    }
    if let Ok(link) = link.wait_for(Option::is_some).await {
        let _closed = writeln!(io::stderr(), "the page of this agent: {}", link.as_deref().unwrap_or_default());
    }
}

fn log_outcome(outcome: &PodsOutcome) -> ExitCode {
    for line in &outcome.failed {
        tracing::error!("{line}");
    }
    let failed = outcome.failed.len();
    tracing::info!(succeeded = outcome.succeeded, failed, "all pods have finished");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(text: &str) {
    // The reader may have closed standard output, which is no error.
    let _ = writeln!(io::stdout(), "{text}");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::agent::cli::{Cli, Command};

    fn manifests(args: &[&str], home: &Path) -> Result<ManifestSources, RunError> {
        let Command::Run(args) = Cli::parse_from(["podwright", "run"].iter().chain(args)).command else { panic!() };
        ManifestSources::of(&args, &DefaultDirectories::of_user(home))
    }

    #[test]
    fn until_finished_refuses_a_manifest_path_that_does_not_exist() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(manifests(&[], home.path()).unwrap().paths, [home.path().join(".config/podwright/manifests")]);
        for args in [&["--until-finished"][..], &["--until-finished", "--manifests", "/nowhere/at-all"]] {
            assert!(matches!(manifests(args, home.path()), Err(RunError::NoManifest(_))), "{args:?}");
        }
    }
}
