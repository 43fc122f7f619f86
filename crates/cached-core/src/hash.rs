//! The seeded hash of a key, and the use of its bits.
//!
//! ```text
//!  63      58 57        48 47    40 39      32 31                                0
//! ┌──────────┬────────────┬────────┬──────────┬──────────────────────────────────┐
//! │  shard   │  (unused)  │  tag   │ (unused) │ hash bucket: the low bits, one   │
//! │ (6 bits) │            │        │          │ more with every doubling         │
//! └──────────┴────────────┴────────┴──────────┴──────────────────────────────────┘
//! ```
//! The seed is random per store, so that clients cannot aim keys at one hash bucket.

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, PoisonError};

/// The hash state of hash maps, seeded like a [`KeyHasher`].
pub(crate) type SeededState = SeedableRandomState;

/// Bits that choose the shard.
pub(crate) const SHARD_BITS: u32 = 6;

/// The hash of a key with one store's seed. It has no meaning in another store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHash(pub(crate) u64);

impl KeyHash {
    /// Returns the bits that choose the shard. With fewer shards, only the lowest of them count.
    pub(crate) fn shard_bits(self) -> usize {
        (self.0 >> (64 - SHARD_BITS)) as usize
    }

    pub(crate) fn tag(self) -> u8 {
        (self.0 >> 40) as u8
    }

    pub(crate) fn low(self) -> u32 {
        self.0 as u32
    }
}

/// Returns the table of a shared seed. A table is never freed, but each seed has only one, however
/// many stores are opened.
fn stable_seed(seed: u64) -> &'static SharedSeed {
    // This is not from `crate::sync`, because interleavings make no difference here.
    static TABLES: Mutex<Vec<(u64, &SharedSeed)>> = Mutex::new(Vec::new());
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, table)) = tables.iter().find(|(of, _)| *of == seed) {
        return table;
    }
    let table = Box::leak(Box::new(SharedSeed::from_u64(seed)));
    tables.push((seed, table));
    table
}

/// Hashes keys with one seed.
#[derive(Clone)]
pub(crate) struct KeyHasher {
    seed: u64,
    shared: &'static SharedSeed,
}

impl KeyHasher {
    /// Creates a hasher with a random seed, or with the given one.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let (seed, shared) = match seed {
            Some(seed) => (seed, SharedSeed::global_fixed()),
            None => (random_seed(), SharedSeed::global_random()),
        };
        KeyHasher { seed, shared }
    }

    /// Creates a hasher that hashes equally in every process.
    pub(crate) fn stable(seed: u64, shared: u64) -> Self {
        KeyHasher { seed, shared: stable_seed(shared) }
    }

    /// Returns a hash that shows whether a process hashes as an earlier process did.
    pub(crate) fn check(&self) -> u64 {
        [&b"key"[..], b"a key of twenty byte", b"a key of more than thirty-two bytes, for the other way"]
            .iter()
            .fold(0, |sum: u64, key| sum.rotate_left(1) ^ self.hash(key).0)
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        if (17..=32).contains(&key.len())
            && let (Some(front), Some(back)) = (key.first_chunk(), key.last_chunk())
        {
            return self.hash_two_chunks(front, back, key.len());
        }
        let mut hasher = self.state(self.seed);
        hasher.write(key);
        KeyHash(hasher.finish())
    }

    /// Hashes a key of a common length without the call that foldhash makes for more than 16 bytes.
    ///
    /// As in foldhash for strings, the length rotates the seed, so that keys of different lengths
    /// with equal chunks (`aaa…` of 20 and of 24 bytes) have different hashes.
    #[inline]
    fn hash_two_chunks(&self, front: &[u8; 16], back: &[u8; 16], key_bytes: usize) -> KeyHash {
        let mut hasher = self.state(self.seed.rotate_right(key_bytes as u32));
        hasher.write_u128(u128::from_ne_bytes(*front));
        hasher.write_u128(u128::from_ne_bytes(*back));
        KeyHash(hasher.finish())
    }

    /// Returns the state of a hash map of this crate, with the same seed.
    pub(crate) fn seeded_state(&self) -> SeededState {
        SeededState::with_seed(self.seed, self.shared)
    }

    #[inline]
    fn state(&self, seed: u64) -> impl Hasher + use<> {
        SeedableRandomState::with_seed(seed, self.shared).build_hasher()
    }

    /// Hashes two byte strings. The boundary between them matters.
    #[inline]
    pub(crate) fn hash_pair(&self, first: &[u8], second: &[u8]) -> u64 {
        let mut hasher = self.state(self.seed);
        hasher.write(first);
        hasher.write_usize(first.len());
        hasher.write(second);
        hasher.finish()
    }
}

/// Returns a random seed from the standard library's random state.
pub(crate) fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Keys that differ in one bit or only in length have different hashes, and each bit of the
    /// hashes has both values about equally often.
    #[test]
    fn similar_keys_have_different_hashes() {
        let hasher = KeyHasher::new(Some(7));
        let mut keys: Vec<Vec<u8>> = (1..=250).map(|len| vec![b'a'; len]).collect();
        for len in [1, 8, 15, 16, 17, 20, 24, 31, 32, 33, 64, 250] {
            for bit in 0..len * 8 {
                let mut key = vec![b'k'; len];
                key[bit / 8] ^= 1 << (bit % 8);
                keys.push(key);
            }
        }
        let hashes: HashSet<u64> = keys.iter().map(|key| hasher.hash(key).0).collect();
        assert_eq!(hashes.len(), keys.len());
        for bit in 0..64 {
            let ones = hashes.iter().filter(|hash| *hash >> bit & 1 == 1).count();
            let (mean, deviation) = (hashes.len() as f64 / 2.0, (hashes.len() as f64).sqrt() / 2.0);
            assert!((ones as f64 - mean).abs() < 5.0 * deviation, "bit {bit}: {ones} of {}", hashes.len());
        }
        assert_eq!(hasher.hash(b"the same key"), hasher.clone().hash(b"the same key"));
        assert_ne!(hasher.hash(b"the same key").0, KeyHasher::new(Some(8)).hash(b"the same key").0);
    }

    #[test]
    fn a_shared_seed_has_one_table() {
        let table = |shared| std::ptr::from_ref(KeyHasher::stable(1, shared).shared);
        assert_eq!(table(1_234_567), table(1_234_567));
        assert_ne!(table(1_234_567), table(7_654_321));
        assert_ne!(KeyHasher::stable(1, 2).hash(b"a key"), KeyHasher::stable(1, 3).hash(b"a key"));
    }
}
