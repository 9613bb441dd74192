//! The differences between the versions: `v1beta2` has the form of `v1`. In `v1beta1`, a request of a claim has the fields of
//! `exactly` itself, and a device of a slice has its fields in `basic` (`k8s.io/api/resource`, Kubernetes 1.34).

use serde_json::{Map, Value, json};

use super::version::Version;

/// Converts an object of a version to `v1`. An object of another form is left to the parser of `v1`.
pub(super) fn to_v1(version: Version, object: &mut Value) {
    if version == Version::V1Beta1 {
        each(object, "/spec/devices/requests", |request| {
            // A request with subrequests has the same form in each version.
            if !request.contains_key("firstAvailable") && !request.contains_key("exactly") {
                wrap(request, "exactly");
            }
        });
        each(object, "/spec/devices", |device| unwrap(device, "basic"));
    }
    object["apiVersion"] = json!(Version::V1.api_version());
}

/// Converts an object of `v1` to a version.
pub(super) fn from_v1(version: Version, object: &mut Value) {
    if version == Version::V1Beta1 {
        each(object, "/spec/devices/requests", |request| unwrap(request, "exactly"));
        each(object, "/spec/devices", |device| wrap(device, "basic"));
    }
    object["apiVersion"] = json!(version.api_version());
}

/// Changes each object of a list. The field `devices` is a list in slices, and an object in claims.
fn each(object: &mut Value, list: &str, change: impl Fn(&mut Map<String, Value>)) {
    let items = object.pointer_mut(list).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut).for_each(change);
}

/// Moves all fields except the name into `field`.
fn wrap(object: &mut Map<String, Value>, field: &str) {
    let name = object.remove("name");
    let rest = Value::Object(std::mem::take(object));
    object.extend(name.map(|name| ("name".to_owned(), name)));
    object.insert(field.to_owned(), rest);
}

/// Moves the fields of `field` up into the object, beside the name.
fn unwrap(object: &mut Map<String, Value>, field: &str) {
    match object.remove(field) {
        Some(Value::Object(fields)) => object.extend(fields),
        Some(other) => drop(object.insert(field.to_owned(), other)),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};

    use super::*;

    fn object(version: Version, kind: &str, spec: &Value) -> Value {
        json!({"apiVersion": version.api_version(), "kind": kind, "metadata": {"name": "a"}, "spec": spec})
    }

    /// Checks that an object is converted in both directions, and that the parser knows the result.
    fn is_converted<K: serde::de::DeserializeOwned>(version: Version, kind: &str, old: &Value, v1: &Value) {
        let [old, v1] = [object(version, kind, old), object(Version::V1, kind, v1)];
        let mut converted = old.clone();
        to_v1(version, &mut converted);
        assert_eq!(converted, v1);
        serde_json::from_value::<K>(converted.clone()).unwrap();
        from_v1(version, &mut converted);
        assert_eq!(converted, old);
    }

    #[test]
    fn requests_of_claims_are_converted() {
        let exactly = json!({"deviceClassName": "gpu", "count": 2, "allocationMode": "ExactCount"});
        let first = json!({"name": "b", "firstAvailable": [{"name": "c", "deviceClassName": "gpu"}]});
        let v1 = json!({"devices": {"requests": [{"name": "a", "exactly": exactly}, first]}});
        let beta = json!({"name": "a", "deviceClassName": "gpu", "count": 2, "allocationMode": "ExactCount"});
        let old = json!({"devices": {"requests": [beta, first]}});
        is_converted::<ResourceClaim>(Version::V1Beta1, "ResourceClaim", &old, &v1);
        is_converted::<ResourceClaim>(Version::V1Beta2, "ResourceClaim", &v1, &v1);
        is_converted::<ResourceClaim>(
            Version::V1Beta1,
            "ResourceClaim",
            &json!({"devices": {}}),
            &json!({"devices": {}}),
        );
    }

    #[test]
    fn devices_of_slices_are_converted() {
        let spec = |device: Value| json!({"driver": "d", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [device]});
        let fields = json!({"attributes": {"model": {"string": "x"}}, "capacity": {"memory": {"value": "1Gi"}}});
        let v1 = json!({"name": "g0", "attributes": fields["attributes"], "capacity": fields["capacity"]});
        let old = json!({"name": "g0", "basic": fields});
        is_converted::<ResourceSlice>(Version::V1Beta1, "ResourceSlice", &spec(old), &spec(v1.clone()));
        is_converted::<ResourceSlice>(Version::V1Beta2, "ResourceSlice", &spec(v1.clone()), &spec(v1));
        // A device without attributes.
        is_converted::<ResourceSlice>(
            Version::V1Beta1,
            "ResourceSlice",
            &spec(json!({"name": "g0", "basic": {}})),
            &spec(json!({"name": "g0"})),
        );
    }
}
