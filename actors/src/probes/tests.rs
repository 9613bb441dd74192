//! The machine by tables and a property; the manager in paused time.

mod fakes;
mod machine;
mod manager;
