//! What the container manager tells while it works: counts, and the sandbox condition of the status.

use std::sync::Arc;
use std::time::Duration;

use podwright_metrics::Metrics;

use crate::container_manager::SandboxHooks;
use crate::container_manager::start_counter::StartCounter;
use crate::ids::SandboxId;
use crate::pod::{ContainerKind, PodObject};
use crate::statuses::{Statuses, container_type};

/// Counts starts in the metrics.
#[derive(Clone, Debug)]
pub struct CountStarts(pub Metrics);

impl StartCounter for CountStarts {
    fn sandbox_attempted(&self, pod: &PodObject) {
        self.0.containers.pod_started(has_user_namespace(pod));
    }

    fn sandbox_failed(&self, pod: &PodObject) {
        self.0.containers.pod_start_failed(has_user_namespace(pod));
    }

    fn container_attempted(&self, kind: ContainerKind) {
        self.0.containers.container_started(container_type(kind));
    }

    fn container_failed(&self, kind: ContainerKind, reason: &'static str) {
        self.0.containers.container_start_failed(container_type(kind), reason);
    }

    fn sleep_cut_short(&self) {
        self.0.containers.sleep_cut_short();
    }

    fn hook_fell_back_to_http(&self) {
        self.0.containers.http_fallback();
    }

    fn starts(&self, waiting: usize, limit: usize) {
        self.0.governor.starts(waiting, limit);
    }

    fn start_waited(&self, waited: Duration) {
        self.0.governor.waited(waited);
    }
}

fn has_user_namespace(pod: &PodObject) -> bool {
    pod.spec().host_users == Some(false)
}

/// Notes in the status that a sandbox is there.
pub struct SandboxStatus(pub Arc<Statuses>);

impl SandboxHooks for SandboxStatus {
    fn created(&self, pod: &Arc<PodObject>, _sandbox: &SandboxId) {
        self.0.sandbox_ready(pod);
    }
}
