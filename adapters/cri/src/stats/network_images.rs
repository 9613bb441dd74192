//! The images of the sandboxes that hold the networks of pods.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use podwright_host::stats::PodNetwork;
use podwright_model::ids::SandboxId;
use podwright_model::text::error_chain;
use tokio::time::timeout;

use crate::client::Client;
use crate::images::sandbox_image;

/// How many sandboxes are inspected at the same time.
const PARALLEL: usize = 16;

/// The images of the sandboxes in the last measurement; `None` for a sandbox whose image the runtime does not report. A sandbox is
/// inspected again only if its last status call failed.
#[derive(Debug, Default)]
pub(crate) struct NetworkImages(Mutex<HashMap<SandboxId, Option<String>>>);

impl NetworkImages {
    /// Adds the images of the sandboxes that hold these networks. Waits no longer than `wait` for each one. Forgets all other
    /// sandboxes.
    pub(crate) async fn add(&self, client: &Client, networks: &mut [PodNetwork], wait: Duration) {
        let mut known = std::mem::take(&mut *self.0.lock());
        known.retain(|id, _| networks.iter().any(|network| network.sandbox == *id));
        let new = networks.iter().map(|network| network.sandbox.clone()).filter(|id| !known.contains_key(id));
        let mut new: Vec<SandboxId> = new.collect();
        while !new.is_empty() {
            let batch = new.split_off(new.len().saturating_sub(PARALLEL));
            known.extend(join_all(batch.into_iter().map(|id| inspected(client, id, wait))).await.into_iter().flatten());
        }
        for network in networks {
            network.image = known.get(&network.sandbox).cloned().flatten();
        }
        *self.0.lock() = known;
    }
}

/// A sandbox with its image. `None` if the runtime does not answer in time, or has no such sandbox.
async fn inspected(client: &Client, id: SandboxId, wait: Duration) -> Option<(SandboxId, Option<String>)> {
    match timeout(wait, sandbox_image(client, id.as_str().to_owned())).await.ok()? {
        Ok(image) => Some((id, image)),
        Err(error) => {
            tracing::debug!(sandbox = %id, error = %error_chain(&error), "cannot read the image of a sandbox");
            None
        }
    }
}
