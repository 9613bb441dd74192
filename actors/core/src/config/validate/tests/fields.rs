//! Tests of host names, DNS, scheduling, resources, variables and devices.

use super::*;

fn term(term: Value) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}})
}

#[test]
fn validation_names_each_fault_of_host_names_and_dns() {
    let dns = |config: Value| json!({ "dnsConfig": config });
    let searches =
        |count: usize, length: usize| (0..count).map(|i| format!("{i}.{}", "a".repeat(length))).collect::<Vec<_>>();
    let cases = [
        (json!({"subdomain": "A"}), "spec.subdomain"),
        (json!({"hostnameOverride": "a_b"}), "spec.hostnameOverride"),
        (json!({"hostnameOverride": format!("{}.{}", "a".repeat(40), "b".repeat(40))}), "spec.hostnameOverride"),
        (json!({"hostnameOverride": "a", "hostNetwork": true}), "spec.hostnameOverride"),
        (json!({"hostnameOverride": "a", "setHostnameAsFQDN": true}), "spec.hostnameOverride"),
        (json!({"dnsPolicy": "None"}), "spec.dnsConfig.nameservers"),
        (json!({"dnsPolicy": "None", "dnsConfig": {"searches": ["a"]}}), "spec.dnsConfig.nameservers"),
        (dns(json!({"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]})), "spec.dnsConfig.nameservers"),
        (dns(json!({"nameservers": ["1.1.1.1", "dns"]})), "spec.dnsConfig.nameservers[1]"),
        (dns(json!({"searches": searches(33, 1)})), "spec.dnsConfig.searches"),
        (dns(json!({"searches": searches(32, 63)})), "spec.dnsConfig.searches"),
        (dns(json!({"searches": ["a", "B"]})), "spec.dnsConfig.searches[1]"),
        (dns(json!({"options": [{"name": "ndots"}, {"value": "5"}]})), "spec.dnsConfig.options[1].name"),
        (json!({"hostAliases": [{"ip": "10.0.0.256", "hostnames": ["a"]}]}), "spec.hostAliases[0].ip"),
        (json!({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a", "b_c"]}]}), "spec.hostAliases[0].hostnames[1]"),
    ];
    for (spec, path) in cases {
        assert_eq!(paths(&validate(&pod(spec.clone(), json!({})))), [path], "{spec}");
    }
    let valid = json!({
        "subdomain": "web", "hostnameOverride": "a.example.com", "dnsPolicy": "None",
        "dnsConfig": {
            "nameservers": ["10.0.0.10", "fd00::10"], "searches": [".", "a.b.", "_tcp.a"],
            "options": [{"name": "ndots", "value": "5"}, {"name": "rotate"}],
        },
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a", "a.b"]}],
    });
    assert_eq!(validate(&pod(valid, json!({}))), []);
}

#[test]
fn validation_names_each_fault_of_scheduling_fields() {
    let toleration = |toleration: Value| json!({"tolerations": [toleration]});
    let spread = |mut more: Value| {
        let base = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
        for (key, value) in base.as_object().unwrap() {
            more.as_object_mut().unwrap().entry(key).or_insert(value.clone());
        }
        json!({"topologySpreadConstraints": [more]})
    };
    let required = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let near =
        |term: Value| json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}});
    let near_path = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]";
    let cases = [
        (json!({"nodeSelector": {"a b": "c"}}), "spec.nodeSelector[a b]".to_owned()),
        (json!({"nodeSelector": {"a": "c d"}}), "spec.nodeSelector[a]".into()),
        (json!({"priorityClassName": "A"}), "spec.priorityClassName".into()),
        (json!({"runtimeClassName": ""}), "spec.runtimeClassName".into()),
        (json!({"serviceAccountName": "a_b"}), "spec.serviceAccountName".into()),
        (json!({"readinessGates": [{"conditionType": "a b"}]}), "spec.readinessGates[0].conditionType".into()),
        (json!({"schedulingGates": [{"name": "a"}, {"name": "a"}]}), "spec.schedulingGates[1].name".into()),
        (json!({"nodeName": "n", "schedulingGates": [{"name": "a"}]}), "spec.schedulingGates".into()),
        (json!({"activeDeadlineSeconds": 1_i64 << 31}), "spec.activeDeadlineSeconds".into()),
        (toleration(json!({"operator": "Exists", "value": "x"})), "spec.tolerations[0].value".into()),
        (toleration(json!({"key": "a", "value": "x y"})), "spec.tolerations[0].value".into()),
        (toleration(json!({"key": "a b"})), "spec.tolerations[0].key".into()),
        (toleration(json!({"value": "x"})), "spec.tolerations[0].operator".into()),
        (toleration(json!({"key": "a", "operator": "Lt", "value": "01"})), "spec.tolerations[0].value".into()),
        (
            toleration(json!({"key": "a", "tolerationSeconds": 1, "effect": "NoSchedule"})),
            "spec.tolerations[0].effect".into(),
        ),
        (spread(json!({"maxSkew": 0})), "spec.topologySpreadConstraints[0].maxSkew".into()),
        (spread(json!({"topologyKey": ""})), "spec.topologySpreadConstraints[0].topologyKey".into()),
        (spread(json!({"whenUnsatisfiable": "x"})), "spec.topologySpreadConstraints[0].whenUnsatisfiable".into()),
        (
            spread(json!({"minDomains": 1, "whenUnsatisfiable": "ScheduleAnyway"})),
            "spec.topologySpreadConstraints[0].minDomains".into(),
        ),
        (spread(json!({"nodeTaintsPolicy": "x"})), "spec.topologySpreadConstraints[0].nodeTaintsPolicy".into()),
        (spread(json!({"matchLabelKeys": ["a"]})), "spec.topologySpreadConstraints[0].matchLabelKeys".into()),
        (
            json!({"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}),
            required.into(),
        ),
        (
            term(json!({"matchExpressions": [{"key": "a", "operator": "In"}]})),
            format!("{required}[0].matchExpressions[0].values"),
        ),
        (
            term(json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1", "2"]}]})),
            format!("{required}[0].matchExpressions[0].values"),
        ),
        (
            term(json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["1"]}]})),
            format!("{required}[0].matchExpressions[0].values"),
        ),
        (
            term(json!({"matchExpressions": [{"key": "a", "operator": "Is"}]})),
            format!("{required}[0].matchExpressions[0].operator"),
        ),
        (
            term(json!({"matchFields": [{"key": "spec.x", "operator": "In", "values": ["a"]}]})),
            format!("{required}[0].matchFields[0].key"),
        ),
        (near(json!({"topologyKey": ""})), format!("{near_path}.topologyKey")),
        (near(json!({"topologyKey": "z", "namespaces": ["a.b"]})), format!("{near_path}.namespaces[0]")),
        (
            near(json!({"topologyKey": "z", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}})),
            format!("{near_path}.labelSelector.matchExpressions[0].operator"),
        ),
        (near(json!({"topologyKey": "z", "mismatchLabelKeys": ["a"]})), format!("{near_path}.mismatchLabelKeys")),
        (
            json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 101, "podAffinityTerm": {"topologyKey": "z"}}]}}}),
            "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight".into(),
        ),
    ];
    for (spec, path) in cases {
        assert_eq!(paths(&validate(&pod(spec.clone(), json!({})))), [path], "{spec}");
    }
    for valid in [
        toleration(json!({"operator": "Exists"})),
        toleration(json!({"key": "a", "operator": "Gt", "value": "-5", "effect": "NoExecute", "tolerationSeconds": 1})),
        spread(json!({"minDomains": 2, "labelSelector": {}, "matchLabelKeys": ["a"], "nodeAffinityPolicy": "Honor"})),
        term(json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}],
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})),
        json!({"schedulingGates": [{"name": "a"}]}),
    ] {
        assert_eq!(validate(&pod(valid.clone(), json!({}))), [], "{valid}");
    }
    let gated = pod(json!({"schedulingGates": [{"name": "a"}]}), json!({}));
    assert_eq!(paths(&validate_static(&gated)), ["spec.schedulingGates"]);
}

