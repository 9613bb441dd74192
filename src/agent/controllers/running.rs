//! One controller of the process, with its election.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use kube::Client;
use podwright_controllers::claim_controller::{ClaimControllerConfig, ClaimControllerPorts};
use podwright_controllers::device_taint_controller::{DeviceTaintControllerConfig, DeviceTaintControllerPorts};
use podwright_controllers::leader_election::{Candidate, Elector, Leadership, LeaseGuard, LeaseName};
use podwright_controllers::ports::device_taints::DeviceTaintApi as _;
use podwright_controllers::ports::resource_claims::ResourceClaimApi as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::endpoints::{ControllerView, CurrentController};
use crate::adapters::kube::{ClaimTerms, DeviceTaintTerms, KubeDeviceTaints, KubeLeases, KubeResourceClaims};
use crate::agent::cli::{AdminAddress, ControllerKind, ControllersArgs};
use crate::agent::machine;
use podwright_metrics::ControllersMetrics;
use podwright_ports::{SystemClock, TokioClock, WallClock};

/// The kernel returns a new random UUID for each read of this file.
const RANDOM_UUID: &str = "/proc/sys/kernel/random/uuid";
/// How long the end of a controller may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the write of the last events may take. Together with [`STOP_TIMEOUT`], this is less than the grace period of 15 s in the
/// manifests of `examples/deploy`.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(8);

/// What the controllers of this process share.
pub(super) struct Process<'a> {
    pub(super) args: &'a ControllersArgs,
    pub(super) client: Client,
    pub(super) metrics: ControllersMetrics,
    /// The identity of this replica in the elections.
    pub(super) identity: String,
    /// Where the admin endpoints of this replica are reachable from other machines.
    pub(super) address: Option<String>,
    /// Ends the work of all controllers.
    pub(super) stop: CancellationToken,
}

/// A controller that runs.
pub(super) struct RunningController {
    name: &'static str,
    /// The task that runs the terms. It returns whether the lease may be given back.
    terms: JoinHandle<bool>,
    election: Election,
    /// Writes the last events. Returns how many were not written in time.
    events: BoxFuture<'static, usize>,
}

impl RunningController {
    /// Starts a controller. Each controller has a lease of its own, so that another replica may lead another controller.
    pub(super) fn start(kind: ControllerKind, process: &Process<'_>) -> (Self, ControllerView) {
        let election = Election::start(kind.name(), process);
        let (args, client, stop) = (process.args, process.client.clone(), process.stop.clone());
        let (metrics, lease) = (process.metrics.clone(), election.guard.clone());
        let leadership = election.leadership.clone();
        // Events have wall-clock times.
        let wall = Arc::new(SystemClock::new());
        let (terms, events, current, problems) = match kind {
            ControllerKind::Resourceclaim => {
                let api = Arc::new(KubeResourceClaims::new(client.clone(), wall, metrics.events.clone()));
                let clock = Arc::new(TokioClock::new());
                let ports = ClaimControllerPorts { api: api.clone(), clock, metrics, lease };
                let config = ClaimControllerConfig {
                    features: args.features(),
                    workers: args.concurrent_resourceclaim_syncs,
                    ..ClaimControllerConfig::default()
                };
                let terms = ClaimTerms::new(client, config, ports);
                let (current, problems) = (CurrentController::Claims(terms.current()), terms.problems());
                let events = async move { api.close_events(EVENTS_TIMEOUT).await }.boxed();
                (tokio::spawn(terms.run(leadership, stop)), events, current, problems)
            }
            ControllerKind::DeviceTaintEviction => {
                let api = Arc::new(KubeDeviceTaints::new(client.clone(), wall, metrics.events.clone()));
                // The times of taints are those of the API server, so the controller follows the wall clock also when it is set back.
                let clock = Arc::new(WallClock);
                let ports = DeviceTaintControllerPorts { api: api.clone(), clock, metrics, lease };
                let config = DeviceTaintControllerConfig {
                    settings: args.taint_settings(),
                    workers: args.concurrent_device_taint_eviction_syncs,
                };
                let terms = DeviceTaintTerms::new(client, config, ports);
                let (current, problems) = (CurrentController::Taints(terms.current()), terms.problems());
                let events = async move { api.close_events(EVENTS_TIMEOUT).await }.boxed();
                // A late deletion has the UID of its pod as precondition, so the lease may always be given back.
                let run = async move {
                    terms.run(leadership, stop).await;
                    true
                };
                (tokio::spawn(run), events, current, problems)
            }
        };
        let view = ControllerView {
            kind,
            leadership: election.leadership.clone(),
            is_elected: args.leader_elect,
            current,
            problems,
        };
        (RunningController { name: kind.name(), terms, election, events }, view)
    }

