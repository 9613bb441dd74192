//! `podwright run`: builds the node from its flags and runs it until a signal arrives or until all pods have finished.

mod claims;
mod cluster;
mod finished;
mod manifests;
mod node;
mod node_api;
pub(super) mod signals;
mod systemd;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use podwright_actors::Registration;
use podwright_actors::eviction::MissingGracePeriod;
use podwright_actors::node::{NodeHandle, ShutdownReport, StartNodeError};
use podwright_actors::shutdown::ShutdownConfig;
use podwright_engine::recorder::Note;
use podwright_model::ids::PodUid;
use podwright_ports::EventRecorder;
use podwright_sources::SourceContext;
use tokio::sync::watch;

use super::admin::{self, AdminEndpoints, AdminError, AdminServer, TlsSettings};
use super::cli::{AdminAddress, AdminArgs, CertificateArgs, NodeName, RunArgs};
use super::logging::{self, LogLines};
use super::machine;
use super::page::AgentInfo;
use super::root::{DefaultDirectories, RootDirectory, RootError};
use super::runtime_ports::OpenRuntimeError;
use super::screen::{Screen, Terminal};
use super::shutdown::{MachineShutdown, wait_until_false};
use super::view::{NodeControl, NodeView};
use finished::{finished, log_outcome};
use manifests::ManifestSources;
use podwright_host::trusted_dir::{self, UntrustedDirectory};
use podwright_http_server::TlsFiles;
use signals::Signals;

