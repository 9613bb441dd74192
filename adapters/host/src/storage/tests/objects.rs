//! Volumes that are made of API objects.

use podwright_ports::{ErrorSource, VolumeFile, VolumesSetUp};

use super::*;

/// The volumes `map` (a config map), `keys` (a secret) and `api` (projected).
fn volumes() -> Arc<PodObject> {
    pod(json!([
        {"name": "map", "configMap": {"name": "map"}}, {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "api", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ]))
}

/// One file in each volume, except in those of `missing`.
fn files(content: &str, missing: &[&str]) -> VolumeFiles {
    let of = |name: &str| {
        let file =
            VolumeFile { path: format!("in/{name}"), content: content.as_bytes().to_vec(), mode: 0o440, owner: None };
        let source = || ErrorSource::from(Box::<dyn std::error::Error + Send + Sync>::from(format!("no {name}")));
        (name.to_owned(), if missing.contains(&name) { Err(source()) } else { Ok(vec![file]) })
    };
    ["map", "keys", "api"].map(of).into()
}

async fn set_up(node: &Node, files: VolumeFiles) -> Result<VolumesSetUp, StorageError> {
    node.storage.set_up_with(&volumes(), files).await
}

#[tokio::test]
async fn files_of_objects_are_in_the_directories_of_a_kubelet_and_end_with_the_pod() {
    let node = Node::new();
    let done = set_up(&node, files("1", &[])).await.unwrap();
    assert_eq!(done.outdated, []);
    for (name, plugin) in [("map", "configmap"), ("keys", "secret"), ("api", "projected")] {
        let volume = node.dir().join(format!("volumes/kubernetes.io~{plugin}")).join(name);
        assert_eq!(done.mounts[name], volume);
        let file = volume.join("in").join(name);
        assert_eq!(fs::read_to_string(&file).unwrap(), "1");
        assert_eq!((fs::metadata(&file).unwrap().mode() & 0o7777, mode(&volume)), (0o440, 0o755));
        let in_memory = mounts::exactly_at(&volume).unwrap().is_some_and(|mounted| mounted.kind == "tmpfs");
        assert!(!in_memory || name != "map", "a config map is on disk");
        if !in_memory && name != "map" {
            eprintln!("skipped: not allowed to mount");
        }
    }
    let set = fs::read_link(done.mounts["keys"].join("..data")).unwrap();
    set_up(&node, files("1", &[])).await.unwrap();
    assert_eq!(fs::read_link(done.mounts["keys"].join("..data")).unwrap(), set, "nothing has changed");
    set_up(&node, files("2", &[])).await.unwrap();
    assert_eq!(fs::read_to_string(done.mounts["keys"].join("in/keys")).unwrap(), "2");
    node.storage.tear_down(&uid()).await.unwrap();
    assert!(done.mounts.values().all(|volume| !volume.exists()));
    node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
}

#[tokio::test]
async fn volume_keeps_its_files_while_its_object_is_missing() {
    let node = Node::new();
    let error = set_up(&node, files("1", &["keys"])).await.unwrap_err();
    assert_eq!(error, StorageError::volume("keys", "no keys"), "the volume never had files");
    set_up(&node, files("1", &[])).await.unwrap();
    let done = set_up(&node, files("2", &["keys"])).await.unwrap();
    assert_eq!(done.outdated, [StorageError::volume("keys", "no keys")]);
    let read = |name: &str| fs::read_to_string(done.mounts[name].join("in").join(name)).unwrap();
    assert_eq!((read("keys"), read("map")), ("1".to_owned(), "2".to_owned()));
    node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
}

#[tokio::test]
async fn volume_of_an_object_is_refused_without_an_api_server() {
    let node = Node::new();
    let error = node.storage.set_up(&volumes()).await.unwrap_err();
    assert!(matches!(&error, StorageError::Unsupported { kind, .. } if kind == "configMap"), "{error}");
}
