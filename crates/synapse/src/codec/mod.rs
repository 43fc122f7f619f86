//! The protocol as bytes: a pure function each way, no I/O, no clock, no runtime.
//!
//! `docs/synapse-protocol.md` is the specification; this is it in code. Nothing here panics on what a
//! peer sent, and nothing is allocated that the peer did not send, except where a name is seen for the
//! first time.

mod answer;
mod extension;
mod frame;
mod header;
mod hello;
mod names;
mod op;
mod request;
mod runs;
mod status;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Outcome, decode_event, encode_event};
pub use extension::{CRITICAL, Extensions, Writer, kind};
pub use frame::{
    Attached, EXTENSION_BYTES_MAX, FrameError, HEAD_BYTES_MAX, Head, Measured, decode, encode, encode_cancel,
    encode_credit, encode_ping, encode_plain, measure, parse,
};
pub use header::{Flags, HEADER_BYTES, Header, MAGIC, RequestId, VERSION};
pub use hello::{
    CLOSED_MAX, Challenge, Credits, Features, HANDSHAKE_NAME_BYTES_MAX, Hello, InstanceId, KEY_BYTES_MAX,
    Nonce, SessionId, StoreId, Versions, Welcome, decode_goodbye, decode_proof, encode_goodbye, encode_proof,
    versions,
};
pub use names::Names;
pub use op::{Kind, Op};
pub use request::{
    CONTROL_BYTES_MAX, CONTROL_ENTRIES_MAX, LIST_ENTRY_BYTES_MAX, Request, cost_bytes, is_unmatchable_prefix,
    payload_crc,
};
pub use runs::{RUN_BYTES, RUNS_MAX};
pub use status::{REASON_BYTES_MAX, Status};
