//! Two connected streams, with the faults of a plan between them.

use std::future::pending;

use tokio::io::{AsyncRead, AsyncWrite, split};

use super::plan::{Hits, Plan};
use super::pump::{End, pump};

/// A bidirectional byte stream of any kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// Forwards between `client` and `server` until one of them disconnects or the plan cuts the
/// connection; then both are closed. A direction in which bytes disappear keeps the connection
/// open.
pub async fn relay(client: impl Stream, server: impl Stream, plan: Plan, hits: &Hits) {
    let (client_source, client_sink) = split(client);
    let (server_source, server_sink) = split(server);
    let up = ended(pump(client_source, server_sink, plan.up, hits, &hits.up_bytes));
    let down = ended(pump(server_source, client_sink, plan.down, hits, &hits.down_bytes));
    let cut = |end: &End| *end == End::Cut;
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
    let first = tokio::select! {
        biased;
        end = &mut up => (end, true),
        end = &mut down => (end, false),
    };
    if !cut(&first.0) {
        // The other direction may still carry bytes.
        if first.1 {
            down.await
        } else {
            up.await
        };
    }
}

/// A direction in which bytes disappear never ends by itself.
async fn ended(pump: impl Future<Output = End>) -> End {
    match pump.await {
        End::Swallowed => pending().await,
        end => end,
    }
}
