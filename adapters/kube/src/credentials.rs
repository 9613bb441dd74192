//! The credentials of a kubeconfig, with the content of the files that the kubeconfig names.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use podwright_host::trusted_file;
use serde_json::{Value, json};

use super::client::{ConnectError, build};

/// The cluster and the user of the current context of a kubeconfig, with the content of the files that the kubeconfig names. `Debug` does
/// not print them.
#[derive(Clone)]
pub struct Credentials {
    path: PathBuf,
    /// The kubeconfig with the content of the files in place of their paths.
    kubeconfig: Kubeconfig,
    /// The file with the certificates of the cluster's authority, if the kubeconfig uses one.
    authority_file: Option<PathBuf>,
    /// The file with the certificate of the user, if the kubeconfig names one.
    certificate_file: Option<PathBuf>,
    /// All files, with the content that was read.
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads a kubeconfig and the files that it names. Blocking.
    ///
    /// # Errors
    /// [`ConnectError`] if a file cannot be read or can be changed by other users, or if the kubeconfig is damaged.
    pub fn read(path: &Path) -> Result<Self, ConnectError> {
        let faulty = |source| ConnectError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
        let untrusted = |source| ConnectError::Untrusted { kubeconfig: path.to_owned(), source };
        trusted_file::check(path).map_err(untrusted)?;
        let content = fs::read(path).map_err(|error| faulty(KubeconfigError::ReadConfig(error, path.to_owned())))?;
        let mut kubeconfig = Kubeconfig::read_from(path).map_err(faulty)?;
        let mut files = vec![(path.to_owned(), content)];
        let mut read = |file: &str| {
            let file = PathBuf::from(file);
            trusted_file::check(&file).map_err(untrusted)?;
            let content = fs::read(&file).map_err(|source| ConnectError::File {
                kubeconfig: path.to_owned(),
                path: file.clone(),
                source,
            })?;
            files.push((file, content.clone()));
            Ok(content)
        };
        let (mut authority_file, mut certificate_file) = (None, None);
        if let Some(cluster) = cluster_mut(&mut kubeconfig) {
            authority_file = inline_cluster(cluster, &mut read)?;
        }
        if let Some(user) = user_mut(&mut kubeconfig) {
            certificate_file = user.client_certificate.clone().map(PathBuf::from);
            inline_user(user, &mut read)?;
        }
        Ok(Credentials { path: path.to_owned(), kubeconfig, authority_file, certificate_file, files })
    }

    /// Whether the files have the same content as when they were read. Blocking.
    pub fn is_current(&self) -> bool {
        self.files.iter().all(|(path, content)| fs::read(path).is_ok_and(|found| found == *content))
    }

    /// Makes a client. Does not connect: the first call does.
    ///
    /// # Errors
    /// [`ConnectError`] if the kubeconfig is incomplete, or if its credentials cannot be used.
    pub async fn client(&self) -> Result<Client, ConnectError> {
        let faulty = |source| ConnectError::Kubeconfig { path: self.path.clone(), source: Box::new(source) };
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(self.kubeconfig.clone(), &options).await.map_err(faulty)?;
        build(config, &self.path)
    }

    /// The client certificate of the user in PEM, if the user has one.
    pub fn certificate(&self) -> Option<String> {
        let mut kubeconfig = self.kubeconfig.clone();
        let encoded = user_mut(&mut kubeconfig)?.client_certificate_data.take()?;
        String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
    }

    /// The file that contains the client certificate of the user, if the kubeconfig names one.
    pub fn certificate_file(&self) -> Option<&Path> {
        self.certificate_file.as_deref()
    }

    /// The text of a kubeconfig for the same cluster, whose user has the certificate and the key of a file in PEM. It names the same
    /// file of the authority, so that a new authority replaces the old one (upstream `writeKubeconfigFromBootstrapping`, kubelet 1.36).
    pub fn with_certificate_file(&self, file: &Path) -> String {
        let mut kubeconfig = self.kubeconfig.clone();
        let namespace = context_mut(&mut kubeconfig).and_then(|context| context.namespace.take());
        let cluster = cluster_mut(&mut kubeconfig).map(|cluster| {
            if let Some(file) = &self.authority_file {
                cluster.certificate_authority = Some(file.display().to_string());
                cluster.certificate_authority_data = None;
            }
            json!(cluster)
        });
        let mut context = json!({"cluster": "default-cluster", "user": "default-auth"});
        if let Some(namespace) = namespace {
            context["namespace"] = Value::String(namespace);
        }
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "default-cluster", "cluster": cluster.unwrap_or_default()}],
            "users": [{"name": "default-auth", "user": {"client-certificate": file, "client-key": file}}],
            "contexts": [{"name": "default-context", "context": context}],
            "current-context": "default-context",
        });
        format!("{config:#}\n")
    }
}

