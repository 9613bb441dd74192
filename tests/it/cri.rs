//! Pods as containers of a real containerd, which the tests start themselves.

mod adoption;
mod calls;
#[cfg(all(feature = "dra", feature = "dra-driver", feature = "kube"))]
mod claims;
#[cfg(feature = "kube")]
mod comparison;
mod config;
mod containerd;
mod crowd;
mod devices;
mod garbage;
mod image;
mod instance;
mod life;
mod names;
mod networks;
mod outages;
#[cfg(feature = "kube")]
mod pull_secrets;
mod resize;
mod stops;
mod storage_limits;
#[cfg(feature = "kube")]
mod streams;
mod usage;
mod v1;
mod volumes;