    /// Waits for the end of the work, gives the lease back, and writes the last events. The next leader does not wait for these events.
    pub(super) async fn stopped(self) {
        let keeps_lease = match timeout(STOP_TIMEOUT, self.terms).await {
            Ok(Ok(true)) => None,
            Ok(Ok(false)) => Some("the API server may still perform a create"),
            Ok(Err(_)) | Err(_) => Some("the controller has not stopped in time"),
        };
        match keeps_lease {
            None => self.election.resign.cancel(),
            Some(reason) => {
                tracing::warn!(controller = self.name, reason, "the lease is not given back");
                self.election.task.abort();
            }
        }
        let (_ended, unwritten) = tokio::join!(self.election.task, self.events);
        if unwritten > 0 {
            tracing::warn!(controller = self.name, events = unwritten, "not all events were written in time");
        }
    }
}

/// The election of one controller.
struct Election {
    leadership: watch::Receiver<Leadership>,
    guard: LeaseGuard,
    /// Gives the lease back.
    resign: CancellationToken,
    task: JoinHandle<()>,
}

impl Election {
    fn start(name: &'static str, process: &Process<'_>) -> Self {
        let (args, resign) = (process.args, CancellationToken::new());
        let (leadership, guard, task) = if args.leader_elect {
            let lease = LeaseName { namespace: args.leader_elect_resource_namespace.clone(), name: name.to_owned() };
            let candidate = Candidate::new(process.identity.clone(), lease.clone(), args.timing());
            let candidate = candidate.with_address(process.address.clone());
            let leases = Arc::new(KubeLeases::new(process.client.clone(), &lease));
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
        let counted = count_leadership(name, process.metrics.clone(), leadership.clone());
        tokio::spawn(process.stop.clone().run_until_cancelled_owned(counted));
        Election { leadership, guard, resign, task }
    }
}

/// Counts the changes of the leadership until the election ends.
async fn count_leadership(
    name: &'static str,
    metrics: ControllersMetrics,
    mut leadership: watch::Receiver<Leadership>,
) {
    loop {
        let leads = leadership.borrow_and_update().is_leading();
        metrics.leader_election.leads(name, leads);
        if leadership.changed().await.is_err() {
            return;
        }
    }
}

/// An identity that no other process has, not even an earlier process of this machine.
///
/// # Errors
/// The error of the file with a random UUID.
pub(super) fn identity() -> io::Result<String> {
    let random = fs::read_to_string(RANDOM_UUID)?;
    Ok(format!("{}_{}", machine::node_name(), random.trim()))
}

/// Where the admin endpoints are reachable from other machines. `None` if they are not, or if the system chooses the port.
pub(super) fn address(admin: AdminAddress) -> Option<String> {
    let AdminAddress::Listen(address) = admin else { return None };
    let ip = match address.ip() {
        ip if ip.is_loopback() => return None,
        // An IPv6 socket that listens on all addresses has those of IPv4 too.
        ip if ip.is_unspecified() => machine::host_ips().into_iter().find(|own| own.is_ipv4() || ip.is_ipv6())?,
        ip => ip,
    };
    (address.port() != 0).then(|| format!("https://{}", SocketAddr::new(ip, address.port())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_that_other_machines_reach_is_written_to_the_lease() {
        for (listens, expected) in [
            ("127.0.0.1:10255", None),
            ("[::1]:10255", None),
            ("10.0.0.5:0", None),
            ("10.0.0.5:10255", Some("https://10.0.0.5:10255")),
            ("[fd00::5]:10255", Some("https://[fd00::5]:10255")),
        ] {
            assert_eq!(address(AdminAddress::Listen(listens.parse().unwrap())).as_deref(), expected, "{listens}");
        }
        assert_eq!(address(AdminAddress::Off), None);
        let own = machine::host_ips().into_iter().find(|own| own.is_ipv4());
        let expected = own.map(|ip| format!("https://{ip}:10255"));
        assert_eq!(address(AdminAddress::Listen("0.0.0.0:10255".parse().unwrap())), expected);
    }
}
