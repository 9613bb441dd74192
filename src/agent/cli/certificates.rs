//! The flags for the certificates of a node.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::agent::certificates::DIRECTORY;
use podwright_http_server::TlsFiles;

/// The certificates of the node of `--kubeconfig`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CertificateArgs {
    /// The kubeconfig with which a new node requests its first client certificate, usually with a bootstrap token. The agent writes
    /// the file of --kubeconfig when the certificate is issued, and renews the certificate before it expires. The file is read only
    /// if the certificate of --kubeconfig is missing or has expired.
    #[arg(long, value_name = "FILE", requires = "kubeconfig")]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,
    /// The certificate (PEM, with its chain) that the node API shows to its clients. A changed file is used without a restart
    /// [default: a certificate that the agent makes and signs].
    #[arg(long, value_name = "FILE", requires_all = ["tls_private_key_file", "kubeconfig"], conflicts_with = "rotate_server_certificates")]
    tls_cert_file: Option<PathBuf>,
    /// The private key (PEM) of the certificate. Other users must not be able to read it.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Request the certificate of the node API from the cluster (signer kubernetes.io/kubelet-serving), and renew it before it
    /// expires. Somebody has to approve each request: kubectl certificate approve NAME.
    #[arg(long, requires = "kubeconfig")]
    pub(crate) rotate_server_certificates: bool,
    /// The directory for the certificates that the agent makes or requests, and their keys. Other users must not be able to write to it
    /// [default: pki in the root directory].
    #[arg(long, value_name = "DIR", requires = "kubeconfig")]
    pub(crate) cert_dir: Option<PathBuf>,
}

impl CertificateArgs {
    /// The fields of `KubeletConfiguration`. The agent renews a client certificate that it has requested itself.
    pub(crate) fn configuration(&self) -> serde_json::Value {
        serde_json::json!({
            "rotateCertificates": self.bootstrap_kubeconfig.is_some(),
            "serverTLSBootstrap": self.rotate_server_certificates,
            "tlsCertFile": self.tls_cert_file,
            "tlsPrivateKeyFile": self.tls_private_key_file,
        })
    }

    /// The directory for certificates and keys.
    pub(crate) fn directory(&self, root: &Path) -> PathBuf {
        self.cert_dir.clone().unwrap_or_else(|| root.join(DIRECTORY))
    }

    /// The files of the serving certificate, if the flags name them.
    pub(crate) fn tls_files(&self) -> Option<TlsFiles> {
        // The command line admits either both files or none.
        let (certificate, key) = self.tls_cert_file.clone().zip(self.tls_private_key_file.clone())?;
        Some(TlsFiles { certificate, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::cli::{self, Command};

    fn parse(flags: &[&str]) -> Result<CertificateArgs, String> {
        match cli::parse(["podwright", "run"].iter().chain(flags)).map(|cli| cli.command) {
            Ok(Command::Run(args)) => Ok((*args.certificates).clone()),
            Ok(_) => panic!("run is parsed"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn certificate_and_key_belong_together_and_need_a_cluster() {
        let both = ["--tls-cert-file=c", "--tls-private-key-file=k"];
        assert!(parse(&["--kubeconfig=f"]).unwrap().tls_files().is_none());
        let files = parse(&["--kubeconfig=f", both[0], both[1]]).unwrap().tls_files().unwrap();
        assert_eq!((files.certificate, files.key), (PathBuf::from("c"), PathBuf::from("k")));
        for (flags, missing) in [
            (&["--kubeconfig=f", both[0]][..], "--tls-private-key-file"),
            (&["--kubeconfig=f", both[1]], "--tls-cert-file"),
            (&both, "--kubeconfig"),
            (&["--bootstrap-kubeconfig=b"], "--kubeconfig"),
            (&["--rotate-server-certificates"], "--kubeconfig"),
        ] {
            let error = parse(flags).unwrap_err();
            assert!(error.contains(missing), "{flags:?}: {error}");
        }
        let directory = |flags: &[&str]| parse(flags).unwrap().directory(Path::new("/r"));
        assert_eq!(directory(&[]), Path::new("/r/pki"));
        assert_eq!(directory(&["--kubeconfig=f", "--cert-dir=/c"]), Path::new("/c"));
        let error = parse(&["--kubeconfig=f", both[0], both[1], "--rotate-server-certificates"]).unwrap_err();
        assert!(error.contains("cannot be used with"), "{error}");
    }
}
