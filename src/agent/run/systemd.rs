//! Reports the state of the agent to systemd (sd_notify(3)). Does nothing if systemd did not start the agent.

use sd_notify::{NotifyState, notify, watchdog_enabled};
use tokio::time::{MissedTickBehavior, interval};

use crate::agent::view::NodeView;

/// Reports that the agent runs pods.
pub(super) fn ready() {
    report(NotifyState::Ready);
}

/// Reports that the agent ends.
pub(super) fn stopping() {
    report(NotifyState::Stopping);
}

/// Reports that the agent is alive, twice in each period of the watchdog. Stops to report that while no housekeeping pass ends, so that
/// systemd restarts an agent that hangs. Never returns.
pub(super) async fn feed_watchdog(view: NodeView) {
    let Some(period) = watchdog_enabled().filter(|period| !period.is_zero()) else {
        return std::future::pending().await;
    };
    let mut ticks = interval(period / 2);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if view.node.is_housekeeping_late() {
            tracing::error!("no housekeeping pass has ended in time, so systemd may restart the agent");
        } else {
            report(NotifyState::Watchdog);
        }
    }
}

fn report(state: NotifyState<'_>) {
    if let Err(error) = notify(&[state]) {
        tracing::warn!(%error, "cannot report the state of the agent to systemd");
    }
}
