//! `podwright controllers` and the commands that ask it, on an API server in memory.

mod binary;
mod taint_binary;
mod taint_commands;
