//! `podwright controllers`: runs controllers of the control plane until a signal arrives.
//!
//! ```text
//!  lease of each controller ──> election ──leads──> terms: a controller and its watches while this replica leads
//!                                    └────────────> admin: /readyz, /metrics
//!  signal ──> 1. the terms end, with all watches and passes
//!             2. the leases are given back, and the last events are written
//!             3. the endpoints end
//! ```

mod endpoints;
mod running;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio_util::sync::CancellationToken;

use self::endpoints::ControllersView;
use self::running::{Process, RunningController};
use super::admin::{AdminError, AdminServer};
use super::certificates::{ClientCredentials, ClientError, ClientSettings, DIRECTORY};
use super::cli::{ControllerKind, ControllersArgs};
use super::logging;
use super::program::Program;
use super::root::{DefaultDirectories, RootDirectory, RootError};
use super::run::admin_server;
use super::run::signals::Signals;
use podwright_metrics::{ControllersMetrics, Metrics};

/// Why the controllers cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControllersError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error(transparent)]
    Cluster(#[from] ClientError),
    #[error("cannot choose the identity of this replica")]
    Identity(#[source] io::Error),
    #[error("cannot install signal handlers")]
    Signals(#[source] io::Error),
    #[error("cannot start threads")]
    Runtime(#[source] io::Error),
}

/// Runs the controllers and returns the exit code.
///
/// # Errors
/// [`ControllersError`] if they cannot start.
pub(crate) fn run(args: ControllersArgs) -> Result<ExitCode, ControllersError> {
    let root = match &args.root {
        Some(root) => root.clone(),
        None => DefaultDirectories::of_process().root_of_controllers()?,
    };
    let root = RootDirectory::lock(&root)?;
    let admin = admin_server(&args.admin, &root)?;
    logging::to_stdout(args.log_format);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(ControllersError::Runtime)?;
    // The endpoints stay on this thread.
    let code = runtime.block_on(LocalSet::new().run_until(serve(args, root.path(), admin)));
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

async fn serve(args: ControllersArgs, root: &Path, admin: Option<AdminServer>) -> Result<ExitCode, ControllersError> {
    let mut signals = Signals::listen().map_err(ControllersError::Signals)?;
    let settings = ClientSettings {
        node: String::new(),
        directory: root.join(DIRECTORY),
        kubeconfig: args.kubeconfig.clone(),
        bootstrap: None,
    };
    let (client, mut credentials) = ClientCredentials::open(settings).await?;
    let metrics = ControllersMetrics::new();
    let identity = running::identity().map_err(ControllersError::Identity)?;
    let stop = CancellationToken::new();
    let advertised = args.advertise_address.as_ref().map(ToString::to_string);
    let address = advertised.or_else(|| running::address(args.admin.admin));
    let process = Process { args: &args, client, metrics: metrics.clone(), identity, address, stop: stop.clone() };
    let enabled: Vec<_> = args.enabled().collect();
    let off = args.controllers.iter().filter(|kind| !enabled.contains(kind));
    off.for_each(|kind| tracing::warn!(controller = kind.name(), "controller is not started: its feature gate is off"));
    let started = enabled.iter().map(|kind| RunningController::start(*kind, &process));
    let (controllers, views): (Vec<_>, Vec<_>) = started.unzip();
    let view = ControllersView { metrics, controllers: views.into() };
    let served = CancellationToken::new();
    let admin = admin
        .map(|admin| spawn_local(admin.serve_routes(Program::Controllers, endpoints::routes(view), served.clone())));
    let names: Vec<_> = enabled.iter().map(ControllerKind::to_string).collect();
    tracing::info!(controllers = names.join(","), "controllers started");

    let of_certificates = Metrics::new().certificates;
    let follow_credentials = credentials.run(&of_certificates);
    let work = async {
        let signal = signals.next().await;
        tracing::info!(signal = signal.name, "stopping; a second signal ends the controllers at once");
        stop_all(signals, Tasks { stop, controllers, served, admin }).await;
    };
    tokio::select! {
        () = follow_credentials => Ok(ExitCode::SUCCESS),
        () = work => Ok(ExitCode::SUCCESS),
    }
}

/// Stops so that each leader has ended its work before the next one can begin.
async fn stop_all(mut signals: Signals, tasks: Tasks) {
    let ended = async {
        tasks.stop.cancel();
        join_all(tasks.controllers.into_iter().map(RunningController::stopped)).await;
        tasks.served.cancel();
        if let Some(admin) = tasks.admin {
            let _files_removed = admin.await;
        }
    };
    tokio::select! {
        () = ended => {}
        second = signals.next_after_stop() => std::process::exit(second.exit_code()),
    }
}

/// The tasks of this process, with the tokens that stop them.
struct Tasks {
    stop: CancellationToken,
    controllers: Vec<RunningController>,
    served: CancellationToken,
    admin: Option<JoinHandle<()>>,
}
