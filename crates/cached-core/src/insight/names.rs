//! The table of sampled names that are in at least one of the simulated caches.

use hashbrown::HashTable;

use super::SIZES;
use crate::clock::Expiry;
use crate::policy::QueueId;

/// The first of the sizes larger than the cache's own. The smaller ones share the expiry of the
/// entry in the cache itself, while larger ones may still contain an older entry with another
/// expiry.
const LARGER: usize = 3;

/// The state of a name in the cache of one size.
///
/// ```text
///   7       6     5        3 2    0
///  ┌─────────┬───────┬────────────┬──────┐
///  │ present │ queue │ generation │ bits │
///  └─────────┴───────┴────────────┴──────┘
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place(u8);

const PRESENT: u8 = 1 << 7;
const QUEUE_SHIFT: u32 = 6;
const GENERATION_SHIFT: u32 = 3;
const BITS: u8 = 7;
/// The number of names by which the table grows.
const NAMES_STEP: usize = 4096;
/// The position of the generation in a ring's entry.
const RING_SHIFT: u32 = 29;

impl Place {
    pub(super) fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    pub(super) fn queue(self) -> QueueId {
        QueueId(self.0 >> QUEUE_SHIFT & 1)
    }

    pub(super) fn bits(self) -> u8 {
        self.0 & BITS
    }

    pub(super) fn set_bits(&mut self, bits: u8) {
        self.0 = self.0 & !BITS | bits & BITS;
    }

    fn generation(self) -> u8 {
        self.0 >> GENERATION_SHIFT & 7
    }

    /// Adds the name to a queue, and returns the new generation.
    pub(super) fn enter(&mut self, queue: QueueId, bits: u8) -> u8 {
        let generation = (self.generation() + 1) & 7;
        self.0 = PRESENT | (queue.0 & 1) << QUEUE_SHIFT | generation << GENERATION_SHIFT | bits & BITS;
        generation
    }

    /// Removes the name from its queue. The generation stays, so that the ring's entry is not
    /// mistaken for a later one.
    pub(super) fn leave(&mut self) {
        self.0 &= 7 << GENERATION_SHIFT;
    }

    pub(super) fn ring_entry(name: u32, generation: u8) -> u32 {
        name | u32::from(generation) << RING_SHIFT
    }

    pub(super) fn name_of(entry: u32) -> u32 {
        entry & ((1 << RING_SHIFT) - 1)
    }

    /// Returns whether a ring's entry is the current one of this name.
    pub(super) fn is_at(self, queue: usize, entry: u32) -> bool {
        self.is_present()
            && usize::from(self.queue().0) == queue
            && u32::from(self.generation()) == entry >> RING_SHIFT
    }
}

/// A sampled name.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Name {
    hash: u64,
    pub(super) bytes: u32,
    /// The second in which the entry expires, 0 for never: one for all smaller sizes together, and
    /// one for each larger size.
    expiry: [u32; 1 + SIZES - LARGER],
    places: [Place; SIZES],
    pub(super) namespace: u8,
    /// Whether the cache itself did not have the entry at the last read, so that the next store
    /// brings it back.
    pub(super) awaits_fill: bool,
}

const _: () = assert!(size_of::<Name>() == 32);

/// The table.
#[derive(Default)]
pub(super) struct Names {
    names: Vec<Name>,
    free: Vec<u32>,
    index: HashTable<u32>,
}

