use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use super::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn layer(fields: &str) -> Result<Layer, String> {
    let parsed = document::parse(&Arc::from("config.yaml"), format!("{HEAD}{fields}").as_bytes());
    parsed.map_err(|faults| files::lines(&faults))
}

/// The words and the notices of layers.
fn converted(layers: Vec<Layer>, kubeconfig: Option<&str>) -> Result<(Vec<String>, Vec<String>), String> {
    let (merged, mut notices) = merge(layers);
    let context = Context { gates: &["DRAExtendedResource"], kubeconfig };
    let (settings, more) = convert(&merged, context).map_err(|faults| files::lines(&faults))?;
    notices.extend(more);
    let notices = notices.iter().map(|notice| format!("{}: {}: {}", notice.place, notice.field, notice.why));
    Ok((settings.iter().map(Setting::word).collect(), notices.collect()))
}

fn words(fields: &str) -> Result<Vec<String>, String> {
    converted(vec![layer(fields)?], None).map(|(words, _)| words)
}

fn of_flag(name: &str, text: &str) -> Layer {
    let field = flags().find(|field| field.flag == name).unwrap();
    Layer::from([(field.key(), Given { value: field.kind.parse(text).unwrap(), place: Place::Flag(field.flag) })])
}

#[test]
fn fields_that_cannot_be_read_are_refused_with_line_and_field() {
    for (fields, expected) in [
        ("maxPod: 5", "config.yaml: line 3, column 1: maxPod: unknown field; did you mean \"maxPods\"?"),
        (
            "maxPods: 5\nport: 1\nmaxPods: 6",
            "config.yaml: line 5, column 1: KubeletConfiguration: field \"maxPods\" is set twice",
        ),
        (
            "authentication:\n  x509:\n    clientCaFile: f",
            "line 5, column 5: authentication.x509.clientCaFile: unknown field",
        ),
        (
            "authentication:\n  x509: f",
            "line 4, column 3: authentication.x509: must be an object with the fields clientCAFile",
        ),
        ("authentication.x509.clientCAFile: f", "line 3, column 1: authentication.x509.clientCAFile: unknown field"),
        ("evictionHard:\n  memory.available: 5", "line 4, column 3: evictionHard[memory.available]: must be text"),
        (
            "registerWithTaints:\n- key: a\n  efect: b",
            "registerWithTaints[0].efect: unknown field; did you mean \"effect\"?",
        ),
        ("syncFrequency: 5", "line 3, column 1: syncFrequency: must be a time span in quotes"),
        ("maxPods: many", "maxPods: must be a whole number, not the text \"many\""),
        ("clusterDNS: [", "not valid YAML or JSON"),
    ] {
        let error = layer(fields).unwrap_err();
        assert!(error.contains(expected), "{fields}: {error}");
    }
    let parse = |text: &str| document::parse(&Arc::from("f"), text.as_bytes()).map_err(|faults| files::lines(&faults));
    for (text, expected) in [
        ("kind: KubeletConfiguration", "apiVersion: is missing: add apiVersion: kubelet.config.k8s.io/v1beta1"),
        ("apiVersion: v1\nkind: Pod", "f: line 2, column 1: kind: is \"Pod\": write kind: KubeletConfiguration"),
        ("", "contains no object"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert_eq!(layer("maxPods: null\nauthentication:\nlogging: {}\n"), Ok(Layer::new()));
}

#[test]
fn later_files_replace_fields_and_lists_and_keep_other_keys_of_maps() {
    let main = layer("maxPods: 10\nclusterDNS: [10.0.0.1, 10.0.0.2]\nsystemReserved:\n  cpu: \"1\"\n");
    let first = layer("maxPods: 20\nclusterDNS: [10.0.0.3]\nsystemReserved:\n  memory: 1Gi\n");
    let last = layer("maxPods: 30\nclusterDomain: a\nport: null\n");
    let (merged, notices) = merge([main.unwrap(), first.unwrap(), last.unwrap()]);
    let value = |field: &str| merged[field].value.clone();
    assert_eq!(value("maxPods"), json!(30));
    assert_eq!(value("clusterDNS"), json!(["10.0.0.3"]));
    assert_eq!(value("systemReserved"), json!({"cpu": "1", "memory": "1Gi"}));
    assert_eq!(value("clusterDomain"), json!("a"));
    assert!(notices.is_empty() && !merged.contains_key("port"));
}

#[test]
fn hard_thresholds_of_a_later_file_are_added_to_those_of_the_main_file_or_to_the_defaults() {
    let hard = |layers: Vec<Layer>| merge(layers).0["evictionHard"].value.clone();
    let drop_in = || layer("evictionHard:\n  memory.available: 1Gi").unwrap();
    let own = layer("evictionHard:\n  nodefs.available: 3%").unwrap();
    assert_eq!(hard(vec![drop_in()]), json!({"memory.available": "1Gi"}));
    assert_eq!(hard(vec![own, drop_in()]), json!({"memory.available": "1Gi", "nodefs.available": "3%"}));
    let all = hard(vec![Layer::new(), drop_in()]);
    assert_eq!((&all["memory.available"], &all["nodefs.available"]), (&json!("1Gi"), &json!("10%")));
    let of_flag = of_flag("eviction-hard", "pid.available<5%");
    assert_eq!(hard(vec![drop_in(), of_flag]), json!({"pid.available": "5%"}));
}

#[test]
fn flag_wins_and_says_so() {
    let file = layer("maxPods: 10\nfeatureGates:\n  A: true\n  B: true\n").unwrap();
    let (merged, notices) = merge([file, of_flag("max-pods", "20"), of_flag("feature-gates", "B=false")]);
    assert_eq!(merged["maxPods"].value, json!(20));
    assert_eq!(merged["featureGates"].value, json!({"A": true, "B": false}));
    let place = Place::File { path: Arc::from("config.yaml"), at: Some(Position { line: 3, column: 1 }) };
    let why = "the flag --max-pods applies".to_owned();
    assert_eq!(notices, [Notice { place, field: "maxPods".to_owned(), why }]);
    let file = layer("maxPods: 20").unwrap();
    assert!(merge([file, of_flag("max-pods", "20")]).1.is_empty(), "both have the same value");
}

#[test]
fn settings_become_the_flags_of_run() {
    for (fields, expected) in [
        ("maxPods: 7", "--max-pods=7"),
        ("maxPods: 0", ""),
        ("clusterDNS: [10.0.0.1, \"fd00::1\"]", "--cluster-dns=10.0.0.1,fd00::1"),
        ("staticPodPath: /m\nstaticPodURL: http://h/p", "--manifests=/m --manifests=http://h/p"),
        ("staticPodPath: \"\"", ""),
        (
            "containerRuntimeEndpoint: unix:///c.sock\nimageServiceEndpoint: unix:///c.sock",
            "--runtime=cri=unix:///c.sock",
        ),
        ("address: 192.0.2.1", "--node-api=192.0.2.1:10250"),
        ("address: \"::\"\nport: 1", "--node-api=[::]:1"),
        ("enableServer: false\nport: 1", "--node-api=off"),
        ("enableServer: true", ""),
        ("authentication:\n  x509:\n    clientCAFile: /ca", "--client-ca-file=/ca"),
        ("healthzPort: 1", "--admin=127.0.0.1:1"),
        ("healthzPort: 0", "--admin=off"),
        ("healthzBindAddress: \"::1\"", "--admin=[::1]:10248"),
        ("serializeImagePulls: true", "--max-parallel-image-pulls=1"),
        ("serializeImagePulls: false", "--max-parallel-image-pulls=1000000"),
        ("serializeImagePulls: false\nmaxParallelImagePulls: 3", "--max-parallel-image-pulls=3"),
        ("imageMinimumGCAge: 2m30s", "--image-minimum-gc-age=150"),
        ("imageMinimumGCAge: 0s\nimageMaximumGCAge: 0s", ""),
        ("serverTLSBootstrap: true", "--rotate-server-certificates"),
        ("serverTLSBootstrap: false\nrotateCertificates: true", ""),
        ("registerNode: false", "--register-node=false"),
        (
            "registerWithTaints:\n- key: a\n  value: b\n  effect: NoExecute\n- key: c\n  effect: NoSchedule\n",
            "--register-with-taints=a=b:NoExecute,c:NoSchedule",
        ),
        (
            "shutdownGracePeriodByPodPriority:\n- priority: 0\n  shutdownGracePeriodSeconds: 20\n- priority: 10\n  shutdownGracePeriodSeconds: 5\n",
            "--shutdown-grace-period-by-pod-priority=0=20,10=5",
        ),
        ("shutdownGracePeriod: 1m\nshutdownGracePeriodCriticalPods: 0s", "--shutdown-grace-period=1m0s"),
        ("evictionHard:\n  memory.available: 1Gi\n", "--eviction-hard=memory.available<1Gi"),
        (
            "mergeDefaultEvictionSettings: true\nevictionHard:\n  memory.available: 1Gi\n",
            "--eviction-hard=imagefs.available<15%,imagefs.inodesFree<5%,memory.available<1Gi,nodefs.available<10%,nodefs.inodesFree<5%",
        ),
        ("evictionSoftGracePeriod:\n  memory.available: 1m30s", "--eviction-soft-grace-period=memory.available=1m30s"),
        ("logging:\n  format: json", "--log-format=json"),
        ("featureGates:\n  DRAExtendedResource: false", "--feature-gates=DRAExtendedResource=false"),
        ("seccompDefault: true\nprotectKernelDefaults: true", "--protect-kernel-defaults --seccomp-default"),
        ("seccompDefault: false\nprotectKernelDefaults: false", ""),
        ("podPidsLimit: 100\npodsPerCore: 3", "--pod-max-pids=100 --pods-per-core=3"),
        ("podPidsLimit: -1\npodsPerCore: 0", ""),
        (
            "tlsMinVersion: VersionTLS13\ntlsCipherSuites: [TLS_AES_128_GCM_SHA256, TLS_AES_256_GCM_SHA384]",
            "--tls-cipher-suites=TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384 --tls-min-version=VersionTLS13",
        ),
        ("tlsMinVersion: \"\"\ntlsCipherSuites: []", ""),
        ("eventRecordQPS: 0\neventBurst: 7", "--event-burst=7 --event-qps=0"),
        ("eventBurst: 0", ""),
        ("providerID: cloud:///1", "--provider-id=cloud:///1"),
        ("failSwapOn: true", "--fail-swap-on=true"),
        ("failSwapOn: false", "--fail-swap-on=false"),
        ("memorySwap:\n  swapBehavior: LimitedSwap", "--swap-behavior=LimitedSwap"),
        (
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [r.example/a, q.example/*]",
            "--image-pull-credentials-verification-policy=NeverVerifyAllowlistedImages --preloaded-images-verification-allowlist=r.example/a,q.example/*",
        ),
    ] {
        assert_eq!(words(fields).unwrap().join(" "), expected, "{fields}");
    }
    let rotating = |kubeconfig| converted(vec![layer("rotateCertificates: true").unwrap()], kubeconfig).unwrap().0;
    assert_eq!(rotating(Some("/k")), ["--bootstrap-kubeconfig=/k"]);
}

#[test]
fn field_without_a_meaning_is_a_notice_unless_it_has_its_default() {
    let notices = |fields: &str| converted(vec![layer(fields).unwrap()], None).unwrap().1;
    assert_eq!(notices("syncFrequency: 0s\nhealthzPort: 10248\nregistryPullQPS: 5\nkubeAPIQPS: 50\n"), [""; 0]);
    let found =
        notices("oomScoreAdj: -500\nfeatureGates:\n  NodeSwap: true\nregistryPullQPS: 9\nlogging:\n  verbosity: 5\n");
    assert_eq!(found.len(), 4, "{found:?}");
    for expected in [
        "config.yaml: line 3, column 1: oomScoreAdj: the service manager sets it",
        "config.yaml: line 4, column 1: featureGates: the agent has no feature gates NodeSwap",
        "config.yaml: line 6, column 1: registryPullQPS: the agent limits pulls",
        "config.yaml: line 8, column 3: logging.verbosity: the environment variable RUST_LOG",
    ] {
        assert!(found.iter().any(|notice| notice.starts_with(expected)), "{expected}: {found:?}");
    }
    for (field, why) in [
        ("failCgroupV1: true", "failCgroupV1: the agent runs with cgroup v1 too"),
        ("kubeAPIQPS: 0", "kubeAPIQPS: the agent limits requests by their number at a time"),
        ("kubeAPIQPS: 5", "kubeAPIQPS: the agent limits requests by their number at a time"),
    ] {
        let found = notices(field);
        assert!(found.len() == 1 && found[0].contains(why), "{field}: {found:?}");
    }
}

#[test]
fn field_that_the_agent_cannot_honor_is_refused_unless_it_has_its_default() {
    let defaults = "cpuManagerPolicy: none\nreadOnlyPort: 0\nsingleProcessOOMKill: false\nenforceNodeAllocatable: [pods]\n\
                    authentication:\n  anonymous:\n    enabled: false\nmemorySwap: {}\ncrashLoopBackOff: {}\n";
    assert_eq!(words(defaults), Ok(Vec::new()));
    for (fields, expected) in [
        (
            "readOnlyPort: 10255",
            "config.yaml: line 3, column 1: readOnlyPort: \"10255\" is not supported here (only 0): the agent",
        ),
        ("cpuManagerPolicy: static", "cpuManagerPolicy: \"static\" is not supported here (only none)"),
        (
            "authentication:\n  anonymous:\n    enabled: true",
            "authentication.anonymous.enabled: \"true\" is not supported",
        ),
        ("authorization:\n  mode: AlwaysAllow", "set Webhook"),
        ("healthzBindAddress: 0.0.0.0", "healthzBindAddress: 0.0.0.0 is reachable from other machines"),
        ("healthzBindAddress: here", "\"here\" is not an IP address"),
        ("port: 70000", "70000 is not a port"),
        ("serializeImagePulls: true\nmaxParallelImagePulls: 3", "remove one of the two"),
        ("imageServiceEndpoint: unix:///i.sock", "imageServiceEndpoint: \"unix:///i.sock\" is not supported here"),
        ("imageMinimumGCAge: 1500ms", "imageMinimumGCAge: 1.5s is not a whole number of seconds"),
        ("tlsCurvePreferences: [X25519]", "the node API chooses the key exchange: leave it out"),
        ("staticPodURLHeader:\n  Authorization: [Basic]", "use podwright run --manifest-url-header-file"),
        ("reservedMemory:\n- numaNode: 0\n  limits:\n    memory: 1Gi\n", "reservedMemory"),
    ] {
        let error = words(fields).unwrap_err();
        assert!(error.contains(expected), "{fields}: {error}");
    }
    let error = words("staticPodURLHeader:\n  Authorization: [Basic c2VjcmV0]").unwrap_err();
    assert!(error.contains("staticPodURLHeader: a value is not supported") && !error.contains("c2VjcmV0"), "{error}");
    let error = words("readOnlyPort: 1\nsingleProcessOOMKill: true").unwrap_err();
    assert_eq!(error.lines().count(), 2, "all faults are reported: {error}");
}

#[test]
fn drop_in_files_are_read_in_lexical_order_and_other_files_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, fields: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{HEAD}{fields}")).unwrap();
    };
    write("20-b.conf", "maxPods: 20");
    write("10-a.conf", "maxPods: 10\npodPidsLimit: -1");
    write("15-more/z.conf", "maxPods: 15");
    write("30-c.yaml", "maxPods: 30");
    let layers = read(None, Some(dir.path())).unwrap();
    let pods: Vec<_> = layers.iter().map(|layer| layer.get("maxPods").map(|given| given.value.clone())).collect();
    assert_eq!(pods, [None, Some(json!(10)), Some(json!(15)), Some(json!(20))]);
    let main = dir.path().join("30-c.yaml");
    let layers = read(Some(&main), None).unwrap();
    assert_eq!((layers.len(), &layers[0]["maxPods"].value), (1, &json!(30)));
}

#[test]
fn configuration_that_other_users_can_change_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (drop_ins, file) = (dir.path().join("d"), dir.path().join("config.yaml"));
    fs::create_dir(&drop_ins).unwrap();
    let drop_in = drop_ins.join("10-a.conf");
    fs::write(&file, HEAD).unwrap();
    fs::write(&drop_in, HEAD).unwrap();
    let set_mode = |path: &Path, mode: u32| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    for (path, private, open, flag) in [
        (&file, 0o600, 0o602, "--config "),
        (&drop_in, 0o600, 0o602, "--config-dir "),
        // Another user could add a file.
        (&drop_ins, 0o700, 0o1707, "--config-dir "),
    ] {
        set_mode(path, open);
        let error = read(Some(&file), Some(&drop_ins)).unwrap_err().to_string();
        assert!(error.contains(flag) && error.contains(path.to_str().unwrap()), "{error}");
        set_mode(path, private);
        assert_eq!(read(Some(&file), Some(&drop_ins)).unwrap().len(), 2, "{}", path.display());
    }
}

#[test]
fn configuration_that_cannot_be_read_is_named_with_its_flag() {
    let dir = tempfile::tempdir().unwrap();
    let error = |file: Option<&str>, directory: Option<&str>| {
        let path = |name: Option<&str>| name.map(|name| dir.path().join(name));
        read(path(file).as_deref(), path(directory).as_deref()).unwrap_err().to_string()
    };
    fs::write(dir.path().join("large"), vec![b'#'; (1 << 20) + 1]).unwrap();
    for (file, directory, says) in [
        (Some("none"), None, "correct --config,"),
        (None, Some("none"), "correct --config-dir,"),
        (Some("."), None, "is not a regular file: correct --config"),
        (Some("large"), None, "has more than 1 MiB"),
    ] {
        let error = error(file, directory);
        assert!(error.contains(says) && error.contains(dir.path().to_str().unwrap()), "{error}");
    }
}
