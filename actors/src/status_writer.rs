//! Writes the statuses of pods to the API server.
//!
//! ```text
//!  statuses: a change of a status -----+                             +-- patch_status --> API server
//!  dispatcher: the API copy changed ---+-> WorkQueue -> next_writes -+
//!  syncer: the containers stopped -----+       ^                     +-- delete --------> API server
//!                                              `-- failed: backoff
//! ```
//!
//! - Each write compares the kept status with the newest version of the API server's pod that the node knows, so there is no GET
//!   before a write. The response to a patch is the newest version until the source delivers a newer one. The server may have had
//!   another version, for example after a write whose answer was lost. The response shows that, and a second patch corrects it.
//! - The writes of one pod run one after the other. The writes of different pods run at the same time. Changes of a pod's status
//!   that arrive during a write of the pod are merged into one further write.
//! - A change of Ready and a terminal phase are written before other changes.
//! - A terminal phase is written only after the containers have stopped (POD-I6). A pod is deleted only after its cleanup.
//! - A failed write is retried after a backoff of its pod (POD-W29). The retry writes the newest status.
//! - The status of a static pod is written to its mirror pod.

pub(crate) mod patch;
mod write;
mod writer;

pub use writer::FailedWrite;
pub(crate) use writer::{StatusWriter, WriterState};
