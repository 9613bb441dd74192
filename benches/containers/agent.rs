//! The agent as a process: its start, CPU time and memory.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Error, Instance, wait};

/// An agent that is killed when this value is dropped.
pub(crate) struct Agent {
    process: Child,
    directory: PathBuf,
}

/// The cost of an agent whose pods run.
pub(crate) struct Idle {
    pub(crate) rss_mib: f64,
    pub(crate) millicores: f64,
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The agent may have ended by itself.
        let _gone = self.process.kill();
        let _ended = self.process.wait();
    }
}

impl Agent {
    /// An empty directory for an agent and its manifests.
    pub(crate) fn directory(instance: &Instance) -> Result<PathBuf, Error> {
        let directory = instance.directory().join("agent");
        fs::remove_dir_all(&directory).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        fs::create_dir_all(&directory)?;
        Ok(directory)
    }

    /// Starts an agent that has its state in this directory, and waits until it serves its admin socket.
    pub(crate) fn start(instance: &Instance, directory: PathBuf, flags: &[&OsStr]) -> Result<Self, Error> {
        let log = directory.join("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_podwright"));
        command.arg("run").arg("--root").arg(directory.join("root"));
        command.arg(format!("--runtime=cri=unix://{}", instance.socket().display()));
        command.args(["--admin", "127.0.0.1:0", "--node-name", "bench", "--cgroup-root", &instance.cgroup_root()]);
        // The disk of the machine that runs the bench may be full.
        command.args(["--eviction-hard", "", "--image-gc-high-threshold", "100"]);
        command.args(flags);
        command.stdin(Stdio::null()).stdout(fs::File::create(&log)?);
        let agent = Agent { process: command.spawn()?, directory };
        wait("the agent answers", || Ok(fs::read_to_string(&log)?.contains("admin socket is served").then_some(())))?;
        Ok(agent)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("root/admin.sock")
    }

    /// Measures the agent for the time `rest`, after it had a fifth of that time to complete the work that the start left.
    pub(crate) fn idle(&self, rest: Duration) -> Result<Idle, Error> {
        sleep(rest / 5);
        let (before, start) = (self.cpu()?, Instant::now());
        sleep(rest);
        let cpu = (self.cpu()? - before).as_secs_f64();
        Ok(Idle {
            rss_mib: self.rss()?,
            millicores: cpu / start.elapsed().as_secs_f64().max(f64::MIN_POSITIVE) * 1000.0,
        })
    }

    /// CPU time of all threads of the agent, including those that have ended, in steps of 10 ms.
    pub(crate) fn cpu(&self) -> Result<Duration, Error> {
        let text = fs::read_to_string(self.file("stat"))?;
        // The process name may contain spaces. The text after it begins with the third field of proc_pid_stat(5).
        let (_, fields) = text.rsplit_once(')').ok_or("the kernel writes no name")?;
        let ticks: Vec<u64> = fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
        Ok(Duration::from_secs(ticks.iter().sum()) / u32::try_from(rustix::param::clock_ticks_per_second())?)
    }

    fn rss(&self) -> Result<f64, Error> {
        let text = fs::read_to_string(self.file("status"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("the kernel writes no VmRSS")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse::<f64>()? / 1024.0)
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.process.id().to_string()).join(name)
    }
}
