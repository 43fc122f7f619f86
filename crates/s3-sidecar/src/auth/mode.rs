//! Which party decides.

/// Which party decides whether a client may do what it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// The endpoint, at each request: it is forwarded with the client's own signature.
    #[default]
    Gateway,
    /// The listener, which has the clients' keys and verifies their signatures; the endpoint sees the sidecar's own.
    Listener,
    /// None: every client may do what the sidecar's own credentials may.
    None,
}

impl Auth {
    /// Returns whether a request may be answered without the endpoint, as far as rights are concerned.
    #[must_use]
    pub const fn is_here(self) -> bool {
        matches!(self, Auth::Listener | Auth::None)
    }
}
