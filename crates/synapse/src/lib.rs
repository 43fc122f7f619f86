//! Synapse: the storage contract over a network.
//!
//! - [`Server`] serves any [`blocker::Blocker`] over TCP and unix sockets.
//! - [`SynapseBlocker`] is a server somewhere else, as a [`blocker::Blocker`] here.
//! - [`codec`] is the protocol between them, as pure functions; `docs/synapse-protocol.md` specifies it.
//!
//! So layers stack across machines as they do within one: cache, synapse, network, cache, store. What this
//! leaves out: encryption and permissions, for which the greeting keeps a place; who owns which object.
//!
//! ```
//! use std::sync::Arc;
//! use blocker::{Blocker, Memory, Name, Namespace, ObjectId, ReadRequest, WriteRequest};
//! use synapse::{ClientConfig, Server, ServerConfig, SynapseBlocker};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let server = Server::new(Arc::new(Memory::default()), None, ServerConfig::default())?;
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
mod output;
mod receive;
mod server;
mod stream;
mod timer;

pub use auth::{SECRET_BYTES_MIN, Secret};
pub use client::{ClientConfig, SynapseBlocker};
pub use receive::{LARGE_BYTES, ReceiveBuffer, ReceiveBuffers};
pub use server::{NodeRecord, Server, ServerConfig, host_name};
pub use stream::{Address, Connector, Duplex, Opening, PORT_DEFAULT};
