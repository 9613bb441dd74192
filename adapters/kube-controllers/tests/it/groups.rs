//! Claims of pod groups, with the feature gate `DRAWorkloadResourceClaims`.

use std::collections::BTreeSet;

use podwright_controllers::resource_claim::Features;
use serde_json::json;

use super::deployment::texts;
use super::*;

const GROUPS: &str = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups";

/// One claim is generated for the group, and its pods record that claim. The end of the group releases it.
#[tokio::test]
async fn pods_of_a_group_share_the_claim_of_the_group() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    let entry = json!([{"name": "c0", "resourceClaimTemplateName": "one"}]);
    let group =
        json!({"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": entry}});
    let group = cluster.server.create(GROUPS, group).unwrap();
    for pod in ["p", "q"] {
        cluster.pod_with(pod, &entry, &json!({"schedulingGroup": {"podGroupName": "g"}, "nodeName": "n1"}));
    }
    let features = Features { pod_groups: true, ..Features::default() };
    let config = ClaimControllerConfig { features, ..ClaimControllerConfig::default() };
    let replica = Replica::alone_with(client(&cluster).await, config);
    let claim = eventually("both pods have the claim", || async {
        let (p, q) = (cluster.recorded("p"), cluster.recorded("q"));
        (p == q).then(|| p.get("c0").cloned()).flatten()
    })
    .await;
    assert_eq!(recorded(&cluster.object("podgroups", "g"))["c0"], claim);
    assert_eq!(cluster.server.all("resourceclaims").len(), 1);
    let owner = cluster.object("resourceclaims", &claim)["metadata"]["ownerReferences"][0].clone();
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("PodGroup"), &group["metadata"]["uid"]));

    cluster.allocate(&claim, &[]);
    eventually("the claim is reserved for the group", || async {
        let consumer = cluster.object("resourceclaims", &claim)["status"]["reservedFor"][0].clone();
        (consumer["resource"] == "podgroups" && consumer["uid"] == group["metadata"]["uid"]).then_some(())
    })
    .await;
    replica.until_idle().await;
    assert_eq!(cluster.consumers(&claim), 1, "one entry for all pods");
    assert_rules_permit_all_requests(&cluster);

    for pod in ["p", "q"] {
        cluster.delete(PODS, pod);
    }
    cluster.delete(GROUPS, "g");
    eventually("the claim is gone", || async { cluster.server.all("resourceclaims").is_empty().then_some(()) }).await;
    replica.until_idle().await;
}

/// Replays the requests for pod groups against the rules that the manifest has as a comment, for the feature gate.
fn assert_rules_permit_all_requests(cluster: &Cluster) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/deploy/controllers.yaml");
    let manifest = std::fs::read_to_string(path).unwrap();
    let lines = manifest.lines().skip_while(|line| !line.contains("DRAWorkloadResourceClaims=true, add:")).skip(1);
    let lines: Vec<_> = lines.map_while(|line| line.strip_prefix("# ")).collect();
    let rules: Vec<Value> = serde_saphyr::from_str(&lines.join("\n")).unwrap();
    let mut permitted = BTreeSet::new();
    for rule in &rules {
        assert_eq!(rule["apiGroups"], json!(["scheduling.k8s.io"]));
        for resource in texts(&rule["resources"]) {
            permitted.extend(texts(&rule["verbs"]).into_iter().map(|verb| (resource.clone(), verb)));
        }
    }
    let requests = cluster.server.requests();
    let of_groups = requests.iter().filter(|served| served.resource.starts_with("podgroups"));
    let used: BTreeSet<_> =
        of_groups.map(|served| (served.resource.clone(), served.verb.unwrap().name().to_owned())).collect();
    assert_eq!(used.difference(&permitted).next(), None, "{used:?}");
    // A group is read only if no watch has shown it. Upstream's role has the update too.
    let unused = [("podgroups", "get"), ("podgroups/status", "update")];
    let unused = unused.map(|(resource, verb)| (resource.to_owned(), verb.to_owned()));
    assert!(permitted.difference(&used).eq(&BTreeSet::from(unused)), "{permitted:?}");
}
