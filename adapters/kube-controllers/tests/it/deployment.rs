//! The manifests of `examples/deploy` grant what each controller uses, and no more, and run both controllers.

use std::collections::BTreeSet;
use std::path::Path;

use podwright_cluster::taints::forever;
use podwright_controllers::device_taint_eviction::Settings;
use podwright_stand_in::{Fault, Grant, Rule, Verb};
use serde_json::json;

use super::taint_replica::TaintReplica;
use super::*;

/// A permission: the namespace (empty for all), the API group, the resource, the name (empty for all) and the verb.
type Permission = (String, String, String, String, String);

/// A permission that no request of a test needs, by its resource and verb.
type Unused = (&'static str, &'static str);

/// The permissions of the ResourceClaim controller that no request of its test needs. The API server checks `resourceclaims/binding` and
/// the finalizers of owners when it writes other objects. Claims are patched only on a server without the protobuf encoding. Upstream's
/// role has the others too.
const UNUSED_FOR_CLAIMS: [Unused; 7] = [
    ("pods/finalizers", "update"),
    ("pods/status", "update"),
    ("resourceclaims", "patch"),
    ("resourceclaims/status", "patch"),
    ("resourceclaims/binding", "update"),
    ("resourceclaims/binding", "patch"),
    ("events", "update"),
];
/// The permissions of the device taint eviction controller that no request of its tests needs. Upstream's role has them.
const UNUSED_FOR_TAINTS: [Unused; 4] =
    [("pods/status", "update"), ("resourceclaims", "get"), ("resourceslices", "get"), ("events", "update")];
/// The same for its permissions for rules.
const UNUSED_FOR_RULES: [Unused; 2] = [("devicetaintrules", "get"), ("devicetaintrules/status", "update")];

const CONTROLLERS_FILE: &str = "controllers.yaml";
const RULES_FILE: &str = "device-taint-rules.yaml";
/// The service account of all controllers.
const ACCOUNT: &str = "podwright-controllers";
/// The roles of each controller, and those for rules.
const CLAIM_ROLE: &str = "podwright-resourceclaim-controller";
const TAINT_ROLE: &str = "podwright-device-taint-eviction-controller";
const RULE_ROLE: &str = "podwright-device-taint-rules";

fn documents(file: &str) -> Vec<Value> {
    let path = format!("{}/../../examples/deploy/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

pub(super) fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The bindings of the manifests.
fn bindings() -> Vec<Value> {
    let documents = [CONTROLLERS_FILE, RULES_FILE].into_iter().flat_map(documents);
    documents.filter(|document| document["kind"].as_str().unwrap().ends_with("RoleBinding")).collect()
}

/// The permissions of these roles, which the manifests grant to the service account of the controllers.
fn granted(roles: &[&str]) -> BTreeSet<Permission> {
    let documents: Vec<_> = [CONTROLLERS_FILE, RULES_FILE].into_iter().flat_map(documents).collect();
    let mut granted = BTreeSet::new();
    for binding in bindings().iter().filter(|binding| roles.iter().any(|role| binding["roleRef"]["name"] == **role)) {
        assert_eq!(binding["subjects"][0]["name"], ACCOUNT);
        let is_role = |document: &&Value| {
            let same = |field: &str| document[field] == binding["roleRef"][field];
            same("kind") && document["metadata"]["name"] == binding["roleRef"]["name"]
        };
        let role = documents.iter().find(is_role).expect("the binding names a role of the manifests");
        let namespace = binding["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in role["rules"].as_array().unwrap() {
            let mut names = texts(&rule["resourceNames"]);
            if names.is_empty() {
                names.push(String::new());
            }
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        for name in &names {
                            let permission =
                                (namespace.to_owned(), group.clone(), resource.clone(), name.clone(), verb.clone());
                            assert!(granted.insert(permission), "{resource} {verb} is granted twice");
                        }
                    }
                }
            }
        }
    }
    granted
}

/// The permission that covers a request.
fn covering(granted: &BTreeSet<Permission>, served: &podwright_stand_in::Served) -> Option<Permission> {
    let group = match served.path.split('/').nth(1) {
        Some("apis") => served.path.split('/').nth(2).unwrap(),
        _ => "",
    };
    let verb = served.verb?.name();
    let covers = |permission: &&Permission| {
        let (namespace, of_group, resource, name, of_verb) = permission;
        (namespace.is_empty() || *namespace == served.namespace)
            && of_group == group
            && *resource == served.resource
            && (name.is_empty() || *name == served.name)
            && of_verb == verb
    };
    granted.iter().find(covers).cloned()
}

/// The user of a service account whose permissions a server checks.
struct Account {
    user: String,
    granted: BTreeSet<Permission>,
}

