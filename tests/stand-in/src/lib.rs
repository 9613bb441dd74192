//! A Kubernetes API server for tests. It speaks HTTP, keeps objects in memory and answers as a server of version 1.36
//! does. Tests set faults: refusals, stalls, dropped connections, lost watches, an expired history and restarts.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use podwright_stand_in::{Fault, Rule, StandIn, User, Verb};
//! use serde_json::json;
//!
//! let server = StandIn::start().await?;
//! server.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).expect("an administrator creates a node");
//! let once = Rule::new().verb(Verb::Patch).resource("pods/status").times(1);
//! server.faults().inject(once, Fault::too_many_requests(1));
//! server.write_kubeconfig("kubeconfig".as_ref(), &User::node("n1"))?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Store`] is the state machine without I/O. [`Call`] is a request to the store. [`StandIn`] is the server around the store.
//! [`Faults`] are the faults that tests set.
//!
//! [`StandIn::client`] is a client of a user. [`StandIn::service`] answers requests without a connection, so that a client works in
//! virtual time and in a simulation.
//!
//! The server has no scheduler, no quotas, no custom resources, no disruption controller and no field validation beyond
//! names and the fields that its tests name. One port serves TLS and plain HTTP.

mod access;
mod authority;
mod call;
mod convert;
mod defaults;
mod discovery;
mod faults;
mod fields;
mod kubeconfig;
mod managed;
mod openapi;
mod patch;
mod protobuf;
mod raw;
mod refusal;
mod schema;
mod selector;
mod server;
mod signing;
mod store;
mod table;
mod validate;

pub use access::{Grant, User};
pub use authority::ClientCertificate;
pub use call::{Call, Query, Verb};
pub use faults::{Fault, Faults, RequestInfo, Rule};
pub use kubeconfig::Credential;
pub use raw::opaque;
pub use refusal::{FieldFault, Refusal};
pub use schema::Resource;
pub use selector::Selector;
pub use server::{Builder, Clock, Served, StandIn, StandInService};
pub use store::{Answer, Approval, Env, Line, Settings, Store, WatchStart, Write};
