//! What the recorder of an engine has.

use std::sync::Arc;

use super::Engine;
use crate::engine::cell::Slot;
use crate::recorder::Recorder;

impl Engine {
    /// Keeps what happens; absent if the engine was made without.
    pub fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.inner().recorder.as_ref()
    }

    /// The recording up to now, as the bytes of a file that [`replay`](crate::replay()) reads; `None` if nothing is
    /// recorded.
    ///
    /// Of a node with more pods than one for each 1,280 bytes of memory, some are told of only as far as events of theirs were
    /// written: how often they were looked at since, and pods to which nothing happened for long, may be missing.
    pub fn recording(&self) -> Option<Vec<u8>> {
        let inner = self.inner();
        let recorder = inner.recorder.as_ref()?;
        // What was only counted is in the cells. Told of so many pods as leave most of the memory to what happened.
        for cell in inner.cells.all().iter().take(recorder.most_settled()) {
            if let Slot::Live(live) = &mut *cell.lock() {
                live.capture.settle(recorder, cell.uid(), &live.record, &inner.tick(inner.clock.now(), 0.0));
            }
        }
        Some(recorder.save(inner.clock.now()))
    }
}
