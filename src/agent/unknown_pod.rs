//! The error text for a pod that the node does not know, with the likely causes.

use podwright_actors::explain::Explainer;
use podwright_model::ids::{FullName, PodUid};
use podwright_model::text::plain;
use podwright_ports::{Severity, SourceProblem};

use super::error_text::MAX_PROBLEM_BYTES;
use super::pod_names::similar_names;
use podwright_http_server::MAX_ECHO_BYTES;

/// Says that there is no such pod, and lists possible causes: other UIDs of the name, manifests that cannot be used,
/// problems of the whole node, and similar names.
pub(crate) fn unknown_pod(explainer: &Explainer, name: &FullName, uid: Option<&PodUid>) -> String {
    let mut why = format!("there is no pod {}", plain(&name.to_string(), MAX_ECHO_BYTES));
    if let Some(uid) = uid {
        why.push_str(&format!(" with UID {}\n", plain(&uid.to_string(), MAX_ECHO_BYTES)));
        let uids: Vec<String> = explainer.named(name).iter().map(|pod| pod.uid.to_string()).collect();
        if !uids.is_empty() {
            let uids = plain(&uids.join(", "), MAX_PROBLEM_BYTES).into_owned();
            why.push_str(&format!("UIDs of pods with this name: {uids}: choose one of them with --uid\n"));
            return why;
        }
    } else {
        why.push('\n');
    }
    let problems = explainer.problems();
    // Problems of a manifest with known pods are left out: they appear in the explanations of those pods.
    let (naming, other): (Vec<_>, Vec<_>) = problems
        .iter()
        .filter(|problem| problem.severity == Severity::Fault)
        .filter(|problem| mentions(problem, name.name()) || problem.pods.is_empty())
        .partition(|problem| mentions(problem, name.name()));
    for problem in &naming {
        let problem = problem.to_string();
        why.push_str(&format!("a manifest with this pod cannot be used: {}\n", plain(&problem, MAX_PROBLEM_BYTES)));
    }
    if naming.is_empty() {
        for problem in &other {
            let problem = problem.to_string();
            why.push_str(&format!(
                "the pod may be in a manifest that cannot be used: {}\n",
                plain(&problem, MAX_PROBLEM_BYTES)
            ));
        }
    }
    for problem in explainer.node_problems() {
        why.push_str(&format!("{}\n", plain(&problem.detail, MAX_PROBLEM_BYTES)));
    }
    // No full name is longer than this, and the comparison of long texts is slow.
    let short = name.as_str().len() <= MAX_ECHO_BYTES;
    let similar = similar_names(name, explainer.names().into_iter().filter(|_| short));
    if !similar.is_empty() {
        let similar: Vec<String> = similar.iter().map(ToString::to_string).collect();
        why.push_str(&format!("similar names: {}\n", similar.join(", ")));
    }
    why
}

/// Whether a problem concerns a pod of this name. The name in the manifest may lack the suffix with the node's name. A
/// problem without a pod's name counts if the file is named after the pod.
fn mentions(problem: &SourceProblem, name: &str) -> bool {
    let is = |written: &str| {
        !written.is_empty() && (name == written || name.strip_prefix(written).is_some_and(|n| n.starts_with('-')))
    };
    let written = problem.message.split_once("pod \"").and_then(|(_, rest)| rest.split_once('"'));
    let file = problem.what.rsplit('/').next().and_then(|file| file.split('.').next());
    match written {
        Some((written, _)) => is(written),
        None => file.is_some_and(is),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_problems_match_a_pod_by_name_or_by_file_name() {
        let problem = |what: &str, message: &str| SourceProblem {
            what: what.into(),
            message: message.into(),
            pods: vec![],
            severity: Severity::Fault,
        };
        let problems = [
            problem("/m/x.yaml", "line 1: pod \"web\": x"),
            problem("/m", "pod \"we\": x"),
            problem("/m/db.yaml", "line 2: x"),
        ];
        let found = |name: &str| problems.iter().filter(|problem| mentions(problem, name)).count();
        assert_eq!(["web", "web-n1", "webber", "other", "db-n1", "x"].map(found), [1, 1, 0, 0, 1, 0]);
    }
}
