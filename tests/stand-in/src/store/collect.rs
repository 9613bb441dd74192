//! The controllers of a cluster: they create the objects of each namespace, and delete the dependents of deleted owners.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Env, Key, Store, time_text, uid_of};
use crate::schema;

impl Store {
    /// Creates a namespace with the objects that every namespace has, if it does not exist.
    pub fn ensure_namespace(&mut self, name: &str, now: jiff::Timestamp) {
        let resource = schema::stored("namespaces").expect("the table has namespaces");
        if self.object(resource, "", name).is_some() {
            return;
        }
        let uid = self.uid();
        let namespace = json!({
            "kind": "Namespace",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "uid": uid,
                "creationTimestamp": time_text(now),
                "labels": {"kubernetes.io/metadata.name": name},
            },
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        });
        self.put(resource, namespace, now);
        self.fill_namespace(name, now);
    }

    /// Creates the service account and the certificates that controllers put into a namespace.
    pub(super) fn fill_namespace(&mut self, namespace: &str, now: jiff::Timestamp) {
        let resource = schema::stored("namespaces").expect("the table has namespaces");
        if let Some(found) = self.object(resource, "", namespace).filter(|found| found["status"]["phase"].is_null()) {
            let mut object = Value::clone(&found);
            object["status"]["phase"] = json!("Active");
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(namespace);
            self.put(resource, object, now);
        }
        let mut objects = vec![("serviceaccounts", "ServiceAccount", "default".to_owned(), json!({}))];
        let root = [("kube-root-ca.crt".to_owned(), "ca.crt".to_owned())];
        let authority = self.authority.pem();
        for (name, file) in root.iter().chain(&self.settings.ca_config_maps.clone()) {
            objects.push(("configmaps", "ConfigMap", name.clone(), json!({file: authority})));
        }
        for (plural, kind, name, data) in objects {
            let resource = schema::stored(plural).expect("the table has these resources");
            if self.object(resource, namespace, &name).is_some() {
                continue;
            }
            let uid = self.uid();
            let mut object = json!({
                "kind": kind,
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": time_text(now)},
            });
            if kind == "ConfigMap" {
                object["data"] = data;
            }
            self.put(resource, object, now);
        }
    }

    pub(super) fn is_empty_namespace(&self, namespace: &str) -> bool {
        !self.objects.keys().any(|key| key.namespace == namespace)
    }

    /// The objects that name an owner.
    fn dependents(&self, uid: &str) -> Vec<(Key, Arc<Value>)> {
        let keys = self.owned.get(uid).into_iter().flatten();
        keys.filter_map(|key| Some((key.clone(), self.objects.get(key)?.clone()))).collect()
    }

    /// Removes an owner from its dependents, so that they stay.
    pub(super) fn orphan_dependents(&mut self, uid: &str, now: jiff::Timestamp) {
        let owned = self.dependents(uid);
        for (key, object) in owned {
            let mut object = Value::clone(&object);
            if let Some(owners) = object["metadata"]["ownerReferences"].as_array_mut() {
                owners.retain(|owner| owner["uid"] != uid);
            }
            let resource = schema::stored(key.storage).expect("keys name stored resources");
            self.put(resource, object, now);
        }
    }

    /// Deletes the objects whose owners do not exist, and the content of namespaces that are being deleted.
    pub(super) fn collect_garbage(&mut self, now: jiff::Timestamp) {
        if !self.settings.collect_garbage {
            return;
        }
        let env = Env::system(now, "kube-controller-manager");
        loop {
            let before = self.version();
            self.delete_dependents(&env);
            self.empty_namespaces(&env);
            if self.version() == before {
                return;
            }
        }
    }

    /// Deletes the dependents of objects that were deleted since the last call, and objects that were written since then
    /// with owners that do not exist.
    fn delete_dependents(&mut self, env: &Env) {
        let changes = self.log.iter().rev().take_while(|change| change.version > self.collected);
        let (deleted, written): (Vec<_>, Vec<_>) = changes.partition(|change| change.is_deletion);
        let mut found: BTreeMap<Key, Arc<Value>> =
            deleted.iter().flat_map(|change| self.dependents(&uid_of(&change.after["metadata"]))).collect();
        for change in written {
            if let Some(object) = self.objects.get(&change.key) {
                found.insert(change.key.clone(), object.clone());
            }
        }
        self.collected = self.version();
        for (key, object) in found {
            let owners = object["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is_garbage = !owners.is_empty() && owners.iter().all(|owner| self.is_absent(owner, &key.namespace));
            if is_garbage && object["metadata"]["deletionTimestamp"].is_null() {
                let resource = schema::stored(key.storage).expect("keys name stored resources");
                self.delete_quietly(resource, &object, env);
            }
        }
    }

    /// Whether an owner does not exist. An owner of a kind that the server does not serve counts as present: the garbage
    /// collector of a cluster cannot read it either.
    fn is_absent(&self, owner: &Value, namespace: &str) -> bool {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        let Some(resource) = schema::find_kind(text("apiVersion"), text("kind")) else { return false };
        let namespace = if resource.namespaced { namespace } else { "" };
        self.object(resource, namespace, text("name")).is_none_or(|found| found["metadata"]["uid"] != text("uid"))
    }

    fn empty_namespaces(&mut self, env: &Env) {
        let namespaces = schema::stored("namespaces").expect("the table has namespaces");
        let ending: Vec<(Key, String)> = self
            .stored(namespaces.storage)
            .filter(|(_, object)| !object["metadata"]["deletionTimestamp"].is_null())
            .map(|(key, _)| (key.clone(), key.name.clone()))
            .collect();
        for (key, name) in ending {
            let content: Vec<(Key, Arc<Value>)> = self
                .objects
                .iter()
                .filter(|(key, object)| key.namespace == name && object["metadata"]["deletionTimestamp"].is_null())
                .map(|(key, object)| (key.clone(), object.clone()))
                .collect();
            for (key, object) in content {
                let resource = schema::stored(key.storage).expect("keys name stored resources");
                self.delete_quietly(resource, &object, env);
            }
            if self.is_empty_namespace(&name) {
                self.remove(&key, env.now);
            }
        }
    }
}
