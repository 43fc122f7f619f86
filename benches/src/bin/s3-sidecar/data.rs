//! The objects: their numbers per size, and their contents.

/// The bucket of all objects.
pub(crate) const BUCKET: &str = "bench";

/// Objects of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objects {
    pub(crate) name: &'static str,
    pub(crate) count: usize,
    pub(crate) bytes: u64,
}

/// Read repeatedly.
pub(crate) const WARM: [Objects; 4] = [
    Objects { name: "warm-4k", count: 1024, bytes: 4 << 10 },
    Objects { name: "warm-64k", count: 512, bytes: 64 << 10 },
    Objects { name: "warm-4m", count: 32, bytes: 4 << 20 },
    Objects { name: "warm-64m", count: 4, bytes: 64 << 20 },
];

/// Objects that are read once through `cached`.
pub(crate) const COLD: [Objects; 2] = [
    Objects { name: "cold-64k", count: 400, bytes: 64 << 10 },
    Objects { name: "cold-4m", count: 60, bytes: 4 << 20 },
];

impl Objects {
    /// Returns the path of the object with this number.
    pub(crate) fn path(&self, number: usize) -> String {
        format!("/{BUCKET}/{}-{number}", self.name)
    }

    /// Returns the eight bytes of an object at `at`, a multiple of eight. They differ for each
    /// object and position.
    pub(crate) fn word(&self, number: usize, at: u64) -> [u8; 8] {
        let name = self.name.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        (name << 48 | (number as u64) << 32 | (at / 8)).to_le_bytes()
    }

    /// Returns the bytes of the object with this number.
    pub(crate) fn body(&self, number: usize) -> Vec<u8> {
        (0..self.bytes / 8).flat_map(|word| self.word(number, word * 8)).collect()
    }
}
