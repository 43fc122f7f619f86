//! Why what needs a volume without connections is not done.

/// Why an operation on a volume without connections was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Connections have the volume.
    #[error("{connections} NBD {} the volume; end {} first", are(*.connections).0, are(*.connections).1)]
    Used {
        /// The number of them.
        connections: usize,
    },
    /// The volume could not be given up, or the operation has failed.
    #[error(transparent)]
    Failed(#[from] crate::error::Error),
}

/// Returns what so many connections do, and what stands for them.
fn are(connections: usize) -> (&'static str, &'static str) {
    if connections == 1 { ("connection uses", "it") } else { ("connections use", "them") }
}

#[cfg(test)]
mod tests {
    use super::Refused;

    #[test]
    fn one_connection_is_one() {
        let text = |connections| Refused::Used { connections }.to_string();
        assert_eq!(text(1), "1 NBD connection uses the volume; end it first");
        assert_eq!(text(2), "2 NBD connections use the volume; end them first");
    }
}
