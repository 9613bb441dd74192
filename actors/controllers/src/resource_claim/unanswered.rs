//! The creates whose results are not known. The server may have performed them, or may still perform them.
//!
//! When a create is sent, the server has no earlier claim of the same entry. So a claim that the server has after that is the result of the
//! create, and a list or a read shows it. A claim that only the watch shows may be an earlier one, whose deletion the watch shows later.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_model::time::Time;

use super::keys::ObjectKey;
use super::owners::{Owner, OwnerId, OwnerKind};

/// How long the server may still perform a create after its answer was lost. etcd gives a request up after 7 s: 5 s, and twice the
/// election timeout of 1 s (`ServerConfig.ReqTimeout`, etcd 3.5). The other 3 s are for the API server, which gives a request up when
/// it notices that the connection is closed.
pub(super) const SETTLES_AFTER: Duration = Duration::from_secs(10);
/// At the end of a term, an unanswered create that is older than this is forgotten.
const LONGEST: Duration = Duration::from_secs(3600);

/// The creates of a controller whose results are not known. The next term of this process begins with those of the last one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnansweredCreates(BTreeMap<(OwnerId, String), UnansweredCreate>);

#[derive(Clone, Debug, PartialEq)]
struct UnansweredCreate {
    owner: ObjectKey,
    /// When the create was sent, or when its answer was lost.
    since: Time,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The call runs, or was dropped.
    InFlight,
    /// The call has ended without a result.
    Unknown,
    /// A list did not show the claim. The server may still create it.
    NotListed,
}

/// What settles an unanswered create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settling {
    /// A list from the server.
    List,
    /// A list that is sent after this time.
    Wait(Duration),
}

impl Settling {
    /// How long until a list can settle the create.
    pub(super) fn delay(self) -> Duration {
        match self {
            Settling::List => Duration::ZERO,
            Settling::Wait(left) => left,
        }
    }
}

impl UnansweredCreates {
    /// A create is sent. Until its result is known, the controller assumes that the server may perform it.
    pub(super) fn sent(&mut self, owner: &Owner, entry: &str, now: Time) {
        let create = UnansweredCreate { owner: owner.key(), since: now, state: State::InFlight };
        self.0.insert((owner.id(), entry.to_owned()), create);
    }

    /// The call has ended, and its result is not known.
    pub(super) fn lost(&mut self, owner: &OwnerId, entry: &str, now: Time) {
        // During the call, the owner may have been deleted, or the pass of a pod of the group may have read the claim. Then the create was
        // forgotten already, and nothing needs its result.
        if let Some(create) = self.0.get_mut(&(owner.clone(), entry.to_owned())) {
            (create.since, create.state) = (now, State::Unknown);
        }
    }

    /// The owner has another pass. A call that is still in flight is that of a pass that was dropped at some time before.
    pub(super) fn dropped(&mut self, owner: &OwnerId, entry: &str, now: Time) {
        let create = self.0.get_mut(&(owner.clone(), entry.to_owned()));
        if let Some(create) = create.filter(|create| create.state == State::InFlight) {
            (create.since, create.state) = (now, State::Unknown);
        }
    }

    /// The result is known.
    pub(super) fn settled(&mut self, owner: &OwnerId, entry: &str) {
        self.0.remove(&(owner.clone(), entry.to_owned()));
    }

    /// A read that was sent at this time or later has found a claim of the entry.
    pub(super) fn found(&mut self, owner: &OwnerId, entry: &str, sent: Time) {
        let key = (owner.clone(), entry.to_owned());
        // A create that was sent later than the read is another one.
        if self.0.get(&key).is_some_and(|create| create.since <= sent) {
            self.0.remove(&key);
        }
    }

    /// All claims of a namespace, or of all namespaces, were listed, with a request that was sent at this time or later. `has_claim` says
    /// whether the list has a claim of an entry. Returns the pods and groups whose creates this settles or moves on. If the list has the
    /// claim of a create, the pass of its owner must find the claim among the known or the remembered ones.
    pub(super) fn listed(
        &mut self,
        namespace: Option<&str>,
        sent: Time,
        has_claim: impl Fn(&OwnerId, &str) -> bool,
    ) -> Vec<(OwnerId, ObjectKey)> {
        let mut owners = Vec::new();
        self.0.retain(|(id, entry), create| {
            let is_elsewhere = namespace.is_some_and(|namespace| namespace != id.namespace);
            // The list does not show what becomes of a create that is still in flight, or whose answer was lost after the list was sent.
            if is_elsewhere || create.state == State::InFlight || sent < create.since {
                return true;
            }
            let is_settled = sent.since(create.since) >= SETTLES_AFTER || has_claim(id, entry);
            if is_settled || create.state != State::NotListed {
                owners.push((id.clone(), create.owner.clone()));
            }
            create.state = State::NotListed;
            !is_settled
        });
        owners
    }

    /// What settles the create for an entry. `None` if the results of all its creates are known.
    pub(super) fn settling(&self, owner: &OwnerId, entry: &str, now: Time) -> Option<Settling> {
        let create = self.0.get(&(owner.clone(), entry.to_owned()))?;
        let left = SETTLES_AFTER.saturating_sub(now.since(create.since));
        Some(match create.state {
            State::NotListed if !left.is_zero() => Settling::Wait(left),
            State::InFlight | State::Unknown | State::NotListed => Settling::List,
        })
    }

    /// The owner is gone.
    pub(super) fn owner_gone(&mut self, owner: &OwnerId) {
        self.0.retain(|(id, _), _| id != owner);
    }

    /// The creates that the next term must know. The wait for those that were in flight begins now.
    pub(super) fn at_end_of_term(&self, now: Time) -> Self {
        let at_end = |(key, create): (&(OwnerId, String), &UnansweredCreate)| {
            let since = if create.state == State::InFlight { now } else { create.since };
            // The watch of the next term begins with a list.
            (key.clone(), UnansweredCreate { owner: create.owner.clone(), since, state: State::NotListed })
        };
        let mut creates: BTreeMap<_, _> = self.0.iter().map(at_end).collect();
        creates.retain(|_, create| now.since(create.since) <= LONGEST);
        UnansweredCreates(creates)
    }

    /// Whether the server may still perform one of the creates.
    pub fn may_be_performed(&self, now: Time) -> bool {
        self.0.values().any(|create| now.since(create.since) < SETTLES_AFTER)
    }

    /// The pods and groups with the names of the claims in their specs.
    pub fn entries(&self) -> impl Iterator<Item = (OwnerKind, &ObjectKey, &str)> {
        self.0.iter().map(|((id, entry), create)| (id.kind, &create.owner, &**entry))
    }

    /// The number of creates.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the results of all creates are known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
