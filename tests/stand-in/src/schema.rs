//! The table of the resources that the server serves, and the rules by which lists inside an object merge.

mod lists;
mod resources;

pub(crate) use lists::{ListKind, is_atomic_map, list_kind, strategic_key};
pub(crate) use resources::RESOURCES;

use serde_json::{Value, json};

/// One resource of the API.
#[derive(Debug)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The API version within the group.
    pub version: &'static str,
    /// The name in paths.
    pub plural: &'static str,
    /// The name that `kubectl` accepts for one object.
    pub singular: &'static str,
    /// The kind of its objects.
    pub kind: &'static str,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Short names for `kubectl`.
    pub short: &'static [&'static str],
    /// Paths below an object.
    pub subresources: &'static [&'static str],
    /// Whether `metadata.generation` counts the changes of `spec`.
    pub counts_generation: bool,
    /// Fields that a field selector may name, besides the name and the namespace.
    pub selectable: &'static [&'static str],
    /// The object that the server's Go type has when nothing is set, without `metadata`, as JSON text.
    pub zero: &'static str,
    /// The plural under which the objects are stored. It differs for `events.k8s.io`.
    pub storage: &'static str,
    /// A request without an object in the store: reviews.
    pub review: bool,
}

impl Resource {
    /// `v1` or `GROUP/VERSION`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `pods` or `leases.coordination.k8s.io`, the form of error messages.
    #[must_use]
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `Pod` or `ResourceClaim.resource.k8s.io`, the form of messages about invalid objects.
    #[must_use]
    pub fn qualified_kind(&self) -> String {
        if self.group.is_empty() { self.kind.to_owned() } else { format!("{}.{}", self.kind, self.group) }
    }

    /// The object with nothing set, as a bookmark carries it.
    ///
    /// # Panics
    ///
    /// If the table has an entry that is not JSON; a test reads every entry.
    #[must_use]
    pub fn zero_object(&self) -> Value {
        let mut zero: Value = serde_json::from_str(self.zero).expect("a test parses the table of resources");
        zero["apiVersion"] = json!(self.api_version());
        zero["kind"] = json!(self.kind);
        zero["metadata"] = json!({});
        zero
    }

    /// Whether the resource has its own path for the status.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.subresources.contains(&"status")
    }
}

/// The resource at a path of the API.
#[must_use]
pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    RESOURCES
        .iter()
        .find(|resource| resource.group == group && resource.version == version && resource.plural == plural)
}

/// The resource of an `apiVersion` and a `kind`, as owner references and bodies name it.
#[must_use]
pub(crate) fn find_kind(api_version: &str, kind: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|resource| resource.kind == kind && resource.api_version() == api_version)
}

/// The resource that owns the storage of this plural.
#[must_use]
pub(crate) fn stored(plural: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|resource| resource.storage == plural && resource.plural == plural)
}

#[cfg(test)]
mod tests {
    use super::RESOURCES;

    #[test]
    fn every_zero_object_is_json() {
        for resource in RESOURCES {
            assert!(resource.zero_object().is_object(), "{}", resource.plural);
        }
    }
}
