//! Merges the layers of a configuration. Pure.
//!
//! A later layer replaces the fields that it has (RFC 7396, as upstream `mergeKubeletConfigurations`, kubelet 1.36): a list is replaced
//! as a whole, and a map keeps the keys that the later layer does not have. A map of a flag replaces the whole map, except for the
//! feature gates (upstream `kubeletConfigFlagPrecedence`, kubelet 1.36).

use podwright_actors::eviction::EvictionThresholds;
use serde_json::{Map, Value};

use super::{Given, Kind, Layer, Notice, Place, fields};

/// The layers as one, that of the main file at the bottom, which may be empty, and a notice for each value of a file that a flag replaces.
pub(crate) fn merge(layers: impl IntoIterator<Item = Layer>) -> (Layer, Vec<Notice>) {
    let mut merged = Layer::new();
    let mut notices = Vec::new();
    for (index, layer) in layers.into_iter().enumerate() {
        for (key, given) in layer {
            let kind = fields::of_key(key).map(|field| field.kind);
            let is_map = matches!(kind, Some(Kind::TextMap(_) | Kind::BoolMap));
            let is_of_flag = matches!(given.place, Place::Flag(_));
            let keeps_keys = is_map && (!is_of_flag || key == "featureGates");
            // The thresholds of the main file are the defaults if it has none.
            let below = match merged.remove(key) {
                None if key == "evictionHard" && index > 0 && keeps_keys => {
                    Some(Given { value: default_thresholds(), place: given.place.clone() })
                }
                below => below,
            };
            let given = match (below, given) {
                (Some(Given { value: Value::Object(mut all), .. }), Given { value: Value::Object(more), place })
                    if keeps_keys =>
                {
                    all.extend(more);
                    Given { value: Value::Object(all), place }
                }
                (Some(below), given) => {
                    if let (Place::File { .. }, Place::Flag(flag)) = (&below.place, &given.place)
                        && below.value != given.value
                    {
                        let why = format!("the flag --{flag} applies");
                        notices.push(Notice { place: below.place.clone(), field: key.to_owned(), why });
                    }
                    given
                }
                (None, given) => given,
            };
            merged.insert(key, given);
        }
    }
    (merged, notices)
}

/// The default of `evictionHard`.
pub(super) fn default_thresholds() -> Value {
    let thresholds = EvictionThresholds::default();
    let entries = thresholds.iter().map(|(signal, threshold)| (signal.to_owned(), Value::String(threshold)));
    Value::Object(entries.collect::<Map<String, Value>>())
}
