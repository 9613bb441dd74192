//! Tests of the mounts.

use podwright_ports::{Mount, VolumeImage};
use serde_json::{Value, json};

use super::super::error::ConfigError;
use super::super::fixtures::{container, facts, lookups, mount, pod};
use super::super::{HostIdRange, NodeFacts, PodAssignments, container_config, sandbox_config};
use crate::v1::{self, MountPropagation};

fn mounts(
    facts: &NodeFacts,
    volume: Value,
    definition: Value,
    given: Vec<Mount>,
) -> Result<Vec<v1::Mount>, ConfigError> {
    let mut definition = definition;
    definition["name"] = json!("a");
    let mut volume = volume;
    volume["name"] = json!("v");
    let pod = pod(json!({"volumes": [volume], "containers": [definition]}));
    let mut request = container(&pod, "a", 2);
    request.mounts = given;
    Ok(container_config(facts, &PodAssignments::default(), &request, &lookups())?.mounts)
}

#[test]
fn a_container_gets_hosts_file_and_termination_message_mounts() {
    let found = |definition, given: &[&str]| {
        let given = given.iter().map(|path| mount(path)).collect();
        let found = mounts(&facts(), json!({}), definition, given).unwrap();
        found.into_iter().map(|mount| (mount.container_path, mount.host_path)).collect::<Vec<_>>()
    };
    let pair = |at: &str, on: &str| (at.to_owned(), on.to_owned());
    let (hosts, message) = ("/r/pods/u-1/etc-hosts", "/r/pods/u-1/containers/a/2.message");
    assert_eq!(
        found(json!({}), &["data"]),
        [pair("/data", "/host"), pair("/etc/hosts", hosts), pair("/dev/termination-log", message)]
    );
    assert_eq!(
        found(json!({"terminationMessagePath": "last/words"}), &[]),
        [pair("/etc/hosts", hosts), pair("/last/words", message)]
    );
    let own = found(json!({}), &["/etc/hosts/", "/dev/termination-log"]);
    assert!(own.iter().all(|(_, on)| on == "/host") && own.len() == 2, "{own:?}");
}

#[test]
fn mount_options_follow_the_volume_mount_spec() {
    let of = |facts: &NodeFacts, volume: Value, more: Value, read_only: bool| {
        let mut volume_mount = json!({"name": "v", "mountPath": "data"});
        volume_mount.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let given = Mount { read_only, ..mount("/data") };
        Ok::<_, ConfigError>(mounts(facts, volume, json!({"volumeMounts": [volume_mount]}), vec![given])?.remove(0))
    };
    let empty = || json!({"emptyDir": {}});
    let plain = of(&facts(), empty(), json!({}), false).unwrap();
    assert!(!plain.readonly && !plain.selinux_relabel && !plain.recursive_read_only);
    assert_eq!(plain.propagation(), MountPropagation::PropagationPrivate);
    for (mode, propagation) in [
        ("None", MountPropagation::PropagationPrivate),
        ("HostToContainer", MountPropagation::PropagationHostToContainer),
        ("Bidirectional", MountPropagation::PropagationBidirectional),
    ] {
        let mount = of(&facts(), empty(), json!({"mountPropagation": mode}), false).unwrap();
        assert_eq!(mount.propagation(), propagation, "{mode}");
    }
    assert!(of(&facts(), empty(), json!({"mountPropagation": "Both"}), false).is_err());

    let able = NodeFacts { recursive_read_only: [String::new()].into(), ..facts() };
    for (node, mode, expected) in [
        (&able, "Enabled", Some(true)),
        (&able, "IfPossible", Some(true)),
        (&able, "Disabled", Some(false)),
        (&facts(), "IfPossible", Some(false)),
        (&facts(), "Enabled", None),
        (&able, "Maybe", None),
    ] {
        let mount = of(node, empty(), json!({"recursiveReadOnly": mode}), true);
        assert_eq!(mount.map(|mount| mount.recursive_read_only).ok(), expected, "{mode}");
    }
    let refused = of(&facts(), empty(), json!({"recursiveReadOnly": "Enabled"}), true).unwrap_err().to_string();
    assert!(
        refused.ends_with("requested recursive read-only mode, but it is not supported by the runtime"),
        "{refused}"
    );

    // The SELinux labels of a `hostPath` are not changed.
    let labelled = NodeFacts { selinux: true, ..facts() };
    assert!(of(&labelled, empty(), json!({}), false).unwrap().selinux_relabel);
    assert!(!of(&labelled, json!({"hostPath": {"path": "/x"}}), json!({}), false).unwrap().selinux_relabel);
}

