//! The state machine: objects, resource versions and the history of changes. No I/O; the clock comes with each request,
//! and names and UIDs come from a seeded generator.

mod budgets;
mod certificates;
mod collect;
mod delete;
mod history;
mod pods;
mod pods_spec;
mod read;
mod reviews;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::access::{Grant, User};
use crate::authority::{Authority, LONGEST_LIFE};
use crate::call::{Call, Verb};
use crate::refusal::Refusal;
use crate::schema::{self, Resource};

pub use certificates::Approval;
pub use history::{Line, WatchStart, Write};

/// Settings of the server that its requests do not change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// ConfigMaps that every namespace has besides `kube-root-ca.crt`, each with the file that pods mount. Some
    /// distributions add one.
    pub ca_config_maps: Vec<(String, String)>,
    /// The certificate signing requests that the server approves itself.
    pub approval: Approval,
    /// The lifetime of a certificate whose request names no shorter one.
    pub certificate_life: Duration,
    /// The longest lifetime of a service account token, however long the request is. Source: the flag
    /// `--service-account-max-token-expiration` of kube-apiserver.
    pub token_life: Duration,
    /// How long the Node authorizer does not know a change of a pod. A real server needs 10 to 1,000 ms; by default, the server needs no
    /// time. In this time it refuses requests of the node for objects that the pod names.
    pub node_authorizer_delay: Duration,
    /// Whether objects are deleted once none of their owners exists.
    pub collect_garbage: bool,
    /// The changes that the server remembers. A watch that starts before them is answered with 410.
    pub history: usize,
    /// The annotation whose value is the UID of a new object. Objects without the annotation get random UIDs.
    pub uid_annotation: Option<&'static str>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ca_config_maps: Vec::new(),
            approval: Approval::default(),
            certificate_life: LONGEST_LIFE,
            token_life: Duration::from_secs(1 << 32),
            node_authorizer_delay: Duration::ZERO,
            collect_garbage: true,
            history: 100_000,
            uid_annotation: None,
        }
    }
}

/// The environment of a request: its time, its user and its client.
#[derive(Clone, Debug)]
pub struct Env {
    /// The time of the server.
    pub now: jiff::Timestamp,
    /// The user that sends the request.
    pub user: User,
    /// The part of `User-Agent` before the slash, which names the manager of fields.
    pub agent: String,
}

impl Env {
    /// The time as the API writes it, in whole seconds.
    #[must_use]
    pub fn now_text(&self) -> String {
        time_text(self.now)
    }

    /// The environment of a request by the server's own controllers.
    #[must_use]
    pub(crate) fn system(now: jiff::Timestamp, agent: &str) -> Self {
        Self { now, user: User::admin(), agent: agent.to_owned() }
    }
}

pub(crate) fn time_text(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The answer of the server.
#[derive(Debug)]
pub enum Answer {
    /// One body with a status code.
    Object(u16, Value),
    /// A stream of watch events.
    Watch(WatchStart),
}

/// The key of a stored object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) storage: &'static str,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(resource: &Resource, namespace: &str, name: &str) -> Self {
        Self { storage: resource.storage, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The order of a list, and the start of a page.
    pub(crate) fn path(&self) -> String {
        if self.namespace.is_empty() { self.name.clone() } else { format!("{}/{}", self.namespace, self.name) }
    }
}

/// One change of one object.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) key: Key,
    pub(crate) before: Option<Arc<Value>>,
    /// The object after the change. For a deletion, its last state with the version of the deletion.
    pub(crate) after: Arc<Value>,
    pub(crate) is_deletion: bool,
    pub(crate) at: jiff::Timestamp,
}

/// The objects of the cluster and their history.
#[derive(Debug)]
pub struct Store {
    pub(crate) settings: Settings,
    pub(crate) authority: Authority,
    version: u64,
    compacted: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    log: VecDeque<Change>,
    /// The version up to which the dependents of deleted objects were deleted too.
    collected: u64,
    random: fastrand::Rng,
    /// Objects by UID.
    uids: BTreeMap<String, Key>,
    /// Dependents by the UID of an owner.
    owned: BTreeMap<String, BTreeSet<Key>>,
    /// Users by bearer token.
    pub(crate) tokens: BTreeMap<String, User>,
    pub(crate) grants: Vec<Grant>,
    /// The versions up to which the events of a resource are visible, where a fault holds them back.
    pub(crate) held: BTreeMap<String, u64>,
}

