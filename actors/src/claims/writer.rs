//! Writes the file of claims.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::file;
use super::manager::ClaimManager;
use super::step::Event;
use super::table::ClaimTable;
use crate::ids::ClaimName;
use crate::text::error_chain;

/// The time between a failed write of the file and the next one, if no operation needs it earlier.
const SAVE_RETRY: Duration = Duration::from_secs(5);
/// After this many appended records per claim, the file is written anew.
const APPENDS_PER_CLAIM: usize = 8;
/// The file is not written anew before it has this many appended records.
const MIN_APPENDS: usize = 1_000;

impl ClaimManager {
    /// Writes what the file lacks whenever an operation needs it. At the end it writes the whole file, so that a program that
    /// knows no appended records, such as a kubelet, reads all claims. No write is interrupted: it could be performed after a later one.
    pub(super) async fn write(&self, stop: &CancellationToken) {
        // Whether the file has all records of the table and nothing else is not known before the first write.
        let mut appended = usize::MAX;
        while stop.run_until_cancelled(self.save.notified()).await.is_some() {
            while !stop.is_cancelled() {
                let (version, count, records) = {
                    let table = self.table.lock();
                    let (version, unsaved) = table.unsaved();
                    if unsaved.is_empty() {
                        break;
                    }
                    let count = unsaved.len();
                    let is_long =
                        appended.saturating_add(count) > MIN_APPENDS.max(table.records().len() * APPENDS_PER_CLAIM);
                    let line = |(name, record): (&ClaimName, Option<_>)| Arc::from(file::write(name, record));
                    let records: Vec<Arc<str>> = if is_long {
                        appended = usize::MAX;
                        whole(&table)
                    } else {
                        unsaved.into_iter().map(line).collect()
                    };
                    (version, count, records)
                };
                let is_whole = appended == usize::MAX;
                let write = async {
                    if is_whole { self.writer.save(records).await } else { self.writer.append(records).await }
                };
                let appends = if is_whole { 0 } else { appended + count };
                match write.await {
                    Ok(()) => {
                        appended = appends;
                        self.drive(Event::Saved(version));
                    }
                    Err(error) => {
                        appended = usize::MAX;
                        let error = error_chain(&error).to_string();
                        tracing::error!(error, "cannot write the file of claims");
                        self.drive(Event::NotSaved { version, error });
                        // A reference that was undone may be in the file. An operation may need the file earlier.
                        let _ = timeout(SAVE_RETRY, stop.run_until_cancelled(self.save.notified())).await;
                    }
                }
            }
        }
        if appended > 0 {
            let all = whole(&self.table.lock());
            if let Err(error) = self.writer.save(all).await {
                tracing::error!(error = %error_chain(&error), "cannot write the whole file of claims: the next agent reads its journal");
            }
        }
    }
}

/// All records that the file has to have.
fn whole(table: &ClaimTable) -> Vec<Arc<str>> {
    table.saved_records().map(|(name, record)| Arc::from(file::write(name, Some(record)))).collect()
}
