//! The files of a certificate that the cluster issues.
//!
//! Each file is replaced at once, so that an agent that is killed leaves the old file or the new one.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::pair::CertificatePair;
use super::request::{Pending, Template};
use podwright_host::record::{self, Durability};

/// The default directory of certificates and keys, below the root directory.
pub(crate) const DIRECTORY: &str = "pki";

/// The files of one certificate: `NAME-current.pem` with the certificate and its key, and `NAME-pending.pem` with the key of an open
/// request.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: PathBuf,
    name: &'static str,
}

impl Directory {
    /// The files in this directory.
    pub(super) fn of(path: &Path, name: &'static str) -> Self {
        Directory { path: path.to_owned(), name }
    }

    /// The file with the certificate and its key.
    pub(super) fn current_file(&self) -> PathBuf {
        self.path.join(format!("{}-current.pem", self.name))
    }

    fn pending_file(&self) -> PathBuf {
        self.path.join(format!("{}-pending.pem", self.name))
    }

    /// The certificate in the directory. Blocking.
    pub(super) fn current(&self) -> Option<CertificatePair> {
        let text = String::from_utf8(record::bytes(&self.current_file()).ok()?).ok()?;
        CertificatePair::parse(&text, &text).ok()
    }

    /// The open request for a template. Makes a request if there is none, and keeps it. Blocking.
    ///
    /// # Errors
    /// The system's error, or the error of a name that cannot be in a certificate.
    pub(super) fn pending(&self, template: &Template) -> io::Result<Pending> {
        let kept = record::bytes(&self.pending_file()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let kept = kept.and_then(|text| Pending::from_text(&text)).filter(|kept| kept.is_for(template));
        // An agent that was killed after it stored the certificate has left the request of that certificate.
        let is_done =
            |kept: &Pending| fs::read_to_string(self.current_file()).is_ok_and(|text| text.contains(kept.key.trim()));
        if let Some(kept) = kept.filter(|kept| !is_done(kept)) {
            return Ok(kept);
        }
        let pending = template.request().map_err(io::Error::other)?;
        self.write(&self.pending_file(), &pending.to_text())?;
        Ok(pending)
    }

    /// Removes the open request. Blocking.
    pub(super) fn discard_pending(&self) {
        // A request that cannot be removed is not used again, because its key is the key of the certificate, or because the API server
        // refuses it again.
        let _ = fs::remove_file(self.pending_file());
    }

    /// Stores a certificate with its chain, and its key. Blocking.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn store(&self, certificates: &str, key: &str) -> io::Result<()> {
        self.write(&self.current_file(), &format!("{}\n{key}", certificates.trim_end()))
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        record::replace(path, text.as_bytes(), Durability::Disk)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn key_of_an_open_request_is_kept_until_the_certificate_is_stored() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::of(&root.path().join(DIRECTORY), "client");
        let template = Template::client("n1");
        let first = directory.pending(&template).unwrap();
        assert_eq!(directory.pending(&template).unwrap(), first);
        let pending = root.path().join("pki/client-pending.pem");
        assert_eq!(fs::metadata(&pending).unwrap().mode() & 0o777, 0o600);
        let other = directory.pending(&Template::client("n2")).unwrap();
        assert_ne!(other, first, "a request of another node is of no use");

        // The agent is killed between the certificate and the removal of the request.
        let pem = super::super::self_signed::create("n1", &["n1".to_owned()], jiff::Timestamp::now()).unwrap();
        let certificate = &pem[..pem.find("-----BEGIN PRIVATE").unwrap()];
        directory.store(certificate, &other.key).unwrap();
        assert_eq!(fs::metadata(directory.current_file()).unwrap().mode() & 0o777, 0o600);
        let next = directory.pending(&Template::client("n2")).unwrap();
        assert_ne!(next, other, "the certificate of this request is stored");
        directory.discard_pending();
        assert!(!pending.exists());
    }
}
