//! Publishes the devices of a driver as ResourceSlices.
//!
//! ```text
//!   update()  --->  desired pools  --.
//!                                    +-->  plan (pure)  --->  update, create, delete  --->  API server
//!   watch     --->  view  -----------'                               |
//!                     ^                                              |
//!                     '---------------- own writes ------------------'
//! ```
//!
//! One task compares one pool after another: at once after an update, 30 s after another client changed a slice, and with growing
//! delays after a failure. A pool that cannot be published does not delay the others. A pool that changes all the time is written once a
//! second.
//!
//! ```no_run
//! use k8s_openapi::api::resource::v1::Device;
//! use podwright_slices::{DriverResources, Owner, SliceEngine, SliceOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = kube::Client::try_default().await?;
//! let options = SliceOptions::new("gpu.example.com", |error| eprintln!("{error}")).owner(Owner::node("n1", None));
//! let engine = SliceEngine::start(client, options);
//! let device = Device { name: "gpu-0".to_owned(), ..Default::default() };
//! engine.update(DriverResources::one_slice("n1", vec![device]))?;
//! tokio::signal::ctrl_c().await?;
//! engine.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//!
//! - [`SliceEngine`]: publishes what the driver offers, with the settings of [`SliceOptions`].
//! - [`DriverResources`]: the pools and slices of a driver.
//! - [`SliceError`]: why the published slices differ from the devices that the driver offers.
//!
//! # Arrows
//!
//! The crate uses `podwright-model`, `podwright-work-queue` and `podwright-kube-api`. The library for the authors of DRA drivers and
//! `podwright-dra`, which publishes for drivers without access to the API server, use the crate.

mod api;
mod compare;
mod engine;
mod error;
mod pace;
mod plan;
mod resources;
mod slice_name;
mod view;
mod worker;

pub use api::CallError;
pub use compare::SuspectedFeature;
pub use engine::{OnError, SliceEngine, SliceOptions, WriteCounts};
pub use error::{DroppedFields, SliceError, Write, WriteError, WrongPool};
pub use resources::{DriverResources, InvalidPool, Owner, Pool, Slice};
