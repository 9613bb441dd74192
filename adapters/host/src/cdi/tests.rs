use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::*;

fn document(more: Value) -> Value {
    let mut document = json!({
        "cdiVersion": "1.1.0",
        "kind": "vendor.example/gpu",
        "devices": [{"name": "g0", "containerEdits": {"env": ["A=0"]}}],
    });
    document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    document
}

fn parsed(document: &Value) -> Result<Content, SpecError> {
    parse(document.to_string().as_bytes(), Format::Json)
}

fn refusal(document: Value) -> String {
    parsed(&document).unwrap_err().to_string()
}

/// A specification in a directory, whose devices set a variable with their name.
fn spec(path: &str, directory: usize, kind: &str, devices: &[&str]) -> Spec {
    let device = |name: &&str| Device { name: (*name).to_owned(), edits: env(&[&format!("{name}={path}")]) };
    let devices = devices.iter().map(device).collect();
    Spec { path: path.into(), directory, kind: kind.into(), devices, edits: env(&[&format!("SPEC_{path}=1")]) }
}

fn env(variables: &[&str]) -> Edits {
    Edits { env: variables.iter().map(|text| (*text).to_owned()).collect(), ..Edits::default() }
}

fn specs(specs: Vec<Spec>) -> Specs {
    let specs = specs.into_iter().map(Arc::new).collect();
    Specs { directories: vec!["/etc/cdi".into(), "/run/cdi".into()], specs, faults: vec![] }
}

fn resolved(all: Vec<Spec>, names: &[&str]) -> Result<Vec<String>, CdiError> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    resolve(specs(all), &names).map(|edits| edits.env)
}

#[test]
fn names_have_a_vendor_a_class_and_a_name() {
    for good in ["v.example/gpu=g0", "v/c=0", "V_1-a.b/c.d=a:b.c_d-e", "v/c=x"] {
        assert_eq!(good.parse::<DeviceName>().unwrap().to_string(), good);
    }
    let bad = [
        "", "v/c", "v/c=", "=x", "/c=x", "v/=x", "1v/c=x", "v/1c=x", "v/c=-x", "v/c=x-", "v/c=x y", "v/c=x=y",
        "a/b/c=x", "v/c=é",
    ];
    for bad in bad {
        assert!(matches!(bad.parse::<DeviceName>(), Err(CdiError::Name(_))), "{bad}");
    }
}

#[test]
fn json_and_yaml_with_all_edits_are_the_same() {
    let json = document(json!({
        "annotations": {"a": "b"},
        "containerEdits": {"env": ["ALL=1"], "hooks": null},
        "devices": [{"name": "g0", "annotations": null, "containerEdits": {
            "env": ["A=0", "B=x=y"],
            "deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3,
                             "fileMode": 432, "permissions": "rw", "uid": 7, "gid": 8}],
            "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "bind"], "type": "bind"}],
            "hooks": [{"hookName": "createContainer", "path": "/bin/h", "args": ["h"], "env": ["X=1"], "timeout": 5}],
            "intelRdt": {"closID": "c", "l3CacheSchema": "L3", "memBwSchema": "MB", "schemata": ["a"],
                         "enableMonitoring": true, "enableCMT": true, "enableMBM": false},
            "netDevices": [{"hostInterfaceName": "eth1", "name": "eth0"}],
            "additionalGids": [44],
        }}],
    }));
    let yaml = r#"---
cdiVersion: 1.1.0
kind: vendor.example/gpu
annotations: {a: b}
containerEdits: {env: [ALL=1]}
devices:
- name: g0
  containerEdits:
    env: [A=0, "B=x=y"]
    deviceNodes:
    - {path: /dev/a, hostPath: /dev/null, type: c, major: 1, minor: 3, fileMode: 0660, permissions: rw, uid: 7, gid: 8}
    mounts: [{hostPath: /h, containerPath: /c, options: [ro, bind], type: bind}]
    hooks: [{hookName: createContainer, path: /bin/h, args: [h], env: [X=1], timeout: 5}]
    intelRdt: {closID: c, l3CacheSchema: L3, memBwSchema: MB, schemata: [a], enableMonitoring: true, enableCMT: true}
    netDevices: [{hostInterfaceName: eth1, name: eth0}]
    additionalGids: [44]
