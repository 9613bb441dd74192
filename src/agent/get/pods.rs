//! `podwright get pods`: selects pods of a running agent, and prints or watches them.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::rows::{WatchedRows, table};
use super::{JSON, QueryError};
use crate::agent::cli::{GetArgs, GetOutput, ObjectName};
use crate::agent::client::{Agent, RequestError, escape_lines};
use crate::agent::pod_names::{is_named, similar_names};
use podwright_model::ids::FullName;
use podwright_model::pod::PodObject;
use podwright_ports::{Clock, SystemClock};

const PATH: &str = "/pods";
/// How often a watched list is fetched.
const PERIOD: Duration = Duration::from_secs(1);

/// The output of `get`.
///
/// # Errors
/// [`QueryError`] if the agent does not answer, if it answers with something else, or if it has no pod of a name.
pub(crate) fn get(args: &GetArgs) -> Result<String, QueryError> {
    let agent = args.agent.agent()?;
    let body = agent.fetch(PATH, &[], JSON)?;
    let mut list = PodList::parse(&body).ok_or_else(|| agent.not_podwright())?;
    list.select(args, |name| without_object(&agent, name, args.namespace()))?;
    match args.output {
        GetOutput::Json => Ok(serde_json::to_string_pretty(&list.object(args)).map_err(|_| agent.not_podwright())?),
        GetOutput::Yaml => {
            let text = serde_saphyr::to_string(&list.object(args)).map_err(|_| agent.not_podwright())?;
            Ok(text.trim_end().to_owned())
        }
        GetOutput::Table | GetOutput::Wide => {
            Ok(table(&list.pods(), SystemClock::new().now(), args.output == GetOutput::Wide).join("\n"))
        }
    }
}

/// Prints the table of the pods, and then the row of each pod that changes. It ends without an error if the reader closes standard
/// output (`| head`).
///
/// # Errors
/// As [`get`], and once the agent ends.
pub(crate) fn watch(args: &GetArgs) -> Result<(), QueryError> {
    let agent = args.agent.agent()?;
    let mut rows: Option<WatchedRows> = None;
    agent.poll(PATH, JSON, PERIOD, |body| {
        let mut list = PodList::parse(body).ok_or_else(|| agent.not_podwright())?;
        let (now, is_wide) = (SystemClock::new().now(), args.output == GetOutput::Wide);
        let lines = match &mut rows {
            None => {
                list.select(args, |_| Ok(Vec::new()))?;
                rows = Some(WatchedRows::new(&list.pods(), now, is_wide));
                table(&list.pods(), now, is_wide)
            }
            Some(rows) => {
                list.retain(args);
                rows.changes(&list.pods(), now)
            }
        };
        let mut out = io::stdout().lock();
        Ok(lines.iter().try_for_each(|line| writeln!(out, "{line}")).is_ok())
    })
}

/// The containers of a pod, in the order in which they start. Empty if the agent has no such pod.
///
/// # Errors
/// [`RequestError`] if the agent does not answer with a list of pods.
pub(super) fn containers(agent: &Agent, name: &FullName, uid: Option<&str>) -> Result<Vec<String>, RequestError> {
    let list = PodList::parse(&agent.fetch(PATH, &[], JSON)?).ok_or_else(|| agent.not_podwright())?;
    let pods = list.pods();
    let has_uid = |pod: &PodObject| uid.is_none_or(|uid| pod.uid().to_string() == uid);
    let mut meant = pods.iter().filter(|pod| pod.full_name().namespace() == name.namespace() && has_uid(pod));
    let exact = meant.clone().find(|pod| pod.full_name() == name);
    let Some(pod) = exact.or_else(|| meant.find(|pod| is_named(pod, name.name()))) else { return Ok(Vec::new()) };
    let regular = pod.init_containers().iter().chain(pod.containers()).map(|container| container.name.clone());
    Ok(regular.chain(pod.ephemeral_containers().iter().map(|container| container.name.clone())).collect())
}

/// The full names of the pods that a user may mean by a name, that the agent knows and that no source has. A name without a namespace means
/// the pods of `namespace`, or without one those of all namespaces.
///
/// # Errors
/// [`RequestError`] if the agent does not answer which pods it knows.
fn without_object(agent: &Agent, name: &ObjectName, namespace: Option<&str>) -> Result<Vec<FullName>, RequestError> {
    let namespaces = match name.namespace().or(namespace) {
        Some(namespace) => BTreeSet::from([namespace.to_owned()]),
        None => {
            let known = agent.fetch("/explain", &[], JSON)?;
            namespaces(&known, name.name()).ok_or_else(|| agent.not_podwright())?
        }
    };
    let named = |namespace: &String| explained_without_object(agent, &name.in_namespace(Some(namespace))).transpose();
    namespaces.iter().filter_map(named).collect()
}

