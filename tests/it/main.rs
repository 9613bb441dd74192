//! The engine and the agent from outside.

mod churn;
