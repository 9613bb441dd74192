//! The node resources that a DRA driver sends, as they arrive on its socket.

use podwright_dra::testing::read_node_resources;

/// The longest text of an error that names what a driver sent.
const MAX_ERROR: usize = 1024;
/// The most pools and slices of a message together.
const MAX_ITEMS: usize = 1024;

/// A message is refused with a short text, or its pools can be published: they have names and room for later generations.
pub fn check(bytes: &[u8]) {
    match read_node_resources(bytes) {
        Some(Ok(resources)) => {
            let items: usize = resources.pools.values().map(|pool| pool.slices.len() + 1).sum();
            assert!(items <= MAX_ITEMS, "{items} pools and slices");
            for (name, pool) in &resources.pools {
                assert!(!name.is_empty() && pool.generation >= 0, "{name:?} has the generation {}", pool.generation);
                // A slice that is added leads to the next generation, however many follow.
                assert!(pool.generation.checked_mul(2).is_some(), "{}", pool.generation);
            }
        }
        Some(Err(error)) => super::assert_plain(&error, MAX_ERROR),
        None => {}
    }
}