/// Mixes a hash for the table, because sampled hashes share their upper bits.
fn mixed(hash: u64) -> u64 {
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Names {
    pub(super) fn find(&self, hash: u64) -> Option<u32> {
        self.index.find(mixed(hash), |name| self.names[*name as usize].hash == hash).copied()
    }

    /// Returns the name with this hash. A missing name is added.
    pub(super) fn find_or_enter(&mut self, hash: u64, bytes: u32, namespace: u8) -> u32 {
        if let Some(name) = self.find(hash) {
            return name;
        }
        let name = self.free.pop().unwrap_or_else(|| {
            if self.names.len() == self.names.capacity() {
                self.names.reserve_exact(NAMES_STEP);
            }
            self.names.push(Name::default());
            (self.names.len() - 1) as u32
        });
        let record = &mut self.names[name as usize];
        // The generations of the record's positions continue.
        *record = Name { hash, bytes, namespace, places: record.places, ..Name::default() };
        let names = &self.names;
        self.index.insert_unique(mixed(hash), name, |name| mixed(names[*name as usize].hash));
        name
    }

    /// Removes the name if no cache has it.
    pub(super) fn release_if_absent(&mut self, name: u32) {
        let record = self.names[name as usize];
        if record.places.iter().any(|place| place.is_present()) {
            return;
        }
        if let Ok(found) = self.index.find_entry(mixed(record.hash), |other| *other == name) {
            found.remove();
            self.free.push(name);
        }
    }

    pub(super) fn get(&self, name: u32) -> &Name {
        &self.names[name as usize]
    }

    pub(super) fn get_mut(&mut self, name: u32) -> &mut Name {
        &mut self.names[name as usize]
    }

    pub(super) fn hash_and_bytes(&self, name: u32) -> (u64, u64) {
        let name = self.get(name);
        (name.hash, u64::from(name.bytes))
    }

    pub(super) fn place(&self, name: u32, at: usize) -> Place {
        self.get(name).places[at]
    }

    pub(super) fn place_mut(&mut self, name: u32, at: usize) -> &mut Place {
        &mut self.get_mut(name).places[at]
    }

    fn expiry_at(at: usize) -> usize {
        (at + 1).saturating_sub(LARGER)
    }

    pub(super) fn is_expired(&self, name: u32, at: usize, now: u32) -> bool {
        Expiry::from_secs(self.expiry(name, at)).is_past(now)
    }

    pub(super) fn expiry(&self, name: u32, at: usize) -> u32 {
        self.get(name).expiry[Self::expiry_at(at)]
    }

    pub(super) fn set_expiry(&mut self, name: u32, at: usize, expiry: u32) {
        self.get_mut(name).expiry[Self::expiry_at(at)] = expiry;
    }

    /// Returns the numbers of all names.
    pub(super) fn all(&self) -> Vec<u32> {
        self.index.iter().copied().collect()
    }

    /// Returns the number of names.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the next name at or after `number` in the order of the table that is in a cache of
    /// any size; `None` at the end.
    pub(super) fn next_from(&self, number: usize) -> Option<u32> {
        let is_present = |name: &Name| name.places.iter().any(|place| place.is_present());
        let offset = self.names.get(number..)?.iter().position(is_present)?;
        Some((number + offset) as u32)
    }

    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.free.clear();
        self.index.clear();
    }

    /// Returns the memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.names.capacity() * size_of::<Name>()
            + self.free.capacity() * size_of::<u32>()
            // hashbrown has one control byte per slot.
            + self.index.capacity() * 8 / 7 * (size_of::<u32>() + 1)
    }
}

/// The most namespaces that are counted separately.
pub(super) const NAMESPACES_MAX: usize = 64;
/// The number that stands for all other namespaces.
pub(super) const OTHERS: u8 = 0;
/// A namespace with a smaller share of the requests loses its number.
const SHARE_MIN: f64 = 0.001;

/// Names of namespaces, by their numbers.
pub(super) struct Namespaces {
    names: [Option<Box<[u8]>>; NAMESPACES_MAX + 1],
}

impl Default for Namespaces {
    fn default() -> Namespaces {
        Namespaces { names: [const { None }; NAMESPACES_MAX + 1] }
    }
}

