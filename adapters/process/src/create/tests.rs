use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_fixtures::hostile_files::{TestVolume, under_attack};
use podwright_model::pod::{ContainerKind, PodObject};
use podwright_ports::Mount;
use serde_json::json;

use super::super::security::Namespaces;
use super::*;

fn config(edit: impl FnOnce(&mut PodSpec, &mut ContainerConfig)) -> ContainerConfig {
    let mut spec = PodSpec {
        containers: vec![Container { name: "main".into(), image: Some("busybox".into()), ..Container::default() }],
        ..PodSpec::default()
    };
    let mut config = ContainerConfig {
        pod: object(spec.clone()),
        sandbox: "s".into(),
        kind: ContainerKind::Regular,
        name: "main".to_owned().into(),
        restart_count: 3,
        image_id: String::new(),
        spec_hash: 7,
        command: vec!["sleep".into()],
        args: vec!["1".into()],
        env: Vec::new(),
        mounts: Vec::new(),
        devices: vec![],
        cdi_devices: vec![],
    };
    edit(&mut spec, &mut config);
    config.pod = object(spec);
    config
}

fn object(spec: PodSpec) -> Arc<PodObject> {
    let mut pod = Pod { spec: Some(spec), ..Pod::default() };
    pod.metadata.name = Some("web".into());
    pod.metadata.namespace = Some("default".into());
    pod.metadata.uid = Some("u1".into());
    PodObject::new(pod).unwrap()
}

fn planned_as(user: u32, config: &ContainerConfig) -> Result<ContainerPlan, RuntimeError> {
    planned_in(Path::new("/root"), user, config)
}

fn planned_in(root: &Path, user: u32, config: &ContainerConfig) -> Result<ContainerPlan, RuntimeError> {
    planned_with(root, user, false, config)
}

fn planned_with(
    root: &Path,
    user: u32,
    refuse_ephemeral_root: bool,
    config: &ContainerConfig,
) -> Result<ContainerPlan, RuntimeError> {
    let layout = Layout::new(root.to_owned());
    let shim = vec!["shim".to_owned()];
    let cgroups = Some(Path::new("/cg"));
    let node = identity::NodeAccounts { user, group: user, groups: &[], passwd: "", group_file: "" };
    let rights = AgentRights {
        is_root: user == 0,
        capabilities: rustix::thread::CapabilitySet::CHOWN,
        namespaces: Namespaces { mounts: true, processes: true },
    };
    plan(
        config,
        &PlanContext {
            layout: &layout,
            shim: &shim,
            cgroups,
            node,
            rights,
            refuse_ephemeral_root,
            open_files: None,
            memory: 4 << 30,
        },
        "id1",
        5,
    )
}

fn refusal(user: u32, config: &ContainerConfig) -> String {
    match planned_as(user, config) {
        Err(RuntimeError::Config(text)) => text.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

fn value<'a>(plan: &'a ContainerPlan, name: &str) -> Option<&'a str> {
    plan.run.env.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

#[test]
fn plan_refuses_unsupported_containers_with_a_remedy() {
    let no_command = config(|_, c| (c.command, c.args) = (vec![], vec![]));
    assert!(refusal(0, &no_command).contains("set `command`"));
    let nul = config(|_, c| c.args = vec!["a\0b".into()]);
    assert!(refusal(0, &nul).contains("NUL"));
    let secret = config(|_, c| c.env = vec![("PASSWORD".into(), "hunter2\0".into())]);
    let text = refusal(0, &secret);
    assert!(text.contains("PASSWORD") && !text.contains("hunter2"), "{text}");
    let expanded = config(|_, c| c.args = vec!["--password=hunter2\0".into()]);
    let text = refusal(0, &expanded);
    assert!(text.contains("`args`") && !text.contains("hunter2"), "{text}");
    let unknown = config(|_, c| c.kind = ContainerKind::Init);
    assert!(refusal(0, &unknown).contains("main"));
    let signal = config(|spec, _| {
        spec.containers[0].lifecycle =
            Some(Lifecycle { stop_signal: Some("SIGRTMIN+3".into()), ..Lifecycle::default() })
    });
    assert!(refusal(0, &signal).contains("SIGRTMIN+3"));
    for path in ["../x", "/a/../../etc/passwd", "/"] {
        let outside = config(|spec, _| spec.containers[0].termination_message_path = Some(path.into()));
        assert!(refusal(0, &outside).contains("terminationMessagePath"), "{path}");
    }
}

#[test]
fn what_every_agent_refuses_is_known_without_an_agent() {
    let faults = |container: serde_json::Value| {
        let container: Container = serde_json::from_value(container).unwrap();
        unsupported(&PodSpec { containers: vec![container], ..PodSpec::default() })
    };
    let group = podwright_host::pod_group::RANGE.start;
    for (mut container, says) in [
        (json!({"volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/a/b"}]}), "overlap"),
        (json!({"volumeMounts": [{"name": "a", "mountPath": "/"}]}), "cannot be mounted"),
        (json!({"terminationMessagePath": "/a/../../b"}), "terminationMessagePath"),
        (json!({"lifecycle": {"stopSignal": "SIGRTMIN+3"}}), "SIGRTMIN+3"),
        (json!({"securityContext": {"runAsGroup": group}}), "groups that the agent gives to pods"),
        (json!({"securityContext": {"runAsUser": 0, "runAsNonRoot": true}}), "runAsNonRoot"),
        (json!({"args": ["a\0b"]}), "NUL"),
        (json!({"env": [{"name": "A", "value": "a\0b"}]}), "NUL"),
    ] {
        container["name"] = "main".into();
        container["command"] = json!(["x"]);
        let faults = faults(container);
        assert!(faults.len() == 1 && faults[0].contains(says), "{says}: {faults:?}");
    }
    let path = json!({"name": "main", "terminationMessagePath": "/"});
    assert_eq!(faults(path).len(), 2, "each fault of a container is told");
}

