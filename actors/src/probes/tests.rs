//! Tests of the state machine with tables and a property, and of the manager in paused time.

mod fakes;
mod machine;
mod manager;
