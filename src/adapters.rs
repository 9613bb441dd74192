//! The adapters: implementations of the engine's ports, most of them with real I/O. Each is behind a cargo feature.

#[cfg(feature = "agent")]
pub use podwright_checkpoint as checkpoint;
#[cfg(feature = "cri")]
pub use podwright_credentials as credentials;
#[cfg(feature = "cri")]
pub use podwright_cri::adoption;
#[cfg(feature = "dra")]
pub use podwright_dra as dra;
#[cfg(feature = "process")]
pub use podwright_process as process;
#[cfg(feature = "simulated")]
pub use podwright_simulated as simulated;
#[cfg(feature = "agent")]
pub use podwright_sources as sources;

/// Pods as containers of a container runtime such as containerd or CRI-O.
#[cfg(feature = "cri")]
pub mod cri {
    pub use podwright_cri::{
        Allocatable, CGROUP_ROOT, CgroupDriver, CriConfig, CriRuntime, Endpoint, ImageList, ImageListEntry,
        NodeSettings, OpenError, ParseCgroupDriverError, ParseEndpointError, ParseImageListError,
        ParseSwapBehaviorError, SwapBehavior, VerificationPolicy,
    };
}
/// The API server: the node itself, the pods that the server binds to it, the objects that these pods refer to, and the writes of
/// their statuses, of mirror pods and of events. With the feature `controllers`, also the watches and the calls of the controllers.
#[cfg(feature = "kube")]
pub mod kube {
    pub use podwright_kube::{
        ConnectError, Connection, Credentials, EventRate, KubeClaimApi, KubeEvents, KubeNodeApi, KubeObjects,
        KubePodApi, KubeReviews, KubeSigningRequests, PodSource, connect,
    };
    #[cfg(feature = "controllers")]
    pub use podwright_kube_controllers::{
        ClaimTerms, DeviceTaintTerms, KubeDeviceTaints, KubeLeases, KubeResourceClaims, ListError, PreviewedCluster,
        WatchProblems,
    };
}
/// The logs of containers in the CRI format.
#[cfg(any(feature = "cri", feature = "process"))]
pub mod log {
    pub use podwright_host::log::{LogDir, OpenLog, Record, WritesLogs, tail, tail_window};

    /// Reads the log of one run: the rotated files, then the file that is written to, and follows it.
    #[cfg(feature = "agent")]
    pub mod reader {
        pub use podwright_host::log::reader::{LogRead, LogStream, ReadOptions, Reader, runs};
    }
    /// Rotates container logs: a full log file is moved away, the container continues in a new file, and old files are compressed
    /// and removed.
    #[cfg(feature = "agent")]
    pub mod rotation {
        pub use podwright_host::log::rotation::{Limits, RotateError, Rotation, Rotator};
    }
}
/// The network calls of probes and lifecycle hooks: HTTP, TCP and gRPC.
#[cfg(feature = "agent")]
pub mod network {
    pub use podwright_network::{BuildNetworkError, Network};
}
/// The memory and the process ids of the machine.
#[cfg(feature = "agent")]
pub mod node_meter {
    pub use podwright_host::node_meter::LinuxNodeMeter;
}
/// Pod directories and volumes on the file system.
#[cfg(feature = "process")]
pub mod storage {
    pub use podwright_host::storage::{FileStorage, PodLogs, PodSpace, VolumeSpace};
}
