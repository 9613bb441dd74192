//! One container of the process runtime, in memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_model::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use podwright_model::time::Time;
use podwright_ports::{AppliedSettings, ContainerState, ContainerStatus, LinuxUser, RuntimePodContainer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, pidfd_send_signal, waitid,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::files::ContainerFiles;
use super::record::{ContainerRecord, ExitRecord, StartedRecord, User};
use super::stats::HighestCounts;

/// One container. A container runs at most once; the next attempt is another container.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: ContainerId,
    pub(super) sandbox: SandboxId,
    pub(super) uid: PodUid,
    pub(super) name: ContainerName,
    pub(super) record: ContainerRecord,
    pub(super) files: ContainerFiles,
    pub(super) run: Mutex<RunState>,
    /// The time at which the container is killed; `None` until a stop is requested.
    pub(super) stop: Mutex<Option<Instant>>,
    /// What its processes have used, as last measured.
    pub(super) counts: Mutex<HighestCounts>,
    /// Notifies waiters when `run` or `stop` changes.
    pub(super) changed: Notify,
}

/// The state of a container's run.
#[derive(Clone, Debug)]
pub(super) enum RunState {
    /// An earlier agent started the container, and this agent does not know yet whether it runs.
    Adopting,
    Created,
    /// The agent is spawning a shim, or has spawned one that has not yet reported that it executed the command.
    Starting,
    Running {
        started: StartedRecord,
        shim: Shim,
    },
    Exited {
        started: Option<StartedRecord>,
        exit: Box<ExitRecord>,
    },
}

impl RunState {
    pub(super) fn state(&self) -> ContainerState {
        match self {
            RunState::Adopting => ContainerState::Unknown,
            RunState::Created | RunState::Starting => ContainerState::Created,
            RunState::Running { .. } => ContainerState::Running,
            RunState::Exited { .. } => ContainerState::Exited,
        }
    }
}

impl Container {
    /// The first process of the container's PID namespace, if the container runs and has one of its own.
    pub(super) fn init(&self) -> Option<i32> {
        match &*self.run.lock() {
            RunState::Running { started, .. } => started.init,
            RunState::Adopting | RunState::Created | RunState::Starting | RunState::Exited { .. } => None,
        }
    }

    pub(super) fn new(record: ContainerRecord, files: ContainerFiles, run: RunState) -> Arc<Self> {
        Arc::new(Container {
            id: record.id.as_str().into(),
            sandbox: record.sandbox.as_str().into(),
            uid: record.uid.as_str().into(),
            name: record.container.as_str().into(),
            record,
            files,
            run: Mutex::new(run),
            stop: Mutex::new(None),
            counts: Mutex::default(),
            changed: Notify::new(),
        })
    }

    pub(super) fn state(&self) -> ContainerState {
        self.run.lock().state()
    }

    pub(super) fn set(&self, run: RunState) {
        *self.run.lock() = run;
        self.changed.notify_waiters();
    }

    /// Waits until `condition` returns a value for the state of the run. Cancel safe.
    pub(super) async fn wait_for<T>(&self, mut condition: impl FnMut(&RunState) -> Option<T>) -> T {
        loop {
            // The waiter is registered before the state is read, so a change between the read and the wait is not missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(answer) = condition(&self.run.lock()) {
                return answer;
            }
            changed.await;
        }
    }

    /// Waits until the container has exited. Cancel safe.
    pub(super) async fn ended(&self) {
        self.wait_for(|run| matches!(run, RunState::Exited { .. }).then_some(())).await;
    }

    pub(super) fn created_at(&self) -> Time {
        Time::from_nanos(self.record.created_at)
    }

    pub(super) fn listing(&self) -> RuntimePodContainer {
        RuntimePodContainer {
            id: self.id.clone(),
            sandbox: self.sandbox.clone(),
            name: self.name.clone(),
            state: self.state(),
            attempt: self.record.restart_count,
            created_at: self.created_at(),
        }
    }

    pub(super) fn status(&self) -> ContainerStatus {
        let run = self.run.lock().clone();
        let state = run.state();
        let (started, exit) = match run {
            RunState::Adopting | RunState::Created | RunState::Starting => (None, None),
            RunState::Running { started, .. } => (Some(started), None),
            RunState::Exited { started, exit } => (started, Some(*exit)),
        };
        let finished_at = exit.as_ref().map(|exit| Time::from_nanos(exit.finished_at));
        let exit_code = exit.as_ref().map_or(0, |exit| exit.exit_code);
        let signal = exit.as_ref().and_then(|exit| exit.signal);
        let (reason, message) = exit.map(|exit| (exit.reason, exit.message)).unwrap_or_default();
        ContainerStatus {
            id: self.id.clone(),
            sandbox: self.sandbox.clone(),
            name: self.name.clone(),
            restart_count: self.record.restart_count,
            state,
            created_at: self.created_at(),
            started_at: started.map(|started| Time::from_nanos(started.started_at)),
            finished_at,
            exit_code,
            signal,
            reason,
            message,
            spec_hash: self.record.spec_hash,
            image: self.record.image.clone(),
            image_id: self.record.image_id.clone(),
            applied: self.record.user.as_ref().map(applied),
        }
    }
}

