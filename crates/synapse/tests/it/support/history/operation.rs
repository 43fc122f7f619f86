//! One operation of a history: the call, its times, and its outcome.
//!
//! A register holds one value. A value stands for 4 KiB of bytes ([`Value::to_bytes`]), so that a torn or
//! damaged read is no value at all. A change that failed for certain is no operation: it is left out, and the
//! check then refuses a read of it.

use std::fmt;

/// The size of a register, in bytes.
pub const REGISTER_BYTES: usize = 4096;

/// What a register holds. Zero, all bytes zero, is what it holds at first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Value(pub u32);

impl Value {
    /// What a register holds before anything is written.
    pub const INITIAL: Self = Self(0);

    /// The bytes that stand for it: the value, over and over.
    pub fn to_bytes(self) -> Vec<u8> {
        self.0.to_le_bytes().repeat(REGISTER_BYTES / 4)
    }

    /// The value that `bytes` stand for, if they are whole.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let value = Self(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?));
        (bytes == value.to_bytes()).then_some(value)
    }
}

/// A call and its outcome. `Unknown` marks a change that may have been made, may
/// never be, and may be made at any time from its call on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A read that found `0`.
    Read(Value),
    /// A write that was acknowledged.
    Write(Value),
    /// A write of unknown outcome.
    WriteUnknown(Value),
    /// A compare-and-write that found `expected` and wrote `value`.
    Swap { expected: Value, value: Value },
    /// A compare-and-write that did not find `expected`.
    Mismatch { expected: Value },
    /// A compare-and-write of unknown outcome.
    SwapUnknown { expected: Value, value: Value },
}

impl Action {
    /// Whether the client does not know if it was done.
    pub fn is_unknown(self) -> bool {
        matches!(self, Self::WriteUnknown(_) | Self::SwapUnknown { .. })
    }

    /// What the register holds after this, if it may happen while the register holds `state`. An
    /// unknown compare-and-write that does not match has not happened.
    pub fn apply(self, state: Value) -> Option<Value> {
        match self {
            Self::Read(found) => (found == state).then_some(state),
            Self::Write(value) | Self::WriteUnknown(value) => Some(value),
            Self::Mismatch { expected } => (expected != state).then_some(state),
            Self::Swap { expected, value } | Self::SwapUnknown { expected, value } => {
                (expected == state).then_some(value)
            }
        }
    }

    /// Whether it leaves the register as it is, whatever that is.
    pub fn is_observation(self) -> bool {
        matches!(self, Self::Read(_) | Self::Mismatch { .. })
    }
}

/// One operation: an action within its span of time. Times are ticks of one counter, no two equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The client.
    pub client: usize,
    /// The call and its outcome.
    pub action: Action,
    /// When the call was made.
    pub called: u64,
    /// When the answer came; [`u64::MAX`] for an unknown outcome, which may come to pass at any time.
    pub answered: u64,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, action, called, answered } = self;
        match answered {
            &u64::MAX => write!(f, "client {client} {called:>5}..      {action:?}"),
            _ => write!(f, "client {client} {called:>5}..{answered:<5} {action:?}"),
        }
    }
}
