//! Confines the process that becomes a container's command.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use super::super::record::Confinement;

/// Limits the capabilities that this process and its children can get. Must come before the change of user, which takes the
/// right to do this away.
///
/// The capabilities of a process of root after its next `exec` are its bounding set and its inheritable set.
pub(super) fn limit_capabilities(confinement: &Confinement) -> Result<(), String> {
    let Some(bits) = confinement.capabilities else { return Ok(()) };
    let kept = CapabilitySet::from_bits_retain(bits);
    let failed = |error: Errno| format!("cannot limit the capabilities: {error}");
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        match capability_is_in_bounding_set(one) {
            // The kernel has no more capabilities.
            Err(Errno::INVAL) => break,
            Ok(true) if !kept.contains(one) => remove_capability_from_bounding_set(one).map_err(failed)?,
            other => drop(other.map_err(failed)?),
        }
    }
    clear_ambient_capability_set().map_err(failed)?;
    let own = capabilities(None).map_err(failed)?;
    let sets = rustix::thread::CapabilitySets { inheritable: CapabilitySet::empty(), ..own };
    set_capabilities(None, sets).map_err(failed)
}

/// Prevents this process and its children from getting more rights by executing a file, if the container requires that.
pub(super) fn deny_new_privileges(confinement: &Confinement) -> Result<(), String> {
    if !confinement.no_new_privs {
        return Ok(());
    }
    set_no_new_privs(true).map_err(|error| format!("cannot deny privilege escalation: {error}"))
}
