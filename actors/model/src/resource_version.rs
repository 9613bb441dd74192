//! Versions of objects in the API server.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The version of an object in the API server. Versions of one object can be compared: later ones are larger numbers (KEP-5504,
/// Kubernetes 1.35).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceVersion(u64);

impl ResourceVersion {
    /// The version of an object. `None` if the object has none, or if it is not a number.
    pub fn of(metadata: &ObjectMeta) -> Option<Self> {
        ResourceVersion::parse(metadata.resource_version.as_deref()?)
    }

    /// The version with this text. `None` if the text is not a number.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(ResourceVersion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let of = |version: &str| {
            ResourceVersion::of(&ObjectMeta { resource_version: Some(version.to_owned()), ..ObjectMeta::default() })
        };
        assert!(of("10") > of("9"), "a comparison of the texts would say the opposite");
        assert_eq!(of("9"), ResourceVersion::parse("9"));
        for unknown in [of(""), of("v9"), ResourceVersion::of(&ObjectMeta::default())] {
            assert_eq!(unknown, None);
        }
    }
}
