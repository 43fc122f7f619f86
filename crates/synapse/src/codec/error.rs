//! Why bytes are refused: a stream that cannot be understood, or a frame that makes no sense.

use blocker::Error;

/// Why a stream cannot be understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The peer sends another protocol.
    #[error("not the synapse protocol: the frame begins with {found:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The peer sends another version.
    #[error("version {found} of the protocol, this side has version 1")]
    Version {
        /// Its version.
        found: u8,
    },
    /// The head was damaged on the way.
    #[error("the head fails its checksum")]
    HeadChecksum,
    /// There is no such operation.
    #[error("no operation has the code {code}")]
    Op {
        /// Its code.
        code: u8,
    },
    /// A field has a value that it cannot have.
    #[error("{name} cannot be {value}")]
    Field {
        /// Which field.
        name: &'static str,
        /// Its value.
        value: u64,
    },
    /// A part of the frame is longer than agreed.
    #[error("{name} of {length} bytes, the limit is {limit}")]
    TooLong {
        /// Which part.
        name: &'static str,
        /// Its length.
        length: u64,
        /// The longest allowed.
        limit: u64,
    },
    /// The extensions do not fill their area exactly.
    #[error("the extensions do not add up")]
    Extensions,
    /// A critical extension is unknown.
    #[error("the critical extension {kind} is not known")]
    CriticalExtension {
        /// Its kind.
        kind: u16,
    },
}

/// Returns the error of a frame that can be read and makes no sense.
pub(super) fn invalid(what: &'static str) -> Error {
    Error::Invalid(what.into())
}
