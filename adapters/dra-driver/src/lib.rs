//! A library for the authors of DRA drivers.
//!
//! A driver offers the devices of a node as ResourceSlices, and makes them ready for the containers that use them. The author
//! writes a [`Driver`], which prepares and unprepares devices. The library does the rest: it serves the sockets that the node agent
//! connects to, registers the driver, reads the claims, and publishes the devices. It works with a kubelet and with `podwright`.
//!
//! ```no_run
//! use podwright_dra_driver::{
//!     CallError, Claim, ClaimRef, ClaimResults, Driver, DriverBuilder, DriverResources, Failure, PreparedDevice,
//! };
//!
//! struct Gpus;
//!
//! impl Driver for Gpus {
//!     async fn prepare(&self, claims: Vec<Claim>) -> Result<ClaimResults<Vec<PreparedDevice>>, CallError> {
//!         let prepare = |claim: &Claim| {
//!             let devices = claim.results().map(|result| PreparedDevice {
//!                 requests: vec![result.request.clone()],
//!                 pool: result.pool.clone(),
//!                 device: result.device.clone(),
//!                 cdi_devices: vec![format!("gpu.example.com/gpu={}", result.device)],
//!                 share_id: result.share_id.clone(),
//!             });
//!             Ok(devices.collect())
//!         };
//!         Ok(claims.iter().map(|claim| (claim.uid().clone(), prepare(claim))).collect())
//!     }
//!
//!     async fn unprepare(&self, claims: Vec<ClaimRef>) -> Result<ClaimResults<()>, CallError> {
//!         Ok(claims.into_iter().map(|claim| (claim.uid, Ok(()))).collect())
//!     }
//!
//!     fn failed(&self, failure: Failure) {
//!         eprintln!("{failure}");
//!     }
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = kube::Client::try_default().await?;
//! let driver = DriverBuilder::new("gpu.example.com", Gpus).client(client).node_name("n1").start().await?;
//! let device = k8s_openapi::api::resource::v1::Device { name: "gpu-0".to_owned(), ..Default::default() };
//! driver.publish(DriverResources::one_slice("n1", vec![device]))?;
//! tokio::signal::ctrl_c().await?;
//! driver.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//!
//! - [`DriverBuilder`] starts a [`Driver`], and [`RunningDriver`] publishes its devices and stops it.
//! - [`DriverResources`], [`Pool`] and [`Slice`]: the devices that a driver offers.
//! - [`Claim`] and [`ClaimRef`]: what the driver gets. [`PreparedDevice`], [`DeviceHealth`] and [`DeviceMetadata`]: what it answers.
//!
//! # Arrows
//!
//! The crate uses `podwright-slices`, `podwright-dra-api`, `podwright-grpc-socket`, `podwright-kube-api`, `podwright-ports` and
//! `podwright-model`. None of them contains the engine, the node agent or actix.
//!
//! # What always holds
//!
//! - The library creates the socket of the service before the registration socket, and removes it after the registration socket.
//! - An error of one claim does not fail the other claims of the same call.
//! - The driver never gets a claim that was replaced by another one of the same name, or that is not allocated.
//! - Clients may send any `:authority`. The kubelet sends one that the Rust HTTP/2 library `h2` refuses.

mod builder;
mod calls;
mod claims;
mod driver;
mod error;
mod lock;
mod metadata;
mod routes;
mod running;
mod services;
mod socket;

pub use builder::DriverBuilder;
pub use driver::{CallError, Claim, ClaimResults, DeviceHealth, Driver, Health};
pub use error::{Failure, PublishError, StartError};
pub use metadata::{
    ClaimIdentity, ClaimMetadata, DescribedDevice, DeviceMetadata, MetadataError, ReadMetadataError, RequestMetadata,
};
pub use running::{Registration, RunningDriver};

pub use podwright_model::ids::{ClaimName, ClaimUid};
pub use podwright_ports::{ApiError, ClaimApi, ClaimRef, PreparedDevice};
pub use podwright_slices::{DriverResources, Pool, Slice, SliceError, WriteCounts};
