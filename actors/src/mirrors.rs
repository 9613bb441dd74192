//! Makes the API server show the static pods of the node: each has a mirror pod, which is its copy in the API server.
//!
//! ```text
//!  dispatcher: a static pod or a mirror pod changed ---+                                 +-- delete --> API server
//!  syncer: a static pod is synced ---------------------+-> MirrorChecks -> plan::plan ---+
//!  housekeeping: mirror and static pod do not match ---+        ^                        +-- create --> API server
//!  Node object: the node was registered ---------------+        `-- failed: backoff
//! ```
//!
//! - The key of the work is the full name, because a static pod and its mirror pod have different UIDs.
//! - The writes run beside the pod workers, so containers follow the manifests while the API server cannot be reached (KF8).
//! - A mirror pod is replaced if the manifest changed (its hash differs) or if somebody deletes it. It stays while the containers of
//!   its static pod stop.
//! - A mirror pod without a static pod is deleted once all sources have delivered (POD-K8).
//! - Nothing syncs a rejected static pod, so housekeeping also names the static pods whose mirror pod is missing or of another version.
//! - A mirror pod is created only while the Node object exists, because the node owns its mirror pods: the API server removes them
//!   with the node.
//!
//! Unlike in a kubelet, a static pod that was rejected or has ended has a mirror pod too, so that its status can be read in the API
//! server.

pub(crate) mod checks;
mod object;
mod plan;
mod writer;

pub(crate) use writer::{MirrorWriter, MirrorWriterState};
