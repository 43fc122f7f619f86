//! The ways of authentication of the sidecar that s3-tests judge.

/// A way of authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The endpoint verifies the clients' own signatures.
    Gateway,
    /// The sidecar verifies them, and signs its own requests.
    Listener,
}

impl Mode {
    /// Every way that is judged.
    pub const ALL: [Mode; 2] = [Mode::Gateway, Mode::Listener];

    /// Returns the value of `auth`.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Gateway => "gateway",
            Mode::Listener => "listener",
        }
    }

    /// Returns what the names of buckets begin with: a small letter.
    pub const fn letter(self) -> char {
        match self {
            Mode::Gateway => 'g',
            Mode::Listener => 'l',
        }
    }
}
