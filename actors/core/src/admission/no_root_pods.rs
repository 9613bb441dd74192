//! Checks whether a pod would be root of the node, or could become root. For a node whose containers are processes of the node.

use k8s_openapi::api::core::v1::{PodSecurityContext, SecurityContext};

use super::{AdmissionHandler, Admitted, Rejection};
use crate::pod::PodObject;

/// The reason of such a pod.
const REASON: &str = "RootPodForbidden";

/// The first group that is not one of the system (`SYS_GID_MAX` of login.defs(5)).
const FIRST_GROUP_OF_USERS: i64 = 1000;

/// The agent's user. As an admission handler, it rejects the pods of an API server that would be root of the node, or could become root.
/// Static pods belong to the owner of the node, and may be root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRootPods {
    /// The user of a container that requests none.
    pub agent: u32,
}

impl AdmissionHandler for NoRootPods {
    /// An ephemeral container comes later than its pod, so the runtime refuses it.
    fn admit(&self, pod: &PodObject, _: &Admitted) -> Result<(), Rejection> {
        let containers = pod.init_containers().iter().chain(pod.containers());
        let checked = containers.map(|it| self.check(pod, &it.name, it.security_context.as_ref()));
        checked.collect::<Result<(), _>>().map_err(|message| Rejection::new(REASON, message))
    }
}

impl NoRootPods {
    /// Checks one container of a pod.
    ///
    /// # Errors
    /// What makes the container root of the node, and the remedy.
    pub fn check(&self, pod: &PodObject, name: &str, own: Option<&SecurityContext>) -> Result<(), String> {
        if pod.is_static() {
            return Ok(());
        }
        let (faults, remedies): (Vec<String>, Vec<String>) =
            self.faults(pod.spec().security_context.as_ref(), own).into_iter().unzip();
        if faults.is_empty() {
            return Ok(());
        }
        let (faults, remedies) = (faults.join(" and "), remedies.join(" and "));
        Err(format!(
            "container {name} {faults}, and this node runs containers as its own processes: {remedies}, or start the agent with \
             `--process-root-pods allow`"
        ))
    }

    /// What a container would be or could do, each with the change of its pod that prevents it.
    fn faults(&self, of_pod: Option<&PodSecurityContext>, own: Option<&SecurityContext>) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        let mut add = |what: &str, remedy: &str| faults.push((what.to_owned(), remedy.to_owned()));
        if own.and_then(|it| it.privileged) == Some(true) {
            add("is `privileged`", "remove `privileged`");
        }
        // An agent that is not root gives a container no other user and no other group than its own.
        if self.agent == 0 {
            let user = own.and_then(|it| it.run_as_user).or(of_pod.and_then(|it| it.run_as_user));
            if user.is_none_or(|user| user == 0) {
                add("would run as root of the node", "set `runAsUser` to another user than 0");
            }
            if let Some((field, group)) = group_of_system(of_pod, own) {
                let remedy = format!("set `{field}` to {FIRST_GROUP_OF_USERS} or above");
                add(&format!("would be in group {group} of the node by `{field}`"), &remedy);
            }
        }
        if own.and_then(|it| it.allow_privilege_escalation) != Some(false) {
            add("could get more rights by executing a file", "set `allowPrivilegeEscalation: false`");
        }
        faults
    }
}

