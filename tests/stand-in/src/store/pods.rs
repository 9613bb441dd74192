//! Admission of objects, and the requests that only pods and service accounts have.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{Answer, Env, Store, time_text};
use crate::access::{MIRROR, User};
use crate::call::Call;
use crate::refusal::{FieldFault, Refusal};
use crate::schema::{self, Resource};
use crate::store::pods_spec;

impl Store {
    /// Changes a new object as the admission plugins of a server do.
    pub(super) fn admit_new(&mut self, resource: &Resource, object: &mut Value, env: &Env) -> Result<(), Refusal> {
        match resource.kind {
            "Node" => {
                let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
                let taints =
                    object["spec"].as_object_mut().expect("a node has a spec").entry("taints").or_insert(json!([]));
                let list = taints.as_array_mut().expect("taints are a list");
                if !list.iter().any(|found| found["key"] == taint["key"] && found["effect"] == taint["effect"]) {
                    list.push(taint);
                }
            }
            "Pod" => self.admit_pod(resource, object)?,
            "CertificateSigningRequest" => self.admit_signing_request(resource, object, env)?,
            _ => {}
        }
        Ok(())
    }

    fn admit_pod(&mut self, resource: &Resource, pod: &mut Value) -> Result<(), Refusal> {
        let is_mirror = pod["metadata"]["annotations"].get(MIRROR).is_some();
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let priority = match pod["spec"]["priorityClassName"].as_str() {
            None | Some("") => 0,
            Some("system-cluster-critical") => 2_000_000_000,
            Some("system-node-critical") => 2_000_001_000,
            Some(class) => {
                let why = format!("no PriorityClass with name {class} was found");
                return Err(Refusal::forbidden(resource, &name, &why));
            }
        };
        set_missing(&mut pod["spec"], "priority", json!(priority));
        set_missing(&mut pod["spec"], "preemptionPolicy", json!("PreemptLowerPriority"));
        pod["status"] = json!({"phase": "Pending", "qosClass": pods_spec::quality_of_service(&pod["spec"])});
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            add_toleration(&mut pod["spec"], key);
        }
        if is_mirror {
            return Ok(());
        }
        set_missing(&mut pod["spec"], "serviceAccountName", json!("default"));
        let account = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().to_owned();
        pod["spec"]["serviceAccount"] = json!(account);
        let found = self.find("serviceaccounts", &namespace, &account).ok_or_else(|| {
            let why =
                format!("error looking up service account {namespace}/{account}: serviceaccount {account:?} not found");
            Refusal::forbidden(resource, &name, &why)
        })?;
        let mounts = pod["spec"]["automountServiceAccountToken"].as_bool();
        if mounts.or(found["automountServiceAccountToken"].as_bool()).unwrap_or(true) {
            self.mount_token(&mut pod["spec"]);
        }
        Ok(())
    }

    /// Adds the volume with the token, the certificates and the namespace, and mounts it where nothing else is mounted.
    fn mount_token(&mut self, spec: &mut Value) {
        let path = "/var/run/secrets/kubernetes.io/serviceaccount";
        let volume = format!("kube-api-access-{}", self.suffix());
        let mut is_used = false;
        for list in ["initContainers", "containers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                let mounts = container.as_object_mut().map(|map| map.entry("volumeMounts").or_insert(json!([])));
                let Some(mounts) = mounts.and_then(Value::as_array_mut) else { continue };
                if !mounts.iter().any(|mount| mount["mountPath"] == path) {
                    mounts.push(json!({"name": volume, "readOnly": true, "mountPath": path}));
                    is_used = true;
                }
            }
        }
        if !is_used {
            return;
        }
        let mut sources = vec![
            json!({"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}),
            json!({"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}),
            json!({"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
            ]}}),
        ];
        sources.extend(
            self.settings
                .ca_config_maps
                .iter()
                .map(|(name, file)| json!({"configMap": {"name": name, "items": [{"key": file, "path": file}]}})),
        );
        let volume = json!({"name": volume, "projected": {"sources": sources, "defaultMode": 420}});
        set_missing(spec, "volumes", json!([]));
        spec["volumes"].as_array_mut().expect("volumes are a list").push(volume);
    }

    /// Changes an updated object as the admission plugins and the strategies of a server do.
    pub(super) fn admit_change(
        &self,
        resource: &Resource,
        call: &Call,
        live: &Value,
        object: &mut Value,
        env: &Env,
    ) -> Result<(), Refusal> {
        match (resource.kind, call.subresource()) {
            ("Pod", "") => pods_spec::check_update(resource, call.name(), live, object)?,
            ("Pod", "resize") => pods_spec::resize(resource, call.name(), live, object)?,
            ("Pod", "ephemeralcontainers") => pods_spec::add_ephemeral(resource, call.name(), live, object)?,
            ("Pod", "status") if live["status"]["qosClass"].is_string() => {
                object["status"]["qosClass"] = live["status"]["qosClass"].clone();
            }
            ("CertificateSigningRequest", _) => Self::admit_signing_change(live, object, env),
            ("DeviceTaintRule", "") => {
                let (old, new) = (&live["spec"]["taint"], &object["spec"]["taint"]);
                if old["effect"] != new["effect"] && old["timeAdded"] == new["timeAdded"] {
                    object["spec"]["taint"]["timeAdded"] = json!(env.now_text());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Binds a pod to a node, as the scheduler does.
    pub(super) fn bind(&mut self, call: &Call, env: &Env) -> Result<Answer, Refusal> {
        let live = self.live(call)?;
        let node = live["spec"]["nodeName"].as_str().unwrap_or_default();
        let target = call.body["target"]["name"].as_str().unwrap_or_default();
        if target.is_empty() {
            return Err(Refusal::bad_request("Binding.target.name: Required value"));
        }
        if !node.is_empty() {
            let why = format!("pod {} is already assigned to node {node:?}", call.name());
            return Err(Refusal::conflict_on(call.resource, "pods/binding", call.name(), &why));
        }
        if !live["metadata"]["deletionTimestamp"].is_null() {
            let why = format!("pod {} is being deleted, cannot be assigned to a host", call.name());
            return Err(Refusal::conflict_on(call.resource, "pods/binding", call.name(), &why));
        }
        let mut pod = Value::clone(&live);
        pod["spec"]["nodeName"] = json!(target);
        let condition = json!({
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": null,
            "lastTransitionTime": env.now_text(),
        });
        set_condition(&mut pod["status"], condition);
        self.put(call.resource, pod, env.now);
        Ok(Answer::Object(
            201,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        ))
    }

    /// Evicts a pod, if its disruption budget allows it.
    pub(super) fn evict(&mut self, call: &Call, env: &Env) -> Result<Answer, Refusal> {
        let live = self.live(call)?;
        self.restrict(call, env, Some(&live), None)?;
        self.check_budget(&live)?;
        let mut pod = Value::clone(&live);
        set_condition(
            &mut pod["status"],
            json!({
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
                "lastProbeTime": null,
                "lastTransitionTime": env.now_text(),
            }),
        );
        let live = self.put(call.resource, pod, env.now);
        self.delete_evicted(call, &live, env)?;
        Ok(Answer::Object(
            201,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        ))
    }

    /// Answers a `TokenRequest` with a token that `TokenReview` knows.
    pub(super) fn issue_token(&mut self, call: &Call, env: &Env) -> Result<Answer, Refusal> {
        let account = self.live(call)?;
        self.restrict(call, env, None, None)?;
        let spec = &call.body["spec"];
        let bound = &spec["boundObjectRef"];
        let (namespace, text) = (call.namespace(), |value: &Value| value.as_str().unwrap_or_default().to_owned());
        let mut extra = json!({});
        if bound.is_object() {
            let (kind, name, uid) = (text(&bound["kind"]), text(&bound["name"]), text(&bound["uid"]));
            let resource = schema::find_kind("v1", &kind)
                .filter(|found| matches!(found.kind, "Pod" | "Secret" | "Node"))
                .ok_or_else(|| {
                    Refusal::bad_request(format!("cannot bind token for a {kind}: bind to a Pod, Secret or Node"))
                })?;
            let place = if resource.namespaced { namespace } else { "" };
            let found = self.object(resource, place, &name).ok_or_else(|| Refusal::not_found(resource, &name))?;
            if !uid.is_empty() && found["metadata"]["uid"] != uid {
                let real = text(&found["metadata"]["uid"]);
                let why = format!(
                    "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated ({real})"
                );
                return Err(Refusal::conflict(resource, &name, &why));
            }
            if kind == "Pod" {
                extra["authentication.kubernetes.io/pod-name"] = json!([name]);
                extra["authentication.kubernetes.io/pod-uid"] = json!([found["metadata"]["uid"]]);
                let node = text(&found["spec"]["nodeName"]);
                if !node.is_empty() {
                    extra["authentication.kubernetes.io/node-name"] = json!([node]);
                }
                if let Some(node) = self.find("nodes", "", &node) {
                    extra["authentication.kubernetes.io/node-uid"] = json!([node["metadata"]["uid"]]);
                }
            }
        }
        let seconds = spec["expirationSeconds"].as_i64().unwrap_or(3600);
        if seconds < 600 {
            let value = json!(seconds);
            let fault = FieldFault::invalid(
                "spec.expirationSeconds",
                &value,
                "may not specify a duration less than 10 minutes",
            );
            return Err(Refusal::invalid_kind("authentication.k8s.io", "TokenRequest", call.name(), &[fault]));
        }
        let seconds = seconds.min(i64::try_from(self.settings.token_life.as_secs()).unwrap_or(i64::MAX));
        let end = env.now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(env.now);
        let audiences = spec["audiences"].as_array().filter(|list| !list.is_empty()).cloned();
        let audiences = audiences.unwrap_or_else(|| vec![json!("https://kubernetes.default.svc")]);
        let name = format!("system:serviceaccount:{namespace}:{}", call.name());
        let id = self.uid();
        extra["authentication.kubernetes.io/credential-id"] = json!([format!("JTI={id}")]);
        let claims = json!({
            "aud": audiences,
            "exp": end.as_second(),
            "iat": env.now.as_second(),
            "iss": "https://kubernetes.default.svc",
            "jti": id,
            "sub": name,
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({"alg": "none", "kid": "stand-in"});
        let token = format!("{}.{}.{}", part(&header), part(&claims), URL_SAFE_NO_PAD.encode("stand-in"));
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}"), "system:authenticated"];
        let user = User {
            name,
            uid: text(&account["metadata"]["uid"]),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            extra,
            issued: None,
            expires: Some(end),
            audiences: audiences.iter().map(text).collect(),
        };
        self.tokens.insert(token.clone(), user);
        let mut body = call.body.clone();
        body["kind"] = json!("TokenRequest");
        body["apiVersion"] = json!("authentication.k8s.io/v1");
        body["metadata"] = json!({"name": call.name(), "namespace": namespace, "creationTimestamp": env.now_text()});
        body["spec"]["audiences"] = json!(audiences);
        body["spec"]["expirationSeconds"] = json!(seconds);
        body["status"] = json!({"token": token, "expirationTimestamp": time_text(end)});
        Ok(Answer::Object(201, body))
    }
}

fn set_missing(value: &mut Value, field: &str, default: Value) {
    let map = value.as_object_mut().expect("the field is an object");
    if map.get(field).is_none_or(|found| found.is_null() || found == "") {
        map.insert(field.to_owned(), default);
    }
}

/// Adds a condition in place of the one with the same type.
fn set_condition(status: &mut Value, condition: Value) {
    set_missing(status, "conditions", json!([]));
    let conditions = status["conditions"].as_array_mut().expect("conditions are a list");
    conditions.retain(|found| found["type"] != condition["type"]);
    conditions.push(condition);
}

fn add_toleration(spec: &mut Value, key: &str) {
    set_missing(spec, "tolerations", json!([]));
    let tolerations = spec["tolerations"].as_array_mut().expect("tolerations are a list");
    let covers = |found: &Value| {
        let effect = found["effect"].as_str().unwrap_or_default();
        let own = found["key"].as_str().unwrap_or_default();
        (own == key || own.is_empty()) && (effect.is_empty() || effect == "NoExecute")
    };
    if !tolerations.iter().any(covers) {
        tolerations.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
    }
}
