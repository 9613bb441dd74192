//! `run`: builds the node from its flags, and runs it until a signal or until everything is finished.

mod signals;
mod stop;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::actors::admission::AdmissionHandler;
use crate::actors::container_manager::ContainersConfig;
use crate::actors::engine::EngineConfig;
use crate::actors::node::{Node, NodeConfig, NodePorts, StartNodeError};
use crate::actors::ports::{Clock, SourceKind, SystemClock};
use crate::actors::recorder::{Note, Recorder};
use crate::actors::shutdown::{ShutdownConfig, ShutdownGate};
use crate::actors::status::NodeFacts;
use crate::actors::time::Time;
use crate::adapters::checkpoint::FileCheckpoint;
use crate::adapters::log::rotation::{Limits, Rotator};
use crate::adapters::sources::{FileSource, Origin, SourceContext, UrlSource};
use crate::adapters::storage::FileStorage;
use crate::metrics::Metrics;
use reqwest::Url;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::admin;
use super::boot::{self, Boot};
use super::cli::{NodeName, RunArgs};
use super::events::EventLog;
use super::logs::{self, Lines};
use super::machine;
use super::page::{About, Place};
use super::root::{Defaults, Root, RootError};
use super::runtime::{Machine, MachineConfig, OpenRuntimeError};
use super::screen::{Screen, Terminal};
use super::until::{Verdict, verdict};
use super::view::View;
use signals::Signals;

/// Which pods are over for good, below the root.
const JOURNAL: &str = "journal";

/// How long to let pass after a change until it is seen whether all pods have finished, and how much longer for each pod:
/// some ten times as long as the look takes.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_AT_POD: Duration = Duration::from_micros(20);