fn context_mut(kubeconfig: &mut Kubeconfig) -> Option<&mut kube::config::Context> {
    let name = kubeconfig.current_context.clone()?;
    kubeconfig.contexts.iter_mut().find(|named| named.name == name)?.context.as_mut()
}

fn cluster_mut(kubeconfig: &mut Kubeconfig) -> Option<&mut Cluster> {
    let name = context_mut(kubeconfig)?.cluster.clone();
    kubeconfig.clusters.iter_mut().find(|named| named.name == name)?.cluster.as_mut()
}

fn user_mut(kubeconfig: &mut Kubeconfig) -> Option<&mut AuthInfo> {
    let name = context_mut(kubeconfig)?.user.clone()?;
    kubeconfig.auth_infos.iter_mut().find(|named| named.name == name)?.auth_info.as_mut()
}

type ReadFile<'a> = &'a mut dyn FnMut(&str) -> Result<Vec<u8>, ConnectError>;

/// Replaces the path of the authority by the content of the file. The content of a kubeconfig takes precedence over a path. Returns the
/// absolute path of the file if it was read.
fn inline_cluster(cluster: &mut Cluster, read: ReadFile<'_>) -> Result<Option<PathBuf>, ConnectError> {
    let file = cluster.certificate_authority.take().filter(|_| cluster.certificate_authority_data.is_none());
    let Some(file) = file else { return Ok(None) };
    cluster.certificate_authority_data = Some(STANDARD.encode(read(&file)?));
    Ok(Some(std::path::absolute(&file).unwrap_or_else(|_| file.into())))
}

/// Replaces the paths of certificate, key and token by the content of the files. The content of a kubeconfig takes precedence over the
/// path of a certificate or a key, and the path of a token over its content (upstream `clientcmd` and `rest.Config`, client-go 1.36).
fn inline_user(user: &mut AuthInfo, read: ReadFile<'_>) -> Result<(), ConnectError> {
    if let Some(file) = user.client_certificate.take()
        && user.client_certificate_data.is_none()
    {
        let text = read(&file)?;
        user.client_certificate_data = Some(STANDARD.encode(sections(&text, |label| label == "CERTIFICATE")));
    }
    if let Some(file) = user.client_key.take()
        && user.client_key_data.is_none()
    {
        let text = read(&file)?;
        user.client_key_data = Some(STANDARD.encode(sections(&text, |label| label.ends_with("PRIVATE KEY"))).into());
    }
    if let Some(file) = user.token_file.take() {
        user.token = Some(String::from_utf8_lossy(&read(&file)?).trim().to_owned().into());
    }
    Ok(())
}