"#;
    let content = parsed(&json).unwrap();
    assert_eq!(parse(yaml.as_bytes(), Format::Yaml).unwrap(), content);
    assert_eq!(parse(json.to_string().as_bytes(), Format::Yaml).unwrap(), content);
    let node = &content.devices[0].edits.device_nodes[0];
    assert_eq!((node.file_mode, node.on_host(), node.allowed()), (Some(0o660), Path::new("/dev/null"), "rw"));
    let variables: Vec<_> = content.devices[0].edits.variables().collect();
    assert_eq!(variables, [("A", "0"), ("B", "x=y")]);
}

#[test]
fn faults_name_the_field_and_what_is_allowed() {
    let device = |edits: Value| document(json!({"devices": [{"name": "g0", "containerEdits": edits}]}));
    for (bad, expected) in [
        (document(json!({"cdiVersion": "2.0.0"})), "cdiVersion \"2.0.0\" is not known"),
        (document(json!({"cdiVersion": "0.2.0"})), "cdiVersion \"0.2.0\" is not known"),
        (document(json!({"kind": "gpu"})), "kind is \"gpu\": use VENDOR/CLASS"),
        (document(json!({"kind": "v/c/d"})), "kind is"),
        (document(json!({"devices": []})), "devices is \"\": use at least one device"),
        (document(json!({"device": []})), "unknown field `device`"),
        (
            document(json!({"devices": [{"name": "-", "containerEdits": {"env": ["A=1"]}}]})),
            "name of a device is \"-\"",
        ),
        (device(json!({})), "containerEdits of device g0"),
        (device(json!({"env": ["A"]})), "device g0: env is \"A\": use NAME=VALUE"),
        (device(json!({"env": ["=A"]})), "use NAME=VALUE"),
        (device(json!({"env": ["A=\u{0}"]})), "use NAME=VALUE"),
        (device(json!({"deviceNodes": [{"path": ""}]})), "path of a device node is \"\""),
        (device(json!({"deviceNodes": [{"path": "/a", "type": "x"}]})), "type is \"x\": use b, c, u or p"),
        (device(json!({"deviceNodes": [{"path": "/a", "major": -1}]})), "major is \"-1\""),
        (device(json!({"deviceNodes": [{"path": "/a", "permissions": "rx"}]})), "permissions is \"rx\""),
        (device(json!({"mounts": [{"hostPath": "", "containerPath": "/c"}]})), "hostPath of a mount"),
        (device(json!({"mounts": [{"hostPath": "/h"}]})), "missing field `containerPath`"),
        (device(json!({"hooks": [{"hookName": "x", "path": "/h"}]})), "hookName is \"x\""),
        (device(json!({"intelRdt": {"closID": "a/b"}})), "closID"),
        (device(json!({"netDevices": [{"hostInterfaceName": "e", "name": ""}]})), "netDevices"),
    ] {
        let text = refusal(bad);
        assert!(text.contains(expected), "{text}: {expected}");
    }
    let twice = json!({"name": "a", "containerEdits": {"env": ["A=1"]}});
    assert!(refusal(document(json!({"devices": [twice, twice]}))).contains("each name once"));
    let large = vec![b' '; MAX_BYTES as usize + 1];
    assert!(matches!(parse(&large, Format::Json), Err(SpecError::TooLarge(_))));
    let text = parse(b"{\"\x1b[2J\": 1}", Format::Json).unwrap_err().to_string();
    assert!(!text.contains('\x1b'), "{text:?}");
}

