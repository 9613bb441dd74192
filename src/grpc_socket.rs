//! What the servers of gRPC on Unix sockets share: the tolerance of any `:authority`, and the file of a socket.

mod authority;
mod file;

pub(crate) use authority::AnyAuthority;
pub(crate) use file::SocketFile;
