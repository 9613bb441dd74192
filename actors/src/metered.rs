//! Wrappers of ports: a runtime whose calls are counted, and a clock whose panics are caught.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_metrics::{Metrics, RuntimeOperation};
use tokio_util::sync::CancellationToken;

use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::pod::PodObject;
use crate::ports::{
    Clock, ContainerConfig, ContainerProcess, ContainerRuntime, ContainerUpdate, ExecOutput, ImageError, ImageRequest,
    PodRuntimeStatus, ProcessUsage, RuntimeCapabilities, RuntimeError, RuntimeFuture, RuntimePod, SandboxConfig,
    Unready, WritableLayer,
};
use crate::time::Time;

/// A runtime port whose calls are counted as `kubelet_runtime_operations_*` and `kubelet_run_podsandbox_*`.
pub(crate) struct MeteredRuntime {
    inner: Arc<dyn ContainerRuntime>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
}

impl MeteredRuntime {
    /// Wraps a runtime.
    pub(crate) fn new(inner: Arc<dyn ContainerRuntime>, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        MeteredRuntime { inner, clock, metrics }
    }

    /// Answers with a default if the runtime's adapter panics: actors call this outside of their own guards.
    fn guard<T>(&self, default: T, call: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
            self.metrics.actors.hook_panicked();
            default
        })
    }

    fn count<'a, T: 'a, E: 'a>(
        &'a self,
        operation: RuntimeOperation,
        call: BoxFuture<'a, Result<T, E>>,
    ) -> BoxFuture<'a, Result<T, E>> {
        if self.inner.counts_its_calls() {
            return call;
        }
        Box::pin(async move {
            let start = self.clock.now();
            let result = call.await;
            self.metrics.runtime.called(operation, self.clock.now().since(start), result.is_err());
            result
        })
    }
}

/// Turns a panic of the runtime's adapter into an error, for callers that serve all pods. Hooks of single pods have a guard of
/// their own. The adapter may also panic before it returns a future.
pub(crate) async fn guarded<'a, T>(
    metrics: &Metrics,
    call: impl FnOnce() -> RuntimeFuture<'a, T>,
) -> Result<T, RuntimeError> {
    AssertUnwindSafe(async { call().await }).catch_unwind().await.unwrap_or_else(|_| {
        metrics.actors.hook_panicked();
        Err(RuntimeError::failed("the runtime's adapter panicked"))
    })
}

impl ContainerRuntime for MeteredRuntime {
    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>> {
        self.count(RuntimeOperation::ListPodSandbox, self.inner.list_pods())
    }

    fn pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus> {
        self.count(RuntimeOperation::PodSandboxStatus, self.inner.pod_status(uid))
    }

    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId> {
        let call = self.inner.run_sandbox(config);
        if self.inner.counts_its_calls() {
            return call;
        }
        let call = self.count(RuntimeOperation::RunPodSandbox, call);
        Box::pin(async move {
            let start = self.clock.now();
            let result = call.await;
            // A runtime with several handlers counts its calls by handler itself.
            self.metrics.containers.sandbox_run("", self.clock.now().since(start), result.is_err());
            result
        })
    }

    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        self.count(RuntimeOperation::StopPodSandbox, self.inner.stop_sandbox(id))
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        self.count(RuntimeOperation::RemovePodSandbox, self.inner.remove_sandbox(id))
    }

    fn ensure_image<'a>(
        &'a self,
        request: ImageRequest<'a>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>> {
        self.count(RuntimeOperation::ImageStatus, self.inner.ensure_image(request, cancel))
    }

    fn create_container(&self, config: ContainerConfig) -> RuntimeFuture<'_, ContainerId> {
        self.count(RuntimeOperation::CreateContainer, self.inner.create_container(config))
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        self.count(RuntimeOperation::StartContainer, self.inner.start_container(id))
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeFuture<'a, ()> {
        self.count(RuntimeOperation::StopContainer, self.inner.stop_container(id, grace))
    }

    fn process_of<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, Option<ContainerProcess>> {
        self.count(RuntimeOperation::ContainerStatus, self.inner.process_of(id))
    }

    fn update_container<'a>(&'a self, id: &'a ContainerId, update: ContainerUpdate) -> RuntimeFuture<'a, ()> {
        self.count(RuntimeOperation::UpdateContainer, self.inner.update_container(id, update))
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, keep_log: bool) -> RuntimeFuture<'a, ()> {
        self.count(RuntimeOperation::RemoveContainer, self.inner.remove_container(id, keep_log))
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Duration,
    ) -> RuntimeFuture<'a, ExecOutput> {
        self.count(RuntimeOperation::ExecSync, self.inner.exec(id, command, timeout))
    }

    fn writable_layers<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, Vec<WritableLayer>> {
        self.count(RuntimeOperation::ListContainerStats, self.inner.writable_layers(uid))
    }

    fn process_usage<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, ProcessUsage> {
        self.count(RuntimeOperation::ListContainerStats, self.inner.process_usage(uid))
    }

    fn next_event(&self) -> BoxFuture<'_, PodUid> {
        self.inner.next_event()
    }

    fn has_events(&self) -> bool {
        self.guard(false, || self.inner.has_events())
    }

    fn capabilities(&self) -> RuntimeCapabilities {
        self.guard(RuntimeCapabilities::default(), || self.inner.capabilities())
    }

    fn unready(&self) -> Unready {
        self.guard(Unready::default(), || self.inner.unready())
    }

    fn supports_recursive_read_only<'a>(&'a self, pod: &'a PodObject) -> BoxFuture<'a, bool> {
        async move {
            let asked = AssertUnwindSafe(self.inner.supports_recursive_read_only(pod)).catch_unwind().await;
            asked.unwrap_or_else(|_| {
                self.metrics.actors.hook_panicked();
                false
            })
        }
        .boxed()
    }

    fn counts_its_calls(&self) -> bool {
        self.inner.counts_its_calls()
    }
}

/// A clock whose panics do not reach the actors that read it: they would lose their mailbox for good. After a panic it
/// repeats the last time.
pub(crate) struct GuardedClock {
    inner: Arc<dyn Clock>,
    last: AtomicU64,
    metrics: Metrics,
}

impl GuardedClock {
    /// Wraps a clock.
    pub(crate) fn new(inner: Arc<dyn Clock>, metrics: Metrics) -> Self {
        GuardedClock { inner, last: AtomicU64::new(0), metrics }
    }
}

impl Clock for GuardedClock {
    fn now(&self) -> Time {
        match catch_unwind(AssertUnwindSafe(|| self.inner.now())) {
            Ok(now) => {
                self.last.store(now.as_nanos(), Ordering::Relaxed);
                now
            }
            Err(_) => {
                self.metrics.actors.hook_panicked();
                Time::from_nanos(self.last.load(Ordering::Relaxed))
            }
        }
    }
}
