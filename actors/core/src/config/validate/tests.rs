mod fields;
mod security;

use serde_json::{Value, json};

use super::*;

/// A pod of one container whose spec and container are extended.
fn pod(spec: Value, container: Value) -> Pod {
    let mut base = json!({"name": "c", "image": "busybox"});
    merge(&mut base, container);
    let mut all = json!({"containers": [base]});
    merge(&mut all, spec);
    serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": all})).unwrap()
}

fn merge(into: &mut Value, from: Value) {
    let Value::Object(from) = from else { return };
    for (key, value) in from {
        into[key] = value;
    }
}

fn paths(problems: &[Problem]) -> Vec<&str> {
    for problem in problems {
        assert!(!problem.message.is_empty() && !problem.remedy.is_empty(), "{problem}");
    }
    problems.iter().map(|problem| problem.path.as_str()).collect()
}

#[test]
fn a_valid_pod_has_no_problem() {
    let spec = json!({
        "restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 0, "activeDeadlineSeconds": 1,
        "hostNetwork": true,
        "initContainers": [
            {"name": "one", "image": "x"},
            {"name": "side", "image": "x", "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["true"]}}},
        ],
        "volumes": [
            {"name": "a"},
            {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "h", "hostPath": {"path": "/var/log", "type": "Directory"}},
            {"name": "d", "downwardAPI": {"defaultMode": 0o400, "items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "x/cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}},
            ]}},
        ],
    });
    let container = json!({
        "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}],
        "ports": [{"containerPort": 80, "hostPort": 80, "name": "http"}, {"containerPort": 53, "protocol": "UDP"}],
        "env": [
            {"name": "A", "value": ""},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}},
        ],
        "volumeMounts": [{"name": "a", "mountPath": "/a", "subPath": "x/y"}, {"name": "b", "mountPath": "/b",
            "readOnly": true, "recursiveReadOnly": "Enabled", "mountPropagation": "None"}],
        "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1000m", "memory": "1Gi"}},
        "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 1, "terminationGracePeriodSeconds": 1},
        "readinessProbe": {"tcpSocket": {"port": 80}, "successThreshold": 3},
        "lifecycle": {"preStop": {"sleep": {"seconds": 0}}},
    });
    let pod = pod(spec, container);
    assert_eq!(validate(&pod), []);
    assert_eq!(validate_static(&pod), []);
}

#[test]
fn two_controllers_of_one_pod_are_rejected() {
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Job", "name": name, "uid": name, "controller": true});
    let pod = |owners: &[Value]| -> Pod {
        let metadata = json!({"name": "web", "generateName": "web-", "ownerReferences": owners});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "x"}]}}))
            .unwrap()
    };
    assert_eq!(validate(&pod(&[owner("a")])), []);
    assert_eq!(paths(&validate(&pod(&[owner("a"), owner("b")]))), ["metadata.ownerReferences"]);
}

#[test]
fn negative_grace_period_is_valid() {
    let spec = json!({"terminationGracePeriodSeconds": -5, "containers": [{"name": "a", "image": "i"}]});
    assert_eq!(paths(&validate(&pod(spec, json!({})))), [""; 0]);
}

