//! Which manifest defines a pod, if several do. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use podwright_model::ids::{FullName, PodUid};
use podwright_model::pod::PodObject;
use podwright_ports::{Severity, SourceProblem};

/// A pod, and the path or URL of its manifest.
pub(super) type DefinedPod<'a> = (&'a str, &'a Arc<PodObject>);

/// The manifest of each pod that was delivered last.
///
/// Another manifest with the same pod changes nothing while this one defines it. Otherwise a copy whose path sorts first would
/// replace a running pod: the path is part of the UID.
#[derive(Debug, Default)]
pub(super) struct Holders(BTreeMap<FullName, String>);

impl Holders {
    /// The pods to deliver, in their order, with a problem for each of the others.
    ///
    /// A pod that no manifest holds goes to the first manifest whose pod `has_started`, so that a new agent keeps the pod that
    /// runs. If there is none, it goes to the first manifest.
    pub(super) fn choose(
        &mut self,
        defined: &[DefinedPod<'_>],
        has_started: impl Fn(&PodUid) -> bool,
    ) -> (Vec<Arc<PodObject>>, Vec<SourceProblem>) {
        let rank = |(what, pod): &DefinedPod<'_>| match self.0.get(pod.full_name()) {
            Some(holder) if holder == what => 0,
            Some(_) => 2,
            None if has_started(pod.uid()) => 1,
            None => 2,
        };
        let mut by_rank: Vec<usize> = (0..defined.len()).collect();
        by_rank.sort_by_cached_key(|index| rank(&defined[*index]));

        let mut taken: BTreeMap<String, &str> = BTreeMap::new();
        let mut chosen = Vec::with_capacity(defined.len());
        let mut problems = Vec::new();
        for index in by_rank {
            let (what, pod) = defined[index];
            let ids = [(format!("pod {}", pod.full_name()), "name"), (format!("UID {}", pod.uid()), "metadata.uid")];
            let duplicate = ids.iter().find_map(|(id, field)| taken.get(id).map(|other| (id, field, other)));
            if let Some((id, field, other)) = duplicate {
                problems.push(SourceProblem {
                    what: what.to_owned(),
                    message: format!(
                        "{id} is already defined by {other} and is ignored here: change its {field} or remove one of the two"
                    ),
                    pods: vec![pod.full_name().clone()],
                    severity: Severity::Fault,
                });
            } else {
                taken.extend(ids.map(|(id, _)| (id, what)));
                chosen.push(index);
            }
        }
        chosen.sort_unstable();
        let chosen = chosen.into_iter().map(|index| defined[index]);
        self.0 = chosen.clone().map(|(what, pod)| (pod.full_name().clone(), what.to_owned())).collect();
        (chosen.map(|(_, pod)| pod.clone()).collect(), problems)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, uid: &str) -> Arc<PodObject> {
        let pod = json!({"metadata": {"name": name, "namespace": "n", "uid": uid}, "spec": {"containers": []}});
        PodObject::new(serde_json::from_value::<Pod>(pod).unwrap()).unwrap()
    }

    /// The UIDs that are delivered, and the manifests with a problem.
    fn choose(
        holders: &mut Holders,
        defined: &[(&str, Arc<PodObject>)],
        started: &[&str],
    ) -> (Vec<String>, Vec<String>) {
        let defined: Vec<DefinedPod<'_>> = defined.iter().map(|(what, pod)| (*what, pod)).collect();
        let (pods, problems) = holders.choose(&defined, |uid| started.contains(&uid.to_string().as_str()));
        for problem in &problems {
            assert!(
                problem.message.contains("already defined by /") && problem.severity == Severity::Fault,
                "{problem}"
            );
        }
        (pods.iter().map(|pod| pod.uid().to_string()).collect(), problems.into_iter().map(|it| it.what).collect())
    }

    #[test]
    fn manifest_of_a_delivered_pod_keeps_it() {
        let mut holders = Holders::default();
        let chosen = |uids: &[&str], problems: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            (owned(uids), owned(problems))
        };
        let web = |uid: &str| ("/web", pod("web", uid));
        let copy = |uid: &str| ("/a-copy", pod("web", uid));
        let other = ("/m", pod("other", "o"));
        assert_eq!(choose(&mut holders, &[other.clone(), web("1")], &[]), chosen(&["o", "1"], &[]));
        let with_copy = [copy("c"), other.clone(), web("1")];
        assert_eq!(choose(&mut holders, &with_copy, &[]), chosen(&["o", "1"], &["/a-copy"]));
        // A change of the pod does not change its manifest, even if the copy has started before.
        assert_eq!(choose(&mut holders, &[copy("c"), web("2")], &["c"]), chosen(&["2"], &["/a-copy"]));
        assert_eq!(choose(&mut holders, &[copy("c")], &[]), chosen(&["c"], &[]));
        assert_eq!(choose(&mut holders, &[copy("c"), web("2")], &[]), chosen(&["c"], &["/web"]));
    }

    #[test]
    fn new_agent_keeps_the_pod_that_has_started() {
        let both = [("/a-copy", pod("web", "c")), ("/web", pod("web", "1"))];
        let first = |started: &[&str]| choose(&mut Holders::default(), &both, started);
        assert_eq!(first(&["1"]), (vec!["1".to_owned()], vec!["/a-copy".to_owned()]));
        assert_eq!(first(&[]), (vec!["c".to_owned()], vec!["/web".to_owned()]));
        assert_eq!(first(&["1", "c"]), (vec!["c".to_owned()], vec!["/web".to_owned()]));
    }

    #[test]
    fn pod_with_the_uid_of_another_pod_is_a_problem() {
        let mut holders = Holders::default();
        let b = ("/b", pod("b", "same"));
        assert_eq!(choose(&mut holders, std::slice::from_ref(&b), &[]), (vec!["same".to_owned()], vec![]));
        let defined = [("/a", pod("a", "same")), b];
        assert_eq!(choose(&mut holders, &defined, &["same"]), (vec!["same".to_owned()], vec!["/a".to_owned()]));
    }
}
