//! Confines the process that becomes a container's command.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use super::super::record::Confinement;

/// Limits the capabilities that this process and its children can get. Must come before the change of user, which takes the
/// right to do this away.
///
/// The capabilities of a process of root after its next `exec` are its bounding set and its inheritable set.
pub(super) fn limit_capabilities(confinement: &Confinement) -> Result<(), String> {
    let failed = |error: Errno| format!("cannot limit the capabilities: {error}");
    let Some(bits) = confinement.capabilities else {
        // In a user namespace, this process has capabilities that only the set-up of the container needs.
        return if rustix::process::geteuid().is_root() { Ok(()) } else { pass_on_none().map_err(failed) };
    };
    let kept = CapabilitySet::from_bits_retain(bits);
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        match capability_is_in_bounding_set(one) {
            // The kernel has no more capabilities.
            Err(Errno::INVAL) => break,
            Ok(true) if !kept.contains(one) => remove_capability_from_bounding_set(one).map_err(failed)?,
            other => drop(other.map_err(failed)?),
        }
    }
    pass_on_none().map_err(failed)
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
