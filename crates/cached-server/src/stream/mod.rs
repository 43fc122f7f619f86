//! The byte stream of a connection, below the execution of requests.
//!
//! | module | content |
//! |---|---|
//! | `tls` | [`TlsSocket`]: a socket whose bytes are TLS records |
//! | `transport` | [`Transport`]: nonblocking reads and writes, and the sockets that implement it |
//! | `output` | [`Output`]: replies that have not been sent |
//! | `body` | [`Body`]: a value that has not arrived completely |
//!
//! The constants below are the sizes of a worker's buffers.

mod body;
mod output;
pub(crate) mod tls;
mod transport;

pub(crate) use body::{Body, OutOfMemory};
pub(crate) use output::{COPY_BYTES_MAX, FULL_BYTES, Output, PIN_BYTES_MIN};
pub(crate) use tls::{BUFFERS_BYTES as TLS_BUFFERS_BYTES, TlsBuffers, TlsSocket, TlsStream};
pub(crate) use transport::{Draining, Readiness, Socket, Transport};

/// Bytes requested by one read.
pub(crate) const READ_BYTES: usize = 16 << 10;

/// A worker's input buffer: one read, and the unused rest of the one before.
pub(crate) const INPUT_BYTES: usize = 2 * READ_BYTES;

/// The number of connections that are read from before the first of them is answered: enough for their waits
/// for memory to overlap, and few enough for the first reply not to be late.
pub(crate) const GROUP: usize = 4;

/// Bytes read from each connection of a group: a value of 4 KiB with its command. The rest of a larger value
/// is better read straight into its place, and buffers that every sender fills to the end cost memory.
pub(crate) const AHEAD_BYTES: usize = (4 << 10) + (1 << 9);

/// A worker's input buffers together.
pub(crate) const INPUT_BUFFERS_BYTES: usize = INPUT_BYTES + GROUP * AHEAD_BYTES;
