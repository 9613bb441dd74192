//! One run of an agent with manifests: write them, wait until the pods run, measure the idle agent, remove them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::agent::Agent;
use super::{Error, Instance, PATIENCE, at, image};

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

/// One change that the agent reported.
enum PodChange {
    Pod { name: String, phase: String },
    Gone { left: usize },
}

pub(crate) fn run(instance: &Instance, n: usize, rest: Duration) -> Result<Figures, Error> {
    let directory = Agent::directory(instance)?;
    let manifests = directory.join("manifests");
    fs::create_dir_all(&manifests)?;
    let agent = Agent::start(instance, directory.clone(), &["--manifests".as_ref(), manifests.as_os_str()])?;
    let socket = agent.socket();
    let watch = Watch::open(&socket)?;
    let begin = Instant::now();
    for number in 0..n {
        write_manifest(&directory, &manifests, number)?;
    }
    let mut running: Vec<f64> = until(&watch.changes, n, begin)?;
    running.sort_by(f64::total_cmp);
    let cpu_s = agent.cpu()?.as_secs_f64();
    // A client costs the agent CPU time, so it disconnects.
    drop(watch);
    let idle = agent.idle(rest)?;
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
    Ok(Figures {
        running_p50_s: at(&running, 0.5),
        running_p99_s: at(&running, 0.99),
        running_all_s: at(&running, 1.0),
        cpu_s,
        rss_mib: idle.rss_mib,
        idle_millicores: idle.millicores,
        gone_all_s: begin.elapsed().as_secs_f64(),
    })
}

fn write_manifest(directory: &Path, manifests: &Path, number: usize) -> Result<(), Error> {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: bench-{number}\nspec:\n  hostNetwork: true\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - name: main\n    image: {}\n    \
         imagePullPolicy: IfNotPresent\n    command: [sleep, \"100000\"]\n",
        image::BUSYBOX
    );
    let written = directory.join("written");
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
