//! One run of the real agent: write manifests, wait until the pods run, measure the idle agent, remove the manifests.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::instance::Instance;
use super::{Error, PATIENCE, image, wait};

/// The figures of one run of the agent.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// Seconds from the start of writing the manifests until a client of `/watch` gets the pod's phase `Running`. The agent
    /// sends at most one event every 0.3 s.
    pub(crate) running_p50_s: f64,
    pub(crate) running_p99_s: f64,
    pub(crate) running_all_s: f64,
    /// CPU time of the agent in seconds, from its start until all pods run.
    pub(crate) cpu_s: f64,
    pub(crate) rss_mib: f64,
    pub(crate) idle_millicores: f64,
    /// Seconds from the removal of the manifests until the agent knows no pod.
    pub(crate) gone_all_s: f64,
}

/// An agent that is killed when this value is dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // The agent may have ended by itself.
        let _gone = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// One change that the agent reported.
enum PodChange {
    Pod { name: String, phase: String },
    Gone { left: usize },
}

pub(crate) fn run(instance: &Instance, n: usize, rest: Duration) -> Result<Figures, Error> {
    let root = instance.directory().join("agent");
    fs::remove_dir_all(&root).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    let manifests = root.join("manifests");
    fs::create_dir_all(&manifests)?;
    let log = root.join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_podwright"));
    command.arg("run").arg("--root").arg(root.join("root")).arg("--manifests").arg(&manifests);
    command.arg(format!("--runtime=cri=unix://{}", instance.socket().display()));
    command.args(["--admin", "127.0.0.1:0", "--node-name", "bench", "--cgroup-root=/podwright-tests"]);
    command.stdin(Stdio::null()).stdout(fs::File::create(&log)?);
    let agent = Agent(command.spawn()?);
    wait("the agent answers", || Ok(fs::read_to_string(&log)?.contains("admin socket is served").then_some(())))?;
    let socket = root.join("root/admin.sock");
    let watch = Watch::open(&socket)?;
    let begin = Instant::now();
    for number in 0..n {
        write_manifest(&root, &manifests, number)?;
    }
    let mut running: Vec<f64> = until(&watch.changes, n, begin)?;
    running.sort_by(f64::total_cmp);
    let cpu_s = cpu(&agent)?.as_secs_f64();
    // A client costs the agent CPU time, so it disconnects.
    drop(watch);
    // The agent completes the work that the start left.
    sleep(rest / 5);
    let (before, start) = (cpu(&agent)?, Instant::now());
    sleep(rest);
    let idle = (cpu(&agent)? - before).as_secs_f64() / start.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
    let rss_mib = rss(&agent)?;
    let watch = Watch::open(&socket)?;
    // The agent does not report pods as gone that went before the first event.
    watch.changes.recv_timeout(PATIENCE)?;
    let begin = Instant::now();
    for number in 0..n {
        fs::remove_file(manifests.join(format!("{number}.yaml")))?;
    }
    loop {
        match watch.changes.recv_timeout(PATIENCE)? {
            PodChange::Gone { left: 0 } => break,
            PodChange::Gone { .. } | PodChange::Pod { .. } => {}
        }
    }
    let at = |share: f64| running[((running.len() as f64 * share).ceil() as usize).clamp(1, running.len()) - 1];
    Ok(Figures {
        running_p50_s: at(0.5),
        running_p99_s: at(0.99),
        running_all_s: at(1.0),
        cpu_s,
        rss_mib,
        idle_millicores: idle * 1000.0,
        gone_all_s: begin.elapsed().as_secs_f64(),
    })
}

fn write_manifest(root: &Path, manifests: &Path, number: usize) -> Result<(), Error> {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: bench-{number}\nspec:\n  hostNetwork: true\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - name: main\n    image: {}\n    \
         imagePullPolicy: IfNotPresent\n    command: [sleep, \"100000\"]\n",
        image::BUSYBOX
    );
    let written = root.join("written");
    fs::write(&written, text)?;
    fs::rename(written, manifests.join(format!("{number}.yaml")))?;
    Ok(())
}

/// Returns for each pod the seconds from `begin` until it was first reported as running.
fn until(changes: &Receiver<PodChange>, n: usize, begin: Instant) -> Result<Vec<f64>, Error> {
    let mut running = HashMap::new();
    while running.len() < n {
        let left = PATIENCE.checked_sub(begin.elapsed()).ok_or("the pods do not all run")?;
        if let PodChange::Pod { name, phase } = changes.recv_timeout(left)?
            && phase == "Running"
        {
            running.entry(name).or_insert_with(|| begin.elapsed().as_secs_f64());
        }
    }
    Ok(running.into_values().collect())
}

/// The changes that the agent sends to its page, until this value is dropped.
struct Watch {
    stream: UnixStream,
    changes: Receiver<PodChange>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The agent may have ended.
        let _gone = self.stream.shutdown(Shutdown::Both);
    }
}

impl Watch {
    fn open(socket: &Path) -> Result<Self, Error> {
        let mut stream = UnixStream::connect(socket)?;
        write!(stream, "GET /watch HTTP/1.0\r\n\r\n")?;
        let (to, changes) = channel();
        let lines = BufReader::new(stream.try_clone()?).lines();
        thread::spawn(move || pass_on(lines, &to));
        Ok(Watch { stream, changes })
    }
}

/// Sends each change of the event stream to the channel. Ends when the stream or the channel is closed.
fn pass_on(lines: Lines<BufReader<UnixStream>>, to: &Sender<PodChange>) {
    let mut pods = HashSet::new();
    for line in lines.map_while(Result::ok) {
        let Some(event) = line.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok()) else {
            continue;
        };
        for row in event["rows"].as_array().into_iter().flatten() {
            let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
            pods.insert(text("uid"));
            if to.send(PodChange::Pod { name: text("name"), phase: text("phase") }).is_err() {
                return;
            }
        }
        for uid in event["gone"].as_array().into_iter().flatten() {
            pods.remove(uid.as_str().unwrap_or_default());
            if to.send(PodChange::Gone { left: pods.len() }).is_err() {
                return;
            }
        }
    }
}

/// CPU time of all threads of the agent, including those that have ended, in steps of 10 ms.
fn cpu(agent: &Agent) -> Result<Duration, Error> {
    let text = fs::read_to_string(format!("/proc/{}/stat", agent.0.id()))?;
    // The process name may contain spaces. The text after it begins with the third field of proc_pid_stat(5).
    let (_, fields) = text.rsplit_once(')').ok_or("the kernel writes no name")?;
    let ticks: Vec<u64> = fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(Duration::from_secs(ticks.iter().sum()) / u32::try_from(rustix::param::clock_ticks_per_second())?)
}

fn rss(agent: &Agent) -> Result<f64, Error> {
    let text = fs::read_to_string(format!("/proc/{}/status", agent.0.id()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("the kernel writes no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<f64>()? / 1024.0)
}
