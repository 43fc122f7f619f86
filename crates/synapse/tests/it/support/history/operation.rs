//! One operation of a history: the call, its times, and its outcome.
//!
//! A register has one value. A value stands for 4 KiB of bytes ([`Value::to_bytes`]), so that a
//! torn or damaged read does not give a value. A change that certainly failed is left out of the
//! history, and the check then refuses a read of its value.

use std::fmt;

/// The size of a register, in bytes.
pub const REGISTER_BYTES: usize = 4096;

/// The value of a register. The initial value is zero, and all of its bytes are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Value(pub u32);

impl Value {
    /// The value of a register before anything is written.
    pub const INITIAL: Self = Self(0);

    /// Returns the bytes of the value: the number, repeated.
    pub fn to_bytes(self) -> Vec<u8> {
        self.0.to_le_bytes().repeat(REGISTER_BYTES / 4)
    }

    /// Returns the value that `bytes` represent, if the bytes are consistent.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let value = Self(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?));
        (bytes == value.to_bytes()).then_some(value)
    }
}

/// A call and its outcome. `Unknown` marks a change that may or may not take effect, at any time
/// after its call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A read that returned this value.
    Read(Value),
    /// An acknowledged write.
    Write(Value),
    /// A write with unknown outcome.
    WriteUnknown(Value),
    /// A compare-and-write that found `expected` and wrote `value`.
    Swap { expected: Value, value: Value },
    /// A compare-and-write that did not find `expected`.
    Mismatch { expected: Value },
    /// A compare-and-write with unknown outcome.
    SwapUnknown { expected: Value, value: Value },
}

impl Action {
    /// Returns whether the outcome is unknown to the client.
    pub fn is_unknown(self) -> bool {
        matches!(self, Self::WriteUnknown(_) | Self::SwapUnknown { .. })
    }

    /// Returns the register's value after this operation; `None` if the operation cannot happen
    /// while the value is `state`. An unknown compare-and-write that does not match has not
    /// happened.
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

    /// Returns whether the action never changes the register.
    pub fn is_observation(self) -> bool {
        matches!(self, Self::Read(_) | Self::Mismatch { .. })
    }
}

/// One operation: an action with its time span. Times are ticks of a single counter, all different.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The client.
    pub client: usize,
    /// The call and its outcome.
    pub action: Action,
    /// When the call was made.
    pub called: u64,
    /// When the reply arrived; [`u64::MAX`] for an unknown outcome, which may take effect at any
    /// time.
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