/// The agent cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("no manifest is at {}: check --manifests, since --until-finished does not wait for one to come", .0.display())]
    NoManifest(PathBuf),
    #[error(transparent)]
    Node(#[from] StartNodeError),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Runtime(#[from] OpenRuntimeError),
    #[cfg(feature = "cri")]
    #[error(transparent)]
    ImageGc(#[from] crate::actors::image_gc::BadPolicy),
}

/// Where manifests are.
#[derive(Debug, Default)]
struct Origins {
    paths: Vec<PathBuf>,
    urls: Vec<Url>,
}

/// Runs the agent.
///
/// # Errors
/// [`RunError`] if it cannot start.
pub(crate) fn run(args: RunArgs) -> Result<ExitCode, RunError> {
    let defaults = Defaults::of_process();
    let root = match &args.root {
        Some(root) => root.clone(),
        None => defaults.root()?,
    };
    let root = Root::hold(&root)?;
    let origins = Origins::of(&args, &defaults)?;

    let lines = Arc::new(Lines::default());
    let terminal = Terminal::enter().map(Arc::new);
    match &terminal {
        Some(_) => logs::to_lines(args.log_format, lines.clone()),
        None => logs::to_stdout(args.log_format),
    }
    let code = actix::System::new().block_on(serve(args, &root, origins, terminal.clone(), lines.clone()));
    if let Some(terminal) = &terminal {
        terminal.leave();
    }
    code
}

impl Origins {
    fn of(args: &RunArgs, defaults: &Defaults) -> Result<Self, RunError> {
        let mut origins = Origins::default();
        for origin in &args.manifests {
            match origin {
                Origin::Path(path) => origins.paths.push(path.clone()),
                Origin::Url(url) => origins.urls.push(url.clone()),
            }
        }
        if args.manifests.is_empty() {
            origins.paths.push(defaults.manifests()?);
        }
        match origins.paths.iter().find(|path| !path.exists()) {
            Some(path) if args.until_finished => Err(RunError::NoManifest(path.clone())),
            _ => Ok(origins),
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

    /// Where people find them; what a URL says of who asks is left out.
    fn places(&self) -> Vec<Place> {
        let paths = self.paths.iter().map(|path| Place { source: SourceKind::File, place: path.display().to_string() });
        let urls = self.urls.iter().map(|url| {
            let mut url = url.clone();
            // It has a host, so it may have neither.
            let _ = (url.set_username(""), url.set_password(None));
            Place { source: SourceKind::Http, place: url.to_string() }
        });
        paths.chain(urls).collect()
    }

    /// Starts the sources.
    fn deliver(
        self,
        cx: &SourceContext,
        to: &mpsc::Sender<crate::actors::ports::SourceUpdate>,
        stop: &CancellationToken,
    ) {
        for path in self.paths.iter().filter(|path| !path.exists()) {
            tracing::warn!(path = %path.display(), "no manifests here yet; pods start when some come");
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
    root: &Root,
    origins: Origins,
    terminal: Option<Arc<Terminal>>,
    lines: Arc<Lines>,
) -> Result<ExitCode, RunError> {
    let mut signals = Signals::listen().map_err(RunError::Signals)?;
    let name = args.node_name.clone().map_or_else(machine::node_name, |NodeName(name)| name);
    let gate = Arc::new(ShutdownGate::default());
    let view = node(&args, root, &name, &origins, gate.clone()).await?;

    let stop = CancellationToken::new();
    let sources = stop.child_token();
    let cx = SourceContext::new(name.clone(), view.clock.clone());
    tracing::info!(node = name, root = %root.path().display(), "agent runs");
    let about = About { name: name.clone(), started: view.now(), places: origins.places(), stopping: sources.clone() };
    origins.deliver(&cx, &view.node.sets, &sources);
    actix::spawn(admin::serve(args.admin.0, view.clone(), about, stop.clone()));
    let screen = terminal.clone().map(|terminal| {
        let title = format!("podwright on {name}: admin http://{}, root {}", args.admin, root.path().display());
        let screen = Screen { terminal, view: view.clone(), lines: lines.clone(), title };
        actix::spawn(screen.run(stop.clone()))
    });

    let shutdown = match args.runtime.outlives_agent() {
        true => ShutdownConfig { total: Duration::ZERO, critical: Duration::ZERO },
        false => args.shutdown_grace.0,
    };
    let code = tokio::select! {
        signal = signals.next() => {
            if let Some(recorder) = view.node.engine.recorder() {
                recorder.note(view.now(), &Note::AgentStops { why: signal.name.to_owned() });
            }
            tracing::info!(signal = signal.name, "stopping; a second signal ends the agent at once");
            tokio::select! {
                () = stop::stop(&view, &gate, &sources, shutdown) => ExitCode::SUCCESS,
                second = signals.insists() => {
                    if let Some(terminal) = &terminal {
                        terminal.leave();
                    }
                    // At once: what runs is left to the next agent.
                    std::process::exit(second.exit_code());
                }
            }
        }
        verdict = finished(&view), if args.until_finished => tell(&verdict),
    };
    stop.cancel();
    if let Some(screen) = screen {
        let _drawn = screen.await;
    }
    if let Some(terminal) = &terminal {
        terminal.leave();
        print(&Screen::last_words(&view));
    }
    Ok(code)
}

/// Opens the ports and starts the node.
async fn node(
    args: &RunArgs,
    root: &Root,
    name: &str,
    origins: &Origins,
    gate: Arc<ShutdownGate>,
) -> Result<View, RunError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut booted = Time::ZERO;
    match boot::look(root.path()) {
        Ok(Boot::First | Boot::Same) => {}
        Ok(Boot::Another) => {
            tracing::warn!("the machine was started anew since an agent ran here: what ran then has ended");
            booted = machine::booted(clock.now());
        }
        Err(error) => tracing::warn!(%error, "whether the machine was started anew is not known"),
    }
    let host_ips = machine::host_ips();
    let capacity = args.runtime.capacity(machine::capacity(args.max_pods));
    let metrics = Metrics::new();
    let events = Arc::new(EventLog::new(clock.clone()));
    let engine = EngineConfig::default();
    let allocatable = machine::allocatable(&capacity);
    let runtime_name = args.runtime.name();
    let logs = root.logs();
    let config = NodeConfig {
        engine,
        containers: ContainersConfig { booted, ..ContainersConfig::default() },
        facts: NodeFacts { name: name.to_owned(), host_ips: host_ips.clone(), runtime_name: runtime_name.clone() },
        allocatable: allocatable.clone(),
        explain_event_after: args.explain_event_after,
        #[cfg(feature = "cri")]
        image_gc: args.images.gc_policy()?,
        #[cfg(not(feature = "cri"))]
        image_gc: Default::default(),
        sources: origins.kinds(),
    };
    let for_runtime = MachineConfig {
        root: root.path(),
        logs: &logs,
        addresses: host_ips,
        clock: &clock,
        name: &runtime_name,
        metrics: &metrics,
        events: &events,
        open_files: machine::raise_open_files(),
    };
    let Machine { runtime, images, network, cgroups, logs: written } = Machine::open(args, for_runtime).await?;
    if let Some(written) = written {
        let limits =
            Limits { max_size: args.container_log_max_size.0 as u64, max_files: args.container_log_max_files as usize };
        actix::spawn(Rotator::new(written, limits).run());
    }
    let storage = args.runtime.storage(FileStorage::new(root.path(), allocatable), &logs);
    let ports = NodePorts {
        runtime,
        images,
        network,
        storage: Arc::new(storage.clone()),
        cgroups,
        final_statuses: Arc::new(FileCheckpoint::new(root.path().join(JOURNAL))),
        events: events.clone(),
        clock: clock.clone(),
        admission: vec![gate as Arc<dyn AdmissionHandler>, Arc::new(capacity)],
        metrics: metrics.clone(),
        recorder: (args.recording_size.0 > 0).then(|| Arc::new(Recorder::new(args.recording_size.0))),
    };
    if let Some(recorder) = &ports.recorder {
        let build = format!("podwright {}", env!("CARGO_PKG_VERSION"));
        recorder.note(clock.now(), &Note::AgentStarted { build, node: name.to_owned() });
    }
    let node = Arc::new(Node::start(config, ports)?);
    Ok(View { node, events, clock, metrics, logs: storage, resync: engine.resync })
}

/// Resolves once nothing is left to do.
async fn finished(view: &View) -> Verdict {
    let mut changes = view.node.statuses.subscribe();
    loop {
        let at = view.clone();
        // Looks at all pods, and pods are started on this thread.
        let looked = tokio::task::spawn_blocking(move || {
            // In this order: what is delivered after the first question is not missed by the second.
            let delivered = at.node.desired.is_ready();
            let pods = at.pods();
            (verdict(delivered, &pods, &at.problems()), pods.len())
        });
        let pods = match looked.await {
            Ok((Some(verdict), _)) => return verdict,
            Ok((None, pods)) => pods,
            Err(_) => 0,
        };
        // A cleanup that ends changes a status just before the record is finished; nothing tells of that.
        let pause = LOOK + LOOK_AT_POD * u32::try_from(pods).unwrap_or(u32::MAX);
        tokio::select! {
            _ = changes.changed() => tokio::time::sleep(pause).await,
            () = tokio::time::sleep(pause + Duration::from_millis(500)) => {}
        }
    }
}

fn tell(verdict: &Verdict) -> ExitCode {
    for line in &verdict.failed {
        tracing::error!("{line}");
    }
    let failed = verdict.failed.len();
    tracing::info!(succeeded = verdict.succeeded, failed, "all pods have finished");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(text: &str) {
    // Whoever read it may have gone.
    let _ = writeln!(io::stdout(), "{text}");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::agent::cli::{Cli, Command};

    fn origins(args: &[&str], home: &Path) -> Result<Origins, RunError> {
        let Command::Run(args) = Cli::parse_from(["podwright", "run"].iter().chain(args)).command else { panic!() };
        Origins::of(&args, &Defaults::of_user(home))
    }

    #[test]
    fn whoever_waits_for_the_end_is_told_that_no_manifest_is_there() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(origins(&[], home.path()).unwrap().paths, [home.path().join(".config/podwright/manifests")]);
        for args in [&["--until-finished"][..], &["--until-finished", "--manifests", "/nowhere/at-all"]] {
            assert!(matches!(origins(args, home.path()), Err(RunError::NoManifest(_))), "{args:?}");
        }
    }
}