#[test]
fn environment_adds_path_hostname_and_runtime_variables() {
    let config_of_secret = config(|_, c| c.env = vec![("A".into(), "hunter2".into())]);
    let plan = planned_as(0, &config_of_secret).unwrap();
    assert_eq!(value(&plan, "A"), Some("hunter2"));
    let shown = format!("{plan:?} {config_of_secret:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_eq!(value(&plan, "PATH"), Some(DEFAULT_PATH));
    assert_eq!(value(&plan, "HOSTNAME"), Some("web"));
    assert_eq!(value(&plan, CONTAINER_ENV), Some("id1"));
    assert_eq!(value(&plan, ROOTFS_ENV), Some("/root/pods/u1/containers/main/id1"));

    let own = config(|_, c| c.env = vec![("PATH".into(), "/x".into()), (CONTAINER_ENV.into(), "forged".into())]);
    let plan = planned_as(0, &own).unwrap();
    assert_eq!(value(&plan, "PATH"), Some("/x"));
    assert_eq!(value(&plan, CONTAINER_ENV), Some("id1"));
}

#[test]
fn environment_names_the_host_path_of_each_mount() {
    let mount = Mount {
        volume: "my-data".into(),
        host_path: "/h".into(),
        sub_path: "".into(),
        container_path: "/data".into(),
        read_only: false,
        image: None,
    };
    let plan = planned_as(0, &config(|_, c| c.mounts = vec![mount])).unwrap();
    assert_eq!(value(&plan, "PODWRIGHT_MOUNT_MY_DATA"), Some("/h"));
    assert_eq!(plan.links.len(), 1);
}

// Another container of the pod swaps a directory of the volume and a link out of the volume while containers are created.
#[test]
fn sub_path_is_mounted_outside_of_its_volume() {
    let test = TestVolume::create();
    let root = test.root().join("agent");
    let mount = Mount {
        volume: "data".into(),
        host_path: test.volume().join("dir"),
        sub_path: "dir".into(),
        container_path: "/data".into(),
        read_only: false,
        image: None,
    };
    let mut plan = planned_in(&root, 0, &config(|_, c| c.mounts = vec![mount])).unwrap();
    let at = root.join("pods/u1/volume-subpaths/data/main/0");
    assert_eq!(value(&plan, "PODWRIGHT_MOUNT_DATA"), at.to_str());
    let own = rustix::process::geteuid().as_raw();
    (plan.run.user.uid, plan.run.user.gid) = (own, rustix::process::getegid().as_raw());
    let made = std::cell::Cell::new(0);
    under_attack(&test, || {
        let mut run = plan.run.clone();
        if rootfs::make(&mut run, &plan.links).is_ok() {
            let view = run.confinement.view.as_ref().unwrap();
            assert_eq!((&view.mounts[0].at, fs::read_link(run.rootfs.join("data")).unwrap()), (&at, at.clone()));
            made.set(made.get() + 1);
        }
        rootfs::remove(&run.rootfs).unwrap();
    });
    assert!(made.get() > 0, "no container was created");
}

#[test]
fn plan_refuses_limits_that_are_not_valid() {
    for (name, text) in [("memory", "-1"), ("cpu", "x")] {
        let limits = [(name.to_owned(), Quantity(text.into()))].into();
        let bad = config(|spec, _| {
            let resources = ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() };
            spec.containers[0].resources = Some(resources);
        });
        assert!(refusal(0, &bad).contains(&format!("limits.{name} is {text:?}")));
    }
}