impl Store {
    /// A cluster with the namespaces that every cluster has.
    #[must_use]
    pub fn new(settings: Settings, seed: u64, now: jiff::Timestamp) -> Self {
        let mut store = Self {
            settings,
            authority: Authority::new(),
            version: 1,
            compacted: 0,
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            collected: 1,
            random: fastrand::Rng::with_seed(seed),
            uids: BTreeMap::new(),
            owned: BTreeMap::new(),
            tokens: BTreeMap::new(),
            grants: crate::access::default_grants(),
            held: BTreeMap::new(),
        };
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            store.ensure_namespace(name, now);
        }
        store
    }

    /// Adds a permission of a user or a group.
    pub fn grant(&mut self, grant: Grant) {
        self.grants.push(grant);
    }

    /// The newest resource version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Answers one request.
    ///
    /// # Errors
    ///
    /// If an API server would refuse the request.
    pub fn apply(&mut self, call: &Call, env: &Env) -> Result<Answer, Refusal> {
        crate::access::check(self, &env.user, call, env.now)?;
        let answer = match (call.verb, call.subresource()) {
            (Verb::Create, _) if call.resource.review => self.review(call, env)?,
            (Verb::Create, "binding") => self.bind(call, env)?,
            (Verb::Create, "eviction") => self.evict(call, env)?,
            (Verb::Create, "token") => self.issue_token(call, env)?,
            (_, "binding" | "eviction" | "token") => return Err(Refusal::method_not_allowed()),
            (Verb::Get, _) => self.get(call)?,
            (Verb::List, _) => self.list(call)?,
            (Verb::Watch, _) => self.watch(call)?,
            (Verb::Create, "") => self.create(call, env)?,
            (Verb::Update | Verb::Patch, _) => self.update(call, env)?,
            (Verb::Delete, "") => self.delete(call, env)?,
            (Verb::DeleteCollection, _) => self.delete_collection(call, env)?,
            (Verb::Create | Verb::Delete, _) => return Err(Refusal::method_not_allowed()),
        };
        self.collect_garbage(env.now);
        self.sign_requests(env.now);
        Ok(answer)
    }

    /// Refuses a write that a node may not do. `live` is the object before the write, and `object` is the object after it.
    pub(crate) fn restrict(
        &self,
        call: &Call,
        env: &Env,
        live: Option<&Value>,
        object: Option<&Value>,
    ) -> Result<(), Refusal> {
        match env.user.node_name() {
            Some(node) => crate::access::restrict_node(self, node, call, live, object),
            None => Ok(()),
        }
    }

    /// The object at a path of the store.
    pub(crate) fn object(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects.get(&Key::new(resource, namespace, name)).cloned()
    }

    /// One object, by the plural of its resource.
    #[must_use]
    pub fn find(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.object(schema::stored(plural)?, namespace, name)
    }

    /// All objects of a resource, in the order of a list.
    pub fn all(&self, plural: &str) -> impl Iterator<Item = &Arc<Value>> + use<'_> {
        let storage = schema::stored(plural).map_or("", |resource| resource.storage);
        self.stored(storage).map(|(_, object)| object)
    }

    fn stored(&self, storage: &'static str) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        let first = Key { storage, namespace: String::new(), name: String::new() };
        self.objects.range(first..).take_while(move |(key, _)| key.storage == storage)
    }

    /// Stores an object under the next version.
    pub(crate) fn put(&mut self, resource: &Resource, mut object: Value, at: jiff::Timestamp) -> Arc<Value> {
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        let key = Key::new(resource, &text("namespace"), &text("name"));
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let after = Arc::new(object);
        let before = self.objects.insert(key.clone(), after.clone());
        if let Some(before) = &before {
            self.unindex(&key, before);
        }
        self.uids.insert(uid_of(&after["metadata"]), key.clone());
        for owner in after["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
            self.owned.entry(uid_of(owner)).or_default().insert(key.clone());
        }
        self.log(Change { version: self.version, key, before, after: after.clone(), is_deletion: false, at });
        after
    }

    /// Removes an object. Returns its last state, with the version of the deletion.
    pub(crate) fn remove(&mut self, key: &Key, at: jiff::Timestamp) -> Option<Arc<Value>> {
        let before = self.objects.remove(key)?;
        self.unindex(key, &before);
        self.version += 1;
        let mut last = Value::clone(&before);
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let after = Arc::new(last);
        let change = Change {
            version: self.version,
            key: key.clone(),
            before: Some(before),
            after: after.clone(),
            is_deletion: true,
            at,
        };
        self.log(change);
        Some(after)
    }

    fn unindex(&mut self, key: &Key, object: &Value) {
        self.uids.remove(&uid_of(&object["metadata"]));
        for owner in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
            if let Some(keys) = self.owned.get_mut(&uid_of(owner)) {
                keys.remove(key);
            }
        }
    }

    fn log(&mut self, change: Change) {
        self.log.push_back(change);
        while self.log.len() > self.settings.history {
            self.compacted = self.log.pop_front().map_or(self.compacted, |change| change.version);
        }
    }

    /// Forgets the history, so that watches and pages of older versions are answered with 410.
    pub fn compact(&mut self) {
        self.log.clear();
        self.compacted = self.version;
    }

    /// Five letters and digits, as `generateName` appends them. Vowels and similar letters are left out, as upstream does.
    fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(LETTERS[self.random.usize(..LETTERS.len())])).collect()
    }

    pub(crate) fn uid(&mut self) -> String {
        let (high, low) = (self.random.u64(..), self.random.u64(..));
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 50) & 0x3fff,
            low & 0xffff_ffff_ffff
        )
    }
}

fn uid_of(value: &Value) -> String {
    value["uid"].as_str().unwrap_or_default().to_owned()
}