/// Why the agent cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Machine(#[from] machine::UnfitMachine),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("the directory of --cert-dir cannot be used")]
    CertificateDirectory(#[source] UntrustedDirectory),
    #[error("there is no manifest at {}: correct --manifests, because --until-finished does not wait for a missing path", .0.display())]
    NoManifest(PathBuf),
    #[error("the manifests cannot be used")]
    UntrustedManifests(#[source] podwright_host::trusted_file::UntrustedFile),
    #[error("cannot use --manifest-url-header-file")]
    ManifestHeaderFile(#[source] podwright_http_server::PrivateFileError),
    #[error("cannot use --manifest-url-header-file {}", .path.display())]
    ManifestHeaders { path: PathBuf, source: podwright_sources::HeaderFileError },
    #[error(transparent)]
    Cluster(#[from] super::certificates::ClientError),
    #[error(transparent)]
    ClientAuthority(#[from] podwright_node_api::ClientAuthorityError),
    #[error(transparent)]
    Serving(#[from] super::certificates::ServingError),
    #[error("cannot start the threads of the node API: raise the limit of processes of the agent's user")]
    NodeApi(#[source] io::Error),
    #[error("cannot keep the identity of the agent: make the root directory writable")]
    Instance(#[source] io::Error),
    #[error(
        "another agent or a kubelet runs as the node {0} and renews its lease: stop it, or use another --node-name with the credentials \
         of that node"
    )]
    NodeTaken(String),
    #[error(transparent)]
    Claims(#[from] claims::ClaimsStartError),
    #[error(transparent)]
    Node(#[from] StartNodeError),
    #[error("cannot install signal handlers")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Runtime(#[from] OpenRuntimeError),
    #[error(transparent)]
    Eviction(#[from] MissingGracePeriod),
    #[error(transparent)]
    ImageGc(#[from] podwright_actors::image_gc::InvalidImageGcPolicy),
}

/// How long the write of the last events may take. A reachable API server usually answers within milliseconds. The limit ends the wait
/// for an API server that does not answer.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the agent waits at its end for the last write of the file of claims.
const CLAIMS_WRITTEN_WITHIN: Duration = Duration::from_secs(10);

/// Runs the agent and returns its exit code.
///
/// # Errors
/// [`RunError`] if the agent cannot start.
pub(crate) fn run(args: RunArgs) -> Result<ExitCode, RunError> {
    args.machine.requirements().check()?;
    let defaults = DefaultDirectories::of_process();
    let root = match &args.root {
        Some(root) => root.clone(),
        None => defaults.root()?,
    };
    let root = RootDirectory::lock(&root)?;
    check_certificates(&args.certificates)?;
    let manifests = ManifestSources::of(&args, &defaults)?;
    let admin = admin_server(&args.admin, &root)?;

    let lines = Arc::new(LogLines::default());
    let terminal = Terminal::enter().map(Arc::new);
    match &terminal {
        Some(_) => logging::to_lines(args.log_format, lines.clone()),
        None => logging::to_stdout(args.log_format),
    }
    for notice in &args.configuration.notices {
        let (field, at) = (&notice.field, &notice.place);
        tracing::warn!(field, %at, why = notice.why, "a value of the configuration has no effect");
    }
    let code = actix::System::new().block_on(serve(args, &root, manifests, admin, terminal.clone(), lines.clone()));
    if let Some(terminal) = &terminal {
        terminal.leave();
    }
    code
}

/// Checks the directory of `--cert-dir`. That below the root directory is checked with the root directory.
fn check_certificates(args: &CertificateArgs) -> Result<(), RunError> {
    match &args.cert_dir {
        Some(directory) if directory.exists() => {
            trusted_dir::check_tree(directory, 1).map_err(RunError::CertificateDirectory)
        }
        _ => Ok(()),
    }
}

/// Reads the files of the admin endpoints. `None` if the endpoints are off.
pub(super) fn admin_server(args: &AdminArgs, root: &RootDirectory) -> Result<Option<AdminServer>, AdminError> {
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
    let background = node::Background::new();
    let stop = background.parts.stop().clone();
    let host_ips = node::host_ips(&args, &background.parts);
    let cluster = cluster::Cluster::of(&args, root, &name).await?;
    let node_api = match &cluster {
        Some(cluster) => node_api::NodeApiServer::open(&args, root, &name, host_ips.clone(), cluster.client()).await?,
        None => None,
    };
    let remote = node::ClusterPorts {
        port: node_api.as_ref().map_or(0, node_api::NodeApiServer::port),
        ..cluster.as_ref().map(|cluster| cluster.ports(&args, &name)).unwrap_or_default()
    };
    let started = node::start(&args, root, &name, &manifests, host_ips, remote, &background).await?;
    let node::StartedNode { control, view, adoption, handles } = started;

    let sources = background.sources.stop().clone();
    let storage = view.logs.clone();
    let cx = SourceContext {
        unknown_fields: args.manifest_fields.into(),
        adopt: adoption.map(manifests::adopt),
        has_started: Arc::new(move |uid: &PodUid| storage.pod_dir(uid).exists()),
        ..SourceContext::new(name.clone(), view.clock.clone())
    };
    tracing::info!(node = name, root = %root.path().display(), "agent started");
    let info = AgentInfo {
        name: name.clone(),
        started: view.now(),
        locations: manifests.locations(),
        stopping: sources.clone(),
    };
    manifests.start(&cx, &control.node.sources(), &background.sources);
    if let Some(cluster) = cluster {
        cluster.start(&name, &control.node, &view, &background);
    }
    let node_api = match node_api {
        Some(node_api) => Some(node_api.start(&args, &name, view.clone(), handles, &background.parts).await?),
        None => None,
    };
    let mut link = admin.as_ref().map(AdminServer::link);
    if terminal.is_none()
        && let Some(link) = link.clone()
    {
        actix::spawn(print_link(link));
    }
    let pod_resources = args.pod_resources.clone().unwrap_or_default().path(root.path()).map(|path| {
        let endpoint = super::pod_resources::PodResourcesEndpoint { path };
        actix::spawn(endpoint.serve(view.clone(), stop.clone()))
    });
    let admin = admin.map(|admin| actix::spawn(admin.serve(view.clone(), control.clone(), info, stop.clone())));
    let screen = terminal.clone().map(|terminal| {
        let title = format!("podwright on {name}: admin {}, root {}", args.admin.admin, root.path().display());
        let screen = Screen { terminal, view: view.clone(), lines: lines.clone(), title, link: link.take() };
        actix::spawn(screen.run(stop.clone()))
    });

    let watched = view.clone();
    background.parts.spawn_local("watchdog", async move || systemd::feed_watchdog(watched.clone()).await);
    systemd::ready();
    let is_in_terminal = io::stdout().is_terminal() && args.runtime.stops_pods_in_terminal();
    let on_exit = args.shutdown.on_exit(is_in_terminal || args.until_finished);
    let (is_shutting_down, mut machine) =
        MachineShutdown::new(control.node.clone(), view.events.clone(), args.shutdown.of_machine());
    if machine.is_enabled() {
        background.parts.spawn_local("machine_shutdown", async move || machine.run().await);
    }
    let code = tokio::select! {
        signal = signals.next() => {
            if let Some(recorder) = control.node.engine().recorder() {
                recorder.note(view.now(), &Note::AgentStops { why: signal.name.to_owned() });
            }
            systemd::stopping();
            tracing::info!(signal = signal.name, "stopping; a second signal ends the agent at once");
            sources.cancel();
            tokio::select! {
                _report = async {
                    // A shutdown of the machine ends services too. The pods have their whole time.
                    wait_until_false(is_shutting_down).await;
                    let report = stop_node(&control, on_exit, args.runtime.has_pods_on_machine()).await;
                    if args.registration.deregister_on_exit {
                        cluster::deregister(&control.node).await;
                    }
                    write_events(&view).await;
                    report
                } => Ok(ExitCode::SUCCESS),
                second = signals.next_after_stop() => {
                    if let Some(terminal) = &terminal {
                        terminal.leave();
                    }
                    // This ends the graceful stop. The next agent adopts the containers that still run.
                    std::process::exit(second.exit_code());
                }
            }
        }
        outcome = finished(&view, &control.node), if args.until_finished => {
            write_events(&view).await;
            Ok(log_outcome(&outcome))
        }
        () = node_taken(&control.node) => {
            tracing::error!(node = name, "another agent or a kubelet runs with the name of this node, stopping; pods are left running");
            sources.cancel();
            Err(RunError::NodeTaken(name))
        }
    };
    stop.cancel();
    if let Some(claims) = &control.claims
        && tokio::time::timeout(CLAIMS_WRITTEN_WITHIN, claims.stopped()).await.is_err()
    {
        tracing::warn!(
            "the file of claims is not written yet: a kubelet must not read it before another agent has stopped"
        );
    }
    if let Some(node_api) = node_api {
        node_api.ended().await;
    }
    if let Some(admin) = admin {
        let _files_removed = admin.await;
    }
    if let Some(pod_resources) = pod_resources {
        let _file_removed = pod_resources.await;
    }
    if let Some(screen) = screen {
        let _drawn = screen.await;
    }
    if let Some(terminal) = &terminal {
        terminal.leave();
        print(&Screen::final_table(&view));
    }
    code
}

/// Stops the node, and its pods if `config` says so. Logs what happens to the other pods.
async fn stop_node(control: &NodeControl, config: ShutdownConfig, are_on_machine: bool) -> ShutdownReport {
    let report = control.node.shutdown(config).await;
    let pods = report.left_running;
    match (pods, are_on_machine) {
        (0, _) => {}
        (_, true) => tracing::info!(pods, "pods are left running for the next agent"),
        (_, false) => tracing::info!(pods, "simulated pods end with the agent"),
    }
    report
}

/// Waits until the last events are written.
async fn write_events(view: &NodeView) {
    let unwritten = view.events.close(EVENTS_TIMEOUT).await;
    if unwritten > 0 {
        tracing::warn!(events = unwritten, "not all events were written in time");
    }
}

/// Resolves when another agent runs with the name of this node.
async fn node_taken(node: &NodeHandle) {
    match node.registration() {
        Some(mut registration) => {
            let _taken = registration.wait_for(|registration| matches!(registration, Registration::Taken)).await;
        }
        None => std::future::pending().await,
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

fn print(text: &str) {
    // The reader may have closed standard output, which is no error.
    let _ = writeln!(io::stdout(), "{text}");
}
