//! Tests of the records of image pulls.

use serde_json::json;

use super::*;
use crate::access::AccountIdentity;
use crate::verification::ImageListEntry;

const NAME: &str = "r.example/a:1";
const ID: &str = "sha256:1";
const REPOSITORY: &str = "r.example/a";
const ASK: Verdict = Verdict::AskRegistry { of_accounts: false };

fn name(text: &str) -> ImageName {
    ImageName::parse(text).unwrap()
}

fn secret(hash: &str) -> SecretIdentity {
    SecretIdentity { uid: hash.into(), namespace: "ns".into(), name: hash.into(), hash: hash.into() }
}

fn presented(secrets: &[SecretIdentity]) -> Presented {
    Presented { secrets: secrets.to_vec(), accounts: vec![] }
}

fn records(root: &Path) -> PullRecords {
    PullRecords::new(root, VerificationPolicy::default(), None)
}

impl PullRecords {
    fn may_use(&self, image: &ImageName, id: &str, secrets: &[SecretIdentity]) -> bool {
        self.verify(image, id, &presented(secrets)).allows()
    }
}

#[test]
fn access_to_an_image_is_recorded_before_its_pull_and_survives_restarts() {
    let root = tempfile::tempdir().unwrap();
    let may_use = |presented: &[SecretIdentity]| records(root.path()).may_use(&name(NAME), ID, presented);
    assert!(may_use(&[]), "the agent did not pull the image");

    let records = records(root.path());
    let (first, second) = (records.intend(&name(NAME)).unwrap(), records.intend(&name(NAME)).unwrap());
    assert!(!may_use(&[]));
    first.end();
    assert!(!may_use(&[]), "another pull is running");
    records.grant(ID, REPOSITORY, None).unwrap();
    second.end();
    assert!(!may_use(&[secret("1")]), "no access is recorded yet");
    records.grant(ID, REPOSITORY, Some(Access::Secret(secret("1")))).unwrap();
    assert!(may_use(&[secret("1")]) && !may_use(&[secret("2")]) && !may_use(&[]));

    // A cancelled pull may still bring the image.
    let b = name("r.example/b:1");
    drop(records.intend(&b).unwrap());
    assert!(!records.may_use(&b, "sha256:2", &[]));
    let (nothing, later) = (HashSet::new(), SystemTime::now() + 2 * CANCELLED_PULL);
    records.retain(&nothing, &nothing, SystemTime::now());
    assert!(!may_use(&[]), "the record is newer than the image list");
    records.retain(&HashSet::from([ID.to_owned()]), &HashSet::from([NAME.to_owned()]), later);
    assert!(may_use(&[secret("1")]) && !may_use(&[]));
    assert!(records.may_use(&b, "sha256:2", &[]), "the pull brought no image");
    records.retain(&nothing, &nothing, later);
    assert!(may_use(&[]), "the image was removed, so the agent did not pull the next one of this ID");
}

// A pod with a secret started the pull, and the agent was killed. Another spelling of the name gives no access either.
#[test]
fn a_pull_intent_is_found_by_every_spelling_of_the_image_name() {
    let digest = format!("@sha256:{}", "0a".repeat(32));
    for (written, listed, otherwise) in [
        ("acme/app:1", "docker.io/acme/app:1".to_owned(), "docker.io/acme/app:1".to_owned()),
        (&format!("acme/app:1{digest}"), format!("docker.io/acme/app{digest}"), format!("acme/app{digest}")),
        ("app", "docker.io/library/app:latest".to_owned(), "index.docker.io/library/app".to_owned()),
    ] {
        let root = tempfile::tempdir().unwrap();
        drop(records(root.path()).intend(&name(written)).unwrap());
        let records = records(root.path());
        let later = SystemTime::now() + 2 * CANCELLED_PULL;
        records.retain(&HashSet::from([ID.to_owned()]), &HashSet::from([listed]), later);
        for name in [name(written), name(&otherwise)] {
            assert!(!records.may_use(&name, ID, &[]), "{written} as {}", name.as_str());
        }
        records.intend(&name(&otherwise)).unwrap().end();
        assert!(records.may_use(&name(written), ID, &[]), "the pull ended, whatever the spelling");
        drop(records.intend(&name(written)).unwrap());
        records.retain(&HashSet::new(), &HashSet::new(), later);
        assert!(records.may_use(&name(written), ID, &[]), "the pull brought no image");
    }
}

