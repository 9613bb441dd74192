//! Names of objects and namespaces on the command line.

use std::str::FromStr;

use super::subdomain;
use podwright_model::ids::FullName;

/// The namespace of an object that is named without one.
const DEFAULT_NAMESPACE: &str = "default";

/// An object that a user names: `NAME` or `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectName {
    namespace: Option<String>,
    name: String,
}

impl ObjectName {
    /// The namespace before the name.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The name without a namespace.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The full name of the object. `namespace` counts if the name has none.
    pub(crate) fn in_namespace(&self, namespace: Option<&str>) -> FullName {
        FullName::new(self.namespace().or(namespace).unwrap_or(DEFAULT_NAMESPACE), &self.name)
    }

    /// The error text if the name and the flag `--namespace` have different namespaces.
    pub(super) fn fault(&self, namespace: Option<&str>) -> Option<String> {
        let (own, flag) = (self.namespace()?, namespace?);
        (own != flag).then(|| format!("{own}/{} is not in the namespace {flag}: leave out one of the two", self.name))
    }
}

impl FromStr for ObjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let has_namespace = text.contains('/');
        let full = if has_namespace { text.to_owned() } else { format!("{DEFAULT_NAMESPACE}/{text}") };
        let full: FullName = full.parse().map_err(|_| format!("{text:?} is not of the form NAME or NAMESPACE/NAME"))?;
        let namespace = has_namespace.then(|| full.namespace().to_owned());
        Ok(ObjectName { namespace, name: full.name().to_owned() })
    }
}

/// Parses a full name. An object without a namespace is in the namespace `default`.
pub(super) fn full_name(text: &str) -> Result<FullName, String> {
    Ok(text.parse::<ObjectName>()?.in_namespace(None))
}

/// Parses the name of a namespace.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    subdomain("a namespace", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_without_a_namespace_is_in_that_of_the_flag_or_in_the_default_one() {
        for (text, flag, expected) in [
            ("web", None, "default/web"),
            ("web", Some("shop"), "shop/web"),
            ("shop/web", None, "shop/web"),
            ("shop/web", Some("shop"), "shop/web"),
        ] {
            let name: ObjectName = text.parse().unwrap();
            assert_eq!((name.in_namespace(flag).to_string().as_str(), name.fault(flag)), (expected, None), "{text}");
        }
        let fault = "shop/web".parse::<ObjectName>().unwrap().fault(Some("default")).unwrap();
        assert_eq!(fault, "shop/web is not in the namespace default: leave out one of the two");
        for bad in ["", "/", "/web", "shop/", "a/b/c"] {
            assert!(bad.parse::<ObjectName>().unwrap_err().contains("NAMESPACE/NAME"), "{bad}");
        }
    }
}