#[test]
fn validation_names_each_fault_of_resources() {
    let limits = |limits: Value| json!({"resources": {"limits": limits}});
    let requests = |requests: Value| json!({"resources": {"requests": requests}});
    let of_container = [
        (limits(json!({"disk": "1"})), "resources.limits.disk"),
        (limits(json!({"a b/c": "1"})), "resources.limits.a b/c"),
        (limits(json!({"cpu": "1", "hugepages-2Mi": "3Mi"})), "resources.limits.hugepages-2Mi"),
        (limits(json!({"cpu": "1", "hugepages-big": "2Mi"})), "resources.limits.hugepages-big"),
        (limits(json!({"cpu": "1", "hugepages-0": "0"})), "resources.limits.hugepages-0"),
        (limits(json!({"hugepages-2Mi": "2Mi"})), "resources"),
        (limits(json!({"example.com/gpu": "500m"})), "resources.limits.example.com/gpu"),
        (requests(json!({"example.com/gpu": "1"})), "resources.requests.example.com/gpu"),
        (requests(json!({"cpu": "1", "hugepages-2Mi": "2Mi"})), "resources.requests.hugepages-2Mi"),
        (
            json!({"resources": {"limits": {"example.com/gpu": "2"}, "requests": {"example.com/gpu": "1"}}}),
            "resources.requests.example.com/gpu",
        ),
        (
            json!({"resizePolicy": [{"resourceName": "disk", "restartPolicy": "NotRequired"}]}),
            "resizePolicy[0].resourceName",
        ),
        (json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "Now"}]}), "resizePolicy[0].restartPolicy"),
        (
            json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}}]}),
            "env[0].valueFrom.resourceFieldRef.divisor",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1m"}}}]}),
            "env[0].valueFrom.resourceFieldRef.divisor",
        ),
    ];
    for (container, path) in of_container {
        let problems = validate(&pod(json!({}), container.clone()));
        assert_eq!(paths(&problems), [format!("spec.containers[0].{path}")], "{container}");
    }
    let own = json!({"resources": {
        "limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
        "requests": {"cpu": "1", "hugepages-2Mi": "4Mi"}}});
    let of_pod = [
        (json!({"resources": {"limits": {"ephemeral-storage": "1Gi"}}}), "spec.resources.limits.ephemeral-storage"),
        (json!({"resources": {"claims": []}}), "spec.resources.claims"),
        (json!({"resources": {"requests": {"cpu": "500m"}}}), "spec.resources.requests.cpu"),
        (json!({"resources": {"limits": {"memory": "1Mi"}}}), "spec.resources.limits.memory"),
        (json!({"resources": {"limits": {"cpu": "4", "hugepages-2Mi": "2Mi"}}}), "spec.resources.limits.hugepages-2Mi"),
        (json!({"overhead": {"cpu": "-1"}}), "spec.overhead.cpu"),
    ];
    for (spec, path) in of_pod {
        assert_eq!(paths(&validate(&pod(spec.clone(), own.clone()))), [path], "{spec}");
    }
    let never = json!({"restartPolicy": "Never"});
    let resize = json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]});
    assert_eq!(paths(&validate(&pod(never, resize.clone()))), ["spec.containers[0].resizePolicy[0].restartPolicy"]);
    assert_eq!(validate(&pod(json!({}), resize)), []);
    let valid = json!({"resources": {"limits": {"cpu": "4", "memory": "2Gi", "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "1"}}});
    assert_eq!(validate(&pod(valid, own)), []);
}

#[test]
fn validation_names_each_fault_of_variables_and_devices() {
    let variable = |name: &str| json!({"env": [{"name": name}]});
    let file = |selector: Value| json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": selector}}]});
    let good = || json!({"volumeName": "v", "path": "a/env", "key": "K"});
    let but = |name: &str, value: &str| {
        let mut selector = good();
        selector[name] = value.into();
        file(selector)
    };
    let at = "env[0].valueFrom.fileKeyRef";
    let cases = [
        (variable("A\tB"), "env[0].name".to_owned()),
        (variable("é"), "env[0].name".into()),
        (json!({"envFrom": [{"prefix": "a=", "secretRef": {"name": "s"}}]}), "envFrom[0].prefix".into()),
        (json!({"envFrom": [{"configMapRef": {"name": ""}}]}), "envFrom[0].configMapRef.name".into()),
        (
            json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a/b"}}}]}),
            "env[0].valueFrom.secretKeyRef.key".into(),
        ),
        (but("key", ""), format!("{at}.key")),
        (but("key", "A=B"), format!("{at}.key")),
        (but("path", ""), format!("{at}.path")),
        (but("path", "../env"), format!("{at}.path")),
        (but("volumeName", ""), format!("{at}.volumeName")),
        (but("volumeName", "none"), format!("{at}.volumeName")),
        (but("volumeName", "h"), format!("{at}.volumeName")),
        (json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}), "volumeDevices[0].name".into()),
        (json!({"volumeDevices": [{"name": "p", "devicePath": ""}]}), "volumeDevices[0].devicePath".into()),
        (json!({"volumeDevices": [{"name": "p", "devicePath": "/dev/../x"}]}), "volumeDevices[0].devicePath".into()),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/x"}], "volumeDevices": [{"name": "p", "devicePath": "/x"}]}),
            "volumeDevices[0].devicePath".into(),
        ),
        (
            json!({"volumeMounts": [{"name": "p", "mountPath": "/x"}], "volumeDevices": [{"name": "p", "devicePath": "/y"}]}),
            "volumeDevices[0].name".into(),
        ),
    ];
    let spec = || {
        json!({"volumes": [{"name": "v"}, {"name": "h", "hostPath": {"path": "/"}},
        {"name": "p", "persistentVolumeClaim": {"claimName": "c"}}]})
    };
    for (container, path) in cases {
        let problems = validate(&pod(spec(), container.clone()));
        assert_eq!(paths(&problems), [format!("spec.containers[0].{path}")], "{container}");
    }
    for valid in [
        file(good()),
        variable("a.b-c d"),
        json!({"volumeDevices": [{"name": "p", "devicePath": "/dev/x"}]}),
        json!({"envFrom": [{"prefix": "A_", "secretRef": {"name": "s"}}]}),
    ] {
        assert_eq!(validate(&pod(spec(), valid.clone())), [], "{valid}");
    }
}

