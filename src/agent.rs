//! The node agent: one process that runs the pods of its manifests.
//!
//! ```text
//!  flags ──> run ──┬─> sources (files, URLs) ──> node (engine, actors) ──> process runtime
//!                  ├─> admin: / /healthz /metrics /explain /recording ...  ▲
//!                  ├─> screen: the live table                              │
//!                  └─> signals ──> stop: gate closed, sources stopped, pods stopped by group
//! ```
//!
//! What people see of a pod, here or in the table, is drawn from [`view`], which reads what the node knows at one instant
//! and changes nothing.

pub(crate) mod admin;
pub(crate) mod cli;
pub(crate) mod client;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod get;
pub(crate) mod logs;
pub(crate) mod machine;
pub(crate) mod page;
pub(crate) mod replay;
pub(crate) mod root;
pub(crate) mod run;
mod runtime;
pub(crate) mod screen;
pub(crate) mod table;
pub(crate) mod until;
pub(crate) mod validate;
pub(crate) mod view;
