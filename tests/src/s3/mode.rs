//! The sidecar's authentication modes to which s3-tests apply.

/// An authentication mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The endpoint verifies the clients' own signatures.
    Gateway,
    /// The sidecar verifies the clients' signatures, and signs its own requests.
    Listener,
}

impl Mode {
    /// All tested modes.
    pub const ALL: [Mode; 2] = [Mode::Gateway, Mode::Listener];

    /// Returns the value of `auth`.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Gateway => "gateway",
            Mode::Listener => "listener",
        }
    }

    /// Returns the prefix of bucket names: a lower-case letter.
    pub const fn letter(self) -> char {
        match self {
            Mode::Gateway => 'g',
            Mode::Listener => 'l',
        }
    }
}
