//! The model of a volume: a sparse array of bytes.

use std::collections::BTreeMap;
use std::ops::Range;

use blocker::executor::block_on;
use volumes::Volume;

/// The size of the objects of the tests' volumes.
pub(crate) const OBJECT: u64 = 4096;
/// The number of entries in a page of a map.
pub(crate) const PAGE: u64 = 4032;

/// A disk that uses a few objects: at its start, and on both sides of the end of a page of the map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Disk {
    pub(crate) size_bytes: u64,
    objects: BTreeMap<u64, Vec<u8>>,
}

impl Disk {
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self { size_bytes, objects: BTreeMap::new() }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (object, within) in parts(offset, bytes.len() as u64) {
            let object = self.objects.entry(object).or_insert_with(|| vec![0; OBJECT as usize]);
            let part = rest.split_off(..within.len()).expect("a part of the bytes");
            object[within].copy_from_slice(part);
        }
    }

    pub(crate) fn zero(&mut self, offset: u64, length: u64) {
        self.write(offset, &vec![0; length as usize]);
    }

    pub(crate) fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length as usize);
        for (object, within) in parts(offset, length) {
            match self.objects.get(&object) {
                Some(object) => bytes.extend_from_slice(&object[within]),
                None => bytes.resize(bytes.len() + within.len(), 0),
            }
        }
        bytes
    }

    pub(crate) fn resize(&mut self, size_bytes: u64) {
        if size_bytes < self.size_bytes {
            self.objects.retain(|object, _| object * OBJECT < size_bytes);
            if let Some(object) = self.objects.get_mut(&(size_bytes / OBJECT)) {
                object[(size_bytes % OBJECT) as usize..].fill(0);
            }
        }
        self.size_bytes = size_bytes;
    }

    /// Returns the positions within the disk that a test uses.
    pub(crate) fn places(&self) -> Vec<u64> {
        let places = (0..6).chain(PAGE - 3..PAGE + 3);
        places.filter(|object| object * OBJECT < self.size_bytes).collect()
    }

    #[track_caller]
    pub(crate) fn assert_same(&self, volume: &Volume, what: &str) {
        assert_eq!(volume.size_bytes(), self.size_bytes, "{what}: size");
        for place in self.places() {
            let offset = place * OBJECT;
            let length = OBJECT.min(self.size_bytes - offset);
            let found =
                block_on(volume.read(offset, length)).unwrap_or_else(|error| panic!("{what}: {error}"));
            test_kit::same(&found.to_vec(), &self.read(offset, length), &format!("{what}: object {place}"));
        }
    }
}

/// Returns the parts of a range: an object, and the positions in it.
fn parts(offset: u64, length: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    (offset / OBJECT..(offset + length).div_ceil(OBJECT)).map(move |object| {
        let start = object * OBJECT;
        let within = |position: u64| (position.clamp(start, start + OBJECT) - start) as usize;
        (object, within(offset)..within(offset + length))
    })
}
