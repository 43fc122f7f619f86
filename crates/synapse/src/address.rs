//! The addresses of servers, and how a client reaches them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use connection::{Duplex, Stream};
use tokio::net::{TcpStream, UnixStream};

/// The TCP port of synapse unless another one is given.
pub const PORT_DEFAULT: u16 = 11311;

/// The address of a server.
///
/// ```
/// use synapse::Address;
///
/// assert_eq!("node-1".parse(), Ok(Address::Tcp("node-1:11311".into())));
/// assert_eq!("[::1]:7000".parse(), Ok(Address::Tcp("[::1]:7000".into())));
/// assert_eq!("unix:/run/s.sock".parse(), Ok(Address::Unix("/run/s.sock".into())));
/// assert_eq!(Address::Unix("/run/s.sock".into()).to_string(), "unix:/run/s.sock");
/// ```
pub type Address = connection::Address<PORT_DEFAULT>;

/// A socket that listens. [`Server::listen_on`](crate::Server::listen_on) accepts from it.
pub type ListeningSocket = connection::ListeningSocket<PORT_DEFAULT>;

/// A stream that is being opened.
pub type Opening = Pin<Box<dyn Future<Output = io::Result<Box<dyn Duplex>>> + Send>>;

/// Opens streams to a server that has no [`Address`].
pub type Connector = Arc<dyn Fn() -> Opening + Send + Sync>;

/// Connects to `address`.
pub(crate) async fn connect(address: &Address) -> io::Result<Stream> {
    match address {
        Address::Tcp(address) => Stream::tcp(TcpStream::connect(address.as_str()).await?),
        Address::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports_or_paths() {
        let tcp = |text: &str| Ok(Address::Tcp(text.into()));
        assert_eq!("node1:7000".parse(), tcp("node1:7000"));
        assert_eq!("node1".parse(), tcp("node1:11311"));
        assert_eq!("[::1]:7".parse(), tcp("[::1]:7"));
        assert_eq!("::1".parse(), tcp("[::1]:11311"));
        assert_eq!("[::1]".parse(), tcp("[::1]:11311"));
        assert_eq!("unix:/run/x".parse(), Ok(Address::Unix("/run/x".into())));
        for wrong in ["", ":7", "unix:", "a:b", "a:70000"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
