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