#[test]
fn validation_names_each_fault_of_a_pod() {
    let cases = [
        (json!({"containers": []}), "spec.containers"),
        (json!({"restartPolicy": "always"}), "spec.restartPolicy"),
        (json!({"dnsPolicy": "First"}), "spec.dnsPolicy"),
        (json!({"activeDeadlineSeconds": 0}), "spec.activeDeadlineSeconds"),
        (json!({"hostname": "Web"}), "spec.hostname"),
        (json!({"os": {"name": "plan9"}}), "spec.os.name"),
        (json!({"tolerations": [{"operator": "Is"}]}), "spec.tolerations[0].operator"),
        (json!({"initContainers": [{"name": "c", "image": "x"}]}), "spec.containers[0].name"),
        (
            json!({"initContainers": [{"name": "i", "image": "x", "livenessProbe": {"exec": {"command": ["a"]}}}]}),
            "spec.initContainers[0].livenessProbe",
        ),
        (
            json!({"initContainers": [{"name": "i", "image": "x", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}]}),
            "spec.initContainers[0].lifecycle",
        ),
        (json!({"initContainers": [{"name": "i", "image": "x", "lifecycle": {}}]}), "spec.initContainers[0].lifecycle"),
        (
            json!({"volumes": [{"name": "a", "projected": {"sources": [{"downwardAPI": {}, "secret": {"name": "x"}}]}}]}),
            "spec.volumes[0].projected.sources[0]",
        ),
        (json!({"volumes": [{"name": "a", "projected": {"sources": [{}]}}]}), "spec.volumes[0].projected.sources[0]"),
        (json!({"overhead": {"foo": "1"}}), "spec.overhead.foo"),
        (json!({"volumes": [{"emptyDir": {}}]}), "spec.volumes[0].name"),
        (json!({"volumes": [{"name": "a"}, {"name": "a"}]}), "spec.volumes[1].name"),
        (json!({"volumes": [{"name": "a", "emptyDir": {}, "hostPath": {"path": "/"}}]}), "spec.volumes[0]"),
        (json!({"volumes": [{"name": "a", "hostPath": {"path": ""}}]}), "spec.volumes[0].hostPath.path"),
        (json!({"volumes": [{"name": "a", "hostPath": {"path": "/a/../b"}}]}), "spec.volumes[0].hostPath.path"),
        (
            json!({"volumes": [{"name": "a", "hostPath": {"path": "/", "type": "Dir"}}]}),
            "spec.volumes[0].hostPath.type",
        ),
        (json!({"volumes": [{"name": "a", "emptyDir": {"medium": "Disk"}}]}), "spec.volumes[0].emptyDir.medium"),
        (json!({"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "big"}}]}), "spec.volumes[0].emptyDir.sizeLimit"),
        (
            json!({"volumes": [{"name": "a", "downwardAPI": {"defaultMode": 512}}]}),
            "spec.volumes[0].downwardAPI.defaultMode",
        ),
        (
            json!({"volumes": [{"name": "a", "downwardAPI": {"items": [{"path": "../x", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}),
            "spec.volumes[0].downwardAPI.items[0].path",
        ),
        (
            json!({"volumes": [{"name": "a", "downwardAPI": {"items": [{"path": "./", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}),
            "spec.volumes[0].downwardAPI.items[0].path",
        ),
        (
            json!({"volumes": [{"name": "a", "downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "status.podIP"}}]}}]}),
            "spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath",
        ),
        (
            json!({"volumes": [{"name": "a", "downwardAPI": {"items": [{"path": "x", "resourceFieldRef": {"resource": "limits.cpu"}}]}}]}),
            "spec.volumes[0].downwardAPI.items[0].resourceFieldRef.containerName",
        ),
    ];
    for (spec, path) in cases {
        assert_eq!(paths(&validate(&pod(spec.clone(), json!({})))), [path], "{spec}");
    }
}

#[test]
fn conflicting_paths_of_volume_items_are_rejected() {
    let item = |path: &str| json!({"path": path, "fieldRef": {"fieldPath": "metadata.name"}});
    let items = |paths: &[&str]| paths.iter().map(|path| item(path)).collect::<Vec<_>>();
    for (first, second) in [("a", "a"), ("a", "./a"), ("a", "a/b"), ("a/b", "a"), ("a//b", "a/b/c/d")] {
        let volume = json!({"volumes": [{"name": "v", "downwardAPI": {"items": items(&["0", first, second])}}]});
        let problems = validate(&pod(volume, json!({})));
        assert_eq!(paths(&problems), ["spec.volumes[0].downwardAPI.items[2].path"], "{first} {second}");
        let parts = [first, second].map(|path| json!({"downwardAPI": {"items": items(&[path])}}));
        let volume = json!({"volumes": [{"name": "v", "projected": {"sources": parts}}]});
        let problems = validate(&pod(volume, json!({})));
        assert_eq!(paths(&problems), ["spec.volumes[0].projected.sources[1].downwardAPI.items[0].path"]);
    }
    let apart = json!({"volumes": [{"name": "v", "downwardAPI": {"items": items(&["a/b", "a/c", "ab", "a-"])}}]});
    assert_eq!(validate(&pod(apart, json!({}))), []);
}

#[test]
fn validation_names_each_fault_of_a_container() {
    let exec = json!({"command": ["true"]});
    let cases = [
        (json!({"name": ""}), "name"),
        (json!({"name": "C"}), "name"),
        (json!({"image": ""}), "image"),
        (json!({"image": " x"}), "image"),
        (json!({"imagePullPolicy": "Sometimes"}), "imagePullPolicy"),
        (json!({"terminationMessagePolicy": "Log"}), "terminationMessagePolicy"),
        (json!({"restartPolicy": "Sometimes"}), "restartPolicy"),
        (
            json!({"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}),
            "restartPolicy",
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}),
            "restartPolicyRules[0].exitCodes",
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Stop", "exitCodes": {"operator": "In"}}]}),
            "restartPolicyRules[0].action",
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "Gt"}}]}),
            "restartPolicyRules[0].exitCodes.operator",
        ),
        (json!({"ports": [{"containerPort": 0}]}), "ports[0].containerPort"),
        (json!({"ports": [{"containerPort": 1, "protocol": "tcp"}]}), "ports[0].protocol"),
        (json!({"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]}), "ports[1].name"),
        (
            json!({"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]}),
            "ports[1].hostPort",
        ),
        (json!({"env": [{"name": ""}]}), "env[0].name"),
        (json!({"env": [{"name": "A=B"}]}), "env[0].name"),
        (json!({"env": [{"name": "A", "valueFrom": {}}]}), "env[0].valueFrom"),
        (
            json!({"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
            "env[0].valueFrom",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels"}}}]}),
            "env[0].valueFrom.fieldRef.fieldPath",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "cpu"}}}]}),
            "env[0].valueFrom.resourceFieldRef.resource",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}}}]}),
            "env[0].valueFrom.fieldRef.apiVersion",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a b']"}}}]}),
            "env[0].valueFrom.fieldRef.fieldPath",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['']"}}}]}),
            "env[0].valueFrom.fieldRef.fieldPath",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "/x", "key": "k"}}}]}),
            "env[0].valueFrom.fileKeyRef.path",
        ),
        (json!({"envFrom": [{}]}), "envFrom[0]"),
        (json!({"volumeMounts": [{"name": "nope", "mountPath": "/x"}]}), "volumeMounts[0].name"),
        (json!({"volumeMounts": [{"name": "v", "mountPath": ""}]}), "volumeMounts[0].mountPath"),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/x"}, {"name": "v", "mountPath": "/x"}]}),
            "volumeMounts[1].mountPath",
        ),
        (json!({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "../y"}]}), "volumeMounts[0].subPath"),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "y", "subPathExpr": "z"}]}),
            "volumeMounts[0].subPathExpr",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/x", "mountPropagation": "Bidirectional"}]}),
            "volumeMounts[0].mountPropagation",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/x", "recursiveReadOnly": "IfPossible"}]}),
            "volumeMounts[0].recursiveReadOnly",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/x", "readOnly": true, "recursiveReadOnly": "Deep"}]}),
            "volumeMounts[0].recursiveReadOnly",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/x", "readOnly": true, "recursiveReadOnly": "Enabled",
                "mountPropagation": "HostToContainer"}]}),
            "volumeMounts[0].recursiveReadOnly",
        ),
        (json!({"resources": {"limits": {"cpu": "fast"}}}), "resources.limits.cpu"),
        (json!({"resources": {"requests": {"cpu": "-1"}}}), "resources.requests.cpu"),
        (json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1001m"}}}), "resources.requests.cpu"),
        (json!({"resources": {"claims": [{"name": "gpu"}]}}), "resources.claims[0].name"),
        (json!({"livenessProbe": {}}), "livenessProbe"),
        (json!({"livenessProbe": {"exec": exec, "tcpSocket": {"port": 1}}}), "livenessProbe"),
        (json!({"livenessProbe": {"exec": {}}}), "livenessProbe.exec.command"),
        (json!({"livenessProbe": {"exec": exec, "periodSeconds": -1}}), "livenessProbe.periodSeconds"),
        (json!({"livenessProbe": {"exec": exec, "successThreshold": 2}}), "livenessProbe.successThreshold"),
        (json!({"startupProbe": {"exec": exec, "successThreshold": 2}}), "startupProbe.successThreshold"),
        (
            json!({"readinessProbe": {"exec": exec, "terminationGracePeriodSeconds": 5}}),
            "readinessProbe.terminationGracePeriodSeconds",
        ),
        (json!({"readinessProbe": {"httpGet": {"port": 70000}}}), "readinessProbe.httpGet.port"),
        (json!({"readinessProbe": {"httpGet": {"port": "80"}}}), "readinessProbe.httpGet.port"),
        (json!({"readinessProbe": {"httpGet": {"port": 80, "scheme": "http"}}}), "readinessProbe.httpGet.scheme"),
        (
            json!({"readinessProbe": {"httpGet": {"port": 80, "httpHeaders": [{"name": "X_A", "value": ""}]}}}),
            "readinessProbe.httpGet.httpHeaders[0].name",
        ),
        (json!({"readinessProbe": {"grpc": {"port": 0}}}), "readinessProbe.grpc.port"),
        (json!({"lifecycle": {"postStart": {}}}), "lifecycle.postStart"),
        (json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}), "lifecycle.preStop.sleep.seconds"),
        (json!({"lifecycle": {"stopSignal": "SIGUSR1"}}), "lifecycle.stopSignal"),
    ];
    for (container, path) in cases {
        let problems = validate(&pod(json!({"volumes": [{"name": "v"}]}), container.clone()));
        assert_eq!(paths(&problems), [format!("spec.containers[0].{path}")], "{container}");
    }
}