/// The sections of a text in PEM whose label is kept. A kubelet keeps a certificate and its key in one file. The kubeconfig names
/// this file twice, and the client would send the certificate twice. A text without such a section stays, so that the client reports it.
fn sections(text: &[u8], is_kept: fn(&str) -> bool) -> Vec<u8> {
    let lossy = String::from_utf8_lossy(text);
    let label = |line: &str, edge: &str| {
        line.trim().strip_prefix(edge).and_then(|rest| rest.strip_suffix("-----")).map(str::to_owned)
    };
    let (mut kept, mut is_inside) = (String::new(), false);
    for line in lossy.lines() {
        is_inside = is_inside || label(line, "-----BEGIN ").is_some_and(|label| is_kept(&label));
        if is_inside {
            kept.push_str(line);
            kept.push('\n');
        }
        is_inside = is_inside && label(line, "-----END ").is_none();
    }
    if kept.is_empty() { text.to_vec() } else { kept.into_bytes() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const COMBINED: &str = "-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n-----BEGIN EC PRIVATE KEY-----\nQg==\n-----END EC PRIVATE KEY-----\n";

    fn kubeconfig(user: &Value) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": "https://192.0.2.1", "certificate-authority": "ca.crt"}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        })
        .to_string()
    }

    #[test]
    fn changed_file_of_a_kubeconfig_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        fs::write(&path, kubeconfig(&json!({"tokenFile": "token"}))).unwrap();
        let error = Credentials::read(&path).unwrap_err();
        assert!(matches!(&error, ConnectError::File { path, .. } if path.ends_with("ca.crt")), "{error}");
        assert!(error.concerns_credentials() && !error.is_missing());
        fs::write(dir.path().join("ca.crt"), "ca").unwrap();
        fs::write(dir.path().join("token"), "one\n").unwrap();
        for file in ["kubeconfig", "ca.crt", "token"] {
            let read = Credentials::read(&path).unwrap();
            assert!(read.is_current());
            let mut text = fs::read_to_string(dir.path().join(file)).unwrap();
            text.push(' ');
            fs::write(dir.path().join(file), text).unwrap();
            assert!(!read.is_current(), "{file} has changed");
        }
        assert!(Credentials::read(&dir.path().join("none")).unwrap_err().is_missing());
    }

    #[test]
    fn kubeconfig_and_files_that_other_users_can_change_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        fs::write(&path, kubeconfig(&json!({"tokenFile": "token"}))).unwrap();
        for file in ["ca.crt", "token"] {
            fs::write(dir.path().join(file), file).unwrap();
        }
        for file in ["kubeconfig", "ca.crt", "token"] {
            let file = dir.path().join(file);
            let set_mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            set_mode(0o606);
            let error = Credentials::read(&path).unwrap_err();
            assert!(matches!(&error, ConnectError::Untrusted { source, .. } if source.path == file), "{error}");
            assert!(!error.concerns_credentials() && !error.is_missing(), "the agent does not replace the file");
            set_mode(0o640);
            Credentials::read(&path).unwrap();
        }
    }

    #[test]
    fn certificate_and_key_of_one_file_are_separated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        fs::write(dir.path().join("ca.crt"), "ca").unwrap();
        fs::write(dir.path().join("both.pem"), COMBINED).unwrap();
        fs::write(&path, kubeconfig(&json!({"client-certificate": "both.pem", "client-key": "both.pem"}))).unwrap();
        let read = Credentials::read(&path).unwrap();
        let shown = format!("{read:?}");
        // Text, base64 and the list of bytes.
        let parts = ["EC PRIVATE", &STANDARD.encode(COMBINED)[..20], "45, 45, 45"];
        assert!(shown.contains("kubeconfig") && !parts.iter().any(|part| shown.contains(part)), "{shown}");
        assert_eq!(read.certificate_file(), Some(dir.path().join("both.pem").as_path()));
        let certificate = read.certificate().unwrap();
        assert_eq!(certificate, COMBINED[..COMBINED.find("-----BEGIN EC").unwrap()]);
        let user = json!(read.kubeconfig.auth_infos[0].auth_info);
        let key = STANDARD.decode(user["client-key-data"].as_str().unwrap()).unwrap();
        assert!(key.starts_with(b"-----BEGIN EC PRIVATE KEY"), "{user}");
    }

    #[test]
    fn written_kubeconfig_has_the_cluster_and_the_new_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("kubeconfig"), dir.path().join("other"));
        fs::write(dir.path().join("ca.crt"), "ca").unwrap();
        fs::write(&path, kubeconfig(&json!({"token": "secret"}))).unwrap();
        let text = Credentials::read(&path).unwrap().with_certificate_file(Path::new("/pki/client.pem"));
        assert!(!text.contains("secret"), "{text}");
        fs::write(&other, text).unwrap();
        let mut written = Kubeconfig::read_from(&other).unwrap();
        let cluster = cluster_mut(&mut written).unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://192.0.2.1"));
        let authority = dir.path().join("ca.crt");
        assert_eq!(cluster.certificate_authority.as_deref(), authority.to_str());
        assert_eq!(cluster.certificate_authority_data, None, "a new authority replaces the old one");
        let user = user_mut(&mut written).unwrap();
        assert_eq!(user.client_certificate.as_deref(), Some("/pki/client.pem"));
        assert_eq!(user.client_key.as_deref(), Some("/pki/client.pem"));
        assert_eq!(context_mut(&mut written).unwrap().namespace.as_deref(), Some("n"));
    }
}
