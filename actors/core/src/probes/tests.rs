//! Tests of the state machine with tables and a property.

mod machine;
