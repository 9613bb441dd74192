use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn pod(container: Value) -> Arc<PodObject> {
    let mut main = json!({"name": "main"});
    main.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    let pod = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "labels": {"tier": "front"}},
        "spec": {
            "nodeName": "node-1",
            "initContainers": [{"name": "first", "resources": {"limits": {"memory": "32Mi"}}}],
            "containers": [main],
            "ephemeralContainers": [{"name": "debug", "env": [{"name": "WHO", "value": "debug"}]}],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "info", "downwardAPI": {}}],
        },
    });
    PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
}

fn volumes() -> VolumeMounts {
    ["data", "info"].into_iter().map(|name| (name.to_owned(), PathBuf::from("/pods/u-1").join(name))).collect()
}

fn facts() -> FieldFacts {
    FieldFacts { pod_ips: vec!["10.0.0.7".parse().unwrap()], host_ips: vec![] }
}

fn try_main(container: Value) -> Result<ResolvedContainer, ConfigError> {
    let allocatable = Allocatable::from([("cpu".to_owned(), Quantity("4".into()))]);
    resolve(&pod(container), ContainerKind::Regular, "main", &volumes(), &facts(), &allocatable, &contents())
}

/// Files that an init container wrote, and the image of a volume.
fn contents() -> VolumeContents {
    let file = |path: &str, content: Option<&str>| {
        (("data".to_owned(), path.to_owned()), content.map(|text| text.as_bytes().to_vec()))
    };
    let image = VolumeImage { id: "sha256:1".into(), reference: "files:1".into() };
    VolumeContents {
        files: [file("env", Some("KEY='value $(A)'\n")), file("bad", Some("KEY=x")), file("absent", None)].into(),
        images: [("files".to_owned(), image)].into(),
        objects: None,
    }
}

#[test]
fn a_variable_has_the_value_of_its_key_in_a_file() {
    let variable = |path: &str, key: &str, optional: bool| {
        let selector = json!({"volumeName": "data", "path": path, "key": key, "optional": optional});
        json!({"env": [{"name": "A", "value": "1"}, {"name": "V", "valueFrom": {"fileKeyRef": selector}}]})
    };
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(main(variable("env", "KEY", false)).env, [set("A", "1"), set("V", "value $(A)")]);
    assert_eq!(main(variable("env", "NONE", true)).env, [set("A", "1")]);
    assert_eq!(error(variable("env", "NONE", false)), "environment variable key \"NONE\" not found in file \"env\"");
    for path in ["bad", "absent"] {
        assert_eq!(error(variable(path, "KEY", true)), "couldn't parse env file");
    }
    let selector = json!({"volumeName": "none", "path": "env", "key": "KEY"});
    let unknown = json!({"env": [{"name": "V", "valueFrom": {"fileKeyRef": selector}}]});
    assert_eq!(error(unknown), "cannot find the volume \"none\" referenced by FileKeyRef");
}

fn main(container: Value) -> ResolvedContainer {
    try_main(container).unwrap()
}

fn error(container: Value) -> String {
    try_main(container).unwrap_err().to_string()
}

