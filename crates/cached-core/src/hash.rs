//! The seeded hash of a key, and which of its bits decide what.
//!
//! ```text
//!  63      58 57        48 47    40 39      32 31                                0
//! ┌──────────┬────────────┬────────┬──────────┬──────────────────────────────────┐
//! │  shard   │  (unused)  │  tag   │ (unused) │ bucket: the low bits, one more   │
//! │ (6 bits) │            │        │          │ with every doubling              │
//! └──────────┴────────────┴────────┴──────────┴──────────────────────────────────┘
//! ```
//! The seed is random per store, so that nobody outside can aim keys at one bucket.

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use std::hash::{BuildHasher, Hasher};

/// The hash of one key under one store's seed. It means nothing to another store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHash(pub(crate) u64);

impl KeyHash {
    pub(crate) fn shard(self, shard_bits: u32) -> usize {
        if shard_bits == 0 { 0 } else { (self.0 >> (64 - shard_bits)) as usize }
    }

    pub(crate) fn tag(self) -> u8 {
        (self.0 >> 40) as u8
    }

    pub(crate) fn low(self) -> u32 {
        self.0 as u32
    }
}

/// Hashes keys with one seed.
#[derive(Clone)]
pub(crate) struct KeyHasher {
    state: SeedableRandomState,
}

impl KeyHasher {
    /// A hasher that nobody outside can predict, or, given a seed, the same one every time.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let (seed, shared) = match seed {
            Some(seed) => (seed, SharedSeed::global_fixed()),
            None => (random_seed(), SharedSeed::global_random()),
        };
        KeyHasher { state: SeedableRandomState::with_seed(seed, shared) }
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        let mut hasher = self.state.build_hasher();
        hasher.write(key);
        KeyHash(hasher.finish())
    }
}

/// A seed nobody can guess, from the standard library's own random state.
fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
