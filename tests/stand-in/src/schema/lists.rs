//! The rules by which lists merge, by kind of object and path. Sources: the list markers and the patch tags of the API types of
//! Kubernetes 1.36.

/// How server-side apply merges a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListKind {
    /// One owner for the whole list.
    Atomic,
    /// A set of values.
    Set,
    /// Items that these keys identify.
    Map(&'static [&'static str]),
}

/// One row of the table: the last parts of the path, and the keys of its items.
struct Row {
    /// The kind of object; empty for all.
    kind: &'static str,
    /// Field names joined by dots; a path through a list has no index.
    path: &'static str,
    keys: &'static [&'static str],
    /// The key of strategic merge patches, if the list has one.
    strategic: Option<&'static str>,
    /// Whether server-side apply replaces the list as a whole.
    atomic: bool,
}

const fn keyed(kind: &'static str, path: &'static str, keys: &'static [&'static str]) -> Row {
    Row { kind, path, keys, strategic: Some(keys[0]), atomic: false }
}

const fn strategic_only(kind: &'static str, path: &'static str, keys: &'static [&'static str]) -> Row {
    Row { kind, path, keys, strategic: Some(keys[0]), atomic: true }
}

const ROWS: &[Row] = &[
    keyed("", "metadata.ownerReferences", &["uid"]),
    keyed("Pod", "spec.containers", &["name"]),
    keyed("Pod", "spec.containers.ports", &["containerPort", "protocol"]),
    keyed("Pod", "spec.containers.env", &["name"]),
    keyed("Pod", "spec.containers.volumeMounts", &["mountPath"]),
    keyed("Pod", "spec.containers.volumeDevices", &["devicePath"]),
    Row { kind: "Pod", path: "spec.containers.resources.claims", keys: &["name"], strategic: None, atomic: false },
    keyed("Pod", "spec.volumes", &["name"]),
    keyed("Pod", "spec.imagePullSecrets", &["name"]),
    keyed("Pod", "spec.hostAliases", &["ip"]),
    keyed("Pod", "spec.resourceClaims", &["name"]),
    keyed("Pod", "spec.schedulingGates", &["name"]),
    keyed("Pod", "spec.topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    keyed("Pod", "status.conditions", &["type"]),
    keyed("Pod", "status.podIPs", &["ip"]),
    strategic_only("Pod", "status.hostIPs", &["ip"]),
    keyed("Pod", "status.resourceClaimStatuses", &["name"]),
    keyed("Node", "status.conditions", &["type"]),
    keyed("Node", "status.addresses", &["type"]),
    keyed("Namespace", "status.conditions", &["type"]),
    keyed("Service", "spec.ports", &["port", "protocol"]),
    keyed("Service", "status.conditions", &["type"]),
    keyed("ServiceAccount", "secrets", &["name"]),
    strategic_only("ServiceAccount", "imagePullSecrets", &["name"]),
    keyed("ResourceClaim", "status.reservedFor", &["uid"]),
    Row {
        kind: "ResourceClaim",
        path: "status.devices",
        keys: &["driver", "device", "pool", "shareID"],
        strategic: None,
        atomic: false,
    },
    keyed("PodGroup", "spec.resourceClaims", &["name"]),
    keyed("PodGroup", "status.conditions", &["type"]),
    keyed("PodGroup", "status.resourceClaimStatuses", &["name"]),
    keyed("DeviceTaintRule", "status.conditions", &["type"]),
    Row {
        kind: "CertificateSigningRequest",
        path: "status.conditions",
        keys: &["type"],
        strategic: None,
        atomic: false,
    },
];

/// Lists of values that both patches and apply treat as sets.
const SETS: &[(&str, &str)] = &[("", "metadata.finalizers"), ("Node", "spec.podCIDRs")];

/// Fields of struct types that have one owner as a whole.
const ATOMIC_MAPS: &[&str] = &[
    "metadata.ownerReferences",
    "involvedObject",
    "regarding",
    "related",
    "secretKeyRef",
    "configMapKeyRef",
    "fieldRef",
    "resourceFieldRef",
    "fileKeyRef",
    "labelSelector",
    "nodeSelector",
    "nodeSelectorTerms",
    "status.devices.data",
];

/// How server-side apply merges the list at `path`.
#[must_use]
pub(crate) fn list_kind(kind: &str, path: &str) -> ListKind {
    if SETS.iter().any(|(of, set)| applies(of, kind) && *set == path) {
        return ListKind::Set;
    }
    match row(kind, path) {
        Some(row) if !row.atomic => ListKind::Map(row.keys),
        _ => ListKind::Atomic,
    }
}

/// The key by which a strategic merge patch merges the list at `path`; `Some("")` for a set of values.
#[must_use]
pub(crate) fn strategic_key(kind: &str, path: &str) -> Option<&'static str> {
    if SETS.iter().any(|(of, set)| applies(of, kind) && *set == path) {
        return Some("");
    }
    row(kind, path).and_then(|row| row.strategic)
}

/// Whether the object at `path` has one owner as a whole.
#[must_use]
pub(crate) fn is_atomic_map(path: &str) -> bool {
    ATOMIC_MAPS.iter().any(|map| path == *map || path.ends_with(&format!(".{map}")))
}

fn applies(of: &str, kind: &str) -> bool {
    of.is_empty() || of == kind
}

fn row(kind: &str, path: &str) -> Option<&'static Row> {
    let path = path.replace("initContainers", "containers").replace("ephemeralContainers", "containers");
    ROWS.iter().find(|row| applies(row.kind, kind) && row.path == path)
}
