//! Contexts: what the extents of an export can be asked for.

use std::fmt;

use super::wire::TEXT_BYTES_MAX;

const ALLOCATION: &str = "base:allocation";
const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";

/// A context.
///
/// ```
/// use nbd::protocol::Context;
///
/// assert_eq!(Context::parse("base:allocation"), Some(Context::Allocation));
/// assert_eq!(Context::parse("qemu:dirty-bitmap:monday"), Some(Context::ChangedSince("monday".into())));
/// assert_eq!(Context::ChangedSince("monday".into()).to_string(), "qemu:dirty-bitmap:monday");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Context {
    /// `base:allocation`: which extents take up space, and which are zeros.
    Allocation,
    /// `qemu:dirty-bitmap:NAME`: which extents have changed since the snapshot of that name.
    ChangedSince(String),
}

impl Context {
    /// Returns the context that `name` names in full.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if name == ALLOCATION {
            return Some(Self::Allocation);
        }
        let snapshot = name.strip_prefix(DIRTY_BITMAP)?;
        (!snapshot.is_empty() && name.len() <= TEXT_BYTES_MAX).then(|| Self::ChangedSince(snapshot.into()))
    }

    /// Returns whether a query for a list of contexts means this one: its name, its namespace, or the
    /// beginning of its name up to a colon.
    #[must_use]
    pub fn is_listed_by(&self, query: &str) -> bool {
        match self {
            Self::Allocation => query == "base:" || query == ALLOCATION,
            Self::ChangedSince(_) => query == "qemu:" || query == DIRTY_BITMAP || query == self.to_string(),
        }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocation => f.write_str(ALLOCATION),
            Self::ChangedSince(snapshot) => write!(f, "{DIRTY_BITMAP}{snapshot}"),
        }
    }
}