impl Namespaces {
    /// Returns the number of a namespace. Assigns a number if it has none and one is free.
    pub(super) fn number_of(&mut self, name: &[u8]) -> u8 {
        if name.is_empty() {
            return OTHERS;
        }
        let first = usize::from(OTHERS) + 1;
        let places = &mut self.names[first..];
        if let Some(at) = places.iter().position(|place| place.as_deref() == Some(name)) {
            return (first + at) as u8;
        }
        match places.iter().position(Option::is_none) {
            Some(at) => {
                places[at] = Some(name.into());
                (first + at) as u8
            }
            None => OTHERS,
        }
    }

    /// Returns the namespace with a number; `None` for the others.
    pub(super) fn name_of(&self, number: u8) -> Option<&[u8]> {
        self.names.get(usize::from(number))?.as_deref()
    }

    /// Frees the numbers of namespaces with too small a share of the requests, and returns them.
    pub(super) fn free_rare(&mut self, requests: &[f64]) -> Vec<u8> {
        let all: f64 = requests.iter().sum();
        let mut freed = Vec::new();
        for (number, place) in self.names.iter_mut().enumerate() {
            if place.is_some() && requests.get(number).copied().unwrap_or(0.0) < all * SHARE_MIN {
                *place = None;
                freed.push(number as u8);
            }
        }
        freed
    }
}

#[cfg(all(test, not(shuttle)))]
mod names_tests {
    use super::*;

    #[test]
    fn names_are_found_until_no_size_has_them() {
        let mut names = Names::default();
        let name = names.find_or_enter(5, 100, 3);
        assert_eq!(names.find_or_enter(5, 7, 0), name);
        assert_eq!(names.hash_and_bytes(name), (5, 100));
        let generation = names.place_mut(name, 4).enter(QueueId::MAIN, 6);
        names.release_if_absent(name);
        assert_eq!(names.find(5), Some(name));
        let entry = Place::ring_entry(name, generation);
        assert!(names.place(name, 4).is_at(1, entry) && !names.place(name, 4).is_at(0, entry));
        names.place_mut(name, 4).leave();
        names.release_if_absent(name);
        assert_eq!((names.find(5), names.len()), (None, 0));
        // The number is reused, and the old ring's entry does not match the new name.
        assert_eq!(names.find_or_enter(6, 1, 0), name);
        names.place_mut(name, 4).enter(QueueId::MAIN, 0);
        assert!(!names.place(name, 4).is_at(1, entry));
    }

    #[test]
    fn larger_sizes_have_an_expiry_of_their_own() {
        let mut names = Names::default();
        let name = names.find_or_enter(5, 100, 3);
        names.set_expiry(name, 2, 50);
        names.set_expiry(name, 4, 20);
        assert_eq!([0, 1, 2, 3, 4].map(|at| names.expiry(name, at)), [50, 50, 50, 0, 20]);
        assert!(names.is_expired(name, 4, 20) && !names.is_expired(name, 4, 19));
        assert!(!names.is_expired(name, 3, u32::MAX));
    }
}

#[cfg(all(test, not(shuttle)))]
mod namespaces_tests {
    use super::*;

    #[test]
    fn the_number_of_namespaces_is_bounded_and_rare_ones_make_room() {
        let mut namespaces = Namespaces::default();
        for n in 0..NAMESPACES_MAX {
            assert_eq!(usize::from(namespaces.number_of(format!("n{n}").as_bytes())), n + 1);
        }
        assert_eq!((namespaces.number_of(b"late"), namespaces.number_of(b"")), (OTHERS, OTHERS));
        assert_eq!(namespaces.number_of(b"n7"), 8);
        let mut requests = vec![1.0; NAMESPACES_MAX + 1];
        requests[8] = 0.0;
        assert_eq!(namespaces.free_rare(&requests), [8]);
        assert_eq!((namespaces.number_of(b"late"), namespaces.name_of(8)), (8, Some(&b"late"[..])));
        assert_eq!(namespaces.name_of(OTHERS), None);
    }
}
