//! The Node object of this node in an API server: its registration, its status and its lease.
//!
//! ```text
//!   observe the lease ---> register or adopt the node ---> claim the lease ---> Registered
//!          |                                                     |               |  |
//!          | another agent renews it                             |               |  +-- status: every 10 s, and on changes
//!          v                                                     v               +----- lease: every 10 s
//!        Taken <-------------------------------------------------+-------------------------- another agent has taken it
//! ```
//!
//! `object`, `conditions`, `next` and `lease` decide. `presence`, `updates` and `renewal` perform. The server's status is patched only
//! if it differs from the desired one, and every five minutes. Conditions, labels, taints and resources that other programs set stay as
//! they are.

mod conditions;
mod lease;
mod next;
mod object;
mod presence;
mod registration;
mod renewal;
mod updates;

pub(crate) use presence::{NodePresence, PresenceParts};
pub use registration::{NodeRegistration, Registration};
