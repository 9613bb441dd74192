//! The begin and the end of the last shutdown: in the metrics, and in a file for the metrics of the next agent.

use std::sync::Arc;
use std::time::Duration;

use podwright_metrics::ShutdownMetrics;
use serde::{Deserialize, Serialize};

use crate::ports::{Checkpoint, CheckpointError, CheckpointWriter, OpenCheckpoint};
use crate::text::error_chain;
use crate::time::Time;

/// How long a shutdown waits until its begin or its end is on disk. A disk that hangs must not keep pods from stopping.
pub(super) const WRITE_WITHIN: Duration = Duration::from_secs(1);

/// Keeps the begin and the end of the last shutdown.
pub(crate) struct ShutdownTimes {
    /// `None` if the file cannot be read.
    writer: Option<Box<dyn CheckpointWriter>>,
    metrics: ShutdownMetrics,
}

/// The record in the file, with the fields of upstream's `graceful_node_shutdown_state`. The times are in RFC 3339.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TimesRecord {
    start_time: String,
    /// Absent if the shutdown did not end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end_time: Option<String>,
}

impl ShutdownTimes {
    /// Sets the metrics to the times of the last shutdown. Blocks while it reads the file. If the file cannot be read, it is
    /// not written either, and the node starts without it.
    pub(crate) fn open(file: &dyn Checkpoint, metrics: ShutdownMetrics) -> Self {
        let OpenCheckpoint { records, writer } = match file.open() {
            Ok(open) => open,
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(%error, "cannot read the times of the last shutdown: make the file readable or remove it");
                return ShutdownTimes { writer: None, metrics };
            }
        };
        if let Some((start, end)) = records.last().and_then(|record| times(record)) {
            metrics.started(since_epoch(start));
            end.into_iter().for_each(|end| metrics.ended(since_epoch(end)));
        }
        ShutdownTimes { writer: Some(writer), metrics }
    }

    /// Records that a shutdown begins.
    pub(super) async fn started(&self, start: Time) {
        self.metrics.started(since_epoch(start));
        self.write(TimesRecord { start_time: text(start), end_time: None }).await;
    }

    /// Records that the shutdown has ended.
    pub(super) async fn ended(&self, start: Time, end: Time) {
        self.metrics.ended(since_epoch(end));
        self.write(TimesRecord { start_time: text(start), end_time: Some(text(end)) }).await;
    }

    async fn write(&self, record: TimesRecord) {
        let Some(writer) = &self.writer else { return };
        let Ok(record) = serde_json::to_string(&record) else { return };
        match tokio::time::timeout(WRITE_WITHIN, writer.save(vec![Arc::from(record)])).await {
            Ok(Ok(())) | Ok(Err(CheckpointError::Superseded { .. })) => {}
            Ok(Err(error)) => {
                let error = error_chain(&error);
                tracing::warn!(%error, "cannot write the times of the shutdown: make room or make the file writable");
            }
            Err(_) => tracing::warn!("the disk does not take the times of the shutdown in time"),
        }
    }
}

fn text(time: Time) -> String {
    time.to_timestamp().to_string()
}

/// The begin and the end in a record. `None` if it is no record of this kind, for example one of a later version.
fn times(record: &str) -> Option<(Time, Option<Time>)> {
    let record: TimesRecord = serde_json::from_str(record).ok()?;
    let time = |text: &str| text.parse().map(Time::from_timestamp).ok();
    Some((time(&record.start_time)?, record.end_time.as_deref().and_then(time)))
}

fn since_epoch(time: Time) -> Duration {
    Duration::from_nanos(time.as_nanos())
}
