use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use podwright_stand_in::{Approval, StandIn};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;

/// The files are compared several times within this time, which is paused.
const PATIENCE: Duration = Duration::from_secs(180);

fn node(root: &Path, address: &str) -> ServingNode {
    ServingNode { directory: root.join("pki"), name: "n1".to_owned(), addresses: vec![address.parse().unwrap()].into() }
}

fn now() -> Timestamp {
    Timestamp::now()
}

/// Writes a new certificate and its key for a name into a directory.
fn write_pair(directory: &Path, name: &str) {
    fs::create_dir_all(directory).unwrap();
    let pem = self_signed::create(name, &[name.to_owned()], now()).unwrap();
    let (certificate, key) = pem.split_at(pem.find("-----BEGIN PRIVATE KEY").unwrap());
    fs::write(directory.join("tls.crt"), certificate).unwrap();
    fs::write(directory.join("tls.key"), key).unwrap();
    fs::set_permissions(directory.join("tls.key"), fs::Permissions::from_mode(0o600)).unwrap();
}

fn files(directory: &Path) -> TlsFiles {
    TlsFiles { certificate: directory.join("tls.crt"), key: directory.join("tls.key") }
}

fn names(certificate: &ServingCertificate) -> Vec<String> {
    certificate.current.read().as_ref().unwrap().names()
}

async fn wait_until_served(certificate: &ServingCertificate, name: &str) {
    let end = Instant::now() + PATIENCE;
    while names(certificate) != [name] {
        assert!(Instant::now() < end, "{name} is not served, but {:?}", names(certificate));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn self_signed_certificate_is_private_and_kept_until_the_names_change() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("pki");
    let (node, moved) = (node(root.path(), "192.0.2.1"), node(root.path(), "192.0.2.2"));
    let first = load_self_signed(&node, now()).unwrap();
    assert_eq!(first.names(), ["192.0.2.1", "n1"]);
    assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(directory.join(SELF_SIGNED)).unwrap().mode() & 0o777, 0o600);
    let again = load_self_signed(&node, now()).unwrap();
    assert_eq!(again.certified.cert, first.certified.cert);

    let other = load_self_signed(&moved, now()).unwrap();
    assert_eq!(other.names(), ["192.0.2.2", "n1"]);
    fs::write(directory.join(SELF_SIGNED), "damaged").unwrap();
    let repaired = load_self_signed(&node, now()).unwrap();
    assert_ne!(repaired.certified.cert, first.certified.cert);
}

#[test]
fn files_that_do_not_fit_are_refused_with_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    write_pair(&one, "one");
    write_pair(&two, "two");
    let mixed = TlsFiles { certificate: one.join("tls.crt"), key: two.join("tls.key") };
    let error = load_files(&mixed).unwrap_err();
    assert!(matches!(&error, ServingError::Pair { source: PairError::Mismatch(_), .. }), "{error:?}");
    assert!(error.to_string().contains("two/tls.key"), "{error}");
    let missing = TlsFiles { certificate: dir.path().join("none"), ..files(&one) };
    assert!(load_files(&missing).unwrap_err().to_string().contains("--tls-cert-file"));
    fs::set_permissions(one.join("tls.key"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(load_files(&files(&one)), Err(ServingError::Key(PrivateFileError::Mode { .. }))));
}

// A rename replaces one file, and the swap of a link replaces both at once, as in a mounted secret.
#[tokio::test(start_paused = true)]
async fn replaced_files_are_served_and_a_broken_pair_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["one", "two", "three"] {
        write_pair(&dir.path().join(name), name);
    }
    let link = dir.path().join("current");
    symlink("one", &link).unwrap();
    let stop = CancellationToken::new();
    let metrics = podwright_metrics::Metrics::new();
    let parts = Parts::new(metrics.actors.panics().clone(), stop.clone());
    let certificate = serving(ServingSource::Files(files(&link)), metrics.certificates, &parts).await.unwrap();
    assert_eq!((parts.running(), parts.stopped()), (1, Vec::new()), "a part follows the files");
    assert_eq!(names(&certificate), ["one"]);

    let next = dir.path().join("next");
    symlink("two", &next).unwrap();
    fs::rename(&next, &link).unwrap();
    wait_until_served(&certificate, "two").await;

    let two = dir.path().join("two");
    fs::rename(dir.path().join("three/tls.crt"), two.join("tls.crt")).unwrap();
    assert!(load(LocalSource::Files(files(&link))).await.is_err());
    tokio::time::sleep(5 * INTERVAL).await;
    assert_eq!(names(&certificate), ["two"], "the old certificate stays until the key is replaced too");
    fs::rename(dir.path().join("three/tls.key"), two.join("tls.key")).unwrap();
    wait_until_served(&certificate, "three").await;
    stop.cancel();
}

// The serving certificate of a node is approved by hand.
#[tokio::test]
async fn issued_certificate_is_served_and_kept_by_the_next_agent() {
    let server = StandIn::builder().settings(|settings| settings.approval = Approval::Nothing).start().await.unwrap();
    let root = tempfile::tempdir().unwrap();
    let kubeconfig = root.path().join("kubeconfig");
    fs::write(&kubeconfig, server.kubeconfig(&server.node_token("n1"))).unwrap();
    let node = node(root.path(), "192.0.2.1");
    let serve = || async {
        let client = crate::adapters::kube::connect(&kubeconfig).await.unwrap();
        let (metrics, stop) = (podwright_metrics::Metrics::new(), CancellationToken::new());
        let parts = Parts::new(metrics.actors.panics().clone(), stop.clone());
        let source = ServingSource::Signed(node.clone(), client);
        let served = serving(source, metrics.certificates, &parts).await.unwrap();
        (served, stop.drop_guard())
    };
    let end = Instant::now() + PATIENCE;
    let (certificate, _stop) = serve().await;
    let request = loop {
        assert!(Instant::now() < end, "the node requests no certificate");
        tokio::time::sleep(Duration::from_millis(20)).await;
        if let Some(request) = server.all("certificatesigningrequests").pop() {
            break request;
        }
    };
    assert_eq!(request["spec"]["signerName"], "kubernetes.io/kubelet-serving");
    assert!(certificate.current.read().is_none(), "no connection is accepted without a certificate");
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
    let name = request["metadata"]["name"].as_str().unwrap();
    let path = format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}/approval");
    server.request("PATCH", &path, "application/merge-patch+json", &approved).unwrap();
    let is_served = |certificate: Arc<ServingCertificate>| async move {
        while certificate.current.read().is_none() {
            assert!(Instant::now() < end, "the certificate is not served");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(names(&certificate), ["192.0.2.1", "n1"]);
    };
    is_served(certificate).await;

    let (certificate, _stop) = serve().await;
    is_served(certificate).await;
    assert_eq!(server.all("certificatesigningrequests").len(), 1, "the next agent has the certificate already");
}