/// The namespaces of the pods in a list of `/explain` that may have a name. The agent knows which of the pods a user means: the name of a
/// static pod may omit the node name at its end. `None` if the text is no list.
fn namespaces(known: &str, name: &str) -> Option<BTreeSet<String>> {
    let pods: Vec<Value> = serde_json::from_str(known).ok()?;
    let is_similar = |pod: &&Value| pod["name"].as_str().is_some_and(|own| own.starts_with(name));
    Some(pods.iter().filter(is_similar).filter_map(|pod| pod["namespace"].as_str().map(str::to_owned)).collect())
}

/// The full name of a pod that the agent knows and that no source has. `None` if there is none.
///
/// # Errors
/// [`RequestError`] if the agent does not answer whether it knows the pod.
fn explained_without_object(agent: &Agent, name: &FullName) -> Result<Option<FullName>, RequestError> {
    let explanation = match agent.fetch(&format!("/explain/{name}"), &[], JSON) {
        Ok(explanation) => explanation,
        Err(RequestError::NotFound(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let explanation: Value = serde_json::from_str(&explanation).map_err(|_| agent.not_podwright())?;
    // A source delivered the pod after the list was made.
    if explanation.get("source").is_some() {
        return Ok(None);
    }
    match (explanation["namespace"].as_str(), explanation["name"].as_str()) {
        (Some(namespace), Some(name)) => Ok(Some(FullName::new(namespace, name))),
        _ => Err(agent.not_podwright()),
    }
}

/// A `v1.PodList` of an agent.
struct PodList {
    /// The list without its items.
    list: Value,
    /// Each item with its pod. An item without one has no row.
    items: Vec<(Value, Option<Arc<PodObject>>)>,
}

impl PodList {
    /// `None` if the text is no list of pods.
    fn parse(body: &str) -> Option<Self> {
        let mut list: Value = serde_json::from_str(body).ok()?;
        let items = list.get_mut("items")?.as_array_mut()?;
        let pod = |item: &Value| PodObject::new(serde_json::from_value::<Pod>(item.clone()).ok()?).ok();
        let listed = |item: Value| {
            let pod = pod(&item);
            (item, pod)
        };
        let items = items.drain(..).map(listed).collect();
        Some(PodList { list, items })
    }

    fn pods(&self) -> Vec<Arc<PodObject>> {
        self.items.iter().filter_map(|(_, pod)| pod.clone()).collect()
    }

    /// Leaves the selected pods. `without_object` finds the pods that are not in the list because they have no object.
    ///
    /// # Errors
    /// [`QueryError::UnknownPods`] if the list has no pod of a name. The error of `without_object`.
    fn select(
        &mut self,
        args: &GetArgs,
        without_object: impl Fn(&ObjectName) -> Result<Vec<FullName>, RequestError>,
    ) -> Result<(), QueryError> {
        let pods = self.pods();
        let is_unknown = |name: &&ObjectName| !pods.iter().any(|pod| is_meant(name, args.namespace(), pod));
        let mut why = Vec::new();
        for name in args.names.iter().filter(is_unknown) {
            match &without_object(name)?[..] {
                [] => why.push(unknown(name, args, &pods)),
                known => why.extend(known.iter().map(no_object)),
            }
        }
        if !why.is_empty() {
            return Err(QueryError::UnknownPods(why.join("\n")));
        }
        self.retain(args);
        Ok(())
    }

    fn retain(&mut self, args: &GetArgs) {
        let namespace = args.namespace();
        let is_selected = |pod: &PodObject| match &args.names[..] {
            [] => namespace.is_none_or(|namespace| namespace == pod.full_name().namespace()),
            names => names.iter().any(|name| is_meant(name, namespace, pod)),
        };
        let has_selection = namespace.is_some() || !args.names.is_empty();
        self.items.retain(|(_, pod)| pod.as_ref().map_or(!has_selection, |pod| is_selected(pod)));
    }

    /// The list as the API has it. One pod that was named is an object of its own.
    fn object(mut self, args: &GetArgs) -> Value {
        if let ([_], [(item, _)]) = (&args.names[..], &mut self.items[..]) {
            let mut pod = item.take();
            pod["apiVersion"] = "v1".into();
            pod["kind"] = "Pod".into();
            return pod;
        }
        self.list["items"] = self.items.into_iter().map(|(item, _)| item).collect();
        self.list
    }
}

/// Whether a pod has this name. A name without a namespace means the pods of `namespace`, or without one those of all namespaces.
fn is_meant(name: &ObjectName, namespace: Option<&str>, pod: &PodObject) -> bool {
    let namespace = name.namespace().or(namespace);
    namespace.is_none_or(|namespace| namespace == pod.full_name().namespace()) && is_named(pod, name.name())
}

/// The text for a pod without an object.
fn no_object(pod: &FullName) -> String {
    escape_lines(&format!("no source has the pod {pod}: `podwright explain {pod}` says what happens to it"))
}

fn unknown(name: &ObjectName, args: &GetArgs, pods: &[Arc<PodObject>]) -> String {
    let full_name = name.in_namespace(args.namespace());
    let similar = similar_names(&full_name, pods.iter().map(|pod| pod.full_name().clone()));
    let namespace = name.namespace().or(args.namespace()).map(|namespace| format!("{namespace}/"));
    let mut why = format!("there is no pod {}{}", namespace.unwrap_or_default(), name.name());
    if !similar.is_empty() {
        let similar: Vec<String> = similar.iter().map(ToString::to_string).collect();
        why.push_str(&format!("\nsimilar names: {}", similar.join(", ")));
    }
    escape_lines(&why)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::agent::cli::{Command, parse};

    use super::*;

    const LIST: &str = r#"{"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [
        {"metadata": {"name": "web-n1", "namespace": "default", "uid": "1", "annotations": {"kubernetes.io/config.source": "file"}},
         "spec": {"containers": [{"name": "c", "args": ["yes", "a\u001bb", "one\ntwo"]}], "nodeName": "n1"}},
        {"metadata": {"name": "web", "namespace": "shop", "uid": "2"}, "spec": {"containers": []}},
        {"metadata": {"name": "db", "namespace": "shop", "uid": "3"}, "spec": {"containers": []}},
        {"metadata": {}}]}"#;

    fn args(words: &[&str]) -> GetArgs {
        match parse(["podwright", "get", "pods"].iter().chain(words)).unwrap().command {
            Command::Get(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn selected(words: &[&str]) -> Result<Vec<String>, String> {
        let mut list = PodList::parse(LIST).unwrap();
        list.select(&args(words), |_| Ok(Vec::new())).map_err(|error| error.to_string())?;
        Ok(list.pods().iter().map(|pod| pod.full_name().to_string()).collect())
    }

    #[test]
    fn pods_are_selected_by_namespace_and_name() {
        for (words, expected) in [
            (&["-A"][..], &["default/web-n1", "shop/web", "shop/db"][..]),
            (&[], &["default/web-n1", "shop/web", "shop/db"]),
            (&["-n", "shop"], &["shop/web", "shop/db"]),
            (&["-n", "none"], &[]),
            (&["web"], &["default/web-n1", "shop/web"]),
            (&["web", "-n", "shop"], &["shop/web"]),
            (&["default/web", "shop/db"], &["default/web-n1", "shop/db"]),
        ] {
            assert_eq!(selected(words).unwrap(), expected, "{words:?}");
        }
        assert_eq!(selected(&["we", "db"]).unwrap_err(), "there is no pod we\nsimilar names: default/web-n1, shop/web");
        assert_eq!(
            selected(&["db", "-n", "default"]).unwrap_err(),
            "there is no pod default/db\nsimilar names: shop/db"
        );
    }

    #[test]
    fn pod_without_an_object_is_no_unknown_pod() {
        let removed = |name: &ObjectName| match name.name() {
            "job" => Ok(["default", "shop"].map(|namespace| FullName::new(namespace, "job-n1")).to_vec()),
            _ => Ok(Vec::new()),
        };
        let error = PodList::parse(LIST).unwrap().select(&args(&["job", "db", "none"]), removed).unwrap_err();
        let expected = "no source has the pod default/job-n1: `podwright explain default/job-n1` says what happens to it\n\
                        no source has the pod shop/job-n1: `podwright explain shop/job-n1` says what happens to it\n\
                        there is no pod none";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn name_is_looked_up_in_the_namespaces_of_the_known_pods_that_may_have_it() {
        let pod = |namespace: &str, name: &str| json!({"namespace": namespace, "name": name});
        let known =
            json!([pod("kube-system", "etcd-n1"), pod("default", "etcd"), pod("shop", "db"), pod("shop", "db-1")]);
        let found = |name| namespaces(&known.to_string(), name).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(found("etcd"), ["default", "kube-system"]);
        assert_eq!(found("db"), ["shop"]);
        assert!(found("none").is_empty());
        assert_eq!((namespaces("{}", "db"), namespaces("no list", "db")), (None, None));
    }

    #[test]
    fn one_named_pod_is_printed_without_a_list() {
        let object = |words: &[&str]| {
            let (mut list, args) = (PodList::parse(LIST).unwrap(), args(words));
            list.select(&args, |_| Ok(Vec::new())).unwrap();
            list.object(&args)
        };
        let (all, one, two) = (object(&[]), object(&["db"]), object(&["web"]));
        assert_eq!((all["items"].as_array().unwrap().len(), &all["kind"]), (4, &"PodList".into()));
        assert_eq!(
            (&one["kind"], &one["apiVersion"], &one["metadata"]["uid"]),
            (&"Pod".into(), &"v1".into(), &"3".into())
        );
        assert_eq!((two["items"].as_array().unwrap().len(), &two["kind"]), (2, &"PodList".into()));
        let yaml = serde_saphyr::to_string(&all).unwrap();
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), all);
        assert!(!yaml.contains('\u{1b}'), "a terminal gets no control characters: {yaml}");
    }
}
