//! The history of changes: earlier states, and the events of watches.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Answer, Change, Key, Store};
use crate::call::Call;
use crate::convert;
use crate::raw;
use crate::refusal::Refusal;
use crate::schema::{self, Resource};
use crate::selector::Selector;

/// The change that a request makes to one object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Write {
    /// The plural of the resource.
    pub resource: &'static str,
    /// The object before the request; none if the request has created it.
    pub before: Option<Arc<Value>>,
    /// The object after the request; none if the request has removed it.
    pub after: Option<Arc<Value>>,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub event: &'static str,
    /// The object.
    pub object: Value,
}

/// A watch that the server accepted.
#[derive(Clone, Debug)]
pub struct WatchStart {
    /// The resource.
    pub resource: &'static Resource,
    namespace: Option<String>,
    selector: Selector,
    /// The events before the first change.
    pub initial: Vec<Line>,
    /// The version after which changes are sent.
    pub cursor: u64,
    /// Whether the client accepts bookmarks.
    pub bookmarks: bool,
    /// The seconds after which the server ends the watch.
    pub timeout_seconds: Option<u64>,
}

impl WatchStart {
    /// A bookmark at the cursor.
    #[must_use]
    pub fn bookmark(&self, ends_initial_events: bool) -> Line {
        let mut object = self.resource.zero_object();
        object["metadata"]["resourceVersion"] = json!(self.cursor.to_string());
        if ends_initial_events {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        Line { event: "BOOKMARK", object }
    }

    /// The event of a change for this watch. A change may move an object into or out of the selector.
    fn line(&self, change: &Change) -> Option<Line> {
        if change.key.storage != self.resource.storage
            || self.namespace.as_ref().is_some_and(|namespace| *namespace != change.key.namespace)
        {
            return None;
        }
        let after = convert::view(self.resource, &change.after);
        let was =
            change.before.as_ref().is_some_and(|object| self.selector.matches(&convert::view(self.resource, object)));
        let is = !change.is_deletion && self.selector.matches(&after);
        let event = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        // An object that leaves the selector is sent in the last state that matched, with the version of the change.
        let object = match &change.before {
            Some(before) if event == "DELETED" && !change.is_deletion => {
                let mut last = convert::outward(self.resource, before);
                last["metadata"]["resourceVersion"] = after["metadata"]["resourceVersion"].clone();
                last
            }
            _ => after.into_owned(),
        };
        Some(Line { event, object })
    }
}

impl Store {
    pub(super) fn watch(&self, call: &Call) -> Result<Answer, Refusal> {
        let query = &call.query;
        let selector = Selector::parse(call.resource, query.get("fieldSelector"), query.get("labelSelector"))?;
        let requested = query.number("resourceVersion")?.unwrap_or(0);
        let sends_initial = query.get("sendInitialEvents");
        if !sends_initial.is_empty() && query.get("resourceVersionMatch") != "NotOlderThan" {
            return Err(Refusal::plain(
                422,
                "Invalid",
                "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires \
                 setting resourceVersionMatch to NotOlderThan",
            ));
        }
        let is_list = query.is_true("sendInitialEvents") || (requested == 0 && sends_initial.is_empty());
        if is_list && requested > self.version() {
            return Err(Refusal::too_large_version(requested, self.version()));
        }
        // A streaming list without a version shows the newest objects, and not those of the cache.
        let is_newest = query.is_true("sendInitialEvents") && query.get("resourceVersion").is_empty();
        let visible =
            if is_newest { self.version() } else { self.visible(call.resource).max(requested.min(self.version())) };
        let mut start = WatchStart {
            resource: call.resource,
            namespace: call.namespace.clone(),
            selector,
            initial: Vec::new(),
            cursor: if is_list || requested == 0 { visible } else { requested },
            bookmarks: query.is_true("allowWatchBookmarks"),
            timeout_seconds: query.number("timeoutSeconds")?,
        };
        if is_list {
            let state = self.state_at(call.resource, call.namespace.as_deref(), start.cursor);
            let objects = state.iter().map(|(_, object)| convert::view(call.resource, object));
            start.initial = objects
                .filter(|object| start.selector.matches(object))
                .map(|object| Line { event: "ADDED", object: object.into_owned() })
                .collect();
            if start.bookmarks {
                let bookmark = start.bookmark(true);
                start.initial.push(bookmark);
            }
        }
        Ok(Answer::Watch(start))
    }

