//! The operations, and the kind of each.

use blocker::Capabilities;

use super::frame::FrameError;
use super::header::{HEADER_BYTES, Header};

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $kind:ident;)*) => {
        /// The operation of a frame.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Op {
            $($(#[$doc])* $name = $code,)*
        }

        impl Op {
            /// All operations.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the operation with this byte on the wire.
            ///
            /// # Errors
            /// [`FrameError::Op`] if no operation has this code.
            pub fn from_code(code: u8) -> Result<Self, FrameError> {
                match code {
                    $($code => Ok(Self::$name),)*
                    _ => Err(FrameError::Op(code)),
                }
            }

            /// Returns the byte on the wire.
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// Returns the operation's kind, which decides what may be done when its answer is
            /// lost.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self {
                    $(Self::$name => Kind::$kind,)*
                }
            }
        }
    };
}

/// The handling of an operation whose answer is lost, and the meaning of a passed deadline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Belongs to the connection itself; no caller waits for an answer.
    Connection,
    /// Changes nothing: may be executed again.
    Query,
    /// Changes an object: executed again only if the server remembers that it was not executed
    /// before.
    Change,
    /// Makes changes stored: may be executed again, but does not cover changes that another
    /// instance has lost.
    Flush,
    /// Has the same effect when executed twice.
    Repeatable,
}

ops! {
    /// The first frame of a connection: the client's session and features.
    Hello = 1, Connection;
    /// The client's proof that it knows the secret.
    Prove = 2, Connection;
    /// Checks that the peer is alive; answered by the same frame with the reply flag.
    Ping = 3, Connection;
    /// Cancels the request with this id.
    Cancel = 4, Connection;
    /// The last frame of a connection, with the cause.
    Goodbye = 5, Connection;
    /// An event of the backend.
    Event = 6, Connection;
    /// The bytes that may be outstanding from now on, or that are requested. Only with the feature.
    Credit = 7, Connection;
    /// Read a range.
    Read = 16, Query;
    /// Write a range.
    Write = 17, Change;
    /// Write zeros over a range.
    WriteZeroes = 18, Change;
    /// Discard a range.
    Discard = 19, Change;
    /// Write if the bytes are as expected.
    CompareAndWrite = 20, Change;
    /// Replace the content.
    WriteFull = 21, Change;
    /// Set the size.
    Truncate = 22, Change;
    /// Delete.
    Delete = 23, Change;
    /// Replace the content by another object's.
    Copy = 24, Change;
    /// Size, version, stamp.
    Info = 25, Query;
    /// One page of a namespace.
    List = 26, Query;
    /// Make everything acknowledged in a scope stored.
    Flush = 27, Flush;
    /// Take over a scope with an epoch.
    Claim = 28, Repeatable;
    /// The scope may have changed without this backend.
    Invalidate = 29, Repeatable;
    /// Write several ranges in one change. Only with the feature.
    WriteRuns = 30, Change;
    /// The namespace is going to be used.
    Attach = 48, Repeatable;
    /// The namespace will not be used for a while.
    Detach = 49, Flush;
    /// The namespace's policy.
    Policy = 50, Query;
    /// Change the namespace's policy.
    SetPolicy = 51, Repeatable;
    /// The namespace's limit and use.
    Quota = 52, Query;
    /// Change the namespace's limit.
    SetQuota = 53, Repeatable;
    /// Return the metrics as names and values.
    Statistics = 54, Query;
    /// Return the namespaces that have objects or claims.
    Namespaces = 55, Query;
    /// Return typed metrics. Only with the feature.
    Metrics = 56, Query;
    /// Return the changes that are lost. Only with the feature.
    Losses = 57, Query;
    /// The state of a namespace in the cache, and its settings. Only with the feature.
    NamespaceState = 58, Query;
    /// The states of all namespaces that are configured or have been used. Only with the feature.
    NamespaceStates = 59, Query;
    /// Set the write mode or settings of a namespace. Only with the feature.
    ChangeNamespace = 60, Repeatable;
    /// Drop a namespace from the cache. Only with the feature.
    RemoveNamespace = 61, Change;
}

impl Op {
    /// Returns whether the server keeps the outcome until the slot is used again.
    #[must_use]
    pub const fn keeps_outcome(self) -> bool {
        !matches!(self.kind(), Kind::Query | Kind::Connection)
    }

    /// Returns the name of the operation's spans; `None` for untraced operations: connections and
    /// the control plane.
    #[must_use]
    pub const fn span_name(self) -> Option<&'static str> {
        Some(match self {
            Self::Read => "synapse.read",
            Self::WriteZeroes => "synapse.write_zeroes",
            Self::Write => "synapse.write",
            Self::WriteRuns => "synapse.write_runs",
            Self::Discard => "synapse.discard",
            Self::CompareAndWrite => "synapse.compare_and_write",
            Self::WriteFull => "synapse.write_full",
            Self::Truncate => "synapse.truncate",
            Self::Delete => "synapse.delete",
            Self::Copy => "synapse.copy",
            Self::Info => "synapse.info",
            Self::List => "synapse.list",
            Self::Flush => "synapse.flush",
            Self::Claim => "synapse.claim",
            Self::Invalidate => "synapse.invalidate",
            _ => return None,
        })
    }

    /// Returns whether the operation is a request that takes a slot.
    #[must_use]
    pub const fn takes_slot(self) -> bool {
        !matches!(self.kind(), Kind::Connection)
    }
}

// ---- The cost of a request, in the bytes that a session may have outstanding.

/// The maximum number of bytes of an entry of a listing, or of a name or value in a control answer.
pub const LIST_ENTRY_BYTES_MAX: u64 = 1 + 255 + 8 + 8;
/// The maximum number of names or values in a control answer.
pub const CONTROL_ENTRIES_MAX: usize = 1000;

/// The maximum number of bytes of the payload of a control answer.
pub const CONTROL_BYTES_MAX: u64 = CONTROL_ENTRIES_MAX as u64 * LIST_ENTRY_BYTES_MAX;

/// Returns the cost of a request in bytes, under these limits of the server: its own length and the
/// largest answer.
#[must_use]
pub fn cost_bytes(header: &Header, head_bytes: usize, payload_bytes: usize, limits: &Capabilities) -> u64 {
    let answer = match header.op {
        Op::Read => header.length.min(limits.request_bytes_max),
        Op::List => header.length.min(limits.list_entries_max.into()) * LIST_ENTRY_BYTES_MAX,
        Op::Statistics
        | Op::Namespaces
        | Op::Metrics
        | Op::Losses
        | Op::NamespaceState
        | Op::NamespaceStates => CONTROL_BYTES_MAX,
        _ => 0,
    };
    (head_bytes + payload_bytes) as u64 + 2 * HEADER_BYTES as u64 + answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_one_operation_and_no_other() {
        for op in Op::ALL {
            assert_eq!(Op::from_code(op.code()), Ok(*op));
        }
        let known = (0..=u8::MAX).filter(|code| Op::from_code(*code).is_ok()).count();
        assert_eq!(known, Op::ALL.len());
    }
}
