//! The messages, clients and servers of dynamic resource allocation, generated from the files in `proto/` by the build script.
//!
//! ```
//! use podwright_dra_api::{V1_SERVICE, v1};
//!
//! let claim = v1::Claim { namespace: "default".to_owned(), uid: "1".to_owned(), name: "gpu".to_owned() };
//! assert_eq!((claim.name.as_str(), V1_SERVICE), ("gpu", "v1.DRAPlugin"));
//! ```
//!
//! # Parts
//!
//! One module for each package: the registration of plugins ([`registration`]), the calls to a driver ([`v1`] and [`v1beta1`]), the
//! health of devices ([`health`]), the devices of a driver without access to the API server ([`node_resources`]), and the resources of
//! pods for monitoring agents ([`pod_resources`]).
//!
//! # Arrows
//!
//! The crate uses no other crate of the workspace. `podwright-dra`, the agent and the library for the authors of
//! DRA drivers use it.

/// The generated code of one package.
macro_rules! package {
    ($(#[$doc:meta])* $name:ident = $package:literal) => {
        $(#[$doc])*
        #[allow(
            dead_code,
            missing_docs,
            unreachable_pub,
            clippy::all,
            rustdoc::all,
            reason = "generated code; the meaning of a field is documented in the .proto file"
        )]
        pub mod $name {
            tonic::include_proto!($package);
        }
    };
}

package! {
    /// The registration of a plugin.
    registration = "pluginregistration"
}
package! {
    /// The calls to a driver, version `v1`.
    v1 = "k8s.io.kubelet.pkg.apis.dra.v1"
}
package! {
    /// The calls to a driver, version `v1beta1`.
    v1beta1 = "k8s.io.kubelet.pkg.apis.dra.v1beta1"
}
package! {
    /// The health of devices.
    health = "v1alpha1"
}
package! {
    /// The devices of a driver without access to the API server.
    node_resources = "noderesources.v1alpha1"
}
package! {
    /// The resources of pods, for monitoring agents.
    pod_resources = "v1"
}

/// The `type` of a DRA driver in its registration.
pub const PLUGIN_TYPE: &str = "DRAPlugin";
/// The service of version `v1` in `supported_versions`.
pub const V1_SERVICE: &str = "v1.DRAPlugin";
/// The service of version `v1beta1` in `supported_versions`.
pub const V1BETA1_SERVICE: &str = "v1beta1.DRAPlugin";
/// The service of device health in `supported_versions`.
pub const HEALTH_SERVICE: &str = "v1alpha1.DRAResourceHealth";
/// The service of node resources in `supported_versions`.
pub const NODE_RESOURCES_SERVICE: &str = "v1alpha1.NodeResources";