#[test]
fn a_bad_identity_is_named() {
    let cases = [
        (json!({}), "metadata.name"),
        (json!({"name": "Web"}), "metadata.name"),
        (json!({"name": "a_b"}), "metadata.name"),
        (json!({"name": "web", "namespace": "a.b"}), "metadata.namespace"),
        (json!({"name": "web", "uid": "../../etc"}), "metadata.uid"),
        (json!({"name": "web", "uid": ".."}), "metadata.uid"),
        (json!({"name": "web", "labels": {"a b": "x"}}), "metadata.labels[a b]"),
        (json!({"name": "web", "labels": {"a": "x y"}}), "metadata.labels[a]"),
        (json!({"name": "web", "annotations": {"-": "x"}}), "metadata.annotations[-]"),
        (json!({"name": "web", "generateName": "Web-"}), "metadata.generateName"),
        (json!({"name": "web", "generation": -1}), "metadata.generation"),
        (json!({"name": "web", "finalizers": ["example.com/x", "mine"]}), "metadata.finalizers[1]"),
        (json!({"name": "web", "finalizers": ["orphan", "foregroundDeletion"]}), "metadata.finalizers"),
        (
            json!({"name": "web", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": ""}]}),
            "metadata.ownerReferences[0].uid",
        ),
        (
            json!({"name": "web", "annotations": {"controller.kubernetes.io/pod-deletion-cost": "+1"}}),
            "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]",
        ),
        (
            json!({"name": "web", "annotations": {"scheduler.alpha.kubernetes.io/tolerations": "{}"}}),
            "metadata.annotations[scheduler.alpha.kubernetes.io/tolerations]",
        ),
        (
            json!({"name": "web", "annotations": {"scheduler.alpha.kubernetes.io/tolerations": "[{\"operator\": \"Is\"}]"}}),
            "metadata.annotations[scheduler.alpha.kubernetes.io/tolerations][0].operator",
        ),
    ];
    for (meta, path) in cases {
        let pod = json!({"metadata": meta, "spec": {"containers": [{"name": "c", "image": "x"}]}});
        assert_eq!(paths(&validate(&serde_json::from_value(pod).unwrap())), [path], "{meta}");
    }
    assert_eq!(paths(&validate(&serde_json::from_value(json!({"metadata": {"name": "web"}})).unwrap())), ["spec"]);
}

#[test]
fn a_static_pod_that_refers_to_an_api_object_is_rejected() {
    let selector = json!({"name": "x", "key": "k"});
    let cases = [
        (json!({"serviceAccountName": "x"}), json!({}), "spec.serviceAccountName"),
        (json!({"serviceAccount": "x"}), json!({}), "spec.serviceAccount"),
        (json!({"imagePullSecrets": [{"name": "x"}]}), json!({}), "spec.imagePullSecrets"),
        (json!({"resourceClaims": [{"name": "x"}]}), json!({}), "spec.resourceClaims"),
        (json!({"ephemeralContainers": [{"name": "x", "image": "x"}]}), json!({}), "spec.ephemeralContainers"),
        (json!({"volumes": [{"name": "v", "secret": {"secretName": "x"}}]}), json!({}), "spec.volumes[0].secret"),
        (json!({"volumes": [{"name": "v", "configMap": {"name": "x"}}]}), json!({}), "spec.volumes[0].configMap"),
        (
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]}),
            json!({}),
            "spec.volumes[0].persistentVolumeClaim",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"downwardAPI": {}}, {"secret": {"name": "x"}}]}}]}),
            json!({}),
            "spec.volumes[0].projected.sources[1].secret",
        ),
        (
            json!({}),
            json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": selector}}]}),
            "spec.containers[0].env[0].valueFrom.secretKeyRef",
        ),
        (
            json!({}),
            json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": selector}}]}),
            "spec.containers[0].env[0].valueFrom.configMapKeyRef",
        ),
        (json!({}), json!({"envFrom": [{"secretRef": {"name": "x"}}]}), "spec.containers[0].envFrom[0].secretRef"),
        (
            json!({}),
            json!({"envFrom": [{"configMapRef": {"name": "x"}}]}),
            "spec.containers[0].envFrom[0].configMapRef",
        ),
    ];
    for (spec, container, path) in cases {
        let pod = pod(spec, container);
        assert_eq!(paths(&validate_static(&pod)), [path]);
        assert_eq!(paths(&validate(&pod)), Vec::<&str>::new(), "{path} is fine for a pod of the API server");
    }
}