#[test]
fn stop_signals_have_the_names_of_the_api() {
    let problems = |os: &str, signal: &str| {
        let spec = json!({"os": {"name": os}});
        validate(&pod(spec, json!({"lifecycle": {"stopSignal": signal}}))).len()
    };
    for signal in ["SIGTERM", "SIGRTMIN", "SIGRTMIN+1", "SIGRTMIN+15", "SIGRTMAX-14", "SIGWINCH"] {
        assert_eq!(problems("linux", signal), 0, "{signal}");
    }
    for signal in
        ["TERM", "SIGNONE", "SIGRTMIN+16", "SIGRTMAX-15", "SIGRTMIN+0", "SIGRTMIN+01", "SIGRTMIN++1", "sigterm"]
    {
        assert_eq!(problems("linux", signal), 1, "{signal}");
    }
    assert_eq!((problems("windows", "SIGTERM"), problems("windows", "SIGHUP")), (0, 1));
}

#[test]
fn validation_names_each_fault_of_an_ephemeral_container() {
    let cases = [
        (json!({"image": ""}), "image"),
        (json!({"imagePullPolicy": "Sometimes"}), "imagePullPolicy"),
        (json!({"volumeMounts": [{"name": "none", "mountPath": "/x"}]}), "volumeMounts[0].name"),
        (json!({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "y"}]}), "volumeMounts[0].subPath"),
        (json!({"envFrom": [{}]}), "envFrom[0]"),
        (json!({"securityContext": {"procMount": "Unmasked"}}), "securityContext.procMount"),
        (json!({"resizePolicy": []}), "resizePolicy"),
    ];
    for (own, path) in cases {
        let mut container = json!({"name": "e", "image": "x"});
        merge(&mut container, own.clone());
        let spec = json!({"ephemeralContainers": [container], "volumes": [{"name": "v"}]});
        let problems = validate(&pod(spec, json!({})));
        assert_eq!(paths(&problems), [format!("spec.ephemeralContainers[0].{path}")], "{own}");
    }
}
