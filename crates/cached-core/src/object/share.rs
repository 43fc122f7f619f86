//! The numbers of the namespaces' shares of the memory.

/// The number of shares: the common one, and those of namespaces with one of their own.
pub(crate) const SHARES: usize = 16;

/// The most namespaces with a share of the memory of their own.
pub const MEMORY_SHARES_MAX: usize = SHARES - 1;

/// The number of a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share(pub(crate) u8);

impl Share {
    /// The one of all namespaces that have none of their own.
    pub(crate) const COMMON: Self = Self(0);
}
