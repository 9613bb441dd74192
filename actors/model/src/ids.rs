//! Identities. Each has its own type, so that one cannot be used as another.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

/// A pod's UID.
///
/// Nearly all UIDs have one of two forms: a UUID from an API server, or 32 hex digits that a node computed for a static
/// pod. Both are stored as 128 bits without an allocation; any other text is stored unchanged. `Display` prints exactly
/// the text that was parsed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodUid(Repr);

/// The stored form of a UID. Recordings use the same form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repr {
    /// A UUID with its four dashes.
    Uuid([u8; 16]),
    /// 32 hex digits.
    Hex([u8; 16]),
    /// Any other text.
    Text(Arc<str>),
}

const DASHES: [usize; 4] = [8, 13, 18, 23];

impl PodUid {
    /// Any text is accepted; the API server and the sources decide what is a valid UID.
    pub fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let digits = |skip: &[usize]| -> Option<[u8; 16]> {
            let mut out = [0u8; 16];
            let mut n = 0;
            for (i, b) in bytes.iter().enumerate() {
                if skip.contains(&i) {
                    if *b != b'-' {
                        return None;
                    }
                    continue;
                }
                let digit = match b {
                    b'0'..=b'9' => b - b'0',
                    b'a'..=b'f' => b - b'a' + 10,
                    _ => return None,
                };
                out[n / 2] |= digit << (4 * (1 - n % 2));
                n += 1;
            }
            Some(out)
        };
        match bytes.len() {
            36 => digits(&DASHES).map(Repr::Uuid),
            32 => digits(&[]).map(Repr::Hex),
            _ => None,
        }
        .map_or_else(|| PodUid(Repr::Text(text.into())), PodUid)
    }

    /// The stored form, for a recording.
    #[inline]
    pub fn repr(&self) -> &Repr {
        &self.0
    }

    /// The UID of a stored form, from a recording.
    #[inline]
    pub fn from_repr(repr: Repr) -> Self {
        PodUid(repr)
    }
}

/// Hashes in one write, because every update and query hashes a UID. The two forms of the same 128 bits collide, which
/// only costs a comparison.
impl Hash for PodUid {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Repr::Uuid(bytes) | Repr::Hex(bytes) => state.write_u128(u128::from_ne_bytes(*bytes)),
            Repr::Text(text) => text.hash(state),
        }
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, dashes) = match &self.0 {
            Repr::Uuid(bytes) => (bytes, true),
            Repr::Hex(bytes) => (bytes, false),
            Repr::Text(text) => return f.write_str(text),
        };
        // One write: UIDs are formatted for each record of a claim, and `{:02x}` for each byte takes six times as long.
        let mut text = String::with_capacity(36);
        for (i, byte) in bytes.iter().enumerate() {
            if dashes && matches!(i, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            for half in [byte >> 4, byte & 0xf] {
                text.extend(char::from_digit(half.into(), 16));
            }
        }
        f.write_str(&text)
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<&str> for PodUid {
    fn from(text: &str) -> Self {
        PodUid::new(text)
    }
}

/// A pod's name and namespace: what a static pod keeps when its UID changes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FullName(Arc<str>);

impl FullName {
    /// Makes a full name. Neither part may contain an underscore, which no Kubernetes name can.
    pub fn new(namespace: &str, name: &str) -> Self {
        FullName(format!("{name}_{namespace}").into())
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.0.split_once('_').map_or(&*self.0, |(name, _)| name)
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.0.split_once('_').map_or("", |(_, namespace)| namespace)
    }

    /// The form in labels and paths: name, underscore, namespace.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Prints `NAMESPACE/NAME`, as in `kubectl`.
impl fmt::Display for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace(), self.name())
    }
}

impl fmt::Debug for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not of the form `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form NAMESPACE/NAME")]
pub struct ParseFullNameError(String);

impl FromStr for FullName {
    type Err = ParseFullNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') && !text.contains('_') =>
            {
                Ok(FullName::new(namespace, name))
            }
            _ => Err(ParseFullNameError(text.to_owned())),
        }
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Prints the id as the runtime spells it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                $name(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// A container's id in its runtime, without the `runtime://` prefix of the API.
    ContainerId
}
text_id! {
    /// A sandbox's id in its runtime.
    SandboxId
}
text_id! {
    /// The UID of the Node object in the API server.
    NodeUid
}
text_id! {
    /// A container's name, unique in its pod over regular, init and ephemeral containers.
    ContainerName
}
text_id! {
    /// An image's id in its runtime.
    ImageId
}
text_id! {
    /// The name of a DRA driver: a DNS subdomain of at most 63 characters, such as `gpu.example.com`.
    DriverName
}
text_id! {
    /// The UID of a ResourceClaim.
    ClaimUid
}

/// The request of a ResourceClaim that `request` belongs to: the part before the slash. A subrequest is named `REQUEST/SUBREQUEST`.
pub fn base_request(request: &str) -> &str {
    request.split_once('/').map_or(request, |(base, _)| base)
}

/// The namespace and name of a ResourceClaim.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimName {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl ClaimName {
    /// The claim of this name in a namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        ClaimName { namespace: namespace.into(), name: name.into() }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// Prints `NAMESPACE/NAME`, as in `kubectl`.
impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
