use serde_json::{Value, json};

use super::*;

fn pod(spec: &Value) -> Arc<PodObject> {
    let mut pod = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u-1"},
        "spec": {"containers": [{"name": "main"}]},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
}

/// The config map `map`, the secret `keys`, and a token. All other objects are missing.
fn objects() -> VolumeObjects {
    let map = serde_json::from_value(json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "Aw=="}})).unwrap();
    let keys = serde_json::from_value(json!({"data": {"user": "bWU=", "word": "cHc="}})).unwrap();
    let missing = |kind| Err(ObjectError::missing(kind, "none"));
    let need = |audience: &str, expiration_seconds| TokenNeed { audience: audience.to_owned(), expiration_seconds };
    VolumeObjects {
        config_maps: [
            ("map".to_owned(), Ok(Arc::new(map))),
            ("none".to_owned(), Err(ObjectError::missing(ObjectKind::ConfigMap, "none"))),
        ]
        .into(),
        secrets: [
            ("keys".to_owned(), Ok(Arc::new(keys))),
            ("none".to_owned(), Err(ObjectError::missing(ObjectKind::Secret, "none"))),
        ]
        .into(),
        tokens: [
            (need("", 3607), Ok(Confidential::from(b"tok".to_vec()))),
            (need("away", 3600), Err(ObjectError::forbidden(ObjectKind::Token, "default", "no such audience"))),
        ]
        .into(),
        bundles: vec![
            (TrustBundleNeed::Name("roots".to_owned()), Ok("PEM".to_owned())),
            (TrustBundleNeed::Name("none".to_owned()), missing(ObjectKind::TrustBundle)),
        ],
    }
}

fn made(volume: Value) -> Result<Vec<(String, String, u32)>, String> {
    let made = made_for(&json!({}), volume);
    let shown = |file: VolumeFile| (file.path, String::from_utf8_lossy(&file.content).into_owned(), file.mode);
    made.map(|files| files.into_iter().map(shown).collect()).map_err(|error| error_chain(&error).to_string())
}

/// The files of a volume of a pod whose spec has these fields.
fn made_for(spec: &Value, mut volume: Value) -> Result<Vec<VolumeFile>, ProjectionError> {
    volume["name"] = json!("v");
    let volume = serde_json::from_value(volume).unwrap();
    files(&pod(spec), &volume, &objects(), &BTreeMap::new())
}

fn file(path: &str, content: &str, mode: u32) -> (String, String, u32) {
    (path.to_owned(), content.to_owned(), mode)
}

#[test]
fn keys_of_an_object_become_files() {
    let all = made(json!({"configMap": {"name": "map"}})).unwrap();
    assert_eq!(all, [file("a", "1", 0o644), file("b", "2", 0o644), file("c", "\u{3}", 0o644)]);
    let some = json!({"secret": {"secretName": "keys", "defaultMode": 0o400, "items": [
        {"key": "word", "path": "in/word"}, {"key": "user", "path": "user", "mode": 0o444}]}});
    assert_eq!(made(some).unwrap(), [file("in/word", "pw", 0o400), file("user", "me", 0o444)]);
}

#[test]
fn missing_object_or_key_is_an_error_unless_it_is_optional() {
    let items = json!([{"key": "a", "path": "a"}, {"key": "no", "path": "no"}]);
    for (volume, expected) in [
        (json!({"configMap": {"name": "none"}}), Err("configmap \"none\" not found")),
        (json!({"secret": {"secretName": "none"}}), Err("secret \"none\" not found")),
        (json!({"configMap": {"name": "none", "optional": true}}), Ok(0)),
        (json!({"secret": {"secretName": "none", "optional": true, "items": items}}), Ok(0)),
        (
            json!({"configMap": {"name": "map", "items": items}}),
            Err("configmap references non-existent config key: no"),
        ),
        (json!({"configMap": {"name": "map", "items": items, "optional": true}}), Ok(1)),
        (json!({"secret": {"secretName": "keys", "items": items}}), Err("references non-existent secret key: a")),
        (
            json!({"secret": {"secretName": "later"}}),
            Err("failed to sync secret cache: timed out waiting for the condition"),
        ),
        (
            json!({"configMap": {"name": "map", "defaultMode": 0o1000}}),
            Err("item \"a\" has mode 512: use a mode from 0 to 0777 (511)"),
        ),
    ] {
        let made = made(volume.clone()).map(|files| files.len());
        assert_eq!(made, expected.map_err(str::to_owned), "{volume}");
    }
}

