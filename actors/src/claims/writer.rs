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
/// The appended records may have this many times the bytes of the whole file. One record may have 64 KiB per driver.
const BYTES_FACTOR: usize = 4;
/// The file is not written anew for its bytes before it has this many appended ones.
const MIN_BYTES: usize = 4 << 20;

/// The records that were appended since the whole file was written.
#[derive(Debug)]
struct Appended {
    records: usize,
    bytes: usize,
    /// The bytes of the whole file.
    saved_bytes: usize,
}

impl Appended {
    fn after_save(records: &[Arc<str>]) -> Self {
        Appended { records: 0, bytes: 0, saved_bytes: size(records) }
    }

    /// The journal with these records, or `None` if the whole file has to be written in place of it. The table has this number of claims.
    fn with(&self, records: &[Arc<str>], claims: usize) -> Option<Self> {
        let journal = Appended {
            records: self.records + records.len(),
            bytes: self.bytes + size(records),
            saved_bytes: self.saved_bytes,
        };
        let fits = journal.records <= MIN_APPENDS.max(claims * APPENDS_PER_CLAIM)
            && journal.bytes <= MIN_BYTES.max(journal.saved_bytes * BYTES_FACTOR);
        fits.then_some(journal)
    }
}

/// The bytes of records.
fn size(records: &[Arc<str>]) -> usize {
    records.iter().map(|record| record.len()).sum()
}

impl ClaimManager {
    /// Writes what the file lacks whenever an operation needs it. At the end it writes the whole file, so that a program that
    /// knows no appended records, such as a kubelet, reads all claims. No write is interrupted: it could be performed after a later one.
    pub(super) async fn write(&self, stop: &CancellationToken) {
        // `None` if the whole file has to be written next. What the file has is not known before the first write.
        let mut journal: Option<Appended> = None;
        while stop.run_until_cancelled(self.save.notified()).await.is_some() {
            while !stop.is_cancelled() {
                // One write has the changes of all operations that wait.
                let (version, records, appended) = {
                    let table = self.table.lock();
                    let (version, unsaved) = table.unsaved();
                    if unsaved.is_empty() {
                        break;
                    }
                    let line = |(name, record): (&ClaimName, Option<_>)| Arc::from(file::write(name, record));
                    let records: Vec<Arc<str>> = unsaved.into_iter().map(line).collect();
                    match journal.as_ref().and_then(|journal| journal.with(&records, table.records().len())) {
                        Some(appended) => (version, records, Some(appended)),
                        None => (version, whole(&table), None),
                    }
                };
                let (written, after) = match appended {
                    Some(after) => (self.writer.append(records).await, after),
                    None => {
                        let after = Appended::after_save(&records);
                        (self.writer.save(records).await, after)
                    }
                };
                match written {
                    Ok(()) => {
                        journal = Some(after);
                        self.drive(Event::Saved(version));
                    }
                    Err(error) => {
                        journal = None;
                        let error = error_chain(&error).to_string();
                        tracing::error!(error, "cannot write the file of claims");
                        self.drive(Event::NotSaved { version, error });
                        // A reference that was undone may be in the file. An operation may need the file earlier.
                        let _ = timeout(SAVE_RETRY, stop.run_until_cancelled(self.save.notified())).await;
                    }
                }
            }
        }
        if journal.is_none_or(|journal| journal.records > 0) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn records(count: usize, bytes: usize) -> Vec<Arc<str>> {
        vec![Arc::from("x".repeat(bytes)); count]
    }

    /// Neither many small records nor few large ones fill the disk.
    #[test]
    fn journal_is_bounded_by_records_and_by_bytes() {
        let journal = Appended::after_save(&records(10, 100));
        let full = journal.with(&records(1_000, 100), 10).unwrap();
        assert!(full.with(&records(1, 1), 10).is_none());
        assert!(full.with(&records(1, 1), 126).is_some(), "there may be 8 records for each claim");
        let full = journal.with(&records(64, 1 << 16), 10).unwrap();
        assert!(full.with(&records(1, 1), 10).is_none());
        let large = Appended::after_save(&records(20, 1 << 16));
        let full = large.with(&records(80, 1 << 16), 20).unwrap();
        assert!(full.with(&records(1, 1), 20).is_none(), "4 times the bytes of the file");
    }
}
