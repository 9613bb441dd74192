//! The records of a file that outlives the agent. A write takes time, in which the agent may be killed.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_ports::{Checkpoint, CheckpointError, CheckpointWriter, OpenCheckpoint};

use super::faulty_ports::NODE;
use super::machine::Machine;
use super::scenario::{Fault, Moment, Op};

/// How long a write takes.
const SAVE: Duration = Duration::from_millis(20);

pub(super) struct Journal {
    machine: Arc<Machine>,
    /// The call of an append, which may get a fault.
    op: Op,
    /// What the records are, for the trace.
    what: &'static str,
    content: Arc<JournalContent>,
}

#[derive(Default)]
struct JournalContent {
    records: Mutex<Vec<String>>,
    /// Whether no append is under way, and none has failed or was cut short since the last full save.
    whole: AtomicBool,
    openings: AtomicUsize,
}

/// The writer of one opening of the journal.
struct JournalWriter {
    machine: Arc<Machine>,
    op: Op,
    what: &'static str,
    content: Arc<JournalContent>,
    opening: usize,
}

impl Journal {
    pub(super) fn new(machine: Arc<Machine>, op: Op, what: &'static str) -> Arc<Self> {
        Arc::new(Journal { machine, op, what, content: Arc::default() })
    }

    /// Whether no append is under way, and none has failed or was cut short since the last full save.
    pub(super) fn is_whole(&self) -> bool {
        self.content.whole.load(Ordering::Relaxed)
    }

    /// The records that a later agent reads.
    pub(super) fn records(&self) -> Vec<String> {
        self.content.records.lock().clone()
    }
}

impl Checkpoint for Journal {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        let Journal { machine, op, what, content } = self;
        content.whole.store(false, Ordering::Relaxed);
        let opening = content.openings.fetch_add(1, Ordering::Relaxed) + 1;
        let (machine, content) = (machine.clone(), content.clone());
        let writer = Box::new(JournalWriter { machine, op: *op, what, content, opening });
        Ok(OpenCheckpoint { records: self.records(), writer })
    }
}

impl JournalWriter {
    /// The writer of an earlier agent writes nothing.
    fn check_opening(&self) -> Result<(), CheckpointError> {
        if self.content.openings.load(Ordering::Relaxed) == self.opening {
            return Ok(());
        }
        Err(CheckpointError::Superseded { path: "/journal".into() })
    }
}

impl CheckpointWriter for JournalWriter {
    /// Saves all records at once, after a delay in which the agent may crash.
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async move {
            tokio::time::sleep(SAVE).await;
            self.check_opening()?;
            self.machine.reach(self.op, Moment::Begin).await;
            *self.content.records.lock() = records.iter().map(|record| record.to_string()).collect();
            self.machine.reach(self.op, Moment::End).await;
            self.content.whole.store(true, Ordering::Relaxed);
            Ok(())
        }
        .boxed()
    }

    /// Appends in two halves. A crash between them, or a fault, leaves only the first half.
    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async move {
            let fault = self.machine.draw_fault(self.op, &NODE);
            self.machine.note(format!("{} {} are appended {fault:?}", records.len(), self.what));
            if !self.content.whole.swap(false, Ordering::Relaxed) {
                self.machine.violated("an append follows an append that failed or was cut short".to_owned());
            }
            let (first, rest) = records.split_at(records.len() / 2);
            for (half, moment) in [(first, Moment::Begin), (rest, Moment::Middle)] {
                tokio::time::sleep(SAVE / 2).await;
                self.check_opening()?;
                self.machine.reach(self.op, moment).await;
                match fault {
                    Some(Fault::Error) => {
                        return Err(CheckpointError::new("/journal", "simulated"));
                    }
                    Some(Fault::Panic) => resume_unwind(Box::new("simulated")),
                    _ => self.content.records.lock().extend(half.iter().map(|record| record.to_string())),
                }
            }
            self.machine.reach(self.op, Moment::End).await;
            match fault {
                Some(Fault::ErrorAfter) => Err(CheckpointError::new("/journal", "simulated")),
                Some(Fault::PanicAfter) => resume_unwind(Box::new("simulated")),
                // A slow append needs no simulation here: the unit tests of the final status store cover it.
                _ => {
                    self.content.whole.store(true, Ordering::Relaxed);
                    Ok(())
                }
            }
        }
        .boxed()
    }
}
