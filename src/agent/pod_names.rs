//! How users name pods. Pure.

use podwright_actors::explain::PodFacts;
use podwright_model::ids::FullName;
use podwright_model::pod::PodObject;

/// Whether a user may mean a pod by this name. The name of a static pod may omit the node name, which its manifest does not have.
pub(crate) fn is_named(pod: &PodObject, name: &str) -> bool {
    let node = pod.spec().node_name.as_deref().filter(|_| pod.is_static());
    is_own_name(pod.full_name().name(), node, name)
}

/// The same for a pod of the node `node` that may have no object. Whether such a pod is static is not known, so its name may also omit the
/// node name.
pub(crate) fn is_known_as(pod: &PodFacts, node: &str, name: &str) -> bool {
    match &pod.object {
        Some(object) => is_named(object, name),
        None => is_own_name(pod.full_name.name(), Some(node), name),
    }
}

fn is_own_name(own: &str, node: Option<&str>, name: &str) -> bool {
    own == name || node.is_some_and(|node| *own == format!("{name}-{}", node.to_lowercase()))
}

/// Up to three known names that are similar to `name`, the most similar first. A name that is much less similar than the first one is left
/// out.
pub(crate) fn similar_names(name: &FullName, known: impl IntoIterator<Item = FullName>) -> Vec<FullName> {
    let mut similar: Vec<(f64, FullName)> = known
        .into_iter()
        .map(|other| {
            // Users often leave out the end of a name.
            let similarity = if other.name().starts_with(name.name()) {
                1.0
            } else {
                strsim::jaro_winkler(name.name(), other.name())
            };
            let penalty = if other.namespace() == name.namespace() { 0.0 } else { 0.05 };
            (similarity - penalty, other)
        })
        .filter(|(similarity, _)| *similarity > 0.8)
        .collect();
    similar.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    similar.dedup();
    let least = similar.first().map_or(0.0, |(best, _)| best - 0.1);
    similar.into_iter().filter(|(similarity, _)| *similarity >= least).take(3).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use podwright_model::ids::PodUid;

    #[test]
    fn name_of_a_static_pod_may_lack_the_node() {
        let pod = |source: &str| {
            let pod = json!({
                "metadata": {"name": "web-n1", "namespace": "default", "uid": "u",
                    "annotations": {"kubernetes.io/config.source": source}},
                "spec": {"containers": [], "nodeName": "N1"},
            });
            PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
        };
        let named = |source: &str| ["web-n1", "web", "we", "web-", "n1", ""].map(|name| is_named(&pod(source), name));
        assert_eq!(named("file"), [true, true, false, false, false, false]);
        assert_eq!(named("api"), [true, false, false, false, false, false]);
    }

    #[test]
    fn name_of_a_pod_without_an_object_may_lack_the_node() {
        let pod = PodFacts::named(PodUid::new("u"), FullName::new("default", "web-n1"));
        let known = ["web-n1", "web", "we", "web-", "n1", ""].map(|name| is_known_as(&pod, "N1", name));
        assert_eq!(known, [true, true, false, false, false, false]);
    }

    #[test]
    fn an_unknown_pod_name_leads_to_similar_names() {
        let name = |name: &str| FullName::new("default", name);
        let known = || ["hello-vm", "crashloop-vm", "stubborn-vm", "kube-vip-vm", "kube-apiserver-vm"].map(name);
        assert_eq!(similar_names(&name("hello"), known()), [name("hello-vm")]);
        assert_eq!(similar_names(&name("crashlop-vm"), known()), [name("crashloop-vm")]);
        assert_eq!(similar_names(&FullName::new("other", "hello-vm"), known()), [name("hello-vm")]);
        assert_eq!(similar_names(&name("database"), known()), []);
        assert_eq!(similar_names(&name("kube-vi"), known()), [name("kube-vip-vm")]);
    }
}
