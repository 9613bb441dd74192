//! The process of the controller.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use podwright::actors::controllers::claim_controller::{ClaimControllerConfig, ClaimControllerPorts};
use podwright::actors::controllers::leader_election::{Leadership, LeaseGuard};
use podwright::adapters::kube::{ClaimTerms, KubeResourceClaims, connect};
use podwright::metrics::ControllersMetrics;
use podwright::ports::{SystemClock, TokioClock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The environment variable that makes a process of this bench the controller.
pub(crate) const KUBECONFIG: &str = "PODWRIGHT_BENCH_KUBECONFIG";

/// Runs the controller until standard input ends, and prints its largest RSS in KiB.
pub(crate) fn run(kubeconfig: &Path) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads can be started");
    runtime.block_on(async {
        let client = connect(kubeconfig).await.expect("the kubeconfig is one of the stand-in");
        let metrics = ControllersMetrics::new();
        let wall = Arc::new(SystemClock::new());
        let api = Arc::new(KubeResourceClaims::new(client.clone(), wall, metrics.events.clone()));
        let lease = LeaseGuard::without_election();
        let ports = ClaimControllerPorts { api, clock: Arc::new(TokioClock::new()), metrics, lease };
        let (_leads, leadership) = watch::channel(Leadership::Leading { term: 1 });
        let stop = CancellationToken::new();
        let terms = ClaimTerms::new(client, ClaimControllerConfig::default(), ports);
        let terms = tokio::spawn(terms.run(leadership, stop.clone()));
        let ended = tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new()));
        let _closed = ended.await;
        stop.cancel();
        let _stopped = terms.await;
    });
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    println!("{}", peak.trim().trim_end_matches(" kB"));
    ExitCode::SUCCESS
}