/// The applied settings that the status of a container reports: the user and all groups of its command. The supplementary groups
/// include the primary group, as a container runtime reports them.
fn applied(user: &User) -> Box<AppliedSettings> {
    let mut groups: Vec<i64> = user.groups.iter().chain([&user.gid]).map(|gid| i64::from(*gid)).collect();
    groups.sort_unstable();
    groups.dedup();
    let user = LinuxUser { uid: user.uid.into(), gid: user.gid.into(), groups };
    Box::new(AppliedSettings { user: Some(user), ..AppliedSettings::default() })
}

/// A shim process.
#[derive(Clone, Debug)]
pub(super) struct Shim {
    pid: Pid,
    /// Becomes readable when the process ends. `None` only for a child of this process, if the system had no descriptor left.
    pidfd: Option<Arc<OwnedFd>>,
}

impl Shim {
    /// A shim that this process spawned and did not reap, so its pid was not reused.
    pub(super) fn of_child(child: &Child) -> Self {
        let pid = Pid::from_child(child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        if let Err(error) = &pidfd {
            // The shim runs its container. Without it, the agent would have to kill a healthy container.
            tracing::warn!(%error, shim.pid = %pid, "cannot open a shim's process, continuing with its pid");
        }
        Shim { pid, pidfd: pidfd.ok().map(Arc::new) }
    }

    /// Opens a shim that is not a child of this process. The pid belongs to the shim if the container's lock is still held
    /// after this call.
    pub(super) fn open(pid: i32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Shim { pid, pidfd: Some(Arc::new(pidfd)) })
    }

    /// The descriptor that becomes readable when the process ends.
    pub(super) fn pidfd(&self) -> io::Result<Arc<OwnedFd>> {
        match &self.pidfd {
            Some(fd) => Ok(Arc::clone(fd)),
            // The process is a child that was not reaped yet.
            None => Ok(Arc::new(pidfd_open(self.pid, PidfdFlags::empty())?)),
        }
    }

    /// Whether the process has ended.
    pub(super) fn has_ended(&self) -> bool {
        match &self.pidfd {
            Some(fd) => poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&Timespec::default())) == Ok(1),
            None => !self.is_running_child(),
        }
    }

    fn is_running_child(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    pub(super) fn kill(&self) {
        // The only error is that the shim has ended by itself.
        let _ = match &self.pidfd {
            Some(fd) => pidfd_send_signal(fd, Signal::KILL),
            None if self.is_running_child() => kill_process(self.pid, Signal::KILL),
            None => Ok(()),
        };
    }

    /// Reaps the shim, so that it does not stay as a zombie. Does nothing for an adopted shim, which is another process's
    /// child.
    pub(super) fn reap(&self) {
        let shim = self.pidfd.as_ref().map_or(WaitId::Pid(self.pid), |fd| WaitId::PidFd(fd.as_fd()));
        let _ = waitid(shim, WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::start::ended;
    use crate::testing::is_alone;

    #[expect(clippy::zombie_processes, reason = "`reap` waits for the child through its pid")]
    #[tokio::test]
    async fn shim_is_watched_while_no_descriptor_is_left() {
        if !is_alone(concat!(module_path!(), "::shim_is_watched_while_no_descriptor_is_left")) {
            return;
        }
        let child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        let shim = Shim::of_child(&child);
        assert!(shim.pidfd.is_none());
        let early = tokio::time::timeout(std::time::Duration::from_millis(300), ended(&shim)).await;
        shim.kill();
        ended(&shim).await;
        shim.reap();
        setrlimit(Resource::Nofile, limit).unwrap();
        assert!(early.is_err(), "the shim runs");
        assert_eq!(
            waitid(WaitId::Pid(shim.pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).unwrap_err(),
            Errno::CHILD
        );
    }

    #[tokio::test]
    async fn shim_without_a_pidfd_is_watched_killed_and_reaped() {
        let spawn = || {
            let pid = std::process::Command::new("sleep").arg("1000").spawn().map(|child| Pid::from_child(&child));
            Shim { pid: pid.unwrap(), pidfd: None }
        };
        let (killed, running) = (spawn(), spawn());
        assert!(!killed.has_ended() && !running.has_ended());
        killed.kill();
        tokio::time::timeout(std::time::Duration::from_secs(60), ended(&killed)).await.expect("the end is not noticed");
        assert!(killed.has_ended() && !running.has_ended());
        for shim in [killed, running] {
            shim.kill();
            ended(&shim).await;
            shim.reap();
            let again = waitid(WaitId::Pid(shim.pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
            assert_eq!(again.unwrap_err(), Errno::CHILD);
        }
    }
}
