//! The process of a controller.

use std::env;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use podwright::adapters::kube::{ClaimTerms, DeviceTaintTerms, KubeDeviceTaints, KubeResourceClaims, connect};
use podwright::metrics::ControllersMetrics;
use podwright::ports::{SystemClock, TokioClock};
use podwright_controllers::claim_controller::{ClaimControllerConfig, ClaimControllerPorts};
use podwright_controllers::device_taint_controller::{DeviceTaintControllerConfig, DeviceTaintControllerPorts};
use podwright_controllers::leader_election::{Leadership, LeaseGuard};
use podwright_stand_in::{StandIn, Verb};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// The environment variable that makes a process of this bench the controller.
pub(crate) const KUBECONFIG: &str = "PODWRIGHT_BENCH_KUBECONFIG";
/// The environment variable that names the controller.
const CONTROLLER: &str = "PODWRIGHT_BENCH_CONTROLLER";
/// How often the requests of the controller are read.
const POLL: Duration = Duration::from_millis(2);

/// A controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Claims,
    Taints,
}

impl Which {
    const fn name(self) -> &'static str {
        match self {
            Which::Claims => "claims",
            Which::Taints => "taints",
        }
    }

    /// The number of its watches.
    const fn watches(self) -> usize {
        match self {
            Which::Claims => 3,
            Which::Taints => 4,
        }
    }
}

/// Runs the controller until standard input ends, and prints its largest RSS in KiB and its CPU time in milliseconds.
pub(crate) fn run(kubeconfig: &Path) -> ExitCode {
    let is_taints = env::var(CONTROLLER).is_ok_and(|name| name == Which::Taints.name());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads can be started");
    runtime.block_on(async {
        let client = connect(kubeconfig).await.expect("the kubeconfig is one of the stand-in");
        let metrics = ControllersMetrics::new();
        let wall = Arc::new(SystemClock::new());
        let (_leads, leadership) = watch::channel(Leadership::Leading { term: 1 });
        let (stop, lease) = (CancellationToken::new(), LeaseGuard::without_election());
        let terms = if is_taints {
            let api = Arc::new(KubeDeviceTaints::new(client.clone(), wall.clone(), metrics.events.clone()));
            let ports = DeviceTaintControllerPorts { api, clock: wall, metrics, lease };
            let terms = DeviceTaintTerms::new(client, DeviceTaintControllerConfig::default(), ports);
            tokio::spawn(terms.run(leadership, stop.clone()))
        } else {
            let api = Arc::new(KubeResourceClaims::new(client.clone(), wall, metrics.events.clone()));
            let ports = ClaimControllerPorts { api, clock: Arc::new(TokioClock::new()), metrics, lease };
            let terms = ClaimTerms::new(client, ClaimControllerConfig::default(), ports);
            let run = terms.run(leadership, stop.clone());
            tokio::spawn(async move {
                let _is_given_back = run.await;
            })
        };
        let ended = tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new()));
        let _closed = ended.await;
        stop.cancel();
        let _stopped = terms.await;
    });
    println!("{} {}", peak_kib(), cpu_ms());
    ExitCode::SUCCESS
}

/// The largest RSS of this process in KiB.
pub(crate) fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    peak.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

/// The CPU time of this process in milliseconds.
fn cpu_ms() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields follow the name of the program in brackets. Times are in hundredths of a second on Linux.
    let fields: Vec<i64> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // The state, which is the first field, is no number.
    fields.get(10..12).map_or(0, |times| u64::try_from(times.iter().sum::<i64>() * 10).unwrap_or(0))
}

/// The figures of a process that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) rss_mib: f64,
    pub(crate) cpu_seconds: f64,
}

/// The process of a controller.
pub(crate) struct Controller {
    which: Which,
    child: Child,
    _kubeconfig: tempfile::TempDir,
}

impl Controller {
    pub(crate) fn start(server: &StandIn, which: Which) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = dir.path().join("kubeconfig");
        server.write_kubeconfig(&path, &server.admin_token()).map_err(|error| error.to_string())?;
        let program = env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.env(KUBECONFIG, &path).env(CONTROLLER, which.name()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|error| error.to_string())?;
        Ok(Controller { which, child, _kubeconfig: dir })
    }

    /// Waits until the controller watches.
    pub(crate) async fn watches(&self, server: &StandIn) -> Result<(), String> {
        let started = Instant::now();
        let watches = || server.requests().iter().filter(|served| served.verb == Some(Verb::Watch)).count();
        while watches() < self.which.watches() {
            if started.elapsed() > Duration::from_secs(60) {
                return Err("the controller does not watch".to_owned());
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Ends the controller.
    pub(crate) fn end(mut self) -> Result<Usage, String> {
        drop(self.child.stdin.take());
        let output = self.child.wait_with_output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        match numbers[..] {
            [kib, ms] => Ok(Usage { rss_mib: kib / 1024.0, cpu_seconds: ms / 1000.0 }),
            _ => Err(format!("the controller printed {text:?}")),
        }
    }
}
