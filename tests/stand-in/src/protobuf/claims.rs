//! The fields of a ResourceClaim. Source: `generated.proto` of `resource.k8s.io/v1`.

use super::Kind::{Bool, Inline, Int, Map, Message, Messages, Quantity, Raw, Text, Texts, Time};
use super::{Field, META};

const TOLERATION: &[Field] =
    &[(1, "key", Text), (2, "operator", Text), (3, "value", Text), (4, "effect", Text), (5, "tolerationSeconds", Int)];
const SELECTOR: &[Field] = &[(1, "cel", Message(&[(1, "expression", Text)]))];
const CAPACITY: &[Field] = &[(1, "requests", Map(&Quantity))];
const EXACT: &[Field] = &[
    (1, "deviceClassName", Text),
    (2, "selectors", Messages(SELECTOR)),
    (3, "allocationMode", Text),
    (4, "count", Int),
    (5, "adminAccess", Bool),
    (6, "tolerations", Messages(TOLERATION)),
    (7, "capacity", Message(CAPACITY)),
];
const ALTERNATIVE: &[Field] = &[
    (1, "name", Text),
    (2, "deviceClassName", Text),
    (3, "selectors", Messages(SELECTOR)),
    (4, "allocationMode", Text),
    (5, "count", Int),
    (6, "tolerations", Messages(TOLERATION)),
    (7, "capacity", Message(CAPACITY)),
];
const REQUEST: &[Field] =
    &[(1, "name", Text), (2, "exactly", Message(EXACT)), (3, "firstAvailable", Messages(ALTERNATIVE))];
const CONSTRAINT: &[Field] = &[(1, "requests", Texts), (2, "matchAttribute", Text), (3, "distinctAttribute", Text)];
const CONFIGURATION: &[Field] = &[(1, "opaque", Message(&[(1, "driver", Text), (2, "parameters", Raw)]))];
const DEVICES: &[Field] = &[
    (1, "requests", Messages(REQUEST)),
    (2, "constraints", Messages(CONSTRAINT)),
    (3, "config", Messages(&[(1, "requests", Texts), (2, "", Inline(CONFIGURATION))])),
];
const RESULT: &[Field] = &[
    (1, "request", Text),
    (2, "driver", Text),
    (3, "pool", Text),
    (4, "device", Text),
    (5, "adminAccess", Bool),
    (6, "tolerations", Messages(TOLERATION)),
    (7, "bindingConditions", Texts),
    (8, "bindingFailureConditions", Texts),
    (9, "shareID", Text),
    (10, "consumedCapacity", Map(&Quantity)),
];
const ALLOCATED_CONFIG: &[Field] = &[(1, "source", Text), (2, "requests", Texts), (3, "", Inline(CONFIGURATION))];
const REQUIREMENT: &[Field] = &[(1, "key", Text), (2, "operator", Text), (3, "values", Texts)];
const NODE_TERM: &[Field] =
    &[(1, "matchExpressions", Messages(REQUIREMENT)), (2, "matchFields", Messages(REQUIREMENT))];
const ALLOCATION: &[Field] = &[
    (1, "devices", Message(&[(1, "results", Messages(RESULT)), (2, "config", Messages(ALLOCATED_CONFIG))])),
    (3, "nodeSelector", Message(&[(1, "nodeSelectorTerms", Messages(NODE_TERM))])),
    (5, "allocationTimestamp", Time),
];
const CONSUMER: &[Field] = &[(1, "apiGroup", Text), (3, "resource", Text), (4, "name", Text), (5, "uid", Text)];
const CONDITION: &[Field] = &[
    (1, "type", Text),
    (2, "status", Text),
    (3, "observedGeneration", Int),
    (4, "lastTransitionTime", Time),
    (5, "reason", Text),
    (6, "message", Text),
];
const DEVICE: &[Field] = &[
    (1, "driver", Text),
    (2, "pool", Text),
    (3, "device", Text),
    (4, "conditions", Messages(CONDITION)),
    (5, "data", Raw),
    (6, "networkData", Message(&[(1, "interfaceName", Text), (2, "ips", Texts), (3, "hardwareAddress", Text)])),
    (7, "shareID", Text),
];
const STATUS: &[Field] =
    &[(1, "allocation", Message(ALLOCATION)), (2, "reservedFor", Messages(CONSUMER)), (4, "devices", Messages(DEVICE))];

pub(super) const CLAIM: &[Field] =
    &[META, (2, "spec", Message(&[(1, "devices", Message(DEVICES))])), (3, "status", Message(STATUS))];
