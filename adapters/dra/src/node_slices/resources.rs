//! Reads what a driver sends. Pure.

use std::collections::BTreeMap;

use podwright_dra_api::node_resources::{NodeListAndWatchResourcesResponse, NodePool, NodeSlice};
use podwright_model::text::{error_text, plain};
use podwright_slices::{DriverResources, Pool, Slice};
use serde::de::DeserializeOwned;

use crate::MAX_TEXT;

/// The most pools and slices of a message. A message of 4 MiB has room for a million empty slices, and each is an object of the API.
const MAX_ITEMS: usize = 1024;

/// Why a message is not used. The resources stay those of the message before.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidMessage {
    #[error("the message has {0} pools and slices, more than {MAX_ITEMS}: send fewer slices with more devices")]
    TooLong(usize),
    #[error("the pool {0:?} appears twice")]
    DuplicatePool(String),
    #[error(
        "the pool {pool:?} has the generation {generation}: send 0, or a generation that grows by one with each change"
    )]
    Generation { pool: String, generation: i64 },
    #[error("{field} of the slice {index} of the pool {pool:?} is no JSON list of resource.k8s.io/v1")]
    Json { field: &'static str, index: usize, pool: String, source: serde_json::Error },
}

impl InvalidMessage {
    /// The error with its source, in one short line.
    pub(super) fn short(&self) -> String {
        plain(&error_text(self), MAX_TEXT).into_owned()
    }
}

/// The largest generation of a pool that a driver may send. It leaves room for the changes that follow.
const MAX_GENERATION: i64 = i64::MAX / 2;

/// The resources of a message. A pool without a name has the name of the node.
pub(super) fn resources(
    message: NodeListAndWatchResourcesResponse,
    node: &str,
) -> Result<DriverResources, InvalidMessage> {
    let items = message.pools.iter().map(|pool| pool.slices.len().saturating_add(1)).sum();
    if items > MAX_ITEMS {
        return Err(InvalidMessage::TooLong(items));
    }
    let mut pools = BTreeMap::new();
    for NodePool { name, generation, slices } in message.pools {
        let name = if name.is_empty() { node.to_owned() } else { name };
        if !(0..=MAX_GENERATION).contains(&generation) {
            return Err(InvalidMessage::Generation { pool: name, generation });
        }
        let slices = slices.into_iter().enumerate().map(|(index, sent)| slice(sent, index, &name));
        let pool = Pool { generation, slices: slices.collect::<Result<_, _>>()?, ..Pool::default() };
        if pools.insert(name.clone(), pool).is_some() {
            return Err(InvalidMessage::DuplicatePool(name));
        }
    }
    Ok(DriverResources { pools })
}

fn slice(sent: NodeSlice, index: usize, pool: &str) -> Result<Slice, InvalidMessage> {
    Ok(Slice {
        devices: list("devices_json", &sent.devices_json, index, pool)?,
        shared_counters: list("shared_counters_json", &sent.shared_counters_json, index, pool)?,
        per_device_node_selection: sent.per_device_node_selection(),
    })
}

fn list<T: DeserializeOwned>(
    field: &'static str,
    json: &[u8],
    index: usize,
    pool: &str,
) -> Result<Vec<T>, InvalidMessage> {
    if json.is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_slice(json).map_err(|source| InvalidMessage::Json { field, index, pool: pool.to_owned(), source })
}

/// Decodes and reads a message, for the fuzz targets. `None` if the bytes are no message.
pub fn read_node_resources(bytes: &[u8]) -> Option<Result<DriverResources, String>> {
    use prost::Message;

    let message = NodeListAndWatchResourcesResponse::decode(bytes).ok()?;
    Some(resources(message, "n7").map_err(|error| error.short()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, generation: i64, devices: &[&str]) -> NodePool {
        let slices =
            devices.iter().map(|json| NodeSlice { devices_json: json.as_bytes().to_vec(), ..Default::default() });
        NodePool { name: name.to_owned(), generation, slices: slices.collect() }
    }

    fn read(pools: Vec<NodePool>) -> Result<DriverResources, String> {
        resources(NodeListAndWatchResourcesResponse { pools }, "n7").map_err(|error| error.to_string())
    }

    #[test]
    fn pools_and_slices_are_read() {
        assert_eq!(read(vec![]).unwrap(), DriverResources::default());
        let found = read(vec![pool("", 0, &["[{\"name\":\"g0\"},{\"name\":\"g1\"}]", ""]), pool("p", 3, &[])]).unwrap();
        let names = |pool: &Pool| -> Vec<Vec<String>> {
            pool.slices.iter().map(|slice| slice.devices.iter().map(|device| device.name.clone()).collect()).collect()
        };
        assert_eq!(names(&found.pools["n7"]), [vec!["g0".to_owned(), "g1".to_owned()], vec![]]);
        assert_eq!((found.pools["p"].generation, found.pools["p"].slices.len()), (3, 0));

        let mut counters = pool("", 0, &["[]"]);
        counters.slices[0].shared_counters_json = br#"[{"name":"memory","counters":{"b":{"value":"8"}}}]"#.to_vec();
        counters.slices[0].per_device_node_selection = Some(true);
        let slice = read(vec![counters]).unwrap().pools.remove("n7").unwrap().slices.remove(0);
        assert_eq!((slice.shared_counters[0].name.as_str(), slice.per_device_node_selection), ("memory", true));
    }

    #[test]
    fn a_message_that_cannot_be_used_is_refused_with_its_fault() {
        let text = |pools| read(pools).unwrap_err();
        assert_eq!(text(vec![pool("", 0, &[]), pool("n7", 0, &[])]), "the pool \"n7\" appears twice");
        assert!(text(vec![pool("p", -1, &[])]).starts_with("the pool \"p\" has the generation -1"));
        // Later changes of the pool need greater generations.
        assert!(read(vec![pool("p", i64::MAX / 2, &[])]).is_ok());
        let largest = text(vec![pool("p", i64::MAX, &[])]);
        assert!(largest.starts_with("the pool \"p\" has the generation 9223372036854775807: send 0"), "{largest}");
        assert!(text(vec![pool("p", 0, &["", "{}"])]).starts_with("devices_json of the slice 1 of the pool \"p\""));
        assert!(read(vec![pool("p", 0, &[""; 1023])]).is_ok());
        assert!(text(vec![pool("p", 0, &[""; 1024])]).starts_with("the message has 1025 pools and slices"));
    }
}
