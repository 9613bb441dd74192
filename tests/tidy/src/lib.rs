//! Tests of the text of the repository. They read the sources and call no code of them, so this crate uses no other crate of
//! the workspace, and no crate uses this one.
//!
//! | module | what it tests |
//! |---|---|
//! | `layers` | which room uses which |
//! | `forbidden_words` | which words a room avoids: input and output in `actors`, time in a pure module |
//! | `dependencies` | which crates a build with few features contains |
//! | `docs` | which files the documents name |
//! | `rules` | which rules the comments cite |
//! | `gate` | which steps the gate has, and which inputs the properties get |
//! | `public_api` | which public names the libraries have, as [`public_names`] reads them |
//!
//! ```
//! use podwright_tidy::{public_names, root};
//!
//! let names = public_names("podwright_metrics", &root().join("metrics/src"));
//! assert!(names.lines.contains("podwright_metrics::ActorMetrics"));
//! ```

#[cfg(test)]
mod dependencies;
#[cfg(test)]
mod docs;
#[cfg(test)]
mod files;
#[cfg(test)]
mod forbidden_words;
#[cfg(test)]
mod gate;
mod krate;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod public_api;
#[cfg(test)]
mod rules;

use std::path::Path;

use krate::Krate;
pub use krate::Names;

/// The root of the repository.
///
/// # Panics
/// If this package is not two folders below the root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this package is in tests/tidy")
}

/// The public names of the crate whose `lib.rs` is in a folder. `name` is its name in the lines.
///
/// # Panics
/// If a file is missing or has invalid syntax, or if a public import leads nowhere.
pub fn public_names(name: &str, folder: &Path) -> Names {
    Krate::read(name, folder).public_names()
}
