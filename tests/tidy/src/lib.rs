//! Tests of the text of the repository. They read the sources and call no code of them, so this crate uses no other crate of
//! the workspace, and no crate uses this one.
//!
//! - `public_api`: the public names are those of `public_api.txt`. [`public_names`] reads them.
//!
//! ```
//! use podwright_tidy::{public_names, root};
//!
//! let names = public_names("podwright_metrics", &root().join("metrics/src"));
//! assert!(names.lines.contains("podwright_metrics::ActorMetrics"));
//! ```

mod krate;
#[cfg(test)]
mod public_api;

use std::path::Path;

use krate::Krate;
pub use krate::Names;

/// The root of the repository.
///
/// # Panics
/// If this package is not two folders below the root.
pub fn root() -> &'static Path {
    // The path has no `..`, because the folders in a path tell whether a file has tests.
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this package is in tests/tidy")
}

/// The public names of the crate whose `lib.rs` is in a folder. `name` is its name in the lines.
///
/// # Panics
/// If a file is missing or has invalid syntax, or if a public import leads nowhere.
pub fn public_names(name: &str, folder: &Path) -> Names {
    Krate::read(name, folder).public_names()
}
