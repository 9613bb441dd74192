//! One container in memory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_actors::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use podwright_actors::ports::{ContainerState, ContainerStatus, RuntimePodContainer};
use podwright_actors::time::Time;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::files::ContainerFiles;
use super::record::{ContainerRecord, ExitRecord, StartedRecord};

/// One run of a container.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: ContainerId,
    pub(super) sandbox: SandboxId,
    pub(super) uid: PodUid,
    pub(super) name: ContainerName,
    pub(super) record: ContainerRecord,
    pub(super) files: ContainerFiles,
    pub(super) run: Mutex<RunState>,
    /// When it is to be killed, once somebody asked for a stop.
    pub(super) stop: Mutex<Option<Instant>>,
    /// Fires when `run` or `stop` changed.
    pub(super) changed: Notify,
}

/// Where the run stands.
#[derive(Clone, Debug)]
pub(super) enum RunState {
    Created,
    /// A shim was or will be spawned; the command was not executed yet, as far as is known.
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
            RunState::Created | RunState::Starting => ContainerState::Created,
            RunState::Running { .. } => ContainerState::Running,
            RunState::Exited { .. } => ContainerState::Exited,
        }
    }
}

impl Container {
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

    /// Waits until the run answers a question. Cancel safe.
    pub(super) async fn wait_for<T>(&self, mut question: impl FnMut(&RunState) -> Option<T>) -> T {
        loop {
            // Registered before the look, so that a change between look and wait is not missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(answer) = question(&self.run.lock()) {
                return answer;
            }
            changed.await;
        }
    }

    /// Waits until it has ended. Cancel safe.
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
            RunState::Created | RunState::Starting => (None, None),
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
        }
    }
}

/// A handle to a shim process: readable once it has ended.
#[derive(Clone, Debug)]
pub(super) struct Shim(Arc<OwnedFd>);

impl Shim {
    /// Takes hold of a process. The caller knows that the pid is the shim's: as its unreaped child, or by its lock.
    pub(super) fn open(pid: i32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(Shim(Arc::new(pidfd_open(pid, PidfdFlags::empty())?)))
    }

    pub(super) fn kill(&self) {
        // It may just have ended by itself.
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }

    /// Takes a child's exit status, so that it does not stay as a zombie. An adopted shim is somebody else's child.
    pub(super) fn reap(&self) {
        use std::os::fd::AsFd;
        let _ = waitid(WaitId::PidFd(self.0.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

impl AsRawFd for Shim {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
