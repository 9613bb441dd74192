//! User and group IDs of a pod spec.

/// The largest user or group ID that the API allows (upstream `validation.IsValidUserID` and `IsValidGroupID`, Kubernetes
/// 1.36). The kernel's IDs have 32 bits, and its largest ID means "no change".
pub const MAX_ID: i64 = 2_147_483_647;

/// The number is not a user or group ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0} is not a user or group ID: use a number from 0 to {MAX_ID}")]
pub struct InvalidId(pub i64);

/// Converts an ID of a pod spec (`runAsUser`, `runAsGroup`, `fsGroup`, `supplementalGroups`) to the kernel's type.
///
/// # Errors
/// [`InvalidId`] if the number is negative or larger than [`MAX_ID`].
pub fn linux_id(id: i64) -> Result<u32, InvalidId> {
    u32::try_from(id).ok().filter(|_| id <= MAX_ID).ok_or(InvalidId(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_from_zero_to_the_largest_of_the_api_are_valid() {
        for (id, valid) in [(0, true), (1000, true), (MAX_ID, true), (MAX_ID + 1, false), (-1, false), (-5, false)] {
            assert_eq!(linux_id(id).is_ok(), valid, "{id}");
        }
        // These would become 0 or the kernel's "no change" in 32 bits.
        for id in [1 << 32, i64::from(u32::MAX), i64::MIN] {
            assert_eq!(linux_id(id), Err(InvalidId(id)));
        }
    }
}
