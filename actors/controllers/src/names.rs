//! Which ResourceClaim a claim of a pod or group stands for, and the names of generated claims. Pure.

use crate::ports::resource_claims::StatusEntry;

/// One element of `spec.resourceClaims` of a pod or group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimEntry {
    /// The name in the spec.
    pub name: String,
    /// The ResourceClaim that a user has made.
    pub claim: Option<String>,
    /// The ResourceClaimTemplate.
    pub template: Option<String>,
}

/// What a claim of a spec stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A claim.
    Claim {
        /// The name of the ResourceClaim. It may be empty in a status that someone else has written.
        name: String,
        /// Whether the claim comes from a template, and must belong to its user.
        is_generated: bool,
    },
    /// The status says that no claim is needed.
    NotNeeded,
}

/// Why the name of a claim is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The claim of a template has no entry in the status.
    #[error("the ResourceClaim of {0:?} was not created yet")]
    NotCreated(String),
    /// The claim has none of the known sources.
    #[error("the claim {0:?} has unsupported fields: set resourceClaimName or resourceClaimTemplateName")]
    Unsupported(String),
}

impl ClaimEntry {
    /// The claim that this entry stands for, by the status of the same pod or group.
    ///
    /// # Errors
    /// [`NameError`] if no name is known.
    pub fn named(&self, statuses: &[StatusEntry]) -> Result<Named, NameError> {
        if let Some(name) = &self.claim {
            return Ok(Named::Claim { name: name.clone(), is_generated: false });
        }
        if self.template.is_none() {
            return Err(NameError::Unsupported(self.name.clone()));
        }
        match statuses.iter().find(|status| status.name == self.name) {
            None => Err(NameError::NotCreated(self.name.clone())),
            Some(StatusEntry { claim: None, .. }) => Ok(Named::NotNeeded),
            Some(StatusEntry { claim: Some(name), .. }) => Ok(Named::Claim { name: name.clone(), is_generated: true }),
        }
    }
}

/// The server appends five characters, and cuts a longer base.
const LONGEST_BASE: usize = 58;
/// The longest base that [`generate_name`] does not cut.
const LIMIT: usize = LONGEST_BASE - 1;

/// The base of the name of a generated claim: `OWNER-CLAIM-`. If it is too long, both parts are cut in proportion to their lengths.
pub fn generate_name(owner: &str, claim: &str) -> String {
    if !is_cut(owner, claim) {
        return format!("{owner}-{claim}-");
    }
    let length = owner.len() + claim.len() + 2;
    // A name begins with a letter or digit, so at least one character of the owner is left.
    let owner = cut(owner, (owner.len() * LIMIT / length).max(1));
    let claim = cut(claim, (claim.len() * LIMIT / length).min(LONGEST_BASE - 2 - owner.len().min(LONGEST_BASE - 2)));
    format!("{owner}-{claim}-")
}

/// Whether both names are too long together, so that the name of a generated claim has only their beginnings.
pub(super) fn is_cut(owner: &str, claim: &str) -> bool {
    owner.len() + claim.len() + 2 > LIMIT
}

/// The beginning of a name, without hyphens and dots at its end, which could make the whole name invalid.
fn cut(name: &str, length: usize) -> &str {
    let end = (0..=length.min(name.len())).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name[..end].trim_end_matches(['-', '.'])
}