#[test]
fn fields_need_the_version_that_introduced_them() {
    let device = |edits: Value| json!({"devices": [{"name": "g0", "containerEdits": edits}]});
    for (more, needed, before) in [
        (device(json!({"mounts": [{"hostPath": "/h", "containerPath": "/c", "type": "bind"}]})), "0.4.0", "0.3.0"),
        (device(json!({"deviceNodes": [{"path": "/a", "hostPath": "/b"}]})), "0.5.0", "0.4.0"),
        (json!({"devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}), "0.5.0", "0.4.0"),
        (json!({"annotations": {"a": "b"}}), "0.6.0", "0.5.0"),
        (json!({"kind": "v/c.d"}), "0.6.0", "0.5.0"),
        (device(json!({"additionalGids": [1]})), "0.7.0", "0.6.0"),
        (json!({"containerEdits": {"intelRdt": {"closID": "a"}}}), "0.7.0", "0.6.0"),
        (device(json!({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]})), "1.1.0", "1.0.0"),
        (device(json!({"intelRdt": {"enableMonitoring": true}})), "1.1.0", "1.0.0"),
    ] {
        let of = |version: &str| {
            let mut document = document(more.clone());
            document["cdiVersion"] = version.into();
            parsed(&document)
        };
        of(needed).unwrap();
        of(&format!("v{needed}")).unwrap();
        assert!(matches!(of(before), Err(SpecError::TooOld { needed: found, .. }) if found == needed), "{more}");
    }
    parsed(&document(json!({"cdiVersion": "0.3.0"}))).unwrap();
}

#[test]
fn edits_of_a_specification_count_once_and_come_first() {
    let all = || vec![spec("a", 0, "v/c", &["x", "y"]), spec("b", 0, "v/d", &["x"])];
    let names = ["v/c=y", "v/c=x", "v/c=y", "v/d=x"];
    assert_eq!(resolved(all(), &names).unwrap(), ["SPEC_a=1", "y=a", "x=b", "SPEC_b=1"]);
    assert_eq!(resolved(all(), &[]).unwrap(), Vec::<String>::new());

    // The edits of the specification apply once, although two of its devices are used.
    let mut all = all();
    all[0].edits = env(&["y=all"]);
    all[0].edits.hooks.push(Hook::default());
    let edits = resolve(specs(all), &["v/c=y".into(), "v/c=x".into()]).unwrap();
    assert_eq!((edits.env, edits.hooks.len()), (vec!["y=a".to_owned(), "x=a".to_owned()], 1));
}

#[test]
fn a_device_of_a_later_directory_replaces_one_of_an_earlier_directory() {
    let all = || vec![spec("b", 1, "v/c", &["x"]), spec("a", 0, "v/c", &["x", "y"]), spec("c", 0, "v/c", &["x"])];
    // The files a and c conflict, but neither is used.
    assert_eq!(resolved(all(), &["v/c=x"]).unwrap(), ["SPEC_b=1", "x=b"]);
    assert_eq!(resolved(all(), &["v/c=y"]).unwrap(), ["SPEC_a=1", "y=a"]);
}

#[test]
fn devices_that_cannot_be_resolved_are_errors_with_a_remedy() {
    let all = || vec![spec("a", 0, "v/c", &["x"]), spec("b", 0, "v/c", &["x", "y"])];
    let conflict = resolved(all(), &["v/c=y", "v/c=x"]).unwrap_err();
    assert!(matches!(&conflict, CdiError::Conflict { files, .. } if files == &["a", "b"].map(PathBuf::from)));
    assert!(conflict.to_string().ends_with("keep it in one of a, b"), "{conflict}");
    let unknown = resolved(all(), &["v/d=x"]).unwrap_err().to_string();
    assert_eq!(
        unknown,
        "no CDI specification has device v/d=x: check that its driver runs and writes a specification to /etc/cdi, /run/cdi"
    );
    assert!(matches!(resolved(all(), &["v/c"]), Err(CdiError::Name(_))));
}

#[test]
fn later_edits_replace_earlier_ones_of_the_same_name_or_path() {
    let node = |path: &str, kind: &str| DeviceNode { path: path.into(), kind: kind.into(), ..DeviceNode::default() };
    let mount = |host: &str, at: &str| Mount { host_path: host.into(), container_path: at.into(), ..Mount::default() };
    let mut edits = Edits {
        env: vec!["A=1".into(), "B=1".into()],
        device_nodes: vec![node("/dev/a", "b"), node("/dev/b", "b")],
        mounts: vec![mount("/h", "/c"), mount("/h", "/d")],
        additional_gids: vec![5],
        ..Edits::default()
    };
    edits.add(&Edits {
        env: vec!["A=2".into(), "C=2".into()],
        device_nodes: vec![node("/dev/a", "c")],
        mounts: vec![mount("/i", "/c")],
        additional_gids: vec![0, 5, 6],
        intel_rdt: Some(IntelRdt::default()),
        ..Edits::default()
    });
    assert_eq!(edits.env, ["A=2", "B=1", "C=2"]);
    assert_eq!(edits.device_nodes, [node("/dev/b", "b"), node("/dev/a", "c")]);
    assert_eq!(edits.mounts, [mount("/h", "/d"), mount("/i", "/c")]);
    assert_eq!(edits.additional_gids, [5, 6]);
    assert!(edits.intel_rdt.is_some());
}

#[test]
fn mount_options_that_the_adapters_do_not_know_are_refused() {
    let mount = |kind: &str, options: &[&str]| {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Mount { host_path: "/h".into(), container_path: "/c".into(), kind: kind.into(), options }.bind_options()
    };
    let options = |read_only, propagation| BindOptions { read_only, propagation };
    let vendor = mount("", &["ro", "nosuid", "nodev", "rbind", "rprivate"]).unwrap();
    assert_eq!(vendor, options(true, NodePropagation::Private));
    assert_eq!(mount("bind", &["ro", "rw", "rslave"]).unwrap(), options(false, NodePropagation::Slave));
    assert_eq!(mount("none", &["bind", "shared"]).unwrap(), options(false, NodePropagation::Shared));
    for (kind, bad) in [("tmpfs", &[][..]), ("", &["size=1m"]), ("bind", &["idmap"])] {
        let error = mount(kind, bad).unwrap_err();
        assert!(matches!(&error, CdiError::Unsupported { .. }), "{error}");
    }
    for (host, container) in [("h", "/c"), ("/h/../i", "/c"), ("/h", "c"), ("/h", "/"), ("/h", "/a/../..")] {
        let mount = Mount { host_path: host.into(), container_path: container.into(), ..Mount::default() };
        assert!(mount.bind_options().is_err(), "{host} {container}");
    }
}

#[test]
fn device_nodes_get_missing_numbers_from_the_node() {
    let node = |host: &str, kind: &str, numbers: (i64, i64)| DeviceNode {
        path: "/dev/x".into(),
        host_path: host.into(),
        kind: kind.into(),
        major: numbers.0,
        minor: numbers.1,
        ..DeviceNode::default()
    };
    let null = rustix::fs::makedev(1, 3);
    for found in [node("/dev/null", "", (0, 0)), node("/dev/null", "u", (0, 0)), node("/dev/null", "c", (1, 3))] {
        let device = found.find().unwrap();
        assert_eq!((device.kind, device.number), (FileType::CharacterDevice, null));
        found.check_host_node(&device).unwrap();
    }
    // The specification is complete, so the node needs no such device. Then only a device node of its own can be used.
    let other = node("/nowhere", "b", (7, 1));
    let device = other.find().unwrap();
    assert_eq!((device.kind, device.on_host), (FileType::BlockDevice, None));
    assert!(other.check_host_node(&device).unwrap_err().to_string().contains("does not exist on the node"));
    let different = node("/dev/null", "c", (1, 5));
    assert!(different.check_host_node(&different.find().unwrap()).unwrap_err().to_string().contains("not device 1:5"));
    let owned = DeviceNode { uid: Some(4242), ..node("/dev/null", "", (0, 0)) };
    assert!(owned.check_host_node(&owned.find().unwrap()).unwrap_err().to_string().contains("its uid is not that of"));
    assert!(node("/nowhere", "", (0, 0)).find().unwrap_err().to_string().contains("check that the device exists"));
    assert!(node("/etc/passwd", "", (0, 0)).find().unwrap_err().to_string().contains("is not a device"));
    assert!(node("/dev/null", "b", (0, 0)).find().unwrap_err().to_string().contains("is not of type"));
    assert!(node("/dev/../etc", "", (0, 0)).find().is_err());
}

#[test]
fn hooks_and_other_edits_of_runtimes_are_refused() {
    let hook = Hook { hook_name: "poststop".into(), path: "/h".into(), ..Hook::default() };
    let net = NetDevice { host_interface_name: "eth1".into(), name: "eth0".into() };
    for (edits, expected) in [
        (Edits { hooks: vec![hook], ..Edits::default() }, "CDI hook poststop \"/h\" cannot be applied"),
        (Edits { net_devices: vec![net], ..Edits::default() }, "CDI netDevices \"eth1\" cannot be applied"),
        (Edits { intel_rdt: Some(IntelRdt::default()), ..Edits::default() }, "CDI intelRdt cannot be applied"),
    ] {
        let text = edits.refuse_unsupported("the process runtime").unwrap_err().to_string();
        assert!(text.starts_with(expected) && text.contains("use a container runtime with CDI"), "{text}");
    }
    env(&["A=1"]).refuse_unsupported("").unwrap();
}

fn write(path: &Path, content: &Value) {
    fs::write(path, content.to_string()).unwrap();
}

/// Reads without a cache.
fn read(directories: &[PathBuf]) -> Specs {
    SpecCache::new(directories.to_vec()).read()
}

/// Sets the time of the last modification.
fn age(path: &Path) {
    let times = fs::FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    fs::File::options().append(true).open(path).unwrap().set_times(times).unwrap();
}

/// A change of a file is seen at the next read, whatever changed it; other files are not read again.
#[test]
fn only_changed_files_are_read_again() {
    let root = tempfile::tempdir().unwrap();
    let (old, new) = (root.path().join("a.json"), root.path().join("b.json"));
    let of_kind = |kind: &str| document(json!({"kind": kind}));
    write(&old, &of_kind("v/one"));
    write(&new, &of_kind("v/two"));
    for file in [&old, &new] {
        age(file);
    }
    let later = SystemTime::now() + Duration::from_secs(60);
    let cache = SpecCache::new(vec![root.path().to_owned()]);
    let kinds = |specs: &Specs| specs.specs.iter().map(|spec| spec.kind.clone()).collect::<Vec<_>>();
    assert_eq!(kinds(&cache.read()), ["v/one", "v/two"]);
    assert_eq!(cache.len(), 0, "a file that has just changed may change again within the resolution of its times");
    let first = cache.read_at(later);
    let again = cache.read_at(later);
    assert!(first.specs.iter().zip(&again.specs).all(|(one, other)| Arc::ptr_eq(one, other)), "nothing was read again");
    // In place, with the same length.
    write(&new, &of_kind("v/six"));
    let changed = cache.read_at(later);
    assert_eq!(kinds(&changed), ["v/one", "v/six"]);
    assert!(Arc::ptr_eq(&changed.specs[0], &first.specs[0]));
    // With the same length and the same time of modification.
    age(&new);
    cache.read_at(later);
    let before = fs::metadata(&new).unwrap();
    while (before.ctime(), before.ctime_nsec())
        == fs::metadata(&new).map(|now| (now.ctime(), now.ctime_nsec())).unwrap()
    {
        write(&new, &of_kind("v/ten"));
        age(&new);
    }
    assert_eq!(kinds(&cache.read_at(later)), ["v/one", "v/ten"]);
    // Replaced by a rename, made unusable, and removed.
    write(&root.path().join("next"), &of_kind("v/two"));
    fs::rename(root.path().join("next"), &old).unwrap();
    assert_eq!(kinds(&cache.read_at(later)), ["v/two", "v/ten"]);
    fs::set_permissions(&old, Permissions::from_mode(0o666)).unwrap();
    let refused = cache.read_at(later);
    assert_eq!((kinds(&refused), refused.faults.len()), (vec!["v/ten".to_owned()], 1));
    fs::remove_file(&new).unwrap();
    assert!(cache.read_at(later).specs.is_empty());
    assert_eq!(cache.len(), 0, "a file that is gone leaves the cache");
}

#[test]
fn directory_that_is_given_twice_is_read_once() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&first.path().join("a.json"), &document(json!({})));
    let specs = read(&[first.path(), second.path(), first.path()].map(Path::to_owned));
    assert_eq!(specs.specs.len(), 1);
    assert_eq!(specs.directories, [second.path(), first.path()]);
}

