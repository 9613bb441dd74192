//! Parts that all gRPC servers on Unix sockets share: they accept any `:authority`, and they own the file of their socket.
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
//! # Arrows
//!
//! The crate uses no other crate of the workspace. The agent and the library for the authors of DRA drivers use it.

mod authority;
mod file;

pub use authority::AnyAuthority;
pub use file::SocketFile;
