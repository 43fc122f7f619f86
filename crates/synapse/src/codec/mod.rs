//! The protocol as bytes: a pure function in each direction, without I/O, clock or runtime.
//!
//! `docs/synapse-protocol.md` is the specification that this module implements. Nothing here panics on the
//! bytes of a peer, and no more memory is allocated than the peer has sent bytes, except for a name that is
//! new.
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
mod capabilities;
mod cost;
mod error;
mod event;
mod extension;
mod failure;
mod fields;
mod frame;
mod goodbye;
mod header;
mod hello;
mod metrics;
mod names;
mod namespaces;
mod op;
mod page;
mod request;
mod runs;
mod status;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Outcome};
pub use cost::{CONTROL_BYTES_MAX, CONTROL_ENTRIES_MAX, LIST_ENTRY_BYTES_MAX, cost_bytes};
pub use error::FrameError;
pub use event::{decode_event, encode_event};
pub use extension::{CRITICAL, Extensions, Writer, kind};
pub use failure::REASON_BYTES_MAX;
pub use fields::payload_crc;
pub use frame::{
    Attached, EXTENSION_BYTES_MAX, HEAD_BYTES_MAX, Head, Measured, decode, encode, encode_cancel,
    encode_credit, encode_ping, encode_plain, measure, parse,
};
pub use goodbye::{decode_goodbye, encode_goodbye};
pub use header::{Flags, HEADER_BYTES, Header, MAGIC, RequestId, VERSION};
pub use hello::{
    CLOSED_MAX, Challenge, Credits, Features, HANDSHAKE_NAME_BYTES_MAX, Hello, InstanceId, KEY_BYTES_MAX,
    Nonce, SessionId, StoreId, Versions, Welcome, decode_proof, encode_proof, versions,
};
pub use metrics::{LOSSES_MAX, metrics_page};
pub use names::Names;
pub use op::{Kind, Op};
pub use request::{Request, is_unmatchable_prefix};
pub use runs::{RUN_BYTES, RUNS_MAX};
pub use status::Status;
