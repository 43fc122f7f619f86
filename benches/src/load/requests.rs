//! Creates requests: chooses operations and keys, from a seeded random state per thread.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::replies::ReplyReader;
use super::{Expiry, KeyChoice, LoadSpec, part};
use crate::keyspace::KeySpace;
use crate::protocol::Protocol;
use crate::zipf::Zipf;

/// Draws requests of one thread.
#[derive(Debug)]
pub(super) struct RequestMaker {
    picker: KeyPicker,
    random: SmallRng,
    protocol: Protocol,
    set_share: f64,
    keys_per_get: usize,
    expiry: Expiry,
    /// The keys of the get being created.
    indexes: Vec<u64>,
}

impl RequestMaker {
    pub(super) fn new(spec: &LoadSpec, thread: usize) -> Self {
        let seed = spec.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(thread as u64);
        Self {
            picker: KeyPicker::new(spec, thread),
            random: SmallRng::seed_from_u64(seed),
            protocol: spec.protocol,
            set_share: spec.set_share,
            keys_per_get: spec.keys_per_get,
            expiry: spec.expiry,
            indexes: Vec::with_capacity(spec.keys_per_get),
        }
    }

    /// Appends one request to `out`, and the reply to expect to `replies`.
    pub(super) fn push_next(
        &mut self,
        keys: &KeySpace,
        started_ns: u64,
        out: &mut Vec<u8>,
        replies: &mut ReplyReader,
    ) {
        let is_set =
            self.set_share > 0.0 && (self.set_share >= 1.0 || self.random.random_bool(self.set_share));
        if is_set {
            let index = self.picker.pick(&mut self.random);
            let lives_on = self.expiry.odd_only && index.is_multiple_of(2);
            let expiry_s = if lives_on { 0 } else { self.expiry.seconds };
            self.protocol.push_set(keys, index, expiry_s, out);
            replies.expect_set(started_ns);
        } else {
            self.indexes.clear();
            for _ in 0..self.keys_per_get {
                self.indexes.push(self.picker.pick(&mut self.random));
            }
            self.protocol.push_get(keys, &self.indexes, out);
            replies.expect_get(&self.indexes, started_ns);
        }
    }
}

/// Draws key indexes.
#[derive(Debug)]
enum KeyPicker {
    Uniform { first: u64, count: u64 },
    Zipf { first: u64, count: u64, zipf: Zipf, step: u64 },
    Sequential { start: u64, end: u64, next: u64 },
}

impl KeyPicker {
    fn new(spec: &LoadSpec, thread: usize) -> Self {
        let (first, count) = (spec.keys.first(), spec.keys.count());
        match spec.key_choice {
            KeyChoice::Uniform => Self::Uniform { first, count },
            KeyChoice::Zipf(exponent) => {
                Self::Zipf { first, count, zipf: Zipf::new(count, exponent), step: scatter_step(count) }
            }
            KeyChoice::Sequential => {
                let range = part(count, thread, spec.threads);
                Self::Sequential {
                    start: first + range.start,
                    end: first + range.end,
                    next: first + range.start,
                }
            }
        }
    }

    fn pick(&mut self, random: &mut SmallRng) -> u64 {
        match self {
            Self::Uniform { first, count } => *first + random.random_range(0..*count),
            Self::Zipf { first, count, zipf, step } => {
                let rank = zipf.sample(random);
                *first + (u128::from(rank) * u128::from(*step) % u128::from(*count)) as u64
            }
            Self::Sequential { start, end, next } => {
                let index = *next;
                *next = if index + 1 < *end { index + 1 } else { *start };
                index
            }
        }
    }
}

/// Returns a step that visits all of `count` positions, so that hot ranks are not adjacent.
fn scatter_step(count: u64) -> u64 {
    let golden = (count as f64 * 0.618_033_988_749) as u64;
    (golden.max(1)..).find(|&step| greatest_common_divisor(step, count) == 1).unwrap_or(1)
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::parse_target;
    use crate::keyspace::ValueBytes;

    fn spec(count: u64, key_choice: KeyChoice) -> LoadSpec {
        let keys = KeySpace::new(1_000, count, 20, ValueBytes::fixed(10), 1).unwrap();
        LoadSpec { key_choice, ..LoadSpec::new(parse_target("127.0.0.1:1").unwrap(), keys) }
    }

    #[test]
    fn ranks_are_scattered_one_to_one() {
        for count in [1, 2, 10, 97, 1_000] {
            let step = scatter_step(count);
            let mut places: Vec<u64> = (0..count).map(|rank| rank * step % count).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..count));
        }
    }

    #[test]
    fn every_choice_stays_in_its_keys_and_sequential_covers_them() {
        let mut random = SmallRng::seed_from_u64(1);
        for choice in [KeyChoice::Uniform, KeyChoice::Zipf(1.0), KeyChoice::Sequential] {
            let mut picker = KeyPicker::new(&spec(100, choice), 0);
            let picked: Vec<u64> = (0..100).map(|_| picker.pick(&mut random)).collect();
            assert!(picked.iter().all(|index| (1_000..1_100).contains(index)));
            assert!(choice != KeyChoice::Sequential || picked.into_iter().eq(1_000..1_100));
        }
    }

    #[test]
    fn a_mix_has_its_share_of_sets_and_repeats_with_its_seed() {
        let spec = LoadSpec { set_share: 0.1, ..spec(100, KeyChoice::Uniform) };
        let make = || {
            let mut maker = RequestMaker::new(&spec, 0);
            let mut replies = ReplyReader::new(spec.protocol, spec.verify);
            let mut out = Vec::new();
            (0..10_000).for_each(|_| maker.push_next(&spec.keys, 0, &mut out, &mut replies));
            out
        };
        let out = make();
        let sets = out.windows(4).filter(|window| window == b"set ").count();
        assert!((850..1_150).contains(&sets), "{sets} of 10000");
        assert_eq!(out, make());
    }
}
