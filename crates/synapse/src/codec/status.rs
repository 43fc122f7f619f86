//! The status of a frame: one per error of the contract, and those of the protocol itself.

use super::error::FrameError;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// The result of a request, or the cause of a goodbye.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Status {
            $($(#[$doc])* $name = $code,)*
        }

        impl Status {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the status with this byte on the wire.
            ///
            /// # Errors
            /// [`FrameError::Field`] if there is none with this code.
            pub fn from_code(code: u8) -> Result<Self, FrameError> {
                match code {
                    $($code => Ok(Self::$name),)*
                    _ => Err(FrameError::Field { name: "status", value: u64::from(code) }),
                }
            }
        }
    };
}

statuses! {
    /// Success.
    Ok = 0;
    /// [`blocker::Error::Missing`].
    Missing = 1;
    /// [`blocker::Error::Exists`].
    Exists = 2;
    /// [`blocker::Error::ConditionFailed`]: `object version`.
    ConditionFailed = 3;
    /// [`blocker::Error::Mismatch`]: `offset`.
    Mismatch = 4;
    /// [`blocker::Error::Fenced`]: `epoch`.
    Fenced = 5;
    /// [`blocker::Error::Superseded`]: `epoch`, `sequence`.
    Superseded = 6;
    /// [`blocker::Error::NotStored`].
    NotStored = 7;
    /// [`blocker::Error::OutcomeUnknown`].
    OutcomeUnknown = 8;
    /// [`blocker::Error::DeadlinePassed`].
    DeadlinePassed = 9;
    /// [`blocker::Error::OutOfSpace`].
    OutOfSpace = 10;
    /// [`blocker::Error::Retryable`].
    Retryable = 11;
    /// [`blocker::Error::Corrupt`].
    Corrupt = 12;
    /// [`blocker::Error::WritesLost`].
    WritesLost = 13;
    /// [`blocker::Error::Unsupported`].
    Unsupported = 14;
    /// [`blocker::Error::TooLarge`]: `length`.
    TooLarge = 15;
    /// [`blocker::Error::Denied`].
    Denied = 16;
    /// [`blocker::Error::Invalid`].
    Invalid = 17;
    /// The request was cancelled by its caller.
    Cancelled = 64;
    /// In the answer to a hello: the server demands a proof.
    Challenge = 65;
    /// In a goodbye: another connection has taken the session over.
    Replaced = 66;
    /// In a goodbye: the sender shuts down in order.
    Ending = 67;
}

impl Status {
    /// Returns the byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}
