//! The health of devices in the file of the kubelet (`dra_health_state`): one JSON document, which is replaced as a whole.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_host::record::{self, Durability, ReadError};
use podwright_ports::{Checkpoint, CheckpointError, CheckpointWriter, OpenCheckpoint};

use super::{FileWriter, SharedFile, WAIT};

/// The name of the file in the root directory (upstream `draHealthStateFileName`, kubelet 1.36).
const FILE: &str = "dra_health_state";

/// [`Checkpoint`] of device health in the root directory of an agent. It has at most one record. A file that cannot be read is logged
/// and counts as empty, because drivers report the health again.
#[derive(Clone, Debug)]
pub struct HealthCheckpoint {
    directory: PathBuf,
}

impl HealthCheckpoint {
    /// A checkpoint in the root directory of an agent.
    pub fn new(directory: PathBuf) -> Self {
        HealthCheckpoint { directory }
    }
}

impl Checkpoint for HealthCheckpoint {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        let path = self.directory.join(FILE);
        let file = SharedFile::at(&path)?;
        let Some(mut openings) = file.openings.try_lock_for(WAIT) else {
            return Err(CheckpointError::new(path, "an earlier node of this process still writes the file"));
        };
        let records = match record::bytes(&file.path).map(String::from_utf8) {
            Ok(Ok(content)) => vec![content],
            Ok(Err(_)) => {
                tracing::warn!(
                    path = %path.display(),
                    "the file of device health is damaged: the health of a device is unknown until its driver reports it"
                );
                Vec::new()
            }
            Err(ReadError::Missing(_)) => Vec::new(),
            Err(error) => {
                tracing::warn!(
                    path = %path.display(),
                    %error,
                    "cannot read the file of device health: the health of a device is unknown until its driver reports it"
                );
                Vec::new()
            }
        };
        *openings += 1;
        let writer = HealthWriter(FileWriter { opening: *openings, file: file.clone() });
        Ok(OpenCheckpoint { records, writer: Box::new(writer) })
    }
}

struct HealthWriter(FileWriter);

impl CheckpointWriter for HealthWriter {
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.0.write(move |path| {
            let content = records.first().map(|content| content.as_bytes()).unwrap_or_default();
            // After a power failure, drivers report the health again.
            record::replace(path, content, Durability::Boot)
        })
    }

    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.save(records).boxed()
    }
}
