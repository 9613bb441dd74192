//! The claims of pods in the file of the kubelet (`dra_manager_state`), and a journal of the changes since it was written.
//!
//! The file is a JSON object: `Data` is a JSON document as a string, `Checksum` its CRC-32 (upstream `checkpoint`, kubelet 1.36).
//! So a node can switch between a kubelet and this agent. Each change adds one line to the journal. The first line of the journal
//! has the checksum of the file that it continues. A journal with another checksum is ignored: the file was replaced after its last
//! line. A journal without a valid first line is damaged.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use podwright_host::record::{self, Durability, ReadError};
use podwright_ports::{Checkpoint, CheckpointError, CheckpointWriter, OpenCheckpoint};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::reserve::ReservedFile;
use super::{FileWriter, SharedFile, WAIT, append, lines};

/// The name of the file in the root directory (upstream `draManagerStateFileName`, kubelet 1.36).
const FILE: &str = "dra_manager_state";
/// The name of the journal.
const JOURNAL: &str = "dra_manager_state.journal";
/// The beginning of the first line of the journal; the checksum of the file follows.
const HEADER: &str = "podwright claims ";
/// What an operator must do about a damaged file. Without the file, the agent would forget prepared devices.
const REMEDY: &str = "drain the node, remove the file and its journal, and start the agent again";

/// [`Checkpoint`] of claims in the root directory of an agent. Unlike other files, a damaged one keeps the node from starting.
#[derive(Clone, Debug)]
pub struct ClaimCheckpoint {
    directory: PathBuf,
}

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Sealed {
    data: String,
    checksum: u32,
}

/// The document in the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList", default)]
    claims: Option<Vec<Value>>,
}

impl ClaimCheckpoint {
    /// A checkpoint in the root directory of an agent. The directory must exist when the file is opened.
    pub fn new(directory: PathBuf) -> Self {
        ClaimCheckpoint { directory }
    }
}

/// Why the file or its journal is not valid.
#[derive(Debug, thiserror::Error)]
enum DamagedClaims {
    #[error("the file is empty: {REMEDY}")]
    Empty,
    #[error("the file is not a checkpoint of claims: {REMEDY}")]
    Form(#[source] serde_json::Error),
    #[error("the checksum of the file does not match its content: {REMEDY}")]
    Checksum,
    #[error("line {0} of the journal is damaged: {REMEDY}")]
    Line(usize),
}

/// The content of a file and the checksum of its document.
fn parse(bytes: &[u8]) -> Result<(Vec<String>, u32), DamagedClaims> {
    if bytes.is_empty() {
        return Err(DamagedClaims::Empty);
    }
    let sealed: Sealed = serde_json::from_slice(bytes).map_err(DamagedClaims::Form)?;
    if crc32fast::hash(sealed.data.as_bytes()) != sealed.checksum {
        return Err(DamagedClaims::Checksum);
    }
    let document: Document = serde_json::from_str(&sealed.data).map_err(DamagedClaims::Form)?;
    let claims = document.claims.unwrap_or_default();
    Ok((claims.iter().map(Value::to_string).collect(), sealed.checksum))
}

/// The lines of the journal, if it continues the file with this checksum. A last line without its end was never acknowledged. The
/// first line always has its end, because the journal is created with it.
fn parse_journal(bytes: &[u8], checksum: u32) -> Result<Option<Vec<String>>, DamagedClaims> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    let mut lines = lines.map(record::unseal_line);
    let header = lines.next().flatten().and_then(|line| line.strip_prefix(HEADER)?.parse::<u32>().ok());
    let continued = header.ok_or(DamagedClaims::Line(1))?;
    if continued != checksum {
        tracing::info!("the journal of claims continues another file: it is ignored");
        return Ok(None);
    }
    let numbered = lines.enumerate().map(|(index, line)| line.map(str::to_owned).ok_or(DamagedClaims::Line(index + 2)));
    numbered.collect::<Result<Vec<_>, _>>().map(Some)
}

/// The file and its journal, which are written also on a full disk: a pod whose devices are not released keeps its files there.
struct ClaimFiles {
    file: ReservedFile,
    journal: ReservedFile,
}