#[test]
fn projected_volume_joins_its_sources() {
    let volume = json!({"projected": {"defaultMode": 0o640, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "map", "items": [{"key": "a", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        {"secret": {"name": "none", "optional": true}},
        {"clusterTrustBundle": {"name": "roots", "path": "roots.pem"}},
        {"clusterTrustBundle": {"name": "none", "path": "none.pem", "optional": true}},
    ]}});
    let expected = [
        file("token", "tok", 0o640),
        file("ca.crt", "1", 0o640),
        file("namespace", "shop", 0o640),
        file("roots.pem", "PEM", 0o640),
        file("none.pem", "", 0o640),
    ];
    assert_eq!(made(volume).unwrap(), expected);
}

// The storage gives the files to the group, and lets the group read them.
#[test]
fn token_and_trust_bundle_belong_to_the_user_of_all_containers() {
    let run_as = |user: Option<i64>| json!({"runAsUser": user});
    let container = |user| json!({"name": "c", "securityContext": run_as(user)});
    let two = |first, second| json!([container(first), container(second)]);
    for (spec, owner, mode) in [
        (json!({}), None, 0o444),
        (json!({"securityContext": {"fsGroup": 7}}), None, 0o600),
        (json!({"securityContext": run_as(Some(1000))}), Some(1000), 0o600),
        (json!({"securityContext": {"runAsUser": 1000, "fsGroup": 7}}), Some(1000), 0o600),
        (json!({"securityContext": run_as(Some(0))}), Some(0), 0o600),
        (json!({"containers": two(Some(1000), Some(1000))}), Some(1000), 0o600),
        (json!({"containers": two(Some(1000), Some(1001))}), None, 0o444),
        (json!({"containers": two(Some(1000), None)}), None, 0o444),
        (json!({"containers": two(Some(1000), None), "securityContext": run_as(Some(1000))}), Some(1000), 0o600),
        (json!({"containers": two(Some(5), Some(5)), "initContainers": [container(None)]}), None, 0o444),
        (json!({"containers": two(Some(5), Some(5)), "initContainers": [container(Some(6))]}), None, 0o444),
        (json!({"containers": two(Some(5), Some(5)), "initContainers": [container(Some(5))]}), Some(5), 0o600),
    ] {
        let volume = json!({"projected": {"defaultMode": 0o444, "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"clusterTrustBundle": {"name": "roots", "path": "roots.pem"}},
            {"configMap": {"name": "map", "items": [{"key": "a", "path": "ca.crt"}]}},
        ]}});
        let found = made_for(&spec, volume).unwrap().into_iter().map(|file| (file.owner, file.mode));
        assert_eq!(found.collect::<Vec<_>>(), [(owner, mode), (owner, mode), (None, 0o444)], "{spec}");
    }
}

#[test]
fn projected_volume_names_every_source_that_failed() {
    let source = |sources: Value| made(json!({"projected": {"sources": sources}})).unwrap_err();
    assert_eq!(source(json!([{"secret": {"name": "none"}}])), "secret \"none\" not found");
    assert_eq!(
        source(json!([{"secret": {"name": "none"}}, {"configMap": {"name": "none"}}, {"configMap": {"name": "map"}}])),
        "[secret \"none\" not found, configmap \"none\" not found]"
    );
    assert_eq!(
        source(json!([{"serviceAccountToken": {"path": "token", "audience": "away"}}])),
        "failed to fetch token: the node may not read a token of the service account \"default\": no such audience"
    );
    assert!(
        source(json!([{"podCertificate": {"keyType": "ED25519", "signerName": "x"}}])).contains("is not supported")
    );
}

#[test]
fn only_volumes_of_api_objects_need_any() {
    let needs = |mut volume: Value| {
        volume["name"] = json!("v");
        needs(&serde_json::from_value(volume).unwrap())
    };
    let downward = json!({"downwardAPI": {"items": []}});
    assert_eq!(needs(json!({"emptyDir": {}})), None);
    assert_eq!(needs(json!({"projected": {"sources": [downward]}})), None);
    let both = json!({"projected": {"sources": [downward, {"serviceAccountToken": {"path": "t", "audience": "a"}}]}});
    let token = TokenNeed { audience: "a".to_owned(), expiration_seconds: 3600 };
    assert_eq!(needs(both), Some(VolumeNeeds { tokens: [token].into(), ..VolumeNeeds::default() }));
    let secret = ObjectRef { kind: ObjectKind::Secret, name: "keys".to_owned() };
    let of_secret = Some(VolumeNeeds { objects: [secret].into(), ..VolumeNeeds::default() });
    assert_eq!(needs(json!({"secret": {"secretName": "keys"}})), of_secret);
}
