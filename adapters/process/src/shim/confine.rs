//! Confines the process that becomes a container's command.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use super::super::record::Confinement;

/// Limits the capabilities that this process and its children can get. Call this before the change of user, because another
/// user does not have the right to limit them.
///
/// The capabilities of a process of root after its next `exec` are its bounding set and its inheritable set.
pub(super) fn limit_capabilities(confinement: &Confinement) -> Result<(), String> {
    let failed = |error: Errno| match error {
        Errno::PERM => "cannot limit the capabilities: run the agent with CAP_SETPCAP".to_owned(),
        error => format!("cannot limit the capabilities: {error}"),
    };
    let Some(bits) = confinement.capabilities else {
        // In a user namespace, this process has capabilities that only the set-up of the container needs.
        return if rustix::process::geteuid().is_root() { Ok(()) } else { pass_on_none().map_err(failed) };
    };
    limit_bounding_set(CapabilitySet::from_bits_retain(bits)).and_then(|()| pass_on_none()).map_err(failed)
}

/// Gives up the capabilities that the container does not have. Must come after the change of user, which needs some of them.
pub(super) fn give_up_capabilities(confinement: &Confinement) -> Result<(), String> {
    let Some(kept) = confinement.capabilities.map(CapabilitySet::from_bits_retain) else { return Ok(()) };
    capabilities(None)
        .and_then(|own| {
            let (effective, permitted) = (own.effective & kept, own.permitted & kept);
            set_capabilities(None, CapabilitySets { effective, permitted, ..own })
        })
        .map_err(|error| format!("cannot give up the capabilities: {error}"))
}

/// Gives up all capabilities of this process, and all ways to get others. It keeps its user.
pub(super) fn drop_all_rights() -> Result<(), String> {
    let none = CapabilitySet::empty();
    let drop_all = || {
        // Only a process of root gets the capabilities of its bounding set when it executes a file, and none with `no_new_privs`.
        // So the right to change the set may be missing.
        if rustix::process::geteuid().is_root() {
            limit_bounding_set(none).or_else(|error| if error == Errno::PERM { Ok(()) } else { Err(error) })?;
        }
        clear_ambient_capability_set()?;
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
        set_no_new_privs(true)
    };
    drop_all().map_err(|error: Errno| format!("cannot give up the capabilities: {error}"))
}

fn limit_bounding_set(kept: CapabilitySet) -> Result<(), Errno> {
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        match capability_is_in_bounding_set(one) {
            // The kernel has no more capabilities.
            Err(Errno::INVAL) => break,
            Ok(true) if !kept.contains(one) => remove_capability_from_bounding_set(one)?,
            other => drop(other?),
        }
    }
    Ok(())
}

/// Lets a program that this process executes inherit no capabilities.
fn pass_on_none() -> Result<(), Errno> {
    clear_ambient_capability_set()?;
    let own = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: CapabilitySet::empty(), ..own })
}

/// Prevents this process and its children from getting more rights by executing a file, if the container requires that.
pub(super) fn deny_new_privileges(confinement: &Confinement) -> Result<(), String> {
    if !confinement.no_new_privs {
        return Ok(());
    }
    set_no_new_privs(true).map_err(|error| format!("cannot deny privilege escalation: {error}"))
}