#[test]
fn references_expand_and_other_text_stays() {
    let values = BTreeMap::from([("A", "1"), ("B", "$(A)"), ("C.d-e", "2"), ("EMPTY", "")]);
    let cases = [
        ("", ""),
        ("plain", "plain"),
        ("$(A)", "1"),
        ("<$(A)$(A)>", "<11>"),
        ("$(B)", "$(A)"),
        ("$(C.d-e)", "2"),
        ("[$(EMPTY)]", "[]"),
        ("$(NONE)/$(A)", "$(NONE)/1"),
        ("$()", "$()"),
        ("$$", "$"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$(X$(A)", "$(X$(A)"),
        ("$(A))", "1)"),
        ("$x$$y$", "$x$y$"),
        ("é$(A)é$é", "é1é$é"),
    ];
    for (text, expanded) in cases {
        assert_eq!(expand(text, |name| values.get(name).copied()), expanded, "{text:?}");
    }
    let all = |text| expand_all(text, |name| values.get(name).copied());
    assert_eq!(all("a/$(A)"), Ok("a/1".into()));
    assert_eq!(all("$$(NO)"), Ok("$(NO)".into()));
    let missing = |names: &[&str]| Err(MissingValues(names.iter().map(|name| (*name).to_owned()).collect()));
    assert_eq!(all("a/$(NO)"), missing(&["NO"]));
    assert_eq!(all("$(Z)/$(EMPTY)/$(A)/$(B)/$(Z)"), missing(&["EMPTY", "Z"]));
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    #[test]
    fn doubled_dollars_expand_to_the_original_text(text in "[$()Aé ]{0,12}") {
        prop_assert_eq!(expand(&text.replace('$', "$$"), |_| Some("x")), text);
    }

    #[test]
    fn without_values_only_doubled_dollars_change(text in "([$()A]|\\$\\(A\\)){0,8}") {
        let expanded = expand(&text, |_| None);
        prop_assert!(expanded.len() <= text.len());
        if !text.contains("$$") {
            prop_assert_eq!(expanded, text);
        }
    }

    #[test]
    fn every_reference_expands_once(parts in proptest::collection::vec("[a-z(]{0,4}", 1..5)) {
        prop_assert_eq!(expand(&parts.join("$(A)"), |_| Some("$(A)$$")), parts.join("$(A)$$"));
    }
}

#[test]
fn env_variables_refer_to_earlier_ones_and_the_last_value_wins() {
    let resolved = main(json!({
        "env": [
            {"name": "EARLY", "value": "$(LATE)"},
            {"name": "HOST", "value": "db"},
            {"name": "LATE", "value": "x"},
            {"name": "URL", "value": "http://$(HOST):$(PORT)/$$(HOST)"},
            {"name": "HOST", "value": "$(HOST)2"},
            {"name": "NONE"},
        ],
        "command": ["/bin/$(LATE)", "$(UNSET)"],
        "args": ["--url=$(URL)", "$(HOST)", "[$(NONE)]", "$$(HOST)"],
    }));
    let env: Vec<_> = resolved.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let expected =
        [("EARLY", "$(LATE)"), ("HOST", "db2"), ("LATE", "x"), ("URL", "http://db:$(PORT)/$(HOST)"), ("NONE", "")];
    assert_eq!(env, expected);
    assert_eq!(resolved.command, ["/bin/x", "$(UNSET)"]);
    assert_eq!(resolved.args, ["--url=http://db:$(PORT)/$(HOST)", "db2", "[]", "$(HOST)"]);
}

#[test]
fn field_and_resource_references_become_env_variables() {
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let resolved = main(json!({
        "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "250m"}},
        "env": [
            {"name": "NAME", "valueFrom": field("metadata.name")},
            {"name": "TIER", "valueFrom": field("metadata.labels['tier']")},
            {"name": "IP", "valueFrom": field("status.podIP")},
            {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
            {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "FIRST", "valueFrom": {"resourceFieldRef": {
                "containerName": "first", "resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "ALL", "value": "$(NAME)@$(IP)"},
        ],
    }));
    let values: Vec<_> = resolved.env.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["web", "front", "10.0.0.7", "64", "250", "4", "32", "web@10.0.0.7"]);
}

#[test]
fn a_value_from_a_reference_is_not_expanded() {
    let pod = json!({
        "metadata": {"name": "w", "namespace": "n", "uid": "u", "annotations": {"note": "$(A)$$"}},
        "spec": {"containers": [{"name": "main", "env": [
            {"name": "A", "value": "1"},
            {"name": "NOTE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['note']"}}},
        ]}]},
    });
    let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
    let resolved =
        resolve(&pod, ContainerKind::Regular, "main", &volumes(), &facts(), &Allocatable::new(), &contents()).unwrap();
    assert_eq!(resolved.env[1].1, "$(A)$$");
}

#[test]
fn optional_references_that_need_an_api_server_are_omitted() {
    let resolved = main(json!({
        "envFrom": [
            {"configMapRef": {"name": "settings", "optional": true}},
            {"secretRef": {"name": "keys", "optional": true}, "prefix": "K_"},
        ],
        "env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password", "optional": true}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": true}}},
            {"name": "C", "value": "[$(A)]"},
        ],
    }));
    assert_eq!(resolved.env, [("C".to_owned(), "[$(A)]".to_owned())]);
}

#[test]
fn unresolvable_settings_are_errors() {
    let from = |source: Value| json!({"env": [{"name": "X", "valueFrom": source}]});
    let cases: [(Value, String); 7] = [
        (
            from(json!({"secretKeyRef": {"name": "db", "key": "password"}})),
            "couldn't get secret shop/db, no kubeClient defined".into(),
        ),
        (
            from(json!({"configMapKeyRef": {"name": "db", "key": "password", "optional": false}})),
            "couldn't get configMap shop/db, no kubeClient defined".into(),
        ),
        (
            json!({"envFrom": [{"secretRef": {"name": "keys"}}]}),
            "couldn't get secret shop/keys, no kubeClient defined".into(),
        ),
        (
            json!({"envFrom": [{"configMapRef": {"name": "keys"}}]}),
            "couldn't get configMap shop/keys, no kubeClient defined".into(),
        ),
        (
            from(json!({"fieldRef": {"fieldPath": "metadata.labels"}})),
            "variable \"X\": fieldRef \"metadata.labels\" names no supported field".into(),
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.pods"}})),
            "variable \"X\": resourceFieldRef \"limits.pods\" names no resource with a valid quantity".into(),
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "nobody"}})),
            "variable \"X\": resourceFieldRef names container \"nobody\", which the pod does not have".into(),
        ),
    ];
    for (container, text) in cases {
        assert_eq!(error(container), text);
    }
    assert!(error(from(json!({}))).contains("names no supported source"));
    let missing =
        resolve(&pod(json!({})), ContainerKind::Init, "main", &volumes(), &facts(), &Allocatable::new(), &contents());
    assert_eq!(missing, Err(ConfigError::NoContainer("main".into())));
}

