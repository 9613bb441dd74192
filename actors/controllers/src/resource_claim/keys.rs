//! The keys of the work queue.

use std::fmt;
use std::str::FromStr;

pub use crate::ports::resource_claims::ObjectKey;
use crate::ports::resource_claims::OwnerKind;

/// An item of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A claim, whose consumers are to be checked.
    Claim(ObjectKey),
    /// A pod, whose claims are to be generated and reserved.
    Pod(ObjectKey),
    /// A pod group, whose claims are to be generated.
    PodGroup(ObjectKey),
}

impl Key {
    /// The item that generates the claims of an object.
    pub(crate) fn of_owner(kind: OwnerKind, object: ObjectKey) -> Self {
        match kind {
            OwnerKind::Pod => Key::Pod(object),
            OwnerKind::PodGroup => Key::PodGroup(object),
        }
    }

    /// The object of the item.
    pub fn object(&self) -> &ObjectKey {
        match self {
            Key::Claim(object) | Key::Pod(object) | Key::PodGroup(object) => object,
        }
    }
}

/// Prints `KIND:NAMESPACE/NAME`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Key::Claim(_) => "claim",
            Key::Pod(_) => "pod",
            Key::PodGroup(_) => "podgroup",
        };
        write!(f, "{kind}:{}", self.object())
    }
}

/// The text is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form pod:NAMESPACE/NAME, claim:NAMESPACE/NAME or podgroup:NAMESPACE/NAME")]
pub struct ParseKeyError(String);

impl FromStr for Key {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fault = || ParseKeyError(text.to_owned());
        let (kind, object) = text.split_once(':').ok_or_else(fault)?;
        let (namespace, name) = object.split_once('/').ok_or_else(fault)?;
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(fault());
        }
        let object = ObjectKey::new(namespace, name);
        match kind {
            "claim" => Ok(Key::Claim(object)),
            "pod" => Ok(Key::Pod(object)),
            "podgroup" => Ok(Key::PodGroup(object)),
            _ => Err(fault()),
        }
    }
}
