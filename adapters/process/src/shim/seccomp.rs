//! Applies the seccomp profile of a container to the process that becomes its command.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod filters;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod filters {
    pub(super) fn install() -> Result<(), String> {
        Err("there is none for this architecture".to_owned())
    }
}

use super::super::record::Seccomp;

/// Whether this runtime has a profile `RuntimeDefault` for the architecture of this machine.
pub(in super::super) const HAS_DEFAULT_PROFILE: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Limits the system calls of this thread and of the programs that it executes. Executing a file then gives them no more rights, because
/// the kernel lets a process without rights limit itself only on this condition.
pub(super) fn apply(profile: Seccomp) -> Result<(), String> {
    match profile {
        Seccomp::Unconfined => Ok(()),
        Seccomp::RuntimeDefault => filters::install().map_err(|error| {
            format!(
                "cannot apply the seccomp profile RuntimeDefault: {error}: use a kernel with seccomp filters, or set \
                 `seccompProfile.type` to Unconfined"
            )
        }),
    }
}
