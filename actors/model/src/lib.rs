//! The values that all parts of podwright share. They decide nothing, read no clock and perform no I/O. Pure.
//!
//! ```
//! use podwright_model::ids::{FullName, PodUid};
//! use podwright_model::quantity::Amount;
//! use podwright_model::time::{Grace, Time};
//!
//! let name: FullName = "default/web".parse()?;
//! assert_eq!((name.namespace(), name.name()), ("default", "web"));
//! assert_eq!(PodUid::new("3e8a5b10-0000-4000-8000-000000000001").to_string(), "3e8a5b10-0000-4000-8000-000000000001");
//! assert_eq!(Time::from_secs(30).since(Time::ZERO), Grace::from_seconds(30).duration());
//! assert_eq!(Amount::parse("1500m")?.millis(), 1500);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Parts
//!
//! - [`ids`]: identities, each with a type of its own.
//! - [`image_scope`]: the scopes of registry logins.
//! - [`names`]: the forms that the API demands of names.
//! - [`pod`]: a pod of a source, with its identity.
//! - [`time`]: times and grace periods.
//! - [`quantity`]: the quantities of resources.
//! - [`resource_version`]: versions of objects in the API server.
//! - [`text`]: texts of errors and of other programs, ready to print.
//! - [`texts`]: the texts of events, container states and conditions, as the kubelet writes them.
//!
//! # Arrows
//!
//! This crate uses no other crate of the workspace. All others may use it, so that an edit here compiles all of them again: a type
//! belongs here only if crates that do not use each other need it.

// Many parts handle each field of an object of the API by name, so they compile with one version of the Kubernetes API only.
k8s_openapi::k8s_if_le_1_35! {
    compile_error!("podwright needs the feature \"v1_36\" of k8s-openapi: enable it in the program that depends on podwright");
}
k8s_openapi::k8s_if_ge_1_37! {
    compile_error!("podwright needs the feature \"v1_36\" of k8s-openapi: enable it in the program that depends on podwright");
}

pub mod ids;
pub mod image_scope;
pub mod names;
pub mod pod;
pub mod quantity;
pub mod resource_version;
pub mod text;
pub mod texts;
pub mod time;
