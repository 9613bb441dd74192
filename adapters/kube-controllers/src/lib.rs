//! The controllers on an API server: their watches, calls and events, their leases, and their terms as the leader.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use podwright_controllers::leader_election::{Candidate, Elector, LeaseName, Timing};
//! use podwright_kube_controllers::KubeLeases;
//! use podwright_ports::SystemClock;
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), podwright_kube::ConnectError> {
//! let client = podwright_kube::connect(Path::new("/etc/kubernetes/controllers.conf")).await?;
//! let lease = LeaseName { namespace: "kube-system".to_owned(), name: "resourceclaim-controller".to_owned() };
//! let leases = Arc::new(KubeLeases::new(client, &lease));
//! let candidate = Candidate::new("replica-1", lease, Timing::default());
//! let elector = Elector::new(leases, candidate, Arc::new(SystemClock::new()));
//! // `ClaimTerms::run` begins and ends the terms of a controller with this leadership.
//! let leadership = elector.leadership();
//! elector.run(CancellationToken::new()).await;
//! # let _ = leadership;
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//!
//! - [`ClaimTerms`] and [`DeviceTaintTerms`]: a controller and its watches, for as long as this replica leads; [`WatchProblems`]: why a
//!   watch fails.
//! - [`KubeResourceClaims`] and [`KubeDeviceTaints`]: the calls and the events of the controllers.
//! - [`KubeLeases`]: the lease of an election.
//! - [`PreviewedCluster`]: the objects of a cluster, read once for the preview of a rule.
//!
//! # Arrows
//!
//! The crate uses `podwright-controllers`, which decides, and the watches, calls and events of `podwright-kube`. The agent uses it.

mod calls;
mod claim_bytes;
mod claim_terms;
mod claims;
mod leases;
mod preview;
mod taint_terms;
mod taints;
mod term_events;
mod terms;
mod watch_problems;
mod watches;

pub use claim_terms::ClaimTerms;
pub use claims::KubeResourceClaims;
pub use leases::KubeLeases;
pub use preview::{ListError, PreviewedCluster};
pub use taint_terms::DeviceTaintTerms;
pub use taints::KubeDeviceTaints;
pub use watch_problems::WatchProblems;
