//! Stops the pods before the machine shuts down.
//!
//! The agent holds a lock of systemd-logind that delays a shutdown. When the machine begins to shut down, the agent stops the
//! pods in groups and releases the lock. If the shutdown is cancelled, the agent takes the lock again, and pods may run.

mod step;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, OptionFuture};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;

use self::step::{Effect, Event, State, step};
use podwright_actors::node::{NodeHandle, ShutdownReport};
use podwright_actors::shutdown::ShutdownConfig;
use podwright_logind::{DelayLock, Logind, LogindError};
use podwright_model::text::{error_chain, panic_text};
use podwright_model::texts::shutdown::{CANCELLED, DETECTED, SHUTDOWN};
use podwright_ports::{EventRecorder, PodEvent};

/// The first pause before the agent connects to logind again (upstream `dbusReconnectPeriod`, kubelet 1.36).
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest pause.
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Watches the machine, and stops the pods of a node when it shuts down.
pub(crate) struct MachineShutdown {
    node: Arc<NodeHandle>,
    events: Arc<dyn EventRecorder>,
    config: ShutdownConfig,
    state: State,
    lock: Option<DelayLock>,
    /// The stop of the pods, while one is under way.
    stopping: OptionFuture<LocalBoxFuture<'static, ()>>,
    is_shutting_down: watch::Sender<bool>,
}

impl MachineShutdown {
    /// Stops the pods as `config` says. Also returns whether pods are being stopped.
    pub(crate) fn new(
        node: Arc<NodeHandle>,
        events: Arc<dyn EventRecorder>,
        config: ShutdownConfig,
    ) -> (watch::Receiver<bool>, Self) {
        let (is_shutting_down, watched) = watch::channel(false);
        let state = State::Waiting;
        (watched, MachineShutdown { node, events, config, state, lock: None, stopping: None.into(), is_shutting_down })
    }

    /// Whether a shutdown of the machine is delayed.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.config.is_disabled()
    }

    /// Watches the machine until this future is dropped.
    pub(crate) async fn run(&mut self) {
        let (mut pause, mut last) = (FIRST_RETRY, None);
        loop {
            let error = match self.watch().await {
                Ok(()) => {
                    pause = FIRST_RETRY;
                    "the connection to systemd-logind was lost".to_owned()
                }
                Err(error) => error_chain(&error).to_string(),
            };
            if last.as_ref() != Some(&error) {
                tracing::warn!(
                    error,
                    "a shutdown of the machine is not delayed, so it may kill pods; the agent tries again"
                );
                last = Some(error);
            }
            // A stop of pods that has begun goes on without logind.
            let deadline = tokio::time::sleep(pause);
            tokio::pin!(deadline);
            loop {
                tokio::select! {
                    () = &mut deadline => break,
                    Some(()) = &mut self.stopping => self.pods_stopped(),
                }
            }
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    /// Holds a lock and follows the signals of logind until the connection ends.
    async fn watch(&mut self) -> Result<(), LogindError> {
        let logind = Logind::connect().await?;
        logind.allow_delay(self.config.longest()).await?;
        // Before the lock is taken, so that no signal is missed.
        let mut shutdowns = logind.shutdowns().await?;
        self.lock = Some(logind.delay().await?);
        tracing::info!(seconds = self.config.total().as_secs(), "a shutdown of the machine waits for the pods to stop");
        loop {
            let event = tokio::select! {
                begins = shutdowns.next() => match begins {
                    Some(true) => Event::Begins,
                    Some(false) => Event::Cancelled,
                    None => return Ok(()),
                },
                Some(()) = &mut self.stopping => {
                    self.pods_stopped();
                    continue;
                }
            };
            let message = if event == Event::Begins { DETECTED } else { CANCELLED };
            self.events.record_of_node(PodEvent::normal(SHUTDOWN, message));
            let (state, effects) = step(self.state, event);
            self.state = state;
            for effect in effects {
                match effect {
                    Effect::Resume => {
                        tracing::info!("the shutdown of the machine was cancelled");
                        self.node.resume().await;
                    }
                    Effect::TakeLock => self.lock = Some(logind.delay().await?),
                    Effect::StopPods | Effect::ReleaseLock => self.perform(effect),
                }
            }
        }
    }

    /// The pods have stopped, or their time is over.
    fn pods_stopped(&mut self) {
        self.stopping = None.into();
        self.is_shutting_down.send_replace(false);
        let (state, effects) = step(self.state, Event::PodsStopped);
        self.state = state;
        effects.into_iter().for_each(|effect| self.perform(effect));
    }

    /// Performs an effect that needs no logind.
    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::StopPods => {
                tracing::info!("the machine shuts down");
                let (node, config) = (self.node.clone(), self.config.clone());
                self.is_shutting_down.send_replace(true);
                self.stopping = Some(ended(async move { node.stop_pods(config).await }).boxed_local()).into();
            }
            Effect::ReleaseLock => self.lock = None,
            Effect::Resume | Effect::TakeLock => {}
        }
    }
}

/// Waits for the end of a stop of pods. A stop that panics has ended too: neither the machine nor the agent may wait for it for ever.
async fn ended(stop: impl Future<Output = ShutdownReport>) {
    match AssertUnwindSafe(stop).catch_unwind().await {
        Ok(report) => {
            tracing::info!(stopped = report.stopped, late = report.late.len(), "the machine may shut down");
        }
        Err(panic) => {
            let panic = panic_text(&*panic);
            tracing::error!(
                panic,
                "the stop of the pods panicked, so the machine may shut down before they have stopped"
            );
        }
    }
}

/// Waits until the value is false, or until nobody changes it.
pub(crate) async fn wait_until_false(mut value: watch::Receiver<bool>) {
    let _closed = value.wait_for(|value| !value).await;
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    #[test]
    fn stop_of_pods_that_panics_has_ended() {
        let stop = poll_fn(|_| -> Poll<ShutdownReport> { panic!("a faulty port") });
        assert_eq!(ended(stop).now_or_never(), Some(()));
    }
}
