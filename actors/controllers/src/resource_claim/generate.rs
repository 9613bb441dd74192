//! From a template to a claim.

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::api::POD_CLAIM_NAME_ANNOTATION;
use super::counts::has_admin_access;
use super::features::Features;
use super::names::generate_name;
use super::owners::Owner;

/// Why a template is refused: it uses a field whose feature gate is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateRefused {
    /// Admin access. If the controller removed the field, the claim could take devices that others need.
    #[error("it has a request with adminAccess: enable the feature gate DRAAdminAccess, or remove adminAccess")]
    AdminAccess,
    /// A prioritized list of requests.
    #[error(
        "it has requests with firstAvailable: enable the feature gate DRAPrioritizedList, or remove firstAvailable"
    )]
    PrioritizedList,
}

/// Checks that the controller may make claims from a template.
///
/// # Errors
/// [`TemplateRefused`]
pub(super) fn check_template(spec: &ResourceClaimSpec, features: Features) -> Result<(), TemplateRefused> {
    if !features.admin_access && has_admin_access(spec) {
        return Err(TemplateRefused::AdminAccess);
    }
    let mut requests = spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let has_list = requests.any(|request| request.first_available.as_ref().is_some_and(|list| !list.is_empty()));
    if !features.prioritized_list && has_list { Err(TemplateRefused::PrioritizedList) } else { Ok(()) }
}

/// The claim to create for a claim of the spec of an owner.
pub(super) fn new_claim(owner: &Owner, entry: &str, template: &ResourceClaimTemplate) -> ResourceClaim {
    let metadata = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM_NAME_ANNOTATION.to_owned(), entry.to_owned());
    let key = owner.key();
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(generate_name(&key.name, entry)),
            namespace: Some(key.namespace),
            labels: metadata.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner.owner_reference()]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}
