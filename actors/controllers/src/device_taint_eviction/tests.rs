//! Scenarios of the controller against a server in memory, whose watches show each change at once.

mod cancelling;
mod claims;
mod eviction;
mod explain;
mod limit;
mod matching;
mod model;
mod objects;
mod orders;
mod preview;
mod status;
mod world;

use podwright_model::time::Time;

use self::objects::*;
use self::world::{Change, World, in_all_orders};
use super::*;
