//! Synapse itself: a server for the slots, and a client with many callers.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Error, Result, ensure};
use blocker::{Blocker, BlockerExt, ObjectId, ReadRequest, WriteRequest};
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use synapse::{Address, ClientConfig, Server, ServerConfig, SynapseBlocker};

use crate::measure::Meter;
use crate::shape::{Operation, Shape};
use crate::slots::{Slots, object, place};

/// Serves the slots on a free loopback port until the server is dropped.
///
/// # Errors
/// Fails if the server refuses its settings or cannot listen.
pub(crate) async fn serve(slots: Arc<Slots>) -> Result<(SocketAddr, Server)> {
    let server = Server::new(slots, ServerConfig::default()).map_err(Error::msg)?;
    let bound = server.listen(&Address::Tcp("127.0.0.1:0".to_owned())).await.map_err(Error::msg)?;
    Ok((bound.to_string().parse()?, server))
}

/// Runs the closed loop `shape` against the server at `address`, over one connection like the raw
/// service.
///
/// # Errors
/// Returns an error if a call fails.
pub(crate) async fn load(address: SocketAddr, shape: &Shape, has_crc: bool, meter: &mut Meter) -> Result<()> {
    let mut config = ClientConfig::new(Address::Tcp(address.to_string()));
    (config.connections, config.payload_crc) = (1, has_crc);
    let backend = SynapseBlocker::connect(config).await?;
    drive(&backend, shape, meter).await
}

/// Runs the closed loop on any backend: one caller per unit of depth, each with one call at a time.
async fn drive(backend: &dyn Blocker, shape: &Shape, meter: &mut Meter) -> Result<()> {
    let payload = Bytes::from(vec![0x5a; shape.bytes]);
    let objects: Vec<ObjectId> = (0..=place(shape.slots(), shape.bytes).0).map(object).collect();
    let (meter, sent) = (RefCell::new(meter), Cell::new(0));
    let caller = || async {
        while !meter.borrow().is_done() {
            let (number, offset) = place(shape.slot(sent.get()), shape.bytes);
            let (id, offset) = (objects[number].clone(), offset as u64);
            sent.set(sent.get() + 1);
            match shape.operation {
                Operation::Read => {
                    let reply = backend.read(ReadRequest::new(id, offset, shape.bytes as u64)).await?;
                    ensure!(reply.data.len_bytes() == shape.bytes, "an answer of another length");
                }
                Operation::Write => _ = backend.write(WriteRequest::new(id, offset, payload.clone())).await?,
            }
            meter.borrow_mut().count();
        }
        Ok(())
    };
    let mut callers: FuturesUnordered<_> = (0..shape.depth).map(|_| caller()).collect();
    // The first caller that notices the end of the time span ends the loop for all callers.
    callers.next().await.expect("there is a caller")
}