#[test]
fn a_pull_record_that_cannot_be_read_gives_no_access_and_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let records = records(root.path());
    records.grant(ID, REPOSITORY, Some(Access::Node)).unwrap();
    assert_eq!(records.verify(&name(NAME), ID, &presented(&[])), Verdict::RecordAllows);
    let path = record_path(&records.0.pulled, ID);
    fs::write(&path, "{").unwrap();
    assert_eq!(records.verify(&name(NAME), ID, &presented(&[])), Verdict::Unknown);
    records.grant(ID, REPOSITORY, Some(Access::Secret(secret("1")))).unwrap();
    assert!(records.may_use(&name(NAME), ID, &[secret("1")]) && !records.may_use(&name(NAME), ID, &[]));

    // The record of a pull whose text is not valid counts for the name of its file.
    let other = name("r.example/b:1");
    fs::create_dir_all(&records.0.pulling).unwrap();
    let intent = record_path(&records.0.pulling, other.as_str());
    fs::write(&intent, "{").unwrap();
    assert_eq!(records.verify(&other, "sha256:2", &presented(&[])), ASK);
    let (nothing, later) = (HashSet::new(), SystemTime::now() + 2 * CANCELLED_PULL);
    records.retain(&nothing, &HashSet::from(["r.example/b:1".to_owned()]), later);
    assert!(intent.exists() && !path.exists(), "the image of the pull is present, and the other one is not");
    records.retain(&nothing, &nothing, later);
    assert!(!intent.exists());
}

// The pods of an image keep it after an update of the agent, whatever their pull policy is.
#[test]
fn the_records_of_an_earlier_agent_count() {
    let root = tempfile::tempdir().unwrap();
    let records = records(root.path());
    let secrets = json!([{"uid": "1", "namespace": "ns", "name": "1", "hash": "of an earlier agent"}]);
    let earlier = json!({"image": ID, "repositories": {REPOSITORY: {"secrets": secrets}}});
    write(&records.0.pulled, ID, earlier.to_string().as_bytes()).unwrap();
    assert!(records.may_use(&name(NAME), ID, &[secret("1")]) && !records.may_use(&name(NAME), ID, &[secret("2")]));
    // The first check has recorded the hash of this agent.
    let same_login = SecretIdentity { hash: "1".into(), ..secret("2") };
    assert!(records.may_use(&name(NAME), ID, &[same_login]));

    write(&records.0.pulling, "docker.io/acme/app:1", b"docker.io/acme/app:1").unwrap();
    let app = name("acme/app:1");
    assert_eq!(records.verify(&app, "sha256:2", &presented(&[])), ASK, "the pull had no result");
    records.intend(&app).unwrap().end();
    assert_eq!(records.verify(&app, "sha256:2", &presented(&[])), Verdict::PolicyAllows);
}

#[test]
fn a_policy_decides_before_the_records() {
    let root = tempfile::tempdir().unwrap();
    records(root.path()).grant(ID, REPOSITORY, Some(Access::Secret(secret("1")))).unwrap();
    let listed = VerificationPolicy::NeverListed([REPOSITORY.parse::<ImageListEntry>().unwrap()].into_iter().collect());
    for (policy, pulled, preloaded) in [
        (VerificationPolicy::Never, Verdict::PolicyAllows, Verdict::PolicyAllows),
        (VerificationPolicy::NeverPreloaded, ASK, Verdict::PolicyAllows),
        (listed.clone(), Verdict::PolicyAllows, Verdict::PolicyAllows),
        (VerificationPolicy::Always, ASK, ASK),
    ] {
        let records = PullRecords::new(root.path(), policy.clone(), None);
        let verdicts = [ID, "sha256:2"].map(|id| records.verify(&name(NAME), id, &presented(&[])));
        assert_eq!(verdicts, [pulled, preloaded], "{policy:?}");
        assert!(records.may_use(&name(NAME), ID, &[secret("1")]), "{policy:?}");
    }
    fs::write(record_path(&records(root.path()).0.pulled, ID), "{").unwrap();
    for (policy, verdict) in [
        (VerificationPolicy::Never, Verdict::PolicyAllows),
        (listed, Verdict::PolicyAllows),
        (VerificationPolicy::NeverPreloaded, Verdict::Unknown),
    ] {
        let records = PullRecords::new(root.path(), policy.clone(), None);
        assert_eq!(records.verify(&name(NAME), ID, &presented(&[])), verdict, "{policy:?}");
    }
}

#[test]
fn an_image_of_a_service_account_asks_for_the_account() {
    let root = tempfile::tempdir().unwrap();
    let records = records(root.path());
    let account = AccountIdentity { uid: "u".into(), namespace: "ns".into(), name: "builder".into() };
    records.grant(ID, REPOSITORY, Some(Access::Account(account.clone()))).unwrap();
    let verdict = |accounts| records.verify(&name(NAME), ID, &Presented { secrets: vec![], accounts });
    assert_eq!(verdict(vec![]), Verdict::AskRegistry { of_accounts: true });
    assert_eq!(verdict(vec![account]), Verdict::RecordAllows);
}

