//! What is told of a pod that is not there.

use crate::actors::explain::Explainer;
use crate::actors::ids::{FullName, PodUid};
use crate::actors::ports::SourceProblem;
use crate::actors::text::plain;

use super::admin::ECHO;

/// The most bytes of what is said of one problem: a path, a field and what is wrong with it.
pub(crate) const PROBLEM: usize = 8192;

/// Why there is no such pod, as far as can be told.
pub(crate) fn unknown(explainer: &Explainer, wanted: &FullName, uid: Option<&PodUid>) -> String {
    let mut why = format!("there is no pod {}", plain(&wanted.to_string(), ECHO));
    if let Some(uid) = uid {
        why.push_str(&format!(" with UID {}", plain(&uid.to_string(), ECHO)));
    }
    why.push('\n');
    let namesakes: Vec<String> = explainer.named(wanted).iter().map(|pod| pod.uid.to_string()).collect();
    if !namesakes.is_empty() {
        why.push_str(&format!("known under this name: {}\n", plain(&namesakes.join(", "), PROBLEM)));
        return why;
    }
    let problems = explainer.problems();
    // A manifest that holds a pod already is told of where that pod is explained.
    let (naming, other): (Vec<_>, Vec<_>) = problems
        .iter()
        .filter(|problem| mentions(problem, wanted.name()) || problem.pods.is_empty())
        .partition(|problem| mentions(problem, wanted.name()));
    for problem in &naming {
        let problem = problem.to_string();
        why.push_str(&format!("a manifest that names it cannot be used: {}\n", plain(&problem, PROBLEM)));
    }
    if naming.is_empty() {
        for problem in &other {
            let problem = problem.to_string();
            why.push_str(&format!("it may be in a manifest that cannot be used: {}\n", plain(&problem, PROBLEM)));
        }
    }
    for trouble in explainer.troubles() {
        why.push_str(&format!("{}\n", plain(&trouble.detail, PROBLEM)));
    }
    // No name is longer than the echo; to look for what is near to one takes long.
    let short = wanted.as_str().len() <= ECHO;
    let near = nearest(wanted, explainer.names().into_iter().filter(|_| short));
    if !near.is_empty() {
        let near: Vec<String> = near.iter().map(ToString::to_string).collect();
        why.push_str(&format!("near to it: {}\n", near.join(", ")));
    }
    why
}

/// Whether a problem is about a pod of this name, as written or as completed with the node's name; a file that is named
/// like the pod and cannot be read at all counts too.
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

/// The names nearest to one that is not there, the nearest first: at most three, and none that has little in common.
pub(crate) fn nearest(wanted: &FullName, known: impl IntoIterator<Item = FullName>) -> Vec<FullName> {
    let mut near: Vec<(f64, FullName)> = known
        .into_iter()
        .map(|other| {
            // What people leave out is the node's name at the end.
            let likeness = match other.name().starts_with(wanted.name()) {
                true => 1.0,
                false => strsim::jaro_winkler(wanted.name(), other.name()),
            };
            let away = if other.namespace() == wanted.namespace() { 0.0 } else { 0.05 };
            (likeness - away, other)
        })
        .filter(|(likeness, _)| *likeness > 0.8)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    near.dedup();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_found_by_the_name_as_written_or_as_completed_or_by_the_file() {
        let problem =
            |what: &str, message: &str| SourceProblem { what: what.into(), message: message.into(), pods: vec![] };
        let problems = [
            problem("/m/x.yaml", "line 1: pod \"web\": x"),
            problem("/m", "pod \"we\": x"),
            problem("/m/db.yaml", "line 2: x"),
        ];
        let found = |name: &str| problems.iter().filter(|problem| mentions(problem, name)).count();
        assert_eq!(["web", "web-n1", "webber", "other", "db-n1", "x"].map(found), [1, 1, 0, 0, 1, 0]);
    }

    #[test]
    fn a_name_that_is_not_there_leads_to_near_ones() {
        let name = |name: &str| FullName::new("default", name);
        let known = || ["hello-vm", "crashloop-vm", "stubborn-vm"].map(name);
        assert_eq!(nearest(&name("hello"), known()), [name("hello-vm")]);
        assert_eq!(nearest(&name("crashlop-vm"), known()), [name("crashloop-vm")]);
        assert_eq!(nearest(&FullName::new("other", "hello-vm"), known()), [name("hello-vm")]);
        assert_eq!(nearest(&name("database"), known()), []);
    }
}
