//! `kubectl` against the server. Without a `kubectl` on the path the test ends at once.

use std::process::Command;

use podwright_stand_in::{StandIn, User};
use serde_json::json;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// The output of `kubectl` with these arguments; none if there is no `kubectl`.
async fn kubectl(kubeconfig: &std::path::Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("kubectl");
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--cache-dir")
        .arg(kubeconfig.with_extension("cache"))
        .args(arguments);
    match tokio::task::spawn_blocking(move || command.output()).await.unwrap() {
        Ok(output) => {
            Some([output.stdout, output.stderr].iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_prints_describes_applies_and_deletes() {
    let server = StandIn::start().await.unwrap();
    let directory = std::env::temp_dir().join(format!("stand-in-kubectl-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("config");
    server.write_kubeconfig(&path, &User::admin()).unwrap();
    server.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).unwrap();
    let (request, _) = crate::certificates::request("eve", "viewers", &[]);
    let spec =
        json!({"request": request, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]});
    server
        .create(
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            json!({"metadata": {"name": "r"}, "spec": spec}),
        )
        .unwrap();
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": [{"name": "a", "image": "x:1"}]}});
    let made = server.create(PODS, pod).unwrap();
    let involved = json!({"kind": "Pod", "namespace": "default", "name": "p", "uid": made["metadata"]["uid"]});
    let event =
        json!({"metadata": {"name": "e"}, "involvedObject": involved, "reason": "Pulled", "message": "an event"});
    server.create("/api/v1/namespaces/default/events", event).unwrap();
    let manifest = directory.join("map.yaml");
    std::fs::write(&manifest, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n  k: v\n").unwrap();
    let manifest = manifest.to_str().unwrap();
    let pod_manifest = directory.join("pod.yaml");
    let text =
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: applied\nspec:\n  containers:\n  - {name: a, image: x:1}\n";
    std::fs::write(&pod_manifest, text).unwrap();
    let pod_manifest = pod_manifest.to_str().unwrap();
    for (arguments, expected) in [
        (&["get", "pods", "-o", "wide"][..], "NOMINATED NODE"),
        (&["get", "pods"], "p      0/1     Pending   0"),
        (&["describe", "pod", "p"], "an event"),
        (&["get", "events"], "pod/p"),
        (&["apply", "-f", manifest], "configmap/m created"),
        (&["apply", "-f", manifest], "configmap/m unchanged"),
        (&["apply", "--server-side", "-f", manifest], "configmap/m serverside-applied"),
        (&["apply", "-f", pod_manifest], "pod/applied created"),
        (&["apply", "-f", pod_manifest], "pod/applied unchanged"),
        (&["explain", "pods"], "Pod is a kind of the stand-in."),
        (&["explain", "leases.spec"], "The field spec of a Lease."),
        (&["delete", "pod", "applied", "--grace-period=0", "--force"], "pod \"applied\" force deleted"),
        (&["label", "pod", "p", "a=b"], "pod/p labeled"),
        (&["drain", "n1", "--force", "--grace-period=0"], "node/n1 drained"),
        (&["run", "q", "--image=x:1"], "pod/q created"),
        (&["delete", "pod", "q", "--grace-period=0", "--force"], "pod \"q\" force deleted"),
        (&["get", "pods"], "No resources found in default namespace"),
        (&["create", "namespace", "made"], "namespace/made created"),
        (&["create", "secret", "generic", "s", "--from-literal=k=v"], "secret/s created"),
        (&["create", "token", "default"], "ey"),
        (&["auth", "whoami"], "kubernetes-admin"),
        (&["auth", "can-i", "get", "pods"], "yes"),
        (&["certificate", "approve", "r"], "certificatesigningrequest.certificates.k8s.io/r approved"),
        (&["get", "csr"], "Approved,Issued"),
        (&["api-resources", "--api-group=resource.k8s.io"], "resourceclaims"),
    ] {
        let Some(found) = kubectl(&path, arguments).await else { break };
        assert!(found.contains(expected), "kubectl {arguments:?}: expected {expected:?} in\n{found}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