/// A kubelet's root directory in which it pulled the image with a secret, and began to pull another image.
fn kubelet() -> tempfile::TempDir {
    let kubelet = tempfile::tempdir().unwrap();
    let (pulled, pulling) = (kubelet.path().join("image_manager/pulled"), kubelet.path().join("image_manager/pulling"));
    let secrets = json!([{"uid": "1", "namespace": "ns", "name": "1", "credentialHash": "1"}]);
    let of_pull = json!({
        "kind": "ImagePulledRecord", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "lastUpdatedTime": "2026-11-02T03:04:05Z", "imageRef": ID,
        "credentialMapping": {REPOSITORY: {"kubernetesSecrets": secrets}},
    });
    let of_intent =
        json!({"kind": "ImagePullIntent", "apiVersion": "kubelet.config.k8s.io/v1beta1", "image": "acme/app:1"});
    write(&pulled, ID, of_pull.to_string().as_bytes()).unwrap();
    write(&pulling, "acme/app:1", of_intent.to_string().as_bytes()).unwrap();
    kubelet
}

#[test]
fn the_records_of_a_kubelet_count_at_a_switch_over_and_later() {
    let (kubelet, root) = (kubelet(), tempfile::tempdir().unwrap());
    let switched = PullRecords::new(root.path(), VerificationPolicy::default(), Some(kubelet.path().to_owned()));
    let check = |records: &PullRecords| {
        assert!(!records.may_use(&name(NAME), ID, &[]) && records.may_use(&name(NAME), ID, &[secret("1")]));
        assert_eq!(records.verify(&name("docker.io/acme/app:1"), "sha256:2", &presented(&[])), ASK);
        assert!(records.may_use(&name("r.example/other:1"), "sha256:3", &[]), "the kubelet did not pull it");
    };
    check(&switched);
    drop(kubelet);
    check(&records(root.path()));

    // An agent with the kubelet's own directory reads the records where they are.
    let own = self::kubelet();
    check(&records(own.path()));
}

#[test]
fn a_record_of_the_agent_is_newer_than_one_of_the_kubelet() {
    let (kubelet, root) = (kubelet(), tempfile::tempdir().unwrap());
    records(root.path()).grant(ID, REPOSITORY, Some(Access::Node)).unwrap();
    let switched = PullRecords::new(root.path(), VerificationPolicy::default(), Some(kubelet.path().to_owned()));
    assert!(switched.may_use(&name(NAME), ID, &[]));
}

#[test]
fn no_image_without_a_record_is_used_while_the_records_of_a_kubelet_cannot_be_read() {
    let (kubelet, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // A file in the place of the directory.
    let dir = kubelet.path().join("image_manager");
    fs::write(&dir, "").unwrap();
    let records = PullRecords::new(root.path(), VerificationPolicy::default(), Some(kubelet.path().to_owned()));
    assert_eq!(records.verify(&name(NAME), ID, &presented(&[])), Verdict::Unknown);
    fs::remove_file(&dir).unwrap();
    assert_eq!(records.verify(&name(NAME), ID, &presented(&[])), Verdict::PolicyAllows, "the kubelet kept no records");
}

#[test]
fn a_fault_of_the_records_of_a_kubelet_is_logged_when_it_changes() {
    let mut records = KubeletRecords { root: "/k".into(), logged: None };
    let logged = ["full", "full", "broken", "full"].map(|text| records.has_another_fault(&io::Error::other(text)));
    assert_eq!(logged, [true, false, true, true]);
}

#[test]
fn each_fault_of_the_records_of_a_kubelet_is_kept() {
    let (kubelet, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = kubelet.path().join("image_manager");
    let records = PullRecords::new(root.path(), VerificationPolicy::default(), Some(kubelet.path().to_owned()));
    let fault = || {
        assert_eq!(records.verify(&name(NAME), ID, &presented(&[])), Verdict::Unknown);
        records.0.state.lock().kubelet.as_ref().unwrap().logged.clone().unwrap()
    };
    fs::write(&dir, "").unwrap();
    let first = fault();
    assert_eq!(fault(), first);
    // A directory in the place of a record.
    fs::remove_file(&dir).unwrap();
    let record = record_path(&dir.join("pulled"), "sha256:9");
    fs::create_dir_all(&record).unwrap();
    assert!(fault().contains(record.to_str().unwrap()));
}
