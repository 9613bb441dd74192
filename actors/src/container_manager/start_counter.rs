//! What starts are counted by.

use std::time::Duration;

use crate::pod::{ContainerKind, PodObject};

/// Counts what is started (`kubelet_started_pods_total` and its kin).
pub trait StartCounter: Send + Sync + 'static {
    /// A sandbox is about to be created.
    fn sandbox_attempted(&self, pod: &PodObject);
    /// That failed, and not because the pod is to stop.
    fn sandbox_failed(&self, pod: &PodObject);
    /// A container is about to be started; its backoff is over.
    fn container_attempted(&self, kind: ContainerKind);
    /// That failed; `reason` is the waiting reason that the status shows.
    fn container_failed(&self, kind: ContainerKind, reason: &'static str);
    /// A sleep hook was cut short by the end of the grace period (`kubelet_sleep_action_terminated_early_total`).
    fn sleep_cut_short(&self) {}
    /// A hook by HTTPS met a server without TLS and was repeated by HTTP
    /// (`kubelet_lifecycle_handler_http_fallbacks_total`).
    fn hook_fell_back_to_http(&self) {}
    /// So many starts wait for their turn, and so many may run at once.
    fn starts(&self, waiting: usize, limit: usize) {
        let _ = (waiting, limit);
    }
    /// A start's turn came after so long.
    fn start_waited(&self, waited: Duration) {
        let _ = waited;
    }
}