#[test]
fn mounts_resolve_to_the_pods_volumes() {
    let resolved = main(json!({
        "env": [{"name": "POD", "value": "web"}],
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "data", "mountPath": "logs", "subPath": "var/log", "readOnly": true},
            {"name": "data", "mountPath": "/mine", "subPathExpr": "pods/$(POD)"},
            {"name": "data", "mountPath": "/odd", "subPath": "..data/./x.."},
            {"name": "info", "mountPath": "/info"},
        ],
    }));
    let mounts: Vec<_> = resolved
        .mounts
        .iter()
        .map(|mount| (mount.host_path.to_str().unwrap(), mount.container_path.as_str(), mount.read_only))
        .collect();
    let expected = [
        ("/pods/u-1/data", "/data", false),
        ("/pods/u-1/data/var/log", "/logs", true),
        ("/pods/u-1/data/pods/web", "/mine", false),
        ("/pods/u-1/data/..data/./x..", "/odd", false),
        ("/pods/u-1/info", "/info", true),
    ];
    assert_eq!(mounts, expected);
    assert_eq!(resolved.mounts[0].volume, "data");
}

#[test]
fn a_mount_outside_its_volume_is_refused() {
    let cases = [
        (json!({"name": "none", "mountPath": "/x"}), "cannot find volume \"none\" to mount into container \"main\""),
        (
            json!({"name": "data", "mountPath": "/x", "subPath": "/etc"}),
            "error SubPath `/etc` must not be an absolute path",
        ),
        (
            json!({"name": "data", "mountPath": "/x", "subPath": "a/../b"}),
            "unable to provision SubPath `a/../b`: must not contain '..'",
        ),
        (
            json!({"name": "data", "mountPath": "/x", "subPathExpr": "$(UP)/b"}),
            "unable to provision SubPath `$(UP)/b`: must not contain '..'",
        ),
        (
            json!({"name": "data", "mountPath": "/x", "subPathExpr": "$(SECRET)"}),
            "error SubPath `$(SECRET)` must not be an absolute path",
        ),
        (json!({"name": "data", "mountPath": "/x", "subPathExpr": "$(NONE)"}), "missing value for NONE"),
        // An empty value would mount the whole volume.
        (json!({"name": "data", "mountPath": "/x", "subPathExpr": "$(EMPTY)"}), "missing value for EMPTY"),
        (json!({"name": "data", "mountPath": "/x", "subPathExpr": "a/$(EMPTY)"}), "missing value for EMPTY"),
        (
            json!({"name": "data", "mountPath": "/x", "subPath": "a", "subPathExpr": "b"}),
            "mount of volume \"data\" at /x: subPath and subPathExpr exclude each other: remove one",
        ),
    ];
    for (mount, reason) in cases {
        let env = json!([
            {"name": "UP", "value": ".."},
            {"name": "EMPTY", "value": ""},
            {"name": "SECRET", "value": "/hunter2"},
        ]);
        assert_eq!(error(json!({"env": env, "volumeMounts": [mount]})), reason);
    }
}

#[test]
fn every_kind_of_container_is_found() {
    let resolved = resolve(
        &pod(json!({})),
        ContainerKind::Ephemeral,
        "debug",
        &volumes(),
        &facts(),
        &Allocatable::new(),
        &contents(),
    )
    .unwrap();
    assert_eq!(resolved.env, [("WHO".to_owned(), "debug".to_owned())]);
    assert!(
        resolve(&pod(json!({})), ContainerKind::Init, "first", &volumes(), &facts(), &Allocatable::new(), &contents())
            .is_ok()
    );
}

#[test]
fn a_mount_of_an_image_volume_names_the_image() {
    let mounts = json!({"volumeMounts": [
        {"name": "files", "mountPath": "/all"}, {"name": "files", "mountPath": "/part", "subPath": "a/b"},
    ]});
    let mounts = main(mounts).mounts;
    assert!(mounts.iter().all(|mount| mount.image.as_ref().is_some_and(|image| image.id == "sha256:1")), "{mounts:?}");
    assert!(mounts.iter().all(|mount| mount.host_path.as_os_str().is_empty()), "{mounts:?}");
    assert_eq!(mounts[1].sub_path, PathBuf::from("a/b"));
}
