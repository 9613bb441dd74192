//! The manifests of `examples/deploy/controllers.yaml` grant what the controller uses, and no more.

use std::collections::BTreeSet;

use podwright_stand_in::{Fault, Grant, Rule, Verb};
use serde_json::json;

use super::*;

/// A permission: the namespace (empty for all), the API group, the resource, the name (empty for all) and the verb.
type Permission = (String, String, String, String, String);

/// The permissions of the specification that no request of this test needs. The API server checks `resourceclaims/binding` and the
/// finalizers of owners when it writes other objects. Lists are for servers without streaming lists, and for claims whose
/// creation was not answered. A claim is read only if no watch has shown it for 30 seconds. Upstream's role has the others too.
const UNUSED: [(&str, &str); 11] = [
    ("pods", "list"),
    ("resourceclaims", "get"),
    ("resourceclaims", "list"),
    ("pods/finalizers", "update"),
    ("pods/status", "update"),
    ("resourceclaims", "patch"),
    ("resourceclaims/status", "patch"),
    ("resourceclaims/binding", "update"),
    ("resourceclaims/binding", "patch"),
    ("resourceclaimtemplates", "list"),
    ("events", "update"),
];

fn documents() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/deploy/controllers.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The permissions that the manifests grant to their service account.
fn granted() -> BTreeSet<Permission> {
    let documents = documents();
    let mut granted = BTreeSet::new();
    for binding in documents.iter().filter(|document| document["kind"].as_str().unwrap().ends_with("RoleBinding")) {
        assert_eq!(binding["subjects"][0]["name"], "podwright-controllers");
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

// The server refuses everything that the manifests do not grant.
#[tokio::test]
async fn manifests_grant_exactly_what_the_controller_uses() {
    let granted = granted();
    let cluster = Cluster::start().await;
    let user = "system:serviceaccount:kube-system:podwright-controllers";
    for (_, _, resource, _, verb) in &granted {
        cluster.server.grant(Grant::new(user, verb, resource));
    }
    // Two failures with the same text are written as one event with a count, by a patch.
    cluster.pod("without", &["none"], &json!({}));
    cluster.template("one");
    cluster.pod("p", &["one"], &json!({"nodeName": "n1"}));
    let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}});
    cluster.server.create(CLAIMS, json!({"metadata": {"name": "of-none"}, "spec": spec})).unwrap();
    cluster.pod_with("q", &json!([{"name": "c0", "resourceClaimName": "of-none"}]), &json!({}));
    cluster.allocate("of-none", &["q"]);
    cluster.delete(PODS, "q");
    // The answer of a create is lost, so the claims are listed.
    let creates = Rule::new().verb(Verb::Create).resource("resourceclaims").times(1);
    cluster.server.faults().inject(creates, Fault::DropAfter);
    let client = cluster.client_of(&User::new(user, &[])).await;
    let replica = Replica::elected(client.clone(), "replica");
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

    let mut used = BTreeSet::new();
    for served in cluster.server.requests().iter().filter(|served| served.user == user) {
        assert_ne!(served.code, 403, "{served:?}");
        used.insert(covering(&granted, served).unwrap_or_else(|| panic!("no rule permits {served:?}")));
    }
    let is_expected = |(_, _, resource, _, verb): &&Permission| !UNUSED.contains(&(resource.as_str(), verb.as_str()));
    let unused: Vec<_> = granted.difference(&used).filter(is_expected).collect();
    assert!(unused.is_empty(), "{unused:?}");
    for (resource, verb) in UNUSED {
        assert!(granted.iter().any(|permission| permission.2 == resource && permission.4 == verb), "{resource} {verb}");
    }
}

#[test]
fn deployment_has_two_replicas_that_a_disruption_budget_protects() {
    let documents = documents();
    let of_kind = |kind: &str| documents.iter().find(|document| document["kind"] == kind).unwrap();
    let deployment = of_kind("Deployment");
    assert_eq!(deployment["spec"]["replicas"], 2);
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);
    let budget = of_kind("PodDisruptionBudget");
    assert_eq!(&budget["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], of_kind("ServiceAccount")["metadata"]["name"]);
    let container = &pod["containers"][0];
    let args = texts(&container["args"]);
    assert!(args.iter().any(|arg| arg == "--controllers=resourceclaim"), "{args:?}");
    let kubeconfig = of_kind("ConfigMap")["data"]["kubeconfig"].as_str().unwrap().to_owned();
    let kubeconfig: Value = serde_saphyr::from_str(&kubeconfig).unwrap();
    assert_eq!(kubeconfig["current-context"], kubeconfig["contexts"][0]["name"]);
}
