//! Pod cgroups in memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use podwright_fixtures::scripted_runtime::ScriptedRuntime;
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_ports::{CgroupError, CgroupLimits, PodCgroups, Unused};
use tokio::sync::watch;

#[derive(Default)]
pub(crate) struct FakeCgroups {
    pods: Mutex<BTreeSet<PodUid>>,
    stuck: Mutex<bool>,
    held: watch::Sender<bool>,
    silent: watch::Sender<bool>,
    /// The runtime whose list of calls also has the changes of limits.
    runtime: Mutex<Option<Arc<ScriptedRuntime>>>,
}

impl FakeCgroups {
    pub(crate) fn of(&self) -> Vec<String> {
        self.pods.lock().iter().map(ToString::to_string).collect()
    }

    /// Adds a cgroup that an earlier agent left.
    pub(crate) fn plant(&self, uid: &str) {
        self.pods.lock().insert(PodUid::new(uid));
    }

    pub(crate) fn lose(&self, uid: &str) {
        self.pods.lock().remove(&PodUid::new(uid));
    }

    /// While `held`, a removal waits before it removes anything.
    pub(crate) fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// While `silent`, the query for a cgroup does not return.
    pub(crate) fn silence(&self, silent: bool) {
        self.silent.send_replace(silent);
    }

    /// Adds each change of limits to the calls of a runtime, such as `cgroup memory 64`, so that their order can be seen.
    pub(crate) fn report_to(&self, runtime: Arc<ScriptedRuntime>) {
        *self.runtime.lock() = Some(runtime);
    }

    /// Makes every removal fail.
    pub(crate) fn stick(&self, stuck: bool) {
        *self.stuck.lock() = stuck;
    }
}

impl PodCgroups for FakeCgroups {
    fn exists<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<bool, CgroupError>> {
        async move {
            self.silent.subscribe().wait_for(|silent| !silent).await.unwrap();
            Ok(self.pods.lock().contains(pod.uid()))
        }
        .boxed()
    }

    fn make<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<(), CgroupError>> {
        self.pods.lock().insert(pod.uid().clone());
        ready(Ok(())).boxed()
    }

    fn resize<'a>(&'a self, pod: &'a Arc<PodObject>, limits: CgroupLimits) -> BoxFuture<'a, Result<(), CgroupError>> {
        let CgroupLimits { cpu_request, cpu_limit, memory_limit, .. } = limits;
        let memory = memory_limit.map(|bytes| bytes >> 20);
        for (what, value) in [("memory", memory), ("cpu", cpu_limit), ("request", cpu_request)] {
            if let (Some(value), Some(runtime)) = (value, &*self.runtime.lock()) {
                runtime.note(pod.uid(), format!("cgroup {what} {value}"));
            }
        }
        ready(Ok(())).boxed()
    }

    fn remove<'a>(&'a self, uid: &'a PodUid, unused: Unused) -> BoxFuture<'a, Result<(), CgroupError>> {
        async move {
            self.held.subscribe().wait_for(|held| !held).await.unwrap();
            if *self.stuck.lock() {
                return Err(CgroupError::io(format!("/kubepods/pod{uid}"), "in use"));
            }
            if unused() {
                self.pods.lock().remove(uid);
            }
            Ok(())
        }
        .boxed()
    }
}
