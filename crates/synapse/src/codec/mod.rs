//! The protocol as bytes: a pure function in each direction, without I/O, clock or runtime.
//!
//! `docs/synapse-protocol.md` is the specification that this module implements. The code never
//! panics on a peer's bytes, and allocates no more memory than the peer has sent bytes, except for
//! a new name.
//!
//! ```
//! use blocker::{Name, Namespace, ObjectId, ReadRequest, Segments, Timestamp};
//! use synapse::codec::{Names, Request, RequestId, decode};
//!
//! let disk = ObjectId::new(Namespace::new("vm")?, Name::new("disk.0")?);
//! let request = Request::Read(ReadRequest::new(disk, 0, 4096));
//! let mut frame = Vec::new();
//! let id = RequestId { slot: 0, sequence: 1 };
//! let payload = request.encode(id, Timestamp(0), false, &mut frame);
//! assert!(payload.is_empty());
//!
//! let head = decode(&frame, 0)?.expect("a complete head");
//! let decoded = Request::decode(&head, Segments::new(), &mut Names::default(), Timestamp(0))?;
//! assert!(matches!(decoded, Request::Read(read) if read.len_bytes == 4096));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod control;
mod fields;
mod frame;
mod header;
mod hello;
mod notice;
mod op;
mod request;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Outcome};
pub use control::{LOSSES_MAX, metrics_page};
pub use fields::{Names, RUN_BYTES, RUNS_MAX, payload_crc};
pub use frame::{
    Attached, CRITICAL, EXTENSION_BYTES_MAX, Extensions, FrameError, HEAD_BYTES_MAX, Head, Measured, Writer,
    decode, encode, encode_cancel, encode_credit, encode_ping, encode_plain, kind, measure, parse,
};
pub use header::{Flags, HEADER_BYTES, Header, MAGIC, RequestId, Status, VERSION};
pub use hello::{
    CLOSED_MAX, Challenge, Credits, Features, HANDSHAKE_NAME_BYTES_MAX, Hello, InstanceId, KEY_BYTES_MAX,
    Nonce, SessionId, StoreId, Versions, Welcome, decode_proof, encode_proof, versions,
};
pub use notice::{REASON_BYTES_MAX, decode_event, decode_goodbye, encode_event, encode_goodbye};
pub use op::{CONTROL_BYTES_MAX, CONTROL_ENTRIES_MAX, Kind, LIST_ENTRY_BYTES_MAX, Op, cost_bytes};
pub use request::{Request, is_unmatchable_prefix};