/// A group of the node's system that a container requests, with the field. With some of these groups, such as `disk` and `docker`, a
/// process can become root.
fn group_of_system(of_pod: Option<&PodSecurityContext>, own: Option<&SecurityContext>) -> Option<(&'static str, i64)> {
    let group = own.and_then(|it| it.run_as_group).or(of_pod.and_then(|it| it.run_as_group));
    let more = of_pod.and_then(|it| it.supplemental_groups.as_deref()).unwrap_or_default();
    let requested = group.map(|group| ("runAsGroup", group)).into_iter();
    let requested = requested.chain(more.iter().map(|group| ("supplementalGroups", *group)));
    let mut requested = requested.chain(of_pod.and_then(|it| it.fs_group).map(|group| ("fsGroup", group)));
    requested.find(|(_, group)| *group < FIRST_GROUP_OF_USERS)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn pod(source: &str, of_pod: &Value, own: &Value) -> Arc<PodObject> {
        let metadata = json!({"name": "p", "namespace": "test", "uid": "p",
            "annotations": {"kubernetes.io/config.source": source}});
        let safe = json!({"name": "safe", "securityContext": {"runAsUser": 1, "allowPrivilegeEscalation": false}});
        let spec = json!({"securityContext": of_pod, "initContainers": [safe],
            "containers": [{"name": "main", "securityContext": own}]});
        PodObject::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()).unwrap()
    }

    fn refusal(agent: u32, pod: &PodObject) -> Option<String> {
        let rejection = NoRootPods { agent }.admit(pod, &Admitted::default()).err()?;
        assert_eq!((rejection.reason.as_str(), rejection.may_end()), ("RootPodForbidden", false));
        Some(rejection.message)
    }

    #[test]
    fn pod_of_an_api_server_that_is_or_can_become_root_is_rejected_with_the_remedy() {
        let (none, safe) = (json!({}), json!({"allowPrivilegeEscalation": false}));
        let with =
            |field: &str, value: i64| json!({"runAsUser": 1000, "allowPrivilegeEscalation": false, field: value});
        let of_pod = |field: &str, value: Value| json!({"runAsUser": 1000, field: value});
        let (escalation, user) = ("`allowPrivilegeEscalation: false`", "`runAsUser` to another user");
        // Rows: the pod's context, the container's context; what says the refusal of an agent of root, and of another agent.
        for (context, own, of_root, of_user) in [
            (none.clone(), none.clone(), Some(user), Some(escalation)),
            (none.clone(), safe.clone(), Some(user), None),
            (of_pod("runAsUser", json!(0)), safe.clone(), Some(user), None),
            (of_pod("runAsNonRoot", json!(true)), none.clone(), Some(escalation), Some(escalation)),
            (
                of_pod("runAsNonRoot", json!(true)),
                json!({"allowPrivilegeEscalation": true}),
                Some(escalation),
                Some(escalation),
            ),
            (of_pod("runAsNonRoot", json!(true)), safe.clone(), None, None),
            (of_pod("runAsNonRoot", json!(true)), with("runAsUser", 0), Some(user), None),
            (none.clone(), with("runAsGroup", 0), Some("group 0 of the node by `runAsGroup`"), None),
            (none.clone(), with("runAsGroup", 1000), None, None),
            (of_pod("fsGroup", json!(6)), safe.clone(), Some("group 6 of the node by `fsGroup`"), None),
            (of_pod("supplementalGroups", json!([2000, 999])), safe.clone(), Some("999"), None),
            (of_pod("supplementalGroups", json!([2000])), safe.clone(), None, None),
            (none.clone(), json!({"privileged": true}), Some("remove `privileged`"), Some("remove `privileged`")),
        ] {
            let pod = pod("api", &context, &own);
            for (agent, expected) in [(0, of_root), (1000, of_user)] {
                let found = refusal(agent, &pod);
                assert_eq!(found.is_some(), expected.is_some(), "{agent} {context} {own}: {found:?}");
                let (found, expected) = (found.unwrap_or_default(), expected.unwrap_or_default());
                assert!(found.contains(expected), "{agent} {context} {own}: {found}");
                assert!(found.is_empty() || found.contains("--process-root-pods allow"), "{found}");
            }
        }
    }

    #[test]
    fn refusal_names_the_container_and_for_each_fault_the_field_and_also_the_flag() {
        let expected = "container main would run as root of the node and could get more rights by executing a file, and this node runs \
                        containers as its own processes: set `runAsUser` to another user than 0 and set \
                        `allowPrivilegeEscalation: false`, or start the agent with `--process-root-pods allow`";
        assert_eq!(refusal(0, &pod("api", &json!({}), &json!({}))).as_deref(), Some(expected));
    }

    #[test]
    fn static_pod_may_be_root() {
        for source in ["file", "http"] {
            assert_eq!(refusal(0, &pod(source, &json!({}), &json!({"privileged": true}))), None, "{source}");
        }
    }
}
