//! The runtime port of the fake runtime.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_model::ids::{ContainerId, PodUid, SandboxId};
use podwright_model::time::Grace;
use podwright_ports::{
    Clock, ContainerConfig, ContainerProcess, ContainerProcesses, ContainerRuntime, ContainerState, ContainerUpdate,
    ExecOutput, ImageError, ImageRequest, PodRuntimeStatus, ProcessUsage, RuntimeError, RuntimeFuture, RuntimePod,
    SandboxConfig, SandboxState, Unready,
};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{FakeRuntime, Live, Op, Pod};

impl ContainerRuntime for FakeRuntime {
    fn list_pods(&self) -> RuntimeFuture<'_, Vec<RuntimePod>> {
        async {
            let slow = self.state.lock().slow.get(&Op::List).copied();
            if let Some(slow) = slow {
                sleep(slow).await;
            }
            let (pods, age) = {
                let mut state = self.state.lock();
                assert!(!state.panicking.contains(&Op::List), "the test makes listing panic");
                if let Some(error) = state.failing.get(&Op::List) {
                    return Err(error.clone());
                }
                self.settle(&mut state);
                (state.list(), state.list_age)
            };
            if !age.is_zero() {
                sleep(age).await;
            }
            Ok(pods)
        }
        .boxed()
    }

    fn pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, PodRuntimeStatus> {
        async move {
            self.enter(Op::Status, uid, "status".into()).await?;
            Ok(self.inspect(uid))
        }
        .boxed()
    }

    fn run_sandbox(&self, config: SandboxConfig) -> RuntimeFuture<'_, SandboxId> {
        async move {
            let uid = config.pod.uid().clone();
            self.enter(Op::RunSandbox, &uid, format!("sandbox {}", config.attempt)).await?;
            let mut state = self.state.lock();
            state.ids += 1;
            let sandbox = self.sandbox(format!("sandbox-{}", state.ids), config.attempt, config.pod.is_host_network());
            let id = sandbox.id.clone();
            let pod = state.pods.entry(uid.clone()).or_insert_with(|| Pod::planted(config.pod.full_name().clone()));
            pod.is_static = config.pod.is_static();
            pod.grace = config.pod.spec_grace().map(Grace::from_seconds);
            pod.sandboxes.insert(0, sandbox);
            self.hint(&mut state, &uid);
            Ok(id)
        }
        .boxed()
    }

    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        async move {
            let uid = self.holder(id);
            self.enter(Op::StopSandbox, &uid, "stop-sandbox".into()).await?;
            let mut state = self.state.lock();
            if state.loses_exits {
                return Ok(());
            }
            let Some(pod) = state.pods.get_mut(&uid) else { return Ok(()) };
            for sandbox in pod.sandboxes.iter_mut().filter(|sandbox| sandbox.id == *id) {
                sandbox.state = SandboxState::NotReady;
                sandbox.ips.clear();
            }
            for live in pod.containers.iter_mut().filter(|live| live.status.sandbox == *id) {
                live.killed_at = Some(Instant::now());
            }
            self.hint(&mut state, &uid);
            self.settle(&mut state);
            Ok(())
        }
        .boxed()
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        async move {
            let uid = self.holder(id);
            self.enter(Op::Remove, &uid, "remove-sandbox".into()).await?;
            let mut state = self.state.lock();
            if let Some(pod) = state.pods.get_mut(&uid) {
                pod.sandboxes.retain(|sandbox| sandbox.id != *id);
                pod.containers.retain(|live| live.status.sandbox != *id);
                if pod.sandboxes.is_empty() {
                    state.pods.remove(&uid);
                }
            }
            self.hint(&mut state, &uid);
            Ok(())
        }
        .boxed()
    }

    fn ensure_image<'a>(
        &'a self,
        request: ImageRequest<'a>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<String, ImageError>> {
        async move {
            let ImageRequest { pod, image, pull_policy, .. } = request;
            if self.state.lock().absent_images.contains(image) {
                return Err(match pull_policy {
                    Some("Never") => ImageError::NeverPull(image.to_owned()),
                    _ => ImageError::pull("not found"),
                });
            }
            let pull = self.enter(Op::Pull, pod.uid(), format!("pull {image}"));
            let pulled = cancel.run_until_cancelled(pull).await.ok_or(ImageError::Cancelled)?;
            pulled.map(|()| format!("sha256:{image}")).map_err(ImageError::pull)
        }
        .boxed()
    }

    fn create_container(&self, config: ContainerConfig) -> RuntimeFuture<'_, ContainerId> {
        async move {
            let uid = config.pod.uid().clone();
            self.enter(Op::Create, &uid, format!("create {}", config.name)).await?;
            let mut state = self.state.lock();
            if let Some(missing) = config.cdi_devices.iter().find(|name| state.missing_devices.contains(*name)) {
                return Err(RuntimeError::missing_device(format!("no CDI specification has device {missing}")));
            }
            state.cdi_devices.insert(uid.clone(), config.cdi_devices);
            let mut status = self.made(&mut state, config.name.as_str(), config.sandbox);
            status.restart_count = config.restart_count;
            status.spec_hash = config.spec_hash;
            status.image_id = config.image_id;
            let id = status.id.clone();
            let script = state.scripts.get(config.name.as_str()).copied().unwrap_or_default();
            let pod = state.pods.get_mut(&uid).ok_or_else(|| RuntimeError::NotFound(uid.to_string()))?;
            pod.containers.insert(0, Live { status, script, started: None, stop_requested: None, killed_at: None });
            self.hint(&mut state, &uid);
            Ok(id)
        }
        .boxed()
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeFuture<'a, ()> {
        async move {
            let (uid, name) = self.named(id)?;
            self.enter(Op::Start, &uid, format!("start {name}")).await?;
            let now = self.clock.now();
            self.live(id, |live| {
                if live.script.fails_to_start {
                    return Err(RuntimeError::failed("no such command"));
                }
                if let Some(error) = live.script.start_error {
                    live.status.state = ContainerState::Exited;
                    (live.status.exit_code, live.status.reason) = (128, "StartError".into());
                    live.status.message = error.into();
                    live.status.finished_at = Some(now);
                    return Err(RuntimeError::Status { code: "Unknown", message: error.into() });
                }
                live.started = Some(Instant::now());
                live.status.started_at = Some(now);
                live.status.state = ContainerState::Running;
                Ok(())
            })??;
            self.hint(&mut self.state.lock(), &uid);
            Ok(())
        }
        .boxed()
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeFuture<'a, ()> {
        async move {
            let (uid, name) = self.named(id)?;
            self.enter(Op::Stop, &uid, format!("stop {name} {}", grace.as_secs_f64())).await?;
            if self.state.lock().loses_exits {
                return Ok(());
            }
            self.live(id, |live| {
                let now = Instant::now();
                live.stop_requested.get_or_insert(now);
                live.killed_at = Some(live.killed_at.map_or(now + grace, |at| at.min(now + grace)));
            })?;
            self.changed.notify_waiters();
            loop {
                let changed = self.changed.notified();
                let end = self.live(id, |live| live.end())?;
                // The container has ended or never ran.
                let Some((at, _)) = end else { return Ok(()) };
                tokio::select! {
                    () = sleep_until(at) => {}
                    () = changed => {}
                }
            }
        }
        .boxed()
    }

    fn process_of<'a>(&'a self, _: &'a ContainerId) -> RuntimeFuture<'a, Option<ContainerProcess>> {
        async { Ok(self.state.lock().process) }.boxed()
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, _: bool) -> RuntimeFuture<'a, ()> {
        async move {
            let Ok((uid, name)) = self.named(id) else { return Ok(()) };
            self.enter(Op::Remove, &uid, format!("remove {name}")).await?;
            let mut state = self.state.lock();
            if let Some(pod) = state.pods.get_mut(&uid) {
                pod.containers.retain(|live| live.status.id != *id);
            }
            self.hint(&mut state, &uid);
            Ok(())
        }
        .boxed()
    }

    fn exec<'a>(&'a self, _: &'a ContainerId, command: &'a [String], _: Duration) -> RuntimeFuture<'a, ExecOutput> {
        async {
            let slow = {
                let mut state = self.state.lock();
                assert!(!state.panicking.contains(&Op::Exec), "the test makes exec panic");
                state.commands.push(command.to_vec());
                state.slow.get(&Op::Exec).copied()
            };
            if let Some(slow) = slow {
                sleep(slow).await;
            }
            self.state.lock().exec_result.clone().unwrap_or_else(|| Ok(ExecOutput::default()))
        }
        .boxed()
    }

    /// The call names the new limits, such as `update main cpu=1 memory=64Mi`.
    fn update_container<'a>(&'a self, id: &'a ContainerId, update: ContainerUpdate) -> RuntimeFuture<'a, ()> {
        async move {
            let (uid, name) = self.named(id)?;
            let limits = update.resources.limits.unwrap_or_default();
            let limits: Vec<String> = limits.iter().map(|(name, quantity)| format!("{name}={}", quantity.0)).collect();
            self.enter(Op::Update, &uid, format!("update {name} {}", limits.join(" "))).await
        }
        .boxed()
    }

    fn process_usage<'a>(&'a self, uid: &'a PodUid) -> RuntimeFuture<'a, ProcessUsage> {
        let used = |memory: &u64| ContainerProcesses { memory: memory << 20, processes: 1 };
        let state = self.state.lock();
        let usage = state.memory.get(uid).map(|memory| ("main".to_owned(), used(memory))).into_iter().collect();
        let result = state.unmeasured.get(uid).cloned().map_or(Ok(usage), Err);
        async { result }.boxed()
    }

    fn next_event(&self) -> BoxFuture<'_, PodUid> {
        if !self.with_events {
            return std::future::pending().boxed();
        }
        async {
            loop {
                let changed = self.changed.notified();
                let next = {
                    let mut state = self.state.lock();
                    assert!(!state.panicking.contains(&Op::Events), "the test makes events panic");
                    self.settle(&mut state);
                    if let Some(uid) = state.hints.pop_front() {
                        return uid;
                    }
                    state.pods.values().flat_map(|pod| &pod.containers).filter_map(Live::end).map(|(at, _)| at).min()
                };
                match next {
                    Some(at) => tokio::select! {
                        () = sleep_until(at) => {}
                        () = changed => {}
                    },
                    None => changed.await,
                }
            }
        }
        .boxed()
    }

    fn unready(&self) -> Unready {
        self.state.lock().unready.clone()
    }

    fn has_events(&self) -> bool {
        self.with_events
    }
}
