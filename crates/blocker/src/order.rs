//! Durability, versions, epochs, stamps and order domains.

use std::fmt;

/// The durability of a change, that is, the failures that the change survives. A level has the same
/// meaning on every layer; a request asks for a level, and the reply states the level reached.
/// Levels are ordered from weakest to strongest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Durability {
    /// In the memory of this process, or in the page cache: lost if the process or the host fails.
    #[default]
    Cached,
    /// In a synced local log: survives a crash of the process or the host, but not the loss of the
    /// disk.
    Journaled,
    /// In the memory or log of this number of other nodes: survives the loss of the host.
    Replicated(u8),
    /// Acknowledged by the backing store: survives whatever the store survives.
    Stored,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cached => f.write_str("cached"),
            Self::Journaled => f.write_str("journaled"),
            Self::Replicated(count) => write!(f, "replicated({count})"),
            Self::Stored => f.write_str("stored"),
        }
    }
}

/// The version of an object's content. Every change gives the object a version that its name never
/// had before, not even before a delete or a crash. So the same name and version always mean the
/// same bytes. A larger version is not necessarily later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A fencing epoch: the number of a claim. A claim raises the epoch, and changes with older epochs
/// are refused from then on. A change without a stamp counts as epoch 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The identity of a writer: a random number drawn once for each run of a writer, so that no two
/// writers share one.
///
/// Claims carry the identity, which makes epochs exclusive: the writer that holds an epoch may
/// claim it again (for example because the reply was lost); any other writer is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WriterId(pub u128);

impl WriterId {
    /// Returns a random identity.
    ///
    /// # Panics
    /// Panics if the operating system has no random bytes.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("random bytes from the operating system");
        Self(u128::from_le_bytes(bytes))
    }
}

impl fmt::Display for WriterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The position of a change in its writer's history of one object: the writer's epoch, then a
/// number that rises with each change of that object. A store applies a stamped change only if its
/// stamp is above the object's, atomically with the data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp {
    /// The writer's epoch.
    pub epoch: Epoch,
    /// The number of the change, which rises with every change of the object within the epoch.
    pub sequence: u64,
}

impl Stamp {
    /// Returns the stamp of the change `sequence` by the writer that claimed `epoch`.
    #[must_use]
    pub fn new(epoch: u64, sequence: u64) -> Self {
        Self { epoch: Epoch(epoch), sequence }
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.sequence)
    }
}

/// A set of changes whose order matters across objects, for example the changes of a volume. Order
/// domains are numbered within a namespace.
///
/// A flush of the domain closes its generation. After any loss, a store that has a change of
/// generation g + 1 has all changes of generation g.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OrderDomain(pub u64);

impl fmt::Display for OrderDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durability_is_ordered_from_weak_to_strong() {
        use Durability::{Cached, Journaled, Replicated, Stored};
        let words = [Cached, Journaled, Replicated(1), Replicated(2), Stored];
        assert!(words.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn an_epoch_outranks_any_sequence() {
        assert!(Stamp::new(2, 0) > Stamp::new(1, u64::MAX));
    }
}
