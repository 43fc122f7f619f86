//! What a worker lends to its TLS connections.

use super::PARTIAL_BYTES_MAX;

/// Bytes requested by one read: the longest record that peers send, so that a stream of them is read record
/// by record.
pub(super) const READ_BYTES: usize = (16 << 10) + 256 + 5;

/// Bytes of plaintext encrypted before they are sent.
pub(super) const BATCH_BYTES: usize = 64 << 10;

/// The plaintext of one record.
pub(super) const RECORD_BYTES: usize = 16 << 10;

/// Room for the records of a batch, and for what the protocol sends by itself before them.
const OUTGOING_BYTES: usize = BATCH_BYTES + (8 << 10);

/// The bytes of a worker's buffers for TLS.
pub(crate) const BUFFERS_BYTES: usize = PARTIAL_BYTES_MAX + READ_BYTES + OUTGOING_BYTES + RECORD_BYTES;

/// Buffers that all TLS connections of a worker use in turn.
pub(crate) struct TlsBuffers {
    /// Records as they arrive.
    pub(super) incoming: Box<[u8]>,
    /// Records to be sent, up to `outgoing_used`. Grows for the certificates of a long chain.
    pub(super) outgoing: Vec<u8>,
    pub(super) outgoing_used: usize,
    /// The plaintext of a record that consists of several pieces.
    pub(super) joined: Vec<u8>,
    /// The steps of handshakes that may be done before other connections are served.
    pub(crate) handshakes_left: u32,
}

impl TlsBuffers {
    pub(crate) fn new() -> Box<TlsBuffers> {
        Box::new(TlsBuffers {
            incoming: vec![0; PARTIAL_BYTES_MAX + READ_BYTES].into(),
            outgoing: vec![0; OUTGOING_BYTES],
            outgoing_used: 0,
            joined: Vec::with_capacity(RECORD_BYTES),
            handshakes_left: 0,
        })
    }
}
