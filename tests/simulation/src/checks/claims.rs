//! Checks of claims: nothing leaks, no status ends before its claims are released, and waiting pods say what they wait for.

use std::time::Duration;

use podwright_actors::node::NodeHandle;
use podwright_core::pod_worker::WaitFor;
use podwright_model::ids::{FullName, PodUid};

use super::CheckResult;
use crate::devices::stored_claims;
use crate::disk::Disk;
use crate::machine::{Agent, Machine};

/// How long an agent may take to show why a pod waits.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(1);

/// What drivers have prepared is in the file, and every pod whose claim a driver fails says so.
pub(crate) fn claims(machine: &Machine, agent: &Agent, node: &NodeHandle, disk: &Disk) -> CheckResult {
    let file = stored_claims(&disk.claims().records());
    machine.with_devices(|devices| devices.are_stored(&file))?;
    let now = machine.clock.steady();
    for (claim, failed) in machine.with_devices(|devices| devices.failed_calls().clone()) {
        // Another pod of a shared claim may have made the call.
        let users = file.values().filter(|stored| stored.uid == claim && stored.pods.len() == 1);
        let Some(uid) = users.flat_map(|stored| &stored.pods).next() else { continue };
        let Some(snapshot) = agent.engine.snapshot(uid).filter(|_| now.since(failed.at) > EXPLAINED_WITHIN) else {
            continue;
        };
        let driver = failed.driver.as_str();
        // The hook may have failed for another reason since.
        if !matches!(&snapshot.wait.what, WaitFor::Retry { error, .. } if error.contains(driver)) {
            continue;
        }
        let name = FullName::new("sim", uid.to_string().split('-').next().unwrap_or_default());
        let text = node.explainer().explain(&name, Some(uid), &|_| Vec::new()).map(|text| text.to_string());
        // A later call, in the other direction, may not have reached the driver.
        let says_why = |line: &str| line.contains(" not prepared: ") || line.contains(" not released: ");
        if !text.iter().flat_map(|text| text.lines()).any(|line| says_why(line) && line.contains(driver)) {
            return Err(format!(
                "{uid}: its explanation does not name {driver}, whose {:?} of {claim} failed: {failed:?}, {text:?}",
                failed.op
            ));
        }
    }
    Ok(())
}

/// The API server receives a terminal phase of a pod: the control plane may give its devices to another pod now.
pub(crate) fn claims_are_released(machine: &Machine, disk: &Disk, uid: &PodUid) -> CheckResult {
    let file = stored_claims(&disk.claims().records());
    for plan in machine.scenario.claims_of(uid) {
        let is_only_user = file
            .get(&plan.claim_name())
            .is_some_and(|stored| stored.uid == plan.uid(uid) && stored.pods.len() == 1 && stored.pods.contains(uid));
        let prepared =
            plan.parts(uid).into_iter().find(|part| machine.with_devices(|devices| devices.is_prepared(part)));
        if let Some((claim, driver)) = prepared.filter(|_| is_only_user) {
            return Err(format!("{uid}: the API server receives its end while {driver} has {claim} prepared for it"));
        }
    }
    Ok(())
}

/// After the last pod, no driver has a device prepared, and neither the agent nor its file knows a claim.
pub(super) fn all_claims_are_released(machine: &Machine, agent: &Agent, disk: &Disk) -> CheckResult {
    machine.with_devices(|devices| devices.are_all_released())?;
    if let Some((name, claim)) = stored_claims(&disk.claims().records()).first_key_value() {
        return Err(format!("the file still has the claim {name}: {claim:?}"));
    }
    agent.claims.read(|table| match table.records().first_key_value() {
        Some((name, record)) => Err(format!("the agent still knows the claim {name}: {record:?}")),
        None => Ok(()),
    })
}
