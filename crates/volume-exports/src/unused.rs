//! Why what needs a volume without connections is not done.

/// Why an operation on a volume without connections was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Connections have the volume.
    #[error("{connections} NBD connections use the volume; end them first")]
    Used {
        /// The number of them.
        connections: usize,
    },
    /// The volume could not be given up, or the operation has failed.
    #[error(transparent)]
    Failed(#[from] volumes::Error),
}
