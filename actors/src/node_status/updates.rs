//! Keeps the status of the registered node up to date.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use podwright_model::resource_version::ResourceVersion;
use tokio::time::sleep;

use super::next::{LastReport, next_status};
use super::presence::NodePresence;
use super::registration::Registration;
use crate::ports::{ApiError, Freshness};
use crate::text::error_chain;

/// How often the status is computed (upstream `nodeStatusUpdateFrequency`, kubelet 1.36). A change of the runtime's health, of a
/// pressure or of a shutdown does not wait for it.
const UPDATE_PERIOD: Duration = Duration::from_secs(10);
/// The number of attempts in one period (upstream `nodeStatusUpdateRetry`, kubelet 1.36).
const UPDATE_ATTEMPTS: u32 = 5;
/// The pause between two attempts of one period.
const UPDATE_RETRY: Duration = Duration::from_millis(100);

/// The newest version of the Node object that this agent knows.
struct KnownNode {
    node: Node,
    /// Whether the server still has it.
    exists: bool,
    /// Whether its watch delivers all changes.
    is_watched: bool,
}

impl NodePresence {
    /// Keeps the status up to date. Does not return.
    pub(super) async fn keep_status(&self, node: Node) {
        let (mut healthy, mut stopping) = (self.parts.observer.healthy(), self.parts.gate.stopping());
        let (mut pressures, mut images) = (self.parts.evictions.pressure_changes(), self.images.subscribe());
        let mut versions = self.parts.api.versions();
        let mut known = KnownNode { node, exists: true, is_watched: false };
        let mut reported = LastReport::default();
        loop {
            // Changes from here on lead to another update.
            healthy.mark_unchanged();
            stopping.mark_unchanged();
            pressures.mark_unchanged();
            images.mark_unchanged();
            self.update_status(&mut known, &mut reported).await;
            let mut period = pin!(sleep(UPDATE_PERIOD));
            loop {
                tokio::select! {
                    // A version of the node may come when the period ends. A fixed order lets a simulation repeat its run. The version
                    // comes first, so that the next update is made for it.
                    biased;
                    Some(version) = versions.next() => self.receive(&mut known, version),
                    () = &mut period => break,
                    Ok(()) = healthy.changed() => break,
                    Ok(()) = stopping.changed() => break,
                    Ok(()) = pressures.changed() => break,
                    Ok(()) = images.changed() => break,
                }
            }
        }
    }

    /// Takes a version of the node from its watch.
    fn receive(&self, known: &mut KnownNode, version: Result<Option<Node>, ApiError>) {
        match version {
            Ok(Some(node)) => {
                known.is_watched = true;
                self.keep_newest(known, node);
            }
            Ok(None) => {
                known.is_watched = true;
                self.report_deletion(known);
            }
            Err(error) => {
                if std::mem::take(&mut known.is_watched) {
                    let error = error_chain(&error).to_string();
                    tracing::warn!(node = self.name(), error, "cannot watch the node, reading it periodically");
                }
            }
        }
    }

    /// Keeps and publishes a version of the node, unless a later one is known: watches and caches may be behind.
    fn keep_newest(&self, known: &mut KnownNode, node: Node) {
        if ResourceVersion::of(&node.metadata) > ResourceVersion::of(&known.node.metadata) {
            known.node = node;
            known.exists = true;
        }
        if known.exists {
            self.publish(&known.node);
        }
    }

    /// Logs and publishes that the node does not exist.
    fn report_deletion(&self, known: &mut KnownNode) {
        if std::mem::take(&mut known.exists) {
            self.parts.settings.progress.send_replace(Registration::Deleted(Arc::new(known.node.clone())));
            tracing::error!(
                node = self.name(),
                "the node was deleted from the API server: restart the agent to register it again"
            );
        }
    }

    /// Writes the status if it has changed. After some failed attempts, or if the server requests a longer pause, the next period
    /// writes it.
    async fn update_status(&self, known: &mut KnownNode, reported: &mut LastReport) {
        for attempt in 1..=UPDATE_ATTEMPTS {
            let error = match self.try_update_status(attempt, known, reported).await {
                Ok(()) => return,
                Err(ApiError::NotFound) => return self.report_deletion(known),
                Err(error) => error,
            };
            let requested = error.retry_after();
            let error = error_chain(&error).to_string();
            tracing::warn!(node = self.name(), attempt, error, "cannot update the status of the node");
            if attempt == UPDATE_ATTEMPTS || requested > UPDATE_RETRY {
                return;
            }
            sleep(UPDATE_RETRY).await;
        }
    }

    async fn try_update_status(
        &self,
        attempt: u32,
        known: &mut KnownNode,
        reported: &mut LastReport,
    ) -> Result<(), ApiError> {
        if !known.exists {
            // A proxy before the server may have answered for it that the node does not exist.
            known.node = self.parts.api.node(Freshness::Newest).await?;
            known.exists = true;
        } else if attempt > 1 || !known.is_watched {
            // The watch has delivered the node, so that only a failed attempt or a broken watch leads to a read.
            let freshness = if attempt == 1 { Freshness::Cached } else { Freshness::Newest };
            let server = self.parts.api.node(freshness).await?;
            self.keep_newest(known, server);
        }
        let (observed, now) = (self.observe(), self.parts.clock.now());
        let next = next_status(&self.identity, &self.parts.settings, &observed, &known.node, reported, now)
            .map_err(ApiError::refused)?;
        if let Some(patch) = next.patch {
            known.node = self.parts.api.patch_node_status(patch).await?;
        }
        self.publish(&known.node);
        next.events.into_iter().for_each(|event| self.record(event));
        *reported = next.reported;
        Ok(())
    }
}
