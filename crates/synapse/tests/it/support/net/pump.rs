//! Forwards the bytes of one direction as they were sent, except for the faults of its plan.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::plan::{Direction, Fault, Hits};

/// The maximum number of bytes forwarded in one step.
const CHUNK_BYTES: usize = 16 * 1024;

/// The way in which a direction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The sender has closed the direction, and the receiver has seen that.
    Closed,
    /// The sender has closed the direction, and the receiver has not noticed: half-open.
    Swallowed,
    /// The whole connection has to end now.
    Cut,
}

/// Forwards bytes from `source` to `sink` with the faults of `direction`.
pub async fn pump(
    mut source: impl AsyncRead + Unpin,
    mut sink: impl AsyncWrite + Unpin,
    mut direction: Direction,
    hits: &Hits,
    carried: &AtomicU64,
) -> End {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut passed = 0;
    loop {
        // Faults at this position are handled first, so that after a pause nothing is read from the
        // sender.
        let mut corruption = 0;
        while let Some(&(at, fault)) = direction.faults.front()
            && at <= passed
        {
            direction.faults.pop_front();
            hits.count(fault);
            match fault {
                Fault::Cut | Fault::Kill => return End::Cut,
                Fault::HalfOpen => {
                    let swallowed = tokio::io::copy(&mut source, &mut tokio::io::sink()).await;
                    return if swallowed.is_ok() { End::Swallowed } else { End::Cut };
                }
                Fault::Pause(time) | Fault::Delay(time) => tokio::time::sleep(time).await,
                Fault::Corrupt(bits) => corruption ^= bits,
            }
        }
        let until_next = direction.faults.front().map_or(u64::MAX, |&(at, _)| at - passed);
        let room = until_next.min(if corruption == 0 { CHUNK_BYTES as u64 } else { 1 }) as usize;
        match forward(&mut source, &mut sink, &mut chunk[..room], corruption).await {
            Ok(0) => {
                let closed = sink.shutdown().await;
                return if closed.is_ok() { End::Closed } else { End::Cut };
            }
            Ok(bytes) => {
                passed += bytes as u64;
                carried.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(_) => return End::Cut,
        }
    }
}

async fn forward(
    source: &mut (impl AsyncRead + Unpin),
    sink: &mut (impl AsyncWrite + Unpin),
    chunk: &mut [u8],
    corruption: u8,
) -> io::Result<usize> {
    let bytes = source.read(chunk).await?;
    if let Some(first) = chunk[..bytes].first_mut() {
        *first ^= corruption;
    }
    sink.write_all(&chunk[..bytes]).await?;
    sink.flush().await?;
    Ok(bytes)
}