#[test]
fn a_bad_file_affects_only_its_own_devices() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("cdi");
    fs::create_dir(&dir).unwrap();
    write(&dir.join("good.json"), &document(json!({})));
    fs::write(dir.join("good.yaml"), document(json!({"kind": "v/y"})).to_string()).unwrap();
    fs::write(dir.join("bad.json"), "{").unwrap();
    for ignored in [".hidden.json", "good.json.tmp", "note.txt", "x.yml"] {
        fs::write(dir.join(ignored), "{").unwrap();
    }
    fs::create_dir(dir.join("dir.json")).unwrap();
    mknodat(CWD, dir.join("fifo.json"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let specs = read(&[dir.clone(), root.path().join("missing")]);
    let names: Vec<_> = specs.specs.iter().map(|spec| spec.kind.as_str()).collect();
    assert_eq!(names, ["vendor.example/gpu", "v/y"]);
    let faults: Vec<_> = specs.faults.iter().map(|fault| fault.path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(faults, ["bad.json", "dir.json", "fifo.json"]);
    let unknown = resolve(specs, &["v/z=a".to_owned()]).unwrap_err().to_string();
    assert!(unknown.contains("bad.json: is not a CDI specification: EOF"), "{unknown}");
}

#[test]
fn files_that_other_users_can_change_are_not_used() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("above/cdi");
    let file = dir.join("a.json");
    fs::create_dir_all(&dir).unwrap();
    write(&file, &document(json!({})));
    let faults = || read(std::slice::from_ref(&dir)).faults;
    assert!(faults().is_empty());
    for (path, mode) in
        [(&file, 0o666), (&file, 0o620), (&dir, 0o777), (&dir, 0o1777), (&root.path().join("above"), 0o777)]
    {
        let before = fs::metadata(path).unwrap().permissions();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let [fault] = &faults()[..] else { panic!("{} {mode:o}", path.display()) };
        assert!(matches!(&fault.error, SpecError::Mode { path: found, .. } if found == path), "{fault}");
        assert!(read(std::slice::from_ref(&dir)).specs.is_empty());
        fs::set_permissions(path, before).unwrap();
    }
    if rustix::process::geteuid().is_root() {
        for path in [&file, &dir] {
            chown(path, Some(65534), None).unwrap();
            let [fault] = &faults()[..] else { panic!("{}", path.display()) };
            assert!(matches!(&fault.error, SpecError::Owner { owner: 65534, .. }), "{fault}");
            chown(path, Some(0), None).unwrap();
        }
    }
    // The file of a trusted directory may be a link to a trusted file.
    fs::rename(&file, root.path().join("real")).unwrap();
    std::os::unix::fs::symlink(root.path().join("real"), &file).unwrap();
    assert_eq!(read(&[dir]).specs.len(), 1);
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    /// The order in which files are read does not matter, and the order of the names only for edits that replace each other.
    #[test]
    fn the_order_of_files_and_names_does_not_matter(
        layout in vec((0usize..2, subsequence(vec!["a", "b", "c"], 1..=3), 0u8..2), 1..6),
        names in Just(vec!["v/c0=a", "v/c0=b", "v/c0=c", "v/c1=a", "v/c1=b", "v/c1=c"]).prop_shuffle(),
        count in 1usize..6,
        order in any::<u64>(),
    ) {
        let build = |(index, (directory, devices, class)): (usize, &(usize, Vec<&str>, u8))| {
            let kind = format!("v/c{class}");
            let edits = |name: &str| env(&[&format!("C{class}_{name}={index}")]);
            let devices = devices.iter().map(|name| Device { name: (*name).to_owned(), edits: edits(name) }).collect();
            Spec { path: format!("/{directory}/{index}.json").into(), directory: *directory, kind, devices, edits: env(&[&format!("SPEC{index}=1")]) }
        };
        let all: Vec<Spec> = layout.iter().enumerate().map(build).collect();
        let names = &names[..count];
        let first = resolved(all.clone(), names);
        let mut rotated = all.clone();
        rotated.rotate_left(order as usize % all.len());
        rotated.reverse();
        let again = resolved(rotated, names);
        match (&first, &again) {
            (Ok(first), Ok(again)) => prop_assert_eq!(first, again),
            (Err(first), Err(again)) => prop_assert_eq!(first.to_string(), again.to_string()),
            _ => prop_assert!(false, "{:?} {:?}", first, again),
        }
        let mut turned = names.to_vec();
        turned.rotate_left(order as usize % names.len());
        let turned = resolved(all, &turned);
        prop_assert_eq!(first.is_ok(), turned.is_ok());
        if let (Ok(mut first), Ok(mut turned)) = (first, turned) {
            first.sort();
            turned.sort();
            prop_assert_eq!(first, turned);
        }
    }
}