#[test]
fn a_mount_of_an_image_volume_names_the_image_and_no_path() {
    let image = Some(VolumeImage { id: "sha256:1".into(), reference: "files:1".into() });
    let given = Mount { image, host_path: "".into(), sub_path: "a/b".into(), ..mount("/files") };
    let found = of_mounts(given);
    assert_eq!((found.container_path.as_str(), found.host_path.as_str()), ("/files", ""));
    assert_eq!((found.image_sub_path.as_str(), found.readonly), ("a/b", true));
    let image = found.image.unwrap();
    assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("sha256:1", "files:1"));
}

/// The mount of an image volume, in a pod that has one.
fn of_mounts(given: Mount) -> v1::Mount {
    mounts(&facts(), json!({"image": {"reference": "files:1"}}), json!({}), vec![given]).unwrap().remove(0)
}

#[test]
fn a_sub_path_mount_uses_its_checked_mount_point() {
    let part = |path: &str, sub: &str| Mount { sub_path: sub.into(), ..mount(path) };
    let given = vec![mount("/a"), part("/b", "x/y"), part("/c", "x")];
    let found = mounts(&facts(), json!({"emptyDir": {}}), json!({}), given).unwrap();
    let found: Vec<_> = found.iter().take(3).map(|mount| mount.host_path.as_str()).collect();
    assert_eq!(found, ["/host", "/r/pods/u-1/volume-subpaths/v/a/1", "/r/pods/u-1/volume-subpaths/v/a/2"]);
}

#[test]
fn mounts_and_namespaces_of_a_user_namespace_have_its_id_mapping() {
    let pod = pod(json!({"hostUsers": false, "containers": [{"name": "a"}]}));
    let facts = NodeFacts { user_namespaces: ["kata".to_owned()].into(), ..facts() };
    let assignments = PodAssignments { handler: "kata".into(), users: Some(HostIdRange { first: 131_072 }) };
    let mut request = container(&pod, "a", 0);
    request.mounts = vec![mount("/data")];
    let config = container_config(&facts, &assignments, &request, &lookups()).unwrap();
    let ids = vec![v1::IdMapping { host_id: 131_072, container_id: 0, length: 65_536 }];
    assert!(
        config.mounts.len() == 3 && config.mounts.iter().all(|it| it.uid_mappings == ids && it.gid_mappings == ids)
    );
    let options = config.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
    let users = options.userns_options.unwrap();
    assert_eq!((users.mode(), &users.uids, &users.gids), (v1::NamespaceMode::Pod, &ids, &ids));
    let sandbox = sandbox_config(&facts, &assignments, &pod, 0).unwrap().linux.unwrap().security_context.unwrap();
    assert_eq!(sandbox.namespace_options.unwrap().userns_options.unwrap().uids, ids);

    // The default handler does not support user namespaces.
    let refused = sandbox_config(&facts, &PodAssignments::default(), &pod, 0).unwrap_err().to_string();
    assert!(refused.contains("spec.hostUsers is false, and the container runtime does not"), "{refused}");
}

#[test]
fn a_block_volume_is_refused() {
    let definition = json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]});
    let error = mounts(&facts(), json!({}), definition, vec![]).unwrap_err();
    assert!(error.to_string().contains("volumeDevices \"v\" is a block volume"), "{error}");
}
