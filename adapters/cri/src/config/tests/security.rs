//! Tests of users, groups, privileges and profiles.

use podwright_ports::RuntimeError;
use serde_json::{Value, json};

use super::super::error::ConfigError;
use super::super::fixtures::{container, facts, lookups, pod, pod_with};
use super::super::{ContainerLookups, ImageUser, NodeFacts, PodAssignments, container_config, sandbox_config};
use crate::v1;
use v1::security_profile::ProfileType;

type Context = v1::LinuxContainerSecurityContext;

fn context(facts: &NodeFacts, user: ImageUser, of_pod: Value, own: Value) -> Result<Context, ConfigError> {
    let containers = json!([{"name": "a", "securityContext": own}]);
    let pod = pod(json!({"securityContext": of_pod, "containers": containers}));
    let lookups = ContainerLookups { user, target: None };
    Ok(container_config(facts, &PodAssignments::default(), &container(&pod, "a", 0), &lookups)?
        .linux
        .unwrap()
        .security_context
        .unwrap())
}

fn plain(of_pod: Value, own: Value) -> Context {
    context(&facts(), ImageUser::Id(0), of_pod, own).unwrap()
}

fn value(id: i64) -> Option<v1::Int64Value> {
    Some(v1::Int64Value { value: id })
}

#[test]
fn container_security_settings_override_those_of_the_pod() {
    let both = plain(
        json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4, 5],
               "seLinuxOptions": {"level": "s0"}}),
        json!({"runAsUser": 10, "seLinuxOptions": {"type": "t"}, "privileged": true, "readOnlyRootFilesystem": true,
               "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}),
    );
    assert_eq!((both.run_as_user, both.run_as_group), (value(10), value(2)));
    assert_eq!(both.supplemental_groups, [3, 4, 5]);
    assert!(both.privileged && both.readonly_rootfs);
    assert!(plain(json!({}), json!({"allowPrivilegeEscalation": false})).no_new_privs);
    let capabilities = both.capabilities.unwrap();
    assert_eq!(
        (capabilities.add_capabilities, capabilities.drop_capabilities),
        (vec!["NET_ADMIN".into()], vec!["ALL".into()])
    );
    let selinux = both.selinux_options.unwrap();
    assert_eq!((&*selinux.r#type, &*selinux.level), ("t", ""));

    let neither = plain(json!({}), json!({}));
    assert!(!neither.privileged && !neither.readonly_rootfs && !neither.no_new_privs);
    assert_eq!((neither.run_as_group, neither.capabilities, neither.selinux_options), (None, None, None));
    assert!(!plain(json!({}), json!({"allowPrivilegeEscalation": true})).no_new_privs);
}

#[test]
fn a_container_without_run_as_user_runs_as_the_image_user() {
    let of = |user, own| {
        let context = context(&facts(), user, json!({}), own).unwrap();
        (context.run_as_user, context.run_as_username)
    };
    assert_eq!(of(ImageUser::Id(7), json!({})), (value(7), String::new()));
    assert_eq!(of(ImageUser::Name("nginx".into()), json!({})), (None, "nginx".into()));
    assert_eq!(of(ImageUser::Name("nginx".into()), json!({"runAsUser": 8})), (value(8), String::new()));

    let image = |uid: Option<i64>, username: &str| v1::Image {
        uid: uid.and_then(value),
        username: username.into(),
        ..Default::default()
    };
    assert_eq!(ImageUser::of(&image(Some(7), "")), ImageUser::Id(7));
    assert_eq!(ImageUser::of(&image(None, "nginx")), ImageUser::Name("nginx".into()));
    assert_eq!(ImageUser::of(&image(None, "")), ImageUser::Id(0));
}

#[test]
fn run_as_non_root_refuses_root_and_users_without_known_id() {
    let named = || ImageUser::Name("nginx".into());
    let cases = [
        (
            ImageUser::Id(0),
            json!({}),
            json!({"runAsNonRoot": true}),
            Some("container has runAsNonRoot and image will run as root (pod: \""),
        ),
        (
            ImageUser::Id(0),
            json!({"runAsNonRoot": true}),
            json!({}),
            Some("container has runAsNonRoot and image will run as root (pod: \""),
        ),
        (ImageUser::Id(0), json!({"runAsNonRoot": true}), json!({"runAsNonRoot": false}), None),
        (ImageUser::Id(0), json!({"runAsUser": 5}), json!({"runAsNonRoot": true}), None),
        (ImageUser::Id(5), json!({}), json!({"runAsNonRoot": true}), None),
        (
            ImageUser::Id(5),
            json!({}),
            json!({"runAsNonRoot": true, "runAsUser": 0}),
            Some("container's runAsUser breaks non-root policy (pod: \""),
        ),
        (
            named(),
            json!({}),
            json!({"runAsNonRoot": true}),
            Some("image has non-numeric user (nginx), cannot verify user is non-root (pod: \""),
        ),
        (named(), json!({}), json!({"runAsNonRoot": true, "runAsUser": 1}), None),
        (named(), json!({}), json!({}), None),
    ];
    for (user, of_pod, own, expected) in cases {
        let error = context(&facts(), user.clone(), of_pod.clone(), own.clone()).err();
        match (error.map(RuntimeError::from), expected) {
            (None, None) => {}
            // Published as `CreateContainerConfigError`.
            (Some(RuntimeError::Config(text)), Some(part)) => assert!(text.to_string().contains(part), "{text}"),
            other => panic!("{user:?} {of_pod} {own}: {other:?}"),
        }
    }
}

// Containerd cuts an ID to 32 bits, so 4294967296 would be root.
#[test]
fn ids_that_are_not_valid_are_refused() {
    for bad in [-1, -5, 1_i64 << 31, i64::from(u32::MAX), 1 << 32] {
        for name in ["runAsUser", "runAsGroup"] {
            let error = context(&facts(), ImageUser::Id(0), json!({}), json!({ name: bad })).unwrap_err().to_string();
            assert!(error.starts_with(&format!("container \"a\": securityContext.{name}: {bad} is not")), "{error}");
        }
        for of_pod in [
            json!({"runAsUser": bad}),
            json!({"runAsGroup": bad}),
            json!({"fsGroup": bad}),
            json!({"supplementalGroups": [1, bad]}),
        ] {
            let error = context(&facts(), ImageUser::Id(0), of_pod.clone(), json!({})).unwrap_err().to_string();
            assert!(error.starts_with("spec.securityContext."), "{of_pod}: {error}");
            let sandbox = pod(json!({"securityContext": of_pod, "containers": []}));
            let refused = sandbox_config(&facts(), &PodAssignments::default(), &sandbox, 0).unwrap_err();
            assert_eq!(refused.to_string(), error);
        }
        let error = context(&facts(), ImageUser::Id(bad), json!({"runAsNonRoot": true}), json!({})).unwrap_err();
        assert!(
            error.to_string().contains(&format!("image has an invalid user id ({bad}). (Must be 1-(2147483647)): ")),
            "{error}"
        );
    }
}

#[test]
fn a_privileged_container_without_privilege_escalation_is_refused() {
    let own = json!({"privileged": true, "allowPrivilegeEscalation": false});
    let error = context(&facts(), ImageUser::Id(0), json!({}), own).unwrap_err().to_string();
    assert!(error.contains("remove one of the two"), "{error}");
}

#[test]
fn proc_paths_are_masked_unless_proc_mount_is_unmasked() {
    let facts = NodeFacts { masked_paths: vec!["/sys/devices/system/cpu/cpu0/thermal_throttle".into()], ..facts() };
    let of = |own| context(&facts, ImageUser::Id(0), json!({}), own).map(|it| (it.masked_paths, it.readonly_paths));
    let (masked, read_only) = of(json!({})).unwrap();
    for path in ["/proc/kcore", "/proc/interrupts", "/sys/firmware", "/sys/devices/system/cpu/cpu0/thermal_throttle"] {
        assert!(masked.iter().any(|masked| masked == path), "{path}");
    }
    assert_eq!(read_only, ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]);
    assert_eq!(of(json!({"procMount": "Default"})).unwrap(), (masked, read_only));
    assert!(of(json!({"procMount": "Unmasked"})).unwrap_err().to_string().contains("set spec.hostUsers to false"));
    let able = NodeFacts { user_namespaces: ["".to_owned()].into(), ..facts.clone() };
    let containers = json!([{"name": "a", "securityContext": {"procMount": "Unmasked"}}]);
    let own_users = pod(json!({"hostUsers": false, "containers": containers}));
    let unmasked = container_config(&able, &PodAssignments::default(), &container(&own_users, "a", 0), &lookups());
    let unmasked = unmasked.unwrap().linux.unwrap().security_context.unwrap();
    assert_eq!((unmasked.masked_paths, unmasked.readonly_paths), (vec![], vec![]));
    assert!(of(json!({"procMount": "Half"})).unwrap_err().to_string().contains("Default, Unmasked"));
}

#[test]
fn seccomp_profile_comes_from_container_then_pod_then_node() {
    let localhost = json!({"type": "Localhost", "localhostProfile": "sub/p.json"});
    let cases = [
        (json!(null), json!(null), ProfileType::Unconfined, ""),
        (json!({"type": "RuntimeDefault"}), json!(null), ProfileType::RuntimeDefault, ""),
        (json!({"type": "RuntimeDefault"}), json!({"type": "Unconfined"}), ProfileType::Unconfined, ""),
        (json!(null), localhost, ProfileType::Localhost, "/r/seccomp/sub/p.json"),
    ];
    for (of_pod, own, kind, reference) in cases {
        let seccomp = plain(json!({"seccompProfile": of_pod}), json!({"seccompProfile": own})).seccomp.unwrap();
        assert_eq!((seccomp.profile_type(), &*seccomp.localhost_ref), (kind, reference), "{of_pod} {own}");
    }
    // A node with a default changes only what neither of the two names.
    let node = NodeFacts { seccomp_default: true, ..facts() };
    for (of_pod, own, kind) in [
        (json!(null), json!(null), ProfileType::RuntimeDefault),
        (json!({"type": "Unconfined"}), json!(null), ProfileType::Unconfined),
        (json!(null), json!({"type": "Unconfined"}), ProfileType::Unconfined),
    ] {
        let (of_pod, own) = (json!({"seccompProfile": of_pod}), json!({"seccompProfile": own}));
        let context = context(&node, ImageUser::Id(0), of_pod.clone(), own.clone()).unwrap();
        assert_eq!(context.seccomp.unwrap().profile_type(), kind, "{of_pod} {own}");
    }
    let refused = |own: Value| {
        context(&facts(), ImageUser::Id(0), json!({}), json!({"seccompProfile": own})).unwrap_err().to_string()
    };
    for own in [
        json!({"type": "Localhost", "localhostProfile": "../x"}),
        json!({"type": "Localhost", "localhostProfile": "/x"}),
        json!({"type": "Custom"}),
    ] {
        let error = refused(own);
        assert!(error.starts_with("container \"a\": securityContext.seccompProfile."), "{error}");
    }
    assert_eq!(
        refused(json!({"type": "Localhost"})),
        "localhostProfile must be set if seccompProfile type is Localhost."
    );
}

#[test]
fn apparmor_profile_comes_from_field_then_annotation_then_pod() {
    let of = |annotation: Option<&str>, of_pod: Value, own: Value| {
        let annotations = match annotation {
            Some(value) => json!({"container.apparmor.security.beta.kubernetes.io/a": value}),
            None => json!({}),
        };
        let pod = pod_with(
            json!({"annotations": annotations}),
            json!({
                "securityContext": {"appArmorProfile": of_pod},
                "containers": [{"name": "a", "securityContext": {"appArmorProfile": own}}],
            }),
        );
        let config = container_config(&facts(), &PodAssignments::default(), &container(&pod, "a", 0), &lookups())?;
        let profile = config.linux.unwrap().security_context.unwrap().apparmor;
        Ok::<_, ConfigError>(profile.map(|profile| (profile.profile_type(), profile.localhost_ref)))
    };
    let default = || json!({"type": "RuntimeDefault"});
    let local = |name: &str| Some((ProfileType::Localhost, name.to_owned()));
    let unconfined = Some((ProfileType::Unconfined, String::new()));
    assert_eq!(of(None, json!(null), json!(null)).unwrap(), None);
    assert_eq!(of(Some("localhost/old"), default(), json!(null)).unwrap(), local("old"));
    assert_eq!(of(Some("unconfined"), default(), json!(null)).unwrap(), unconfined);
    let own = json!({"type": "Localhost", "localhostProfile": "new"});
    assert_eq!(of(Some("localhost/old"), default(), own).unwrap(), local("new"));
    assert_eq!(of(None, default(), json!(null)).unwrap(), Some((ProfileType::RuntimeDefault, String::new())));
    assert!(of(Some("other"), json!(null), json!(null)).is_err());
    assert!(of(None, json!(null), json!({"type": "Localhost"})).is_err());
}

#[test]
fn strict_groups_policy_needs_support_of_the_runtime() {
    let strict = || json!({"supplementalGroupsPolicy": "Strict"});
    let able = NodeFacts { groups_policy: true, ..facts() };
    let context_of = |facts: &NodeFacts| context(facts, ImageUser::Id(0), strict(), json!({}));
    assert_eq!(context_of(&able).unwrap().supplemental_groups_policy(), v1::SupplementalGroupsPolicy::Strict);
    assert!(context_of(&facts()).unwrap_err().to_string().contains("supplementalGroupsPolicy"));
    assert_eq!(plain(json!({}), json!({})).supplemental_groups_policy(), v1::SupplementalGroupsPolicy::Merge);
}

#[test]
fn sandbox_security_context_comes_from_pod_and_containers() {
    let of = |spec: Value| {
        sandbox_config(&facts(), &PodAssignments::default(), &pod(spec), 0)
            .map(|it| it.linux.unwrap().security_context.unwrap())
    };
    let context = of(json!({
        "securityContext": {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4],
            "seccompProfile": {"type": "Unconfined"}, "seLinuxOptions": {"user": "u"}},
        "containers": [{"name": "a"}],
        "ephemeralContainers": [{"name": "e", "securityContext": {"privileged": true}}],
    }))
    .unwrap();
    assert_eq!((context.run_as_user, context.run_as_group), (value(1), value(2)));
    assert_eq!(context.supplemental_groups, [3, 4]);
    assert!(context.privileged);
    assert_eq!(context.seccomp.unwrap().profile_type(), ProfileType::RuntimeDefault);
    assert_eq!(context.selinux_options.unwrap().user, "u");
    assert!(!of(json!({"containers": [{"name": "a", "securityContext": {}}]})).unwrap().privileged);
}

#[test]
fn windows_settings_are_refused() {
    for spec in [
        json!({"os": {"name": "windows"}, "containers": [{"name": "a"}]}),
        json!({"securityContext": {"windowsOptions": {}}, "containers": [{"name": "a"}]}),
        json!({"containers": [{"name": "a", "securityContext": {"windowsOptions": {}}}]}),
    ] {
        let pod = pod(spec);
        let error =
            container_config(&facts(), &PodAssignments::default(), &container(&pod, "a", 0), &lookups()).unwrap_err();
        assert!(error.to_string().contains("this node runs Linux"), "{error}");
    }
}
