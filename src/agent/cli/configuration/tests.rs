use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::super::{Cli, Command, parse};
use super::*;
use crate::agent::kubelet_config::Meaning;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// A directory with the file `config.yaml`.
fn home(fields: &str) -> (TempDir, String) {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("config.yaml");
    fs::write(&config, format!("{HEAD}{fields}")).unwrap();
    let flag = format!("--config={}", config.display());
    (home, flag)
}

fn args(words: &[&str]) -> Result<Box<RunArgs>, String> {
    match parse(["podwright"].iter().chain(words)).map(|Cli { command }| command) {
        Ok(Command::Run(args)) => Ok(args),
        Ok(_) => panic!("{words:?} is parsed as another command"),
        Err(error) => Err(error.to_string()),
    }
}

/// All settings of the agent, except for those that name its configuration.
fn described(args: &RunArgs) -> String {
    let text = format!("{args:#?}");
    let (before, rest) = text.split_once("configuration: ConfigurationArgs").unwrap();
    let (_, after) = rest.split_once("machine: MachineArgs").unwrap();
    format!("{before}{after}")
}

fn notices(args: &RunArgs) -> Vec<String> {
    args.configuration.notices.iter().map(|notice| format!("{}: {}", notice.field, notice.why)).collect()
}

#[test]
fn settings_of_a_file_and_of_flags_are_the_same() {
    let fields = "maxPods: 7\nsystemReserved:\n  cpu: 500m\nregisterWithTaints:\n- {key: a, value: b, effect: NoExecute}\n\
                  containerRuntimeEndpoint: unix:///c.sock\nclusterDNS: [10.0.0.10]\nevictionHard:\n  memory.available: 1Gi\n\
                  shutdownGracePeriod: 30s\nimageMinimumGCAge: 1m\nregisterNode: false\nport: 1\nlogging:\n  format: json\n";
    let (_home, config) = home(fields);
    let by_file = args(&["run", "--kubeconfig=k", &config]).unwrap();
    let by_flags = args(&[
        "run",
        "--kubeconfig=k",
        "--max-pods=7",
        "--system-reserved=cpu=500m",
        "--register-with-taints=a=b:NoExecute",
        "--runtime=cri=unix:///c.sock",
        "--cluster-dns=10.0.0.10",
        "--eviction-hard=memory.available<1Gi",
        "--shutdown-grace-period=30",
        "--image-minimum-gc-age=60",
        "--register-node=false",
        "--node-api=0.0.0.0:1",
        "--log-format=json",
    ]);
    assert_eq!(described(&by_file), described(&by_flags.unwrap()));
    assert_eq!(notices(&by_file), [""; 0]);
}

