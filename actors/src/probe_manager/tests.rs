//! Tests of the manager in paused time.

mod fakes;
mod manager;