impl ClaimFiles {
    fn new(file: &Path) -> Self {
        ClaimFiles { file: ReservedFile::new(file.to_owned()), journal: ReservedFile::new(journal(file)) }
    }

    /// Replaces the file, and begins a new journal.
    fn save(&self, records: &[Arc<str>]) -> io::Result<()> {
        let claims = records.iter().map(|record| serde_json::from_str(record)).collect::<Result<Vec<Value>, _>>()?;
        let document = Document {
            kind: "DRACheckpoint".to_owned(),
            api_version: "checkpoint.dra.kubelet.k8s.io/v1".to_owned(),
            claims: (!claims.is_empty()).then_some(claims),
        };
        let data = serde_json::to_string(&document)?;
        let checksum = crc32fast::hash(data.as_bytes());
        self.file.save(&serde_json::to_vec(&Sealed { data, checksum })?)?;
        let header = record::seal_line(&format!("{HEADER}{checksum}"));
        self.journal.save(header.as_bytes())
    }

    /// Reserves space for the next save: the file gets the claims of both files, and the journal gets its first line.
    fn reserve(&self) {
        self.file.reserve(self.file.size() + self.journal.size());
        self.journal.reserve(0);
    }
}

fn journal(file: &Path) -> PathBuf {
    file.with_file_name(JOURNAL)
}

impl Checkpoint for ClaimCheckpoint {
    /// Writes an empty file if there is none. Waits up to 10 s for a write of an earlier node that is in progress.
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        let path = self.directory.join(FILE);
        if self.directory.as_os_str().is_empty() {
            // The file would be in the working directory.
            return Err(CheckpointError::new(path, "the directory of the file is empty: name the root directory"));
        }
        let shared = SharedFile::at(&path)?;
        let Some(mut openings) = shared.openings.try_lock_for(WAIT) else {
            return Err(CheckpointError::new(path, "an earlier node of this process still writes the file"));
        };
        let failed = |error: io::Error| CheckpointError::new(&shared.path, error);
        let bytes = |path: &Path| match record::bytes(path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(ReadError::Missing(_)) => Ok(None),
            Err(error) => Err(CheckpointError::new(path, error)),
        };
        let (mut records, files) = (Vec::new(), Arc::new(ClaimFiles::new(&shared.path)));
        match bytes(&shared.path)? {
            None => files.save(&[]).map_err(failed)?,
            Some(content) => {
                let damaged = |error: DamagedClaims| CheckpointError::new(&shared.path, error);
                let (claims, checksum) = parse(&content).map_err(damaged)?;
                records = claims;
                if let Some(content) = bytes(&journal(&shared.path))? {
                    records.extend(parse_journal(&content, checksum).map_err(damaged)?.unwrap_or_default());
                }
            }
        }
        files.reserve();
        *openings += 1;
        let writer = ClaimWriter { writer: FileWriter { opening: *openings, file: shared.clone() }, files };
        Ok(OpenCheckpoint { records, writer: Box::new(writer) })
    }
}

struct ClaimWriter {
    writer: FileWriter,
    files: Arc<ClaimFiles>,
}

