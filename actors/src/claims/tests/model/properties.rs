//! What holds in every state.

use std::collections::{BTreeMap, BTreeSet};

use stateright::Property;

use super::{Pod, State, World, pod_uid};
use crate::claims::record::{NeededClaim, ReleaseDuty};
use crate::claims::step::Method;
use crate::ids::{ClaimName, ClaimUid, DriverName};

/// The invariants of claims.
pub(super) fn all() -> Vec<Property<World>> {
    vec![
        Property::always("a running pod has its devices", |world: &World, state: &State| {
            world.pods.iter().zip(&state.pods).filter(|(_, pod)| **pod == Pod::Running).all(|(claims, _)| {
                let parts = claims.iter().flat_map(|claim| claim.drivers.iter().map(move |driver| (driver, claim)));
                parts.into_iter().all(|(driver, claim)| state.prepared.contains(&(driver.clone(), claim.uid.clone())))
            })
        }),
        Property::always("a pod that lost devices runs only with new ones", |_, state: &State| {
            state.lost.iter().all(|(index, ..)| state.pods[*index] != Pod::Running)
        }),
        Property::always("the file has every claim that a driver has prepared", |_, state: &State| {
            let has = |(driver, uid): &(DriverName, ClaimUid)| {
                state.file.values().any(|record| record.uid == *uid && record.drivers.contains_key(driver))
            };
            state.prepared.difference(&state.may_stay).all(has)
        }),
        Property::always("a driver that got a call is not recorded as one that got none", |_, state: &State| {
            let is_unsent = |(driver, uid): &(DriverName, ClaimUid)| {
                let records = state.file.values().chain(state.table.records.values());
                let of_claim = records.filter(|record| record.uid == *uid);
                of_claim.filter_map(|r| r.drivers.get(driver)).any(|driver| driver.duty == ReleaseDuty::NotSent)
            };
            !state.prepared.difference(&state.may_stay).any(is_unsent)
        }),
        Property::always(
            "no other devices are prepared for a claim that a pod uses",
            |world: &World, state: &State| {
                let prepares = state.calls.iter().filter(|call| call.method == Method::Prepare);
                let pods = || world.pods.iter().zip(&state.pods).enumerate();
                prepares.flat_map(|call| call.claims.iter().map(move |claim| (call, claim))).all(|(call, claim)| {
                    let of = |claims: &[NeededClaim]| claims.iter().find(|one| one.uid == claim.uid).cloned();
                    let caller = state.table.operations.get(&call.operation).map(|operation| operation.pod.clone());
                    let called =
                        pods().find(|(index, _)| Some(pod_uid(*index)) == caller).and_then(|(_, (c, _))| of(c));
                    pods().filter(|(_, (_, pod))| **pod == Pod::Running).all(|(_, (claims, _))| {
                        of(claims).zip(called.as_ref()).is_none_or(|(used, called)| used.results == called.results)
                    })
                })
            },
        ),
        Property::always("calls of one driver for one claim never overlap", |_, state: &State| {
            let mut called = BTreeSet::new();
            let claims = state.calls.iter().flat_map(|call| call.claims.iter().map(move |claim| (call, claim)));
            claims.into_iter().all(|(call, claim)| called.insert((&call.driver, &claim.name)))
        }),
        Property::always("awaited calls for one claim belong to one operation", |_, state: &State| {
            let mut owners = BTreeMap::new();
            let claims = state.calls.iter().flat_map(|call| call.claims.iter().map(move |claim| (call, claim)));
            claims
                .into_iter()
                .filter(|(call, claim)| state.is_awaited(call, claim))
                .all(|(call, claim)| *owners.entry(claim.name.clone()).or_insert(call.operation) == call.operation)
        }),
        Property::always("a claim is unprepared only for its last pod", |world: &World, state: &State| {
            let unprepares = state.calls.iter().filter(|call| call.method == Method::Unprepare);
            unprepares.flat_map(|call| &call.claims).all(|claim| {
                let is_used =
                    world.pods.iter().zip(&state.pods).any(|(claims, pod)| {
                        *pod == Pod::Running && claims.iter().any(|needed| needed.uid == claim.uid)
                    });
                !is_used && state.table.record(&claim.name).is_none_or(|record| record.pods.len() <= 1)
            })
        }),
        Property::always("the file has the reference of a pod before a driver prepares for it", |_, state: &State| {
            let prepares = state.calls.iter().filter(|call| call.method == Method::Prepare);
            prepares.flat_map(|call| call.claims.iter().map(move |claim| (call, claim))).all(|(call, claim)| {
                let operation = state.table.operations.get(&call.operation);
                let Some(operation) = operation.filter(|_| state.is_awaited(call, claim)) else { return true };
                state.file.get(&claim.name).is_some_and(|record| record.pods.contains(&operation.pod))
            })
        }),
        Property::always("a pod that is gone holds nothing", |_, state: &State| {
            let gone = state.pods.iter().enumerate().filter(|(_, pod)| **pod == Pod::Gone);
            gone.into_iter().all(|(index, _)| {
                let uid = pod_uid(index);
                // After a failed write, the file may have the pod until the next write.
                let may_have = |name: &ClaimName| state.table.unsaved.contains_key(name);
                let is_in_file = state.file.iter().any(|(name, r)| r.pods.contains(&uid) && !may_have(name));
                !state.table.holds(&uid) && !is_in_file
            })
        }),
        Property::always("nothing is left after the last pod", |_, state: &State| {
            let is_over = state.pods.iter().all(|pod| *pod == Pod::Gone) && state.table.unsaved.is_empty();
            let is_prepared = state.prepared.difference(&state.may_stay).next().is_some();
            !is_over || !is_prepared && state.file.is_empty() && state.table.records.is_empty()
        }),
        Property::always("an operation that waits has something to wait for", |_, state: &State| {
            let is_idle = state.calls.is_empty() && state.saving.is_none() && !state.save_requested;
            !is_idle || state.table.operations.is_empty()
        }),
        Property::sometimes("all pods are gone", |_, state: &State| state.pods.iter().all(|pod| *pod == Pod::Gone)),
    ]
}
