//! Checkpoints: archives with the memory and the changed files of a container that runs.

use std::path::PathBuf;
use std::time::Duration;

use podwright_model::ids::ContainerId;
use podwright_ports::RuntimeError;

use super::files;
use super::inner::CriRuntimeInner;
use super::tasks::blocking;

impl CriRuntimeInner {
    /// Writes a checkpoint of a container to a file of this name, and returns its path. The container keeps running.
    pub(super) async fn checkpoint(
        &self,
        container: &ContainerId,
        file: &str,
        timeout: Duration,
    ) -> Result<PathBuf, RuntimeError> {
        let dir = self.checkpoints.clone();
        blocking(move || files::make_checkpoint_dir(&dir)).await?;
        let path = self.checkpoints.join(file);
        let location = path.display().to_string();
        self.client.checkpoint_container(container.as_str().to_owned(), location, timeout).await?;
        Ok(path)
    }
}
