//! The file of claims and its journal, which an earlier agent or a kubelet wrote.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use podwright::adapters::checkpoint::ClaimCheckpoint;
use podwright::metrics::Metrics;
use podwright_actors::claims::{ClaimFeatures, ClaimManager, ClaimPorts, ClaimRecord, ClaimTasks, OpenClaimsError};
use podwright_host::record::seal_line;
use podwright_model::ids::{ClaimName, DriverName};
use podwright_ports::{ClaimDrivers, ClaimRef, DriverError, DriverFuture, PreparedDevice, SystemClock};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

thread_local! {
    static DIR: TempDir = tempfile::tempdir().unwrap();
    static RUNTIME: Runtime = Builder::new_current_thread().enable_all().build().unwrap();
}

/// No driver is registered, and none is called.
struct NoDrivers;

impl ClaimDrivers for NoDrivers {
    fn is_registered(&self, _: &DriverName) -> bool {
        false
    }

    fn prepare<'a>(&'a self, driver: &'a DriverName, _: &'a [ClaimRef]) -> DriverFuture<'a, Vec<PreparedDevice>> {
        Box::pin(async { Err(DriverError::NotRegistered(driver.clone())) })
    }

    fn unprepare<'a>(&'a self, driver: &'a DriverName, _: &'a [ClaimRef]) -> DriverFuture<'a, ()> {
        Box::pin(async { Err(DriverError::NotRegistered(driver.clone())) })
    }
}

/// The input is one byte, the file, a zero byte and the journal. Without the zero byte there is no journal. The byte selects whether
/// checksums and the first line of the journal are added.
pub fn check(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else { return };
    let mut parts = rest.splitn(2, |byte| *byte == 0);
    let (file, journal) = (parts.next().unwrap_or_default(), parts.next());
    let (file, journal) = match how & 0x80 {
        0 => sealed(file, journal),
        _ => (file.to_vec(), journal.map(<[u8]>::to_vec)),
    };
    DIR.with(|dir| {
        let (path, journal_path) = (dir.path().join("dra_manager_state"), dir.path().join("dra_manager_state.journal"));
        fs::write(&path, &file).unwrap();
        let _none = fs::remove_file(&journal_path);
        if let Some(journal) = &journal {
            fs::write(&journal_path, journal).unwrap();
        }
        match open(dir.path()) {
            Err(error) => {
                let error = match error {
                    OpenClaimsError::Checkpoint(error) => std::error::Error::source(&error).unwrap().to_string(),
                    error => error.to_string(),
                };
                assert!(error.contains("drain the node"), "{error}");
                assert!(fs::read(&path).unwrap() == file, "a damaged file stays as it is");
                assert!(fs::read(&journal_path).ok() == journal, "a damaged journal stays as it is");
            }
            Ok((claims, tasks)) => {
                let stopped = CancellationToken::new();
                stopped.cancel();
                RUNTIME.with(|runtime| runtime.block_on(tasks.run(stopped)));
                let (again, _) = open(dir.path()).expect("the next agent reads what this one wrote");
                assert!(again == claims, "{again:?}\n{claims:?}");
            }
        }
    });
}

fn open(directory: &Path) -> Result<(BTreeMap<ClaimName, ClaimRecord>, ClaimTasks), OpenClaimsError> {
    let ports = ClaimPorts {
        api: None,
        drivers: Arc::new(NoDrivers),
        checkpoint: Arc::new(ClaimCheckpoint::new(directory.to_owned())),
        clock: Arc::new(SystemClock::new()),
        metrics: Metrics::new().dra.clone(),
    };
    let (manager, tasks) = ClaimManager::open(ports, ClaimFeatures::default())?;
    Ok((manager.read(|table| table.records().clone()), tasks))
}

/// Adds the checksums of the file and of the lines of its journal.
fn sealed(file: &[u8], journal: Option<&[u8]>) -> (Vec<u8>, Option<Vec<u8>>) {
    let data = String::from_utf8_lossy(file);
    let checksum = crc32fast::hash(data.as_bytes());
    let journal = journal.map(|lines| {
        let lines = String::from_utf8_lossy(lines);
        let header = format!("podwright claims {checksum}");
        std::iter::once(&*header).chain(lines.split_terminator('\n')).map(seal_line).collect::<String>().into_bytes()
    });
    (serde_json::json!({"Data": data, "Checksum": checksum}).to_string().into_bytes(), journal)
}
