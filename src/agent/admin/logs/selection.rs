//! Selects the container whose log a request reads, and explains why there is no log. Pure.

use super::LogRefusal;
use podwright_model::pod::PodObject;
use podwright_node_api::NoRun;

/// kubectl's annotation that names the container to use if the request names none.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The container that the request names, or else the one that the annotation names, or else the only one.
pub(super) fn select_container(pod: &PodObject, requested: Option<&str>) -> Result<String, LogRefusal> {
    let regular: Vec<&str> = pod.containers().iter().map(|it| it.name.as_str()).collect();
    let inits = pod.init_containers().iter().map(|it| it.name.as_str());
    let ephemeral = pod.ephemeral_containers().iter().map(|it| it.name.as_str());
    let others: Vec<&str> = inits.chain(ephemeral).collect();
    let has = |name: &str| regular.contains(&name) || others.contains(&name);
    if let Some(requested) = requested.filter(|name| !name.is_empty()) {
        if has(requested) {
            return Ok(requested.to_owned());
        }
        return Err(LogRefusal::NotFound(format!(
            "pod {} has no container {requested:?}: it has {}",
            pod.full_name(),
            names(&regular, &others)
        )));
    }
    let annotated = pod.metadata().annotations.as_ref().and_then(|all| all.get(DEFAULT_CONTAINER));
    match (annotated.filter(|name| has(name)), &regular[..]) {
        (Some(name), _) => Ok(name.clone()),
        (None, [only]) => Ok((*only).to_owned()),
        (None, _) => Err(LogRefusal::Bad(format!(
            "pod {} has several containers: choose with -c one of {}",
            pod.full_name(),
            names(&regular, &others)
        ))),
    }
}

fn names(regular: &[&str], others: &[&str]) -> String {
    let regular = regular.join(", ");
    if others.is_empty() { regular } else { format!("{regular} (and {})", others.join(", ")) }
}

/// The refusal of a request for a run that does not exist.
pub(super) fn no_run(pod: &PodObject, container: &str, why: &NoRun) -> LogRefusal {
    let name = pod.full_name();
    match why {
        NoRun::NotListed { reason, message } => {
            LogRefusal::Bad(format!("container {container} of pod {name} has not started{}", cause(reason, message)))
        }
        NoRun::Waiting { reason, message } => LogRefusal::Bad(format!(
            "container {container} of pod {name} is waiting to start{}",
            cause(reason, message)
        )),
        NoRun::First => LogRefusal::NotFound(format!(
            "container {container} of pod {name} had no run before this one: leave out --previous"
        )),
        NoRun::PreviousRemoved => LogRefusal::NotFound(format!(
            "the log of the previous run of container {container} of pod {name} was removed"
        )),
    }
}

fn cause(reason: &Option<String>, message: &Option<String>) -> String {
    let texts = [reason, message].into_iter().flatten().filter(|text| !text.is_empty());
    texts.map(|text| format!(": {text}")).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn pod(names: &[&str], annotation: &str) -> Arc<PodObject> {
        let containers: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {DEFAULT_CONTAINER: annotation}},
            "spec": {"initContainers": [{"name": "i"}], "containers": containers},
        });
        PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn a_log_request_selects_the_named_default_or_only_container() {
        let of = |names: &[&str], annotation: &str, requested: Option<&str>| {
            select_container(&pod(names, annotation), requested)
        };
        for (names, annotation, requested, expected) in [
            (&["a"][..], "", None, "a"),
            (&["a", "b"], "b", None, "b"),
            (&["a", "b"], "b", Some("a"), "a"),
            (&["a", "b"], "", Some("i"), "i"),
            (&["a"], "gone", None, "a"),
        ] {
            assert_eq!(
                of(names, annotation, requested).as_deref(),
                Ok(expected),
                "{names:?} {annotation} {requested:?}"
            );
        }
        let several = of(&["a", "b"], "gone", None);
        assert_eq!(
            several,
            Err(LogRefusal::Bad("pod n/p has several containers: choose with -c one of a, b (and i)".into()))
        );
        let unknown = of(&["a"], "", Some("x"));
        assert_eq!(unknown, Err(LogRefusal::NotFound("pod n/p has no container \"x\": it has a (and i)".into())));
    }

    #[test]
    fn a_refusal_names_the_reason_of_the_wait() {
        let says = |why: NoRun, text: &str| match no_run(&pod(&["a"], ""), "a", &why) {
            LogRefusal::Bad(why) | LogRefusal::NotFound(why) => assert!(why.contains(text), "{why}"),
        };
        let text = |text: &str| Some(text.to_owned());
        says(
            NoRun::Waiting { reason: text("R"), message: text("m") },
            "container a of pod n/p is waiting to start: R: m",
        );
        says(NoRun::First, "had no run before this one");
        says(NoRun::PreviousRemoved, "was removed");
        says(NoRun::NotListed { reason: text("OutOfcpu"), message: None }, "has not started: OutOfcpu");
        says(NoRun::NotListed { reason: None, message: text("") }, "has not started");
    }
}
