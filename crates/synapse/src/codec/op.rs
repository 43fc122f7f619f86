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
            /// Returns [`FrameError::Op`] if no operation has this code.
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

            /// Returns the operation's kind, which decides what may be done if its answer is lost.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self {
                    $(Self::$name => Kind::$kind,)*
                }
            }
        }
    };
}

/// The kind of an operation, which decides how a lost answer is handled, and what a passed deadline
/// means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The operation belongs to the connection itself; no caller waits for an answer.
    Connection,
    /// The operation changes nothing, so it may be executed again.
    Query,
    /// The operation changes an object, so it is executed again only if the server remembers that
    /// it was not executed before.
    Change,
    /// The operation makes changes stored. It may be executed again, but does not cover changes
    /// that another instance has lost.
    Flush,
    /// The operation has the same effect if it is executed twice.
    Repeatable,
}

ops! {
    /// The first frame of a connection: the client's session and features.
    Hello = 1, Connection;
    /// Sends the client's proof that it knows the secret.
    Prove = 2, Connection;
    /// Checks that the peer is alive. The peer replies with the same frame and the reply flag.
    Ping = 3, Connection;
    /// Cancels the request with this ID.
    Cancel = 4, Connection;
    /// The last frame of a connection, with the cause.
    Goodbye = 5, Connection;
    /// An event of the backend.
    Event = 6, Connection;
    /// Sets or requests the number of bytes that may be outstanding from now on. Used only with the
    /// feature.
    Credit = 7, Connection;
    /// Reads a range.
    Read = 16, Query;
    /// Writes a range.
    Write = 17, Change;
    /// Writes zeros over a range.
    WriteZeroes = 18, Change;
    /// Discards a range.
    Discard = 19, Change;
    /// Writes if the bytes are as expected.
    CompareAndWrite = 20, Change;
    /// Replaces the content.
    WriteFull = 21, Change;
    /// Sets the size.
    Truncate = 22, Change;
    /// Delete.
    Delete = 23, Change;
    /// Replaces the content by that of another object.
    Copy = 24, Change;
    /// Returns the size, the version and the stamp.
    Info = 25, Query;
    /// Returns one page of a namespace.
    List = 26, Query;
    /// Makes everything acknowledged in a scope stored.
    Flush = 27, Flush;
    /// Takes over a scope with an epoch.
    Claim = 28, Repeatable;
    /// The scope may have changed without this backend.
    Invalidate = 29, Repeatable;
    /// Writes several ranges in one change. Used only with the feature.
    WriteRuns = 30, Change;
    /// The namespace is going to be used.
    Attach = 48, Repeatable;
    /// The namespace will not be used for a while.
    Detach = 49, Flush;
    /// The namespace's policy.
    Policy = 50, Query;
    /// Changes the namespace's policy.
    SetPolicy = 51, Repeatable;
    /// The namespace's limit and use.
    Quota = 52, Query;
    /// Changes the namespace's limit.
    SetQuota = 53, Repeatable;
    /// Returns the metrics as names and values.
    Statistics = 54, Query;
    /// Returns the namespaces that have objects or claims.
    Namespaces = 55, Query;
    /// Returns typed metrics. Used only with the feature.
    Metrics = 56, Query;
    /// Returns the changes that are lost. Used only with the feature.
    Losses = 57, Query;
    /// Returns the state of a namespace in the cache, and its settings. Used only with the feature.
    NamespaceState = 58, Query;
    /// The states of all namespaces that are configured or have been used. Only with the feature.
    NamespaceStates = 59, Query;
    /// Sets the write mode or settings of a namespace. Used only with the feature.
    ChangeNamespace = 60, Repeatable;
    /// Drops a namespace from the cache. Used only with the feature.
    RemoveNamespace = 61, Change;
}

impl Op {
    /// Returns whether the server keeps the outcome until the slot is used again.
    #[must_use]
    pub const fn keeps_outcome(self) -> bool {
        !matches!(self.kind(), Kind::Query | Kind::Connection)
    }

    /// Returns the name of the operation's spans. It is `None` for untraced operations: those of
    /// connections and the control plane.
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

/// The maximum length of an entry of a listing, or of a name or value in a control answer, in
/// bytes.
pub const LIST_ENTRY_BYTES_MAX: u64 = 1 + 255 + 8 + 8;
/// The maximum number of names or values in a control answer.
pub const CONTROL_ENTRIES_MAX: usize = 1000;

/// The maximum length of the payload of a control answer, in bytes.
pub const CONTROL_BYTES_MAX: u64 = CONTROL_ENTRIES_MAX as u64 * LIST_ENTRY_BYTES_MAX;

/// Returns the cost of a request in bytes, under these limits of the server: the length of the
/// request plus the maximum length of its answer.
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
