//! Events of the node about shutdowns of the machine.

/// The reason of these events (`events/event.go`, `NodeShutdown`).
pub const SHUTDOWN: &str = "Shutdown";

/// The machine begins to shut down (`nodeshutdown/nodeshutdown_manager_linux.go`, `start`).
pub const DETECTED: &str = "Shutdown manager detected shutdown event";

/// The machine does not shut down after all (`nodeshutdown/nodeshutdown_manager_linux.go`, `start`).
pub const CANCELLED: &str = "Shutdown manager detected shutdown cancellation";
