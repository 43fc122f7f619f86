//! Synapse: the storage contract of the crate [`blocker`] over a network.
//!
//! - [`Server`] serves any [`blocker::Blocker`] over TCP and unix sockets, with its control plane.
//! - [`SynapseBlocker`] is the client: a remote server's backend as a [`blocker::Blocker`] of this
//!   process.
//! - [`codec`] is the protocol between them, as pure functions; `docs/synapse-protocol.md`
//!   specifies it.
//!
//! So layers stack across machines as they do within one: cache, synapse, network, cache, store.
//!
//! # What it guarantees
//!
//! - A change is executed at most once, even if its connection breaks and it is sent again: a
//!   session outlives its connections, and the server remembers the outcome of the last request in
//!   each of its slots.
//! - A flush that succeeds covers everything that was acknowledged before, even across a restart of
//!   the server: otherwise it fails with `WritesLost`.
//! - Memory is bounded on both sides: a server grants every client a number of requests and bytes.
//! - Client and server prove to each other that they know a shared [`Secret`].
//!
//! Not included: encryption and permissions, for which the handshake has reserved fields.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use blocker::{Blocker, BlockerExt, Memory, Name, Namespace, ObjectId, ReadRequest, WriteRequest};
//! use synapse::{ClientConfig, Server, ServerConfig, SynapseBlocker};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let server = Server::new(Arc::new(Memory::default()), ServerConfig::default())?;
//! let address = server.listen(&"127.0.0.1:0".parse()?).await?;
//!
//! let store = SynapseBlocker::connect(ClientConfig::new(address)).await?;
//! let disk = ObjectId::new(Namespace::new("vm")?, Name::new("disk.0")?);
//! store.write(WriteRequest::new(disk.clone(), 0, b"hello")).await?;
//! assert_eq!(store.read(ReadRequest::new(disk, 0, 4096)).await?.data.to_vec(), b"hello");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod auth;
mod client;
pub mod codec;
mod input;
mod server;

pub use client::{
    Addresses, AddressesError, ClientConfig, ClientCounters, Connector, Opening, SecretHandle, SynapseBlocker,
};
pub use connection::{AddressError, Duplex, LARGE_BYTES, SettingError};
pub use connection::{SECRET_BYTES_MIN, Secret, SecretError};
pub use server::{ListenError, NodeRecord, Server, ServerConfig, host_name};

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

/// A listening socket, from which [`Server::listen_on`] accepts.
pub type ListeningSocket = connection::ListeningSocket<PORT_DEFAULT>;

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