impl Account {
    /// The server refuses everything that these roles do not grant. It has the leases of the manifests.
    fn of(cluster: &Cluster, roles: &[&str]) -> Self {
        for lease in documents(CONTROLLERS_FILE).into_iter().filter(|document| document["kind"] == "Lease") {
            cluster.server.create("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease).unwrap();
        }
        let (user, granted) = (format!("system:serviceaccount:kube-system:{ACCOUNT}"), granted(roles));
        for (_, _, resource, _, verb) in &granted {
            cluster.server.grant(Grant::new(&user, verb, resource));
        }
        Account { user, granted }
    }

    async fn client(&self, cluster: &Cluster) -> Client {
        client_of(cluster, &User::new(&self.user, &[])).await
    }

    /// Asserts that each request of the user was permitted, and that each permission was used, except for these.
    fn assert_exact(&self, cluster: &Cluster, unused: &[Unused]) {
        let mut used = BTreeSet::new();
        for served in cluster.server.requests().iter().filter(|served| served.user == self.user) {
            assert_ne!(served.code, 403, "{served:?}");
            used.insert(covering(&self.granted, served).unwrap_or_else(|| panic!("no rule permits {served:?}")));
        }
        let is_expected =
            |(_, _, resource, _, verb): &&Permission| !unused.contains(&(resource.as_str(), verb.as_str()));
        let left: Vec<_> = self.granted.difference(&used).filter(is_expected).collect();
        assert!(left.is_empty(), "{left:?}");
        for (resource, verb) in unused {
            let is_granted = |permission: &Permission| permission.2 == *resource && permission.4 == *verb;
            assert!(self.granted.iter().any(is_granted), "{resource} {verb}");
        }
    }
}

#[tokio::test]
async fn manifests_grant_exactly_what_the_controller_uses() {
    let cluster = Cluster::start().await;
    let account = Account::of(&cluster, &[CLAIM_ROLE]);
    // Two failures with the same text are written as one event with a count, by a patch.
    cluster.pod("without", &["none"], &json!({}));
    cluster.template("one");
    cluster.pod("p", &["one"], &json!({"nodeName": "n1"}));
    cluster.claim("of-none", PARAMETERS);
    cluster.pod_with("q", &json!([{"name": "c0", "resourceClaimName": "of-none"}]), &json!({}));
    cluster.allocate("of-none", &["q"]);
    cluster.delete(PODS, "q");
    // The answer of a create is lost, so the claims are listed.
    let creates = Rule::new().verb(Verb::Create).resource("resourceclaims").times(1);
    cluster.server.faults().inject(creates, Fault::DropAfter);
    let replica = Replica::elected(account.client(&cluster).await, "replica");
    eventually("the claim of the pod is recorded", || async { cluster.recorded("p").get("c0").cloned() }).await;
    let name = cluster.recorded("p")["c0"].clone();
    cluster.allocate(&name, &[]);
    eventually("the claim is reserved", || async { (cluster.consumers(&name) == 1).then_some(()) }).await;
    cluster.set_phase("p", "Succeeded");
    eventually("the claims are free", || async {
        let claims = cluster.server.all("resourceclaims");
        (claims.len() == 1 && cluster.consumers("of-none") == 0).then_some(())
    })
    .await;
    eventually("the event is counted", || async {
        cluster
            .server
            .requests()
            .iter()
            .any(|served| served.verb == Some(Verb::Patch) && served.resource == "events")
            .then_some(())
    })
    .await;
    replica.stop().await;
    account.assert_exact(&cluster, &UNUSED_FOR_CLAIMS);
}

/// Runs the device taint eviction controller: an eviction, and one that is cancelled twice, so that its event is counted by a patch.
async fn evict_and_cancel(account: &Account, cluster: &Cluster, settings: Settings) {
    let replica = TaintReplica::elected(account.client(cluster).await, settings, "replica");
    let taint = cluster.server.get("resourceslices", "", "s").unwrap()["spec"]["devices"][0]["taints"].clone();
    eventually("the pod is deleted", || async { cluster.is_deleted("p1").then_some(()) }).await;
    replica.until_pending(1).await;
    for _ in 0..2 {
        for taints in [json!([]), taint.clone()] {
            cluster.set_taints(&taints);
            replica.until_pending(taints.as_array().unwrap().len()).await;
        }
    }
    eventually("the event is counted", || async {
        let is_patch = |served: &podwright_stand_in::Served| {
            served.verb == Some(Verb::Patch) && served.resource == "events" && served.code == 200
        };
        cluster.server.requests().iter().any(is_patch).then_some(())
    })
    .await;
    replica.stop().await;
}

#[tokio::test]
async fn manifests_grant_exactly_what_the_device_taint_eviction_controller_uses() {
    let cluster = Cluster::start().await;
    let account = Account::of(&cluster, &[TAINT_ROLE]);
    cluster.user(0, &forever());
    cluster.user(1, &json!([]));
    cluster.slice_with_tainted(&["i0", "i1"]);
    evict_and_cancel(&account, &cluster, Settings { rules: false, ..Settings::default() }).await;
    account.assert_exact(&cluster, &UNUSED_FOR_TAINTS);
}

#[tokio::test]
async fn manifests_grant_exactly_what_rules_need_beside_it() {
    let cluster = Cluster::start().await;
    let account = Account::of(&cluster, &[TAINT_ROLE, RULE_ROLE]);
    cluster.user(0, &forever());
    cluster.user(1, &json!([]));
    cluster.tainted_slice();
    cluster.rule_for(&json!({"device": "i1"}));
    evict_and_cancel(&account, &cluster, Settings::default()).await;
    account.assert_exact(&cluster, &[&UNUSED_FOR_TAINTS[..], &UNUSED_FOR_RULES].concat());
    let of_rules = granted(&[RULE_ROLE]);
    assert!(of_rules.iter().all(|permission| permission.2.starts_with("devicetaintrules")), "{of_rules:?}");
}

/// The document of a kind in the manifest of the controllers.
fn of_kind(kind: &str) -> Value {
    documents(CONTROLLERS_FILE).into_iter().find(|document| document["kind"] == kind).unwrap()
}

#[test]
fn deployment_has_two_replicas_that_a_disruption_budget_protects() {
    let (deployment, budget) = (of_kind("Deployment"), of_kind("PodDisruptionBudget"));
    assert_eq!(deployment["spec"]["replicas"], 2);
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(&budget["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
}

#[test]
fn deployment_runs_both_controllers_with_their_roles() {
    let pod = of_kind("Deployment")["spec"]["template"]["spec"].clone();
    assert_eq!(
        (&pod["serviceAccountName"], &of_kind("ServiceAccount")["metadata"]["name"]),
        (&json!(ACCOUNT), &json!(ACCOUNT))
    );
    let image = pod["containers"][0]["image"].as_str().unwrap();
    assert!(image.contains(':') && !image.ends_with(":latest"), "{image}: the image of a running pod must not change");
    let args = texts(&pod["containers"][0]["args"]);
    assert!(args.contains(&"--controllers=resourceclaim,device-taint-eviction".to_owned()), "{args:?}");
    let bound: BTreeSet<_> = bindings().iter().map(|binding| binding["roleRef"]["name"].clone().to_string()).collect();
    assert_eq!(bound, BTreeSet::from([CLAIM_ROLE, TAINT_ROLE, RULE_ROLE].map(|role| json!(role).to_string())));
    let kubeconfig = of_kind("ConfigMap")["data"]["kubeconfig"].as_str().unwrap().to_owned();
    let kubeconfig: Value = serde_saphyr::from_str(&kubeconfig).unwrap();
    assert_eq!(kubeconfig["current-context"], kubeconfig["contexts"][0]["name"]);
}

/// The root file system is read only, so the root directory is in a volume. The volume itself belongs to root.
#[test]
fn deployment_writes_to_volumes_only() {
    let template = of_kind("Deployment")["spec"]["template"].clone();
    let pod = &template["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    let args = texts(&container["args"]);
    let root = args.iter().find(|arg| arg.starts_with("--root=")).unwrap();
    let above = Path::new(root.strip_prefix("--root=").unwrap()).parent().unwrap();
    let is_above = |mount: &&Value| mount["mountPath"].as_str().map(Path::new) == Some(above);
    let mount = container["volumeMounts"].as_array().unwrap().iter().find(is_above).unwrap();
    assert_eq!(mount["readOnly"], json!(null));
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
    assert_eq!(volume["emptyDir"], json!({"sizeLimit": "16Mi"}));
    let annotations = &template["metadata"]["annotations"];
    assert_eq!(annotations["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"], mount["name"]);
    for probe in ["readinessProbe", "livenessProbe"] {
        assert!(texts(&container[probe]["exec"]["command"]).contains(root), "{probe}");
    }
}

/// Prometheus reaches each replica through the headless service, with TLS and a token of the secret.
#[test]
fn deployment_serves_metrics_to_the_cluster() {
    let (deployment, service) = (of_kind("Deployment"), of_kind("Service"));
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(service["spec"]["clusterIP"], "None");
    assert_eq!(service["spec"]["selector"], deployment["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(service["spec"]["ports"][0]["port"], container["ports"][0]["containerPort"]);
    let args = texts(&container["args"]);
    assert!(args.contains(&"--admin=0.0.0.0:10255".to_owned()), "{args:?}");
    let mounts = container["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["name"] == "admin").unwrap()["mountPath"].as_str().unwrap().to_owned();
    for (flag, file) in [("cert", "tls.crt"), ("key", "tls.key")] {
        assert!(args.contains(&format!("--admin-tls-{flag}={mount}/{file}")), "{args:?}");
    }
    assert!(args.contains(&format!("--admin-token-file={mount}/token")), "{args:?}");
    let volumes = pod["volumes"].as_array().unwrap();
    let secret = &volumes.iter().find(|volume| volume["name"] == "admin").unwrap()["secret"];
    assert_eq!(secret["secretName"], "podwright-controllers-admin");
    // The files of a secret belong to root, so the group of the containers must be able to read them.
    assert_eq!(pod["securityContext"]["fsGroup"], pod["securityContext"]["runAsGroup"]);
}