#[test]
fn profiles_of_a_file_and_of_flags_are_the_same() {
    let fields = "seccompDefault: true\npodPidsLimit: 100\ntlsMinVersion: VersionTLS13\ntlsCipherSuites: [TLS_AES_128_GCM_SHA256]\n\
                  eventRecordQPS: 5\neventBurst: 7\nproviderID: cloud:///1\npodsPerCore: 3\nprotectKernelDefaults: true\nfailSwapOn: true\n\
                  memorySwap:\n  swapBehavior: LimitedSwap\n\
                  imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
                  preloadedImagesVerificationAllowlist: [r.example/a, q.example/*]\n";
    let (_home, config) = home(fields);
    let node = ["run", "--kubeconfig=k", "--runtime=cri=unix:///c.sock"];
    let by_file = args(&[&node[..], &[&config]].concat()).unwrap();
    let flags = [
        "--seccomp-default",
        "--pod-max-pids=100",
        "--tls-min-version=VersionTLS13",
        "--tls-cipher-suites=TLS_AES_128_GCM_SHA256",
        "--event-qps=5",
        "--event-burst=7",
        "--provider-id=cloud:///1",
        "--pods-per-core=3",
        "--protect-kernel-defaults",
        "--fail-swap-on",
        "--swap-behavior=LimitedSwap",
        "--image-pull-credentials-verification-policy=NeverVerifyAllowlistedImages",
        "--preloaded-images-verification-allowlist=r.example/a,q.example/*",
    ];
    let by_flags = args(&[&node[..], &flags[..]].concat()).unwrap();
    assert_eq!(described(&by_file), described(&by_flags));
    assert_ne!(described(&by_flags), described(&args(&node).unwrap()));
    assert_eq!(notices(&by_file), [""; 0]);
}

#[test]
fn settings_are_flags_of_run() {
    let program = super::super::program();
    let run = program.find_subcommand("run").unwrap();
    for field in kubelet_config::flags() {
        if let Meaning::Setting(flag) = &field.meaning {
            assert!(run.get_arguments().any(|argument| argument.get_long() == Some(flag.name)), "{}", flag.name);
        }
    }
}

#[test]
fn flag_of_the_user_wins_over_a_file_and_the_agent_says_so() {
    let (_home, config) = home(
        "maxPods: 7\nstaticPodPath: /file\nshutdownGracePeriod: 30s\nfeatureGates:\n  DRAExtendedResource: false\n",
    );
    let flags = ["--max-pods=8", "--no-manifests", "--shutdown-grace-period-by-pod-priority=0=5"];
    let gates = "--feature-gates=ResourceHealthStatus=false";
    let found = args(&[&["run", &config, gates], &flags[..]].concat()).unwrap();
    assert_eq!((found.max_pods, found.manifests.len()), (8, 0));
    let both = args(&["run", gates, "--feature-gates=DRAExtendedResource=false"]).unwrap();
    assert_eq!(
        format!("{:?}", ClaimFeatures::from(&found.features)),
        format!("{:?}", ClaimFeatures::from(&both.features))
    );
    let mut said = notices(&found);
    said.sort();
    assert_eq!(
        said,
        [
            "maxPods: the flag --max-pods applies",
            "shutdownGracePeriod: the flag --shutdown-grace-period-by-pod-priority applies",
            "staticPodPath: the flag --no-manifests applies",
        ]
    );
}

#[test]
fn flag_that_requires_another_one_finds_it_in_a_file() {
    let (_home, config) = home("tlsPrivateKeyFile: /k\nstaticPodURL: http://manifests.example/p\n");
    let own = ["--tls-cert-file=/c", "--manifest-url-header-file=/h"];
    let found = args(&["run", "--kubeconfig=f", &config, own[0], own[1]]).unwrap();
    let files = found.certificates.tls_files().unwrap();
    assert_eq!((&*files.certificate, &*files.key), (Path::new("/c"), Path::new("/k")));
    assert_eq!((found.manifests.len(), found.manifest_url_header_file.as_deref()), (1, Some(Path::new("/h"))));
    let (_home, other) = home("maxPods: 7\n");
    for (words, missing) in [
        (&["run", "--kubeconfig=f", &other, own[0]][..], "--tls-private-key-file"),
        (&["run", "--kubeconfig=f", &other, own[1]], "--manifests"),
        (&["run", &config, own[0]], "--kubeconfig"),
        (&["run", "--kubeconfig=f", own[0]], "--tls-private-key-file"),
    ] {
        let error = args(words).unwrap_err();
        assert!(error.contains(missing), "{words:?}: {error}");
    }
}

#[test]
fn settings_without_an_effect_are_notices() {
    let (_home, config) = home(
        "clusterDomain: a\nregisterNode: false\nseccompDefault: true\nauthentication:\n  x509:\n    clientCAFile: /ca\n",
    );
    let found = args(&["run", &config]).unwrap();
    let mut said = notices(&found);
    said.sort();
    assert_eq!(
        said,
        [
            "authentication.x509.clientCAFile: it has no effect without --kubeconfig",
            "clusterDomain: it has no effect without --runtime cri=ENDPOINT",
            "registerNode: it has no effect without --kubeconfig",
            "seccompDefault: it has no effect without --runtime cri=ENDPOINT",
        ]
    );
}

#[test]
fn settings_of_a_node_api_that_is_off_are_notices() {
    let fields = "authentication:\n  x509:\n    clientCAFile: /ca\ntlsMinVersion: VersionTLS13\n\
                  tlsCipherSuites: [TLS_AES_128_GCM_SHA256]\n";
    let (_home, served) = home(fields);
    let (_other, off) = home(&format!("enableServer: false\n{fields}"));
    for words in [
        &["run", "--kubeconfig=k", "--node-api=off", &served][..],
        &["run", "--kubeconfig=k", &off],
        &["kubelet", "--kubeconfig=k", "--enable-server=false", &served],
    ] {
        let said = notices(&args(words).unwrap());
        for field in ["authentication.x509.clientCAFile", "tlsMinVersion", "tlsCipherSuites"] {
            assert!(said.contains(&format!("{field}: the node API is off")), "{words:?}: {said:?}");
        }
    }
    // A flag turns it on again.
    let found = args(&["run", "--kubeconfig=k", "--node-api=127.0.0.1:1", &off]).unwrap();
    assert_eq!(found.node_api.client_ca_file.as_deref(), Some(Path::new("/ca")));
    assert_eq!(notices(&found), ["enableServer: the flag --node-api applies"]);
}

#[test]
fn value_that_run_refuses_is_named_with_its_file_and_field() {
    for (fields, flags, says) in [
        (
            "clusterDNS: [dns]",
            &["--runtime=cri=/c.sock"][..],
            "config.yaml: line 3, column 1: clusterDNS: invalid IP address",
        ),
        (
            "systemReserved:\n  pid: \"9\"",
            &[],
            "config.yaml: line 3, column 1: systemReserved: \"pid\" cannot be reserved",
        ),
        ("logging:\n  format: xml", &[], "config.yaml: line 4, column 3: logging.format: "),
        ("tlsCertFile: /c", &["--kubeconfig=k"], "--tls-private-key-file"),
        (
            "registerWithTaints:\n- {key: a, value: b, effect: NoExecute}\n- {key: a, value: c, effect: NoExecute}\n",
            &[],
            "config.yaml: line 3, column 1: registerWithTaints: --register-with-taints has two taints",
        ),
        (
            "cpuManagerPolicy: static",
            &[],
            "config.yaml: line 3, column 1: cpuManagerPolicy: \"static\" is not supported here",
        ),
        ("tlsMinVersion: VersionTLS11", &["--kubeconfig=k"], "config.yaml: line 3, column 1: tlsMinVersion: "),
        (
            "memorySwap:\n  swapBehavior: AllSwap",
            &["--runtime=cri=/c.sock"],
            "config.yaml: line 4, column 3: memorySwap.swapBehavior: unknown swap behavior",
        ),
        (
            "preloadedImagesVerificationAllowlist: [r.example/a]",
            &["--runtime=cri=/c.sock"],
            "config.yaml: line 3, column 1: preloadedImagesVerificationAllowlist: --preloaded-images-verification-allowlist has",
        ),
    ] {
        let (_home, config) = home(fields);
        let error = args(&[&["run", &config], flags].concat()).unwrap_err();
        assert!(error.contains(says), "{fields}: {error}");
    }
}

#[test]
fn kubelet_has_the_defaults_of_a_kubelet() {
    // Launchers give flags without a value too.
    let found = args(&["kubelet", "--config=", "--config-dir="]).unwrap();
    assert_eq!(found.root.as_deref(), Some(Path::new("/var/lib/kubelet")));
    assert_eq!(found.runtime, "cri=unix:///run/containerd/containerd.sock".parse().unwrap());
    assert_eq!(found.admin.admin.to_string(), "127.0.0.1:10248");
    assert_eq!(found.node_api.node_api.to_string(), "0.0.0.0:10250");
    assert!(found.no_manifests && found.node_settings.adopt_kubelet_pods && found.kubeconfig.is_none());
    assert!(found.machine.requirements().no_swap && !args(&["run"]).unwrap().machine.requirements().no_swap);
    let settings = crate::adapters::cri::NodeSettings::from(&*found.node_settings);
    assert_eq!(settings.cgroup_root, "/");
}

#[test]
fn kubelet_takes_the_flags_of_launchers() {
    let (home, config) = home("maxPods: 7\nstaticPodPath: /pods\nclusterDomain: a\n");
    let drop_in = home.path().join("10-more.conf");
    fs::write(drop_in, format!("{HEAD}maxPods: 8\nclusterDomain: b\n")).unwrap();
    let (root, more) = (home.path().join("root"), format!("--config-dir={}", home.path().display()));
    let found = args(&[
        "kubelet",
        "--kubeconfig",
        "/k",
        "--bootstrap-kubeconfig=/b",
        &config,
        &more,
        "--root-dir",
        root.to_str().unwrap(),
        "--cert-dir=/certs",
        "--hostname-override=Node-1",
        "--node-labels=a=b",
        "--node-labels=c=d",
        "--register-with-taints=e=f:NoSchedule",
        "--container-runtime-endpoint=unix:///run/k3s/containerd/containerd.sock",
        "--pod-infra-container-image=registry.example/pause:3.10",
        "--cloud-provider=external",
        "--provider-id=cloud:///1",
        "--image-credential-provider-config=/p.yaml",
        "--image-credential-provider-bin-dir=/p",
        "--read-only-port=0",
        "--fail-swap-on=false",
        "--rotate-server-certificates",
        "--max-pods=9",
        "--v=2",
        "-v",
        "6",
    ]);
    let found = found.unwrap();
    assert_eq!(found.root.as_deref(), Some(&*root));
    assert_eq!(found.node_name.as_ref().map(|name| name.0.as_str()), Some("node-1"));
    assert_eq!(found.runtime, "cri=unix:///run/k3s/containerd/containerd.sock".parse().unwrap());
    assert_eq!((found.max_pods, found.manifests.len(), found.no_manifests), (9, 1, false));
    assert_eq!(found.kubeconfig.as_deref(), Some(Path::new("/k")));
    assert_eq!(found.certificates.bootstrap_kubeconfig.as_deref(), Some(Path::new("/b")));
    assert_eq!(found.certificates.directory(&root), Path::new("/certs"));
    assert!(found.certificates.rotate_server_certificates);
    assert!(found.registration.has_external_cloud() && !found.machine.requirements().no_swap);
    assert_eq!(found.registration.provider_id.as_deref(), Some("cloud:///1"));
    assert_eq!(found.images.credential_providers(), Some(("/p.yaml".into(), "/p".into())));
    // Launchers give flags without a value too.
    let without = args(&["kubelet", "--kubeconfig=/k", "--cloud-provider=", "--provider-id="]).unwrap();
    assert!(!without.registration.has_external_cloud() && without.registration.provider_id.is_none());
    assert_eq!(found.admission.labels(&found.runtime).len(), 2);
    assert_eq!(found.admission.taints()[0].key, "e");
    let settings = crate::adapters::cri::NodeSettings::from(&*found.node_settings);
    assert_eq!(settings.cluster_domain, "b");
    let mut said = notices(&found);
    said.sort();
    let expected = [
        "logging.verbosity: the environment variable RUST_LOG",
        "maxPods: the flag --max-pods applies",
        "pod-infra-container-image: it is deprecated",
    ];
    assert_eq!(said.len(), expected.len(), "{said:?}");
    assert!(said.iter().zip(expected).all(|(said, expected)| said.starts_with(expected)), "{said:?}");
}

#[test]
fn last_file_of_a_kubelet_counts() {
    let ((_home, first), (_other, last)) = (home("maxPods: 7\n"), home("maxPods: 8\n"));
    assert_eq!(args(&["kubelet", &first, &last]).unwrap().max_pods, 8);
}

#[test]
fn flags_of_a_kubelet_without_a_meaning_are_notices() {
    let flags = [
        "--housekeeping-interval=10s",
        "--storage-driver-password=secret",
        "--enable-load-reader",
        "--containerd=/run/k3s/containerd/containerd.sock",
        "--log-json-split-stream",
        "--log-text-info-buffer-size=1Mi",
    ];
    // A field with its default has no notice.
    let defaults = ["--log-json-info-buffer-size=0", "--log-text-split-stream=false", "--log-flush-frequency=5s"];
    let found = args(&[&["kubelet", "--logging-format=json"][..], &flags[..], &defaults[..]].concat()).unwrap();
    assert_eq!(found.log_format, crate::agent::cli::LogFormat::Json);
    let said = notices(&found);
    assert_eq!(said.len(), flags.len(), "{said:?}");
    for name in ["housekeeping-interval", "storage-driver-password", "enable-load-reader"] {
        assert!(said.iter().any(|said| said.starts_with(&format!("{name}: it is a flag of cAdvisor"))), "{said:?}");
    }
    assert!(said.iter().all(|said| !said.contains("secret")), "{said:?}");
}

#[test]
fn flag_of_a_kubelet_that_the_agent_cannot_honor_is_refused() {
    for (flag, says) in [
        ("--cpu-manager-policy=static", "--cpu-manager-policy: cpuManagerPolicy: \"static\" is not supported here"),
        ("--cloud-provider=aws", "--cloud-provider: cloud-provider: no cloud provider is built in"),
        ("--image-credential-provider-config=/p.yaml", "--image-credential-provider-bin-dir"),
        ("--manifest-url-header=a:b", "--manifest-url-header: staticPodURLHeader: a value is not supported here"),
        ("--anonymous-auth", "--anonymous-auth: authentication.anonymous.enabled: \"true\""),
        ("--max-pods=many", "--max-pods: \"many\" is not a whole number"),
        ("--node-ip=node", "--node-ip: node-ip: not an IP address"),
        ("--dockershim-checkpoint-dir=/d", "unexpected argument"),
        ("--config=/nowhere/at-all", "correct --config"),
    ] {
        let error = args(&["kubelet", "--kubeconfig=/k", flag]).unwrap_err();
        assert!(error.contains(says), "{flag}: {error}");
    }
}

#[test]
fn binary_with_the_name_of_a_kubelet_is_a_kubelet() {
    let parsed = parse(["/usr/bin/kubelet", "--max-pods=5"]).unwrap();
    let Command::Run(found) = parsed.command else { panic!("the command is run") };
    assert_eq!((found.max_pods, found.root.as_deref()), (5, Some(Path::new("/var/lib/kubelet"))));
    let version = parse(["kubelet", "--version"]).unwrap_err();
    assert_eq!(version.kind(), clap::error::ErrorKind::DisplayVersion);
    assert!(version.to_string().starts_with("Kubernetes v1.36.0"), "{version}");
}