impl CheckpointWriter for ClaimWriter {
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        let files = self.files.clone();
        self.writer.write(move |_| files.save(&records))
    }

    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        let files = self.files.clone();
        self.writer.write(move |path| {
            append(&journal(path), &lines(&records), Durability::Disk)?;
            files.reserve();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use super::*;

    const CLAIM: &str =
        r#"{"ClaimName":"cam","ClaimUID":"c-1","DriverState":{},"Namespace":"shop","PodUIDs":{"p-1":{}}}"#;
    const GONE: &str = r#"{"ClaimName":"cam","Namespace":"shop","Removed":true}"#;

    fn open(dir: &Path) -> Result<OpenCheckpoint, String> {
        let opened = ClaimCheckpoint::new(dir.to_owned()).open();
        opened.map_err(|error| podwright_model::text::error_chain(&error).to_string())
    }

    /// DRA-K1: without a file, an empty one is written; its checksum is that of the kubelet's.
    #[test]
    fn missing_file_is_written() {
        let dir = tempfile::tempdir().unwrap();
        assert!(open(dir.path()).unwrap().records.is_empty());
        let file = fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(
            file.contains(r#"\"ClaimInfoStateList\":null"#) && file.ends_with(r#""Checksum":4010664294}"#),
            "{file}"
        );
    }

    /// DRA-K1: an empty directory is an error, and no file appears in the working directory.
    #[test]
    fn empty_directory_is_refused() {
        let error = open(Path::new("")).err().unwrap();
        assert!(error.contains("dra_manager_state") && error.contains("name the root directory"), "{error}");
        assert!(!Path::new(FILE).exists());
    }

    /// DRA-K2: an opening reads the saved records, and then the appended ones.
    #[tokio::test]
    async fn saved_and_appended_records_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let writer = open(dir.path()).unwrap().writer;
        writer.save(vec![CLAIM.into()]).await.unwrap();
        writer.append(vec![GONE.into(), CLAIM.into()]).await.unwrap();
        assert_eq!(open(dir.path()).unwrap().records, [CLAIM, GONE, CLAIM]);
        // A crash during an append leaves a line without its end.
        let mut journal = OpenOptions::new().append(true).open(dir.path().join(JOURNAL)).unwrap();
        journal.write_all(b"12345678 {\"Claim").unwrap();
        assert_eq!(open(dir.path()).unwrap().records, [CLAIM, GONE, CLAIM]);
        writer.append(vec![GONE.into()]).await.unwrap_err();
    }

    /// A crash between the writes of the file and the new journal, or a kubelet that wrote the file in the meantime.
    #[tokio::test]
    async fn journal_of_another_file_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let writer = open(dir.path()).unwrap().writer;
        writer.save(vec![]).await.unwrap();
        writer.append(vec![CLAIM.into()]).await.unwrap();
        let journal = fs::read(dir.path().join(JOURNAL)).unwrap();
        writer.save(vec![CLAIM.into()]).await.unwrap();
        fs::write(dir.path().join(JOURNAL), journal).unwrap();
        assert_eq!(open(dir.path()).unwrap().records, [CLAIM]);
    }

    /// DRA-K3, KF19: damage keeps the agent from starting, the error has the remedy, and the file stays.
    #[tokio::test]
    async fn damaged_file_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let writer = open(dir.path()).unwrap().writer;
        writer.save(vec![CLAIM.into()]).await.unwrap();
        writer.append(vec![CLAIM.into()]).await.unwrap();
        let path = dir.path().join(FILE);
        let good = fs::read_to_string(&path).unwrap();
        for bad in ["", "{", "{}", r#"{"Data":"{","Checksum":0}"#, &good.replace("cam", "mic")] {
            fs::write(&path, bad).unwrap();
            let error = open(dir.path()).err().unwrap();
            assert!(error.contains("drain the node, remove the file and its journal"), "{bad}: {error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), bad);
        }
        fs::write(&path, good).unwrap();
        let journal = fs::read_to_string(dir.path().join(JOURNAL)).unwrap();
        fs::write(dir.path().join(JOURNAL), journal.replace("cam", "mic")).unwrap();
        assert!(open(dir.path()).err().unwrap().contains("line 2 of the journal is damaged"));
        // Without a valid first line, nobody knows whether the journal continues the file.
        let header_and_claim = journal.split_once('\n').unwrap();
        let bad_headers = [
            String::new(),
            header_and_claim.0.to_owned(),
            journal.replace("podwright claims", "podwright lists"),
            format!("{}{}", record::seal_line("podwright claims many"), header_and_claim.1),
        ];
        for bad in bad_headers {
            fs::write(dir.path().join(JOURNAL), &bad).unwrap();
            let error = open(dir.path()).err().unwrap_or_else(|| panic!("opened with the journal {bad:?}"));
            assert!(error.contains("line 1 of the journal is damaged"), "{bad}: {error}");
            assert_eq!(fs::read_to_string(dir.path().join(JOURNAL)).unwrap(), bad);
        }
    }
}
