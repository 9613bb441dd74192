//! The containerd of a test, and the agents that use it.

use std::ops::Deref;

use crate::agent::harness::{Agent, AgentHome};

/// A containerd, while a test holds its lock.
pub(super) struct Containerd(podwright_containerd::Containerd);

impl Containerd {
    /// Waits for a containerd that no other test uses. `None` if containerd cannot run and is not required. Then the test is skipped.
    pub(super) async fn turn() -> Option<Self> {
        podwright_containerd::Containerd::turn().await.map(Containerd)
    }

    /// Starts an agent that uses this containerd.
    pub(super) async fn agent(&self, home: &AgentHome) -> Agent {
        self.agent_with(home, &[]).await
    }

    /// Starts an agent that uses this containerd, with more flags.
    pub(super) async fn agent_with(&self, home: &AgentHome, flags: &[&str]) -> Agent {
        let own = self.flags();
        let mut all = [&own.each_ref().map(String::as_str), flags].concat();
        // The disk of the machine that runs the tests may be full.
        if !flags.iter().any(|flag| flag.starts_with("--image-gc-high-threshold")) {
            all.push("--image-gc-high-threshold=100");
        }
        home.start(&all).await
    }
}

impl Deref for Containerd {
    type Target = podwright_containerd::Containerd;

    fn deref(&self) -> &podwright_containerd::Containerd {
        &self.0
    }
}
