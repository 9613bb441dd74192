//! The feature gates of the controller.

/// Which optional behaviour applies. The names are those of the feature gates of Kubernetes 1.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `DRAAdminAccess`: templates may have requests with `adminAccess`.
    pub admin_access: bool,
    /// `DRAPrioritizedList`: templates may have requests with `firstAvailable`.
    pub prioritized_list: bool,
    /// `DRAWorkloadResourceClaims`: pod groups have claims.
    pub pod_groups: bool,
}

impl Default for Features {
    fn default() -> Self {
        Features { admin_access: true, prioritized_list: true, pod_groups: false }
    }
}
