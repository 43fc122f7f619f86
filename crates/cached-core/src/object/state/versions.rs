//! The versions by which callers knew objects that have left the cache.
//!
//! A change that is acknowledged before the store has seen it gets a version of the cache's own; the store
//! gives it another when it is flushed. While the object is in the cache callers continue to see the first.
//! This table lets them see it when the object comes back as well: for names that left lately it remembers
//! the store's version and the one that stood for it. It is bounded, and forgets: then callers see the
//! store's version, as if the object had been changed without effect, and a conditional request fails and has
//! to read again.

use crate::object::lock_ranks;
use crate::sync::{Mutex, lock};

const STRIPES: usize = 16;
const ENTRIES_MIN: u32 = 1024;

#[derive(Clone, Copy, Default)]
struct Entry {
    hash: u64,
    store: u64,
    shown: u64,
}

/// See the module.
pub(crate) struct Versions {
    stripes: Box<[Mutex<Box<[Entry]>>]>,
}

impl Versions {
    /// Makes a table for an index of `objects` nodes.
    pub(crate) fn new(objects: u32) -> Self {
        let entries = objects.clamp(ENTRIES_MIN, 1 << 20).next_power_of_two() as usize / STRIPES;
        let stripe =
            || Mutex::ranked(vec![Entry::default(); entries].into_boxed_slice(), &lock_ranks::VERSIONS);
        Self { stripes: (0..STRIPES).map(|_| stripe()).collect() }
    }

    fn with<R>(&self, hash: u64, job: impl FnOnce(&mut Entry) -> R) -> R {
        let mut entries = lock(&self.stripes[hash as usize % STRIPES]);
        let at = (hash >> 8) as usize & (entries.len() - 1);
        job(&mut entries[at])
    }

    /// Remembers, for an object that leaves, that `shown` stood for the store's version `store`.
    pub(crate) fn remember(&self, hash: u64, store: u64, shown: u64) {
        self.with(hash, |entry| *entry = Entry { hash, store, shown });
    }

    /// Returns the version that stood for the store's version `store`, or `store` if none is remembered.
    pub(crate) fn shown_for(&self, hash: u64, store: u64) -> u64 {
        self.with(hash, |entry| if (entry.hash, entry.store) == (hash, store) { entry.shown } else { store })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_shown_again_as_long_as_the_store_has_what_it_stood_for() {
        let versions = Versions::new(1);
        versions.remember(5, 100, 7);
        assert_eq!(versions.shown_for(5, 100), 7);
        assert_eq!(versions.shown_for(5, 101), 101, "changed below");
        assert_eq!(versions.shown_for(6, 100), 100, "another object");
    }
}