    /// The events after the cursor of a watch that are visible at `now`, and the version up to which they are complete.
    ///
    /// # Errors
    ///
    /// If the history does not reach back to the cursor any more.
    pub fn events(
        &self,
        watch: &WatchStart,
        lag: jiff::SignedDuration,
        now: jiff::Timestamp,
    ) -> Result<(Vec<Line>, u64), Refusal> {
        let visible = self.visible(watch.resource);
        if watch.cursor < self.compacted && watch.cursor < visible {
            let message = format!("too old resource version: {} ({})", watch.cursor, self.compacted);
            return Err(Refusal::expired(message));
        }
        let first = self.log.partition_point(|change| change.version <= watch.cursor);
        let mut cursor = watch.cursor;
        let mut lines = Vec::new();
        for change in self.log.range(first..) {
            if change.version > visible || now.duration_since(change.at) < lag {
                return Ok((lines, cursor));
            }
            lines.extend(watch.line(change));
            cursor = change.version;
        }
        Ok((lines, cursor.max(visible)))
    }

    /// What has changed after a version.
    pub(crate) fn writes_since(&self, version: u64) -> Vec<Write> {
        let first = self.log.partition_point(|change| change.version <= version);
        let mut writes: BTreeMap<&Key, Write> = BTreeMap::new();
        for change in self.log.range(first..) {
            let before = || change.before.clone().map(raw::opened);
            let new = || Write { resource: change.key.storage, before: before(), after: None };
            let after = (!change.is_deletion).then(|| raw::opened(change.after.clone()));
            writes.entry(&change.key).or_insert_with(new).after = after;
        }
        writes.into_values().collect()
    }

    /// The version up to which the changes of a resource are visible to watches.
    pub(super) fn visible(&self, resource: &Resource) -> u64 {
        self.held.get(resource.storage).copied().unwrap_or(self.version)
    }

    /// The oldest version that can still be read.
    pub(super) fn oldest(&self) -> u64 {
        self.compacted
    }

    /// The pods of a namespace as the Node authorizer knows them.
    pub(crate) fn pods_of_authorizer(&self, namespace: &str, now: jiff::Timestamp) -> Vec<Arc<Value>> {
        let delay = self.settings.node_authorizer_delay;
        if delay.is_zero() {
            let pods = self.all("pods").filter(|pod| pod["metadata"]["namespace"] == namespace);
            return pods.cloned().collect();
        }
        let delay = jiff::SignedDuration::try_from(delay).unwrap_or(jiff::SignedDuration::MAX);
        let is_known = |change: &Change| now.duration_since(change.at) >= delay;
        let version = match self.log.partition_point(is_known).checked_sub(1) {
            Some(last) => self.log[last].version,
            None => self.compacted,
        };
        let pods = schema::stored("pods").expect("the table has pods");
        self.state_at(pods, Some(namespace), version).into_iter().map(|(_, pod)| pod).collect()
    }

    /// The objects of a resource as they were at a version, in the order of a list.
    pub(super) fn state_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        version: u64,
    ) -> Vec<(Key, Arc<Value>)> {
        let is_meant =
            |key: &Key| key.storage == resource.storage && namespace.is_none_or(|namespace| namespace == key.namespace);
        let objects = self.stored(resource.storage).filter(|(key, _)| is_meant(key));
        let mut state: BTreeMap<Key, Arc<Value>> = objects.map(|(key, object)| (key.clone(), object.clone())).collect();
        for change in self.log.iter().rev().take_while(|change| change.version > version) {
            if is_meant(&change.key) {
                match &change.before {
                    Some(before) => state.insert(change.key.clone(), before.clone()),
                    None => state.remove(&change.key),
                };
            }
        }
        let mut state: Vec<_> = state.into_iter().collect();
        state.sort_by_cached_key(|(key, _)| key.path());
        state
    }
}
