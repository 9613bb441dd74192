//! Parts that all gRPC servers on Unix sockets share: they accept any `:authority`, and they own the file of their socket.

mod authority;
mod file;

pub(crate) use authority::AnyAuthority;
pub(crate) use file::SocketFile;
