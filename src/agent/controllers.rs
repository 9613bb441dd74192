//! `podwright controllers`: runs controllers of the control plane until a signal arrives.
//!
//! ```text
//!  lease ──> election ──leads──> terms: a controller and its watches while this replica leads
//!                 └──────────────> admin: /readyz, /metrics
//!  signal ──> 1. the terms end, with all watches and passes  2. the lease is given back  3. the endpoints end
//! ```

mod endpoints;

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::endpoints::ControllersView;
use super::admin::{AdminError, AdminServer};
use super::certificates::{ClientCredentials, ClientError, ClientSettings};
use super::cli::{ControllerKind, ControllersArgs};
use super::logging;
use super::machine;
use super::root::{DefaultDirectories, RootDirectory, RootError};
use super::run::admin_server;
use super::run::signals::Signals;
use crate::actors::controllers::claim_controller::{ClaimControllerConfig, ClaimControllerPorts};
use crate::actors::controllers::leader_election::{Candidate, Elector, Leadership, LeaseGuard, LeaseName};
use crate::actors::controllers::resource_claim::CONTROLLER_NAME;
use crate::actors::ports::{SystemClock, TokioClock};
use crate::adapters::kube::{ClaimTerms, KubeLeases, KubeResourceClaims};
use crate::metrics::{ControllersMetrics, Metrics};

/// A random UUID of the kernel.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";
/// How long the end of a controller may take.
const STOP: Duration = Duration::from_secs(5);

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
        root: root.to_owned(),
        kubeconfig: args.kubeconfig.clone(),
        bootstrap: None,
    };
    let (client, credentials) = ClientCredentials::open(settings).await?;
    let metrics = ControllersMetrics::new();

    let name = LeaseName { namespace: args.leader_elect_resource_namespace.clone(), name: CONTROLLER_NAME.to_owned() };
    let (stop, resign) = (CancellationToken::new(), CancellationToken::new());
    let (leadership, lease, election) = if args.leader_elect {
        let candidate = Candidate::new(identity().map_err(ControllersError::Identity)?, name.clone(), args.timing());
        let leases = Arc::new(KubeLeases::new(client.clone(), &name));
        let elector = Elector::new(leases, candidate, Arc::new(SystemClock::new()));
        (elector.leadership(), elector.guard(), tokio::spawn(elector.run(resign.clone())))
    } else {
        let (leads, leadership) = watch::channel(Leadership::Leading { term: 1 });
        let resign = resign.clone();
        let kept = async move {
            resign.cancelled().await;
            drop(leads);
        };
        (leadership, LeaseGuard::without_election(), tokio::spawn(kept))
    };
    tokio::spawn(stop.clone().run_until_cancelled_owned(count_leadership(metrics.clone(), leadership.clone())));

    // The events of controllers have times of the wall clock.
    let api = KubeResourceClaims::new(client.clone(), Arc::new(SystemClock::new()), metrics.events.clone());
    let clock = Arc::new(TokioClock::new());
    let ports = ClaimControllerPorts { api: Arc::new(api), clock, metrics: metrics.clone(), lease };
    let config = ClaimControllerConfig { features: args.features(), workers: args.concurrent_resourceclaim_syncs };
    let terms = ClaimTerms::new(client, config, ports);
    let view = ControllersView {
        metrics,
        leadership: leadership.clone(),
        is_elected: args.leader_elect,
        controller: terms.current(),
        problems: terms.problems(),
    };
    let terms = tokio::spawn(terms.run(leadership, stop.clone()));
    let served = CancellationToken::new();
    let admin = admin.map(|admin| spawn_local(admin.serve_routes(endpoints::routes(view), served.clone())));
    let controllers: Vec<_> = args.controllers.iter().map(ControllerKind::to_string).collect();
    tracing::info!(controllers = controllers.join(","), "controllers started");

    let follow_credentials = credentials.run(Metrics::new().certificates);
    let work = async {
        let signal = signals.next().await;
        tracing::info!(signal = signal.name, "stopping; a second signal ends the controllers at once");
        stop_all(signals, Tasks { stop, terms, resign, election, served, admin }).await;
    };
    tokio::select! {
        () = follow_credentials => Ok(ExitCode::SUCCESS),
        () = work => Ok(ExitCode::SUCCESS),
    }
}

/// Stops in an order in which two leaders never work at the same time.
async fn stop_all(mut signals: Signals, tasks: Tasks) {
    let ended = async {
        tasks.stop.cancel();
        // The lease is given back only after all work of this leader has ended.
        match timeout(STOP, tasks.terms).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                tracing::warn!("the API server may still perform a create, so the lease is not given back");
                return;
            }
            Ok(Err(_)) | Err(_) => {
                tracing::warn!("the controllers have not stopped in time, so the lease is not given back");
                return;
            }
        }
        tasks.resign.cancel();
        let _ended = tasks.election.await;
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
    terms: JoinHandle<bool>,
    resign: CancellationToken,
    election: JoinHandle<()>,
    served: CancellationToken,
    admin: Option<JoinHandle<()>>,
}

/// A name that no other process has, also not an earlier one on this machine.
fn identity() -> io::Result<String> {
    let random = fs::read_to_string(RANDOM)?;
    Ok(format!("{}_{}", machine::node_name(), random.trim()))
}

/// Counts the changes of the leadership until the election ends.
async fn count_leadership(metrics: ControllersMetrics, mut leadership: watch::Receiver<Leadership>) {
    loop {
        let leads = leadership.borrow_and_update().is_leading();
        metrics.leader_election.leads(CONTROLLER_NAME, leads);
        if leadership.changed().await.is_err() {
            return;
        }
    }
}
