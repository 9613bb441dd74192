//! Parts that gRPC on Unix sockets shares: servers accept any `:authority` and own the file of their socket, and clients name the codes
//! of answers as the kubelet does.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use podwright_grpc_socket::{AnyAuthority, SocketFile};
//!
//! # async fn example() -> std::io::Result<()> {
//! let path = Path::new("/run/driver.sock");
//! SocketFile::remove_old(path)?;
//! let listener = tokio::net::UnixListener::bind(path)?;
//! let _file = SocketFile::new(path)?;
//! let (stream, _) = listener.accept().await?;
//! let _stream = AnyAuthority::new(stream);
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//!
//! - [`AnyAuthority`]: a connection whose requests may have any `:authority`.
//! - [`SocketFile`]: the file of a socket, from its creation to its removal.
//! - [`code_name`]: the name of a gRPC code in texts.
//!
//! # Arrows
//!
//! The crate uses no other crate of the workspace. The adapters that call Unix sockets, the agent and the library for
//! the authors of DRA drivers use it.

mod authority;
mod code;
mod file;

pub use authority::AnyAuthority;
pub use code::code_name;
pub use file::SocketFile;