// The admission of the node does not see an ephemeral container, which comes later than its pod.
#[test]
fn ephemeral_container_of_root_is_refused_where_pods_may_not_be_root() {
    let ephemeral = |security: serde_json::Value| {
        config(|spec, config| {
            let containers = json!([{"name": "debug", "image": "i", "securityContext": security}]);
            spec.ephemeral_containers = Some(serde_json::from_value(containers).unwrap());
            (config.kind, config.name) = (ContainerKind::Ephemeral, "debug".to_owned().into());
        })
    };
    let planned = |refuse, security| {
        planned_with(Path::new("/root"), 0, refuse, &ephemeral(security)).map(|plan| plan.run.user.uid)
    };
    match planned(true, json!({})) {
        Err(RuntimeError::Config(text)) => {
            assert!(text.to_string().contains("would run as root of the node"), "{text}")
        }
        other => panic!("not refused: {other:?}"),
    }
    assert_eq!(planned(true, json!({"runAsUser": 1000, "allowPrivilegeEscalation": false})).unwrap(), 1000);
    assert_eq!(planned(false, json!({})).unwrap(), 0);
    // The container of a pod that an earlier agent admitted starts again.
    assert_eq!(planned_with(Path::new("/root"), 0, true, &config(|_, _| {})).unwrap().run.user.uid, 0);
}

// The container's user can replace each file of a directory that it owns by a link to a file of the node.
#[test]
fn root_directory_belongs_to_the_agent_until_it_is_handed_over() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root gives directories to other users");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut plan = planned_in(dir.path(), 0, &config(|_, _| {})).unwrap();
    plan.run.user.uid = 12345;
    let root = rootfs::make(&mut plan.run, &plan.links).unwrap();
    let path = root.path().to_owned();
    let owner = || fs::metadata(&path).unwrap().uid();
    assert_eq!((owner(), root.user().uid), (0, 12345));
    root.hand_over().unwrap();
    assert_eq!(owner(), 12345);
}

#[test]
fn pod_uid_cannot_lead_out_of_the_root_directory() {
    let mut bad = config(|_, _| {});
    let mut pod = bad.pod.pod().clone();
    pod.metadata.uid = Some("../../etc".into());
    bad.pod = PodObject::new(pod).unwrap();
    assert!(refusal(0, &bad).contains("path"));
}

#[test]
fn resource_limits_become_bytes_and_millicores() {
    let quantity = |text: &str| Quantity(text.into());
    for (memory, cpu, bytes, thousandths) in [
        ("128Mi", "500m", Some(128 << 20), Some(500)),
        ("2G", "0.25", Some(2_000_000_000), Some(250)),
        // A 64-bit float cannot represent this number.
        ("9007199254740993", "1e1", Some(9_007_199_254_740_993), Some(10_000)),
        // None, as for a kubelet.
        ("0", "0", None, None),
    ] {
        let limits = [("memory".to_owned(), quantity(memory)), ("cpu".to_owned(), quantity(cpu))].into();
        let plan = planned_as(
            0,
            &config(|spec, _| {
                let resources = ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() };
                spec.containers[0].resources = Some(resources);
            }),
        );
        let cgroup = plan.unwrap().run.cgroup.unwrap();
        assert_eq!((cgroup.memory, cgroup.cpu), (bytes, thousandths), "{memory} {cpu}");
    }
}

#[test]
fn container_without_a_limit_of_its_own_has_the_limit_of_the_pod() {
    let limits = |amounts: [(&str, &str); 2]| {
        let limits = amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.into())));
        Some(ResourceRequirements { limits: Some(limits.into()), ..ResourceRequirements::default() })
    };
    let config = config(|spec, _| {
        spec.resources = limits([("memory", "1Gi"), ("cpu", "2")]);
        spec.containers[0].resources = limits([("memory", "64Mi"), ("cpu", "0")]);
    });
    let cgroup = planned_as(0, &config).unwrap().run.cgroup.unwrap();
    assert_eq!((cgroup.memory, cgroup.cpu), (Some(64 << 20), Some(2000)));
}
