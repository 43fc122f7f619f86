//! What a process may do with a store.

/// What a process may do with a file store, and whether it makes one that is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Reads an existing store. Nothing in its directory is changed, so that a read-only file system serves;
    /// changes are `Denied`. Others may read it at the same time.
    Read,
    /// Reads and changes an existing store.
    #[default]
    Write,
    /// As [`Write`](Self::Write); the directory and the store are made if they are missing.
    Create,
}
