//! Bytes in memory at an address that `O_DIRECT` takes.

use crate::format::BLOCK_BYTES;

/// A growing run of bytes whose first one lies at a multiple of 4 KiB.
#[derive(Debug, Default)]
pub(crate) struct AlignedBuffer {
    bytes: Vec<u8>,
    /// How many bytes of `bytes` come before the aligned address.
    skip: usize,
}

impl AlignedBuffer {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.skip
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.truncate(self.skip);
    }

    pub(crate) fn extend(&mut self, slice: &[u8]) {
        self.make_room(slice.len());
        self.bytes.extend_from_slice(slice);
    }

    pub(crate) fn extend_zeros(&mut self, count: usize) {
        self.make_room(count);
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    /// Extends with zeros to a multiple of 4 KiB.
    pub(crate) fn pad(&mut self) {
        self.extend_zeros(self.len().next_multiple_of(BLOCK_BYTES) - self.len());
    }

    /// The vector never moves by itself: its address would not stay aligned.
    fn make_room(&mut self, more: usize) {
        if self.bytes.capacity() - self.bytes.len() >= more && self.bytes.capacity() > 0 {
            return;
        }
        let wanted = (self.len() + more).next_power_of_two().max(4 * BLOCK_BYTES);
        let mut bytes: Vec<u8> = Vec::with_capacity(wanted + BLOCK_BYTES);
        let skip = bytes.as_ptr().align_offset(BLOCK_BYTES);
        bytes.resize(skip, 0);
        bytes.extend_from_slice(self.as_slice());
        *self = Self { bytes, skip };
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.skip..]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_stays_aligned_while_it_grows() {
        let mut buffer = AlignedBuffer::default();
        for round in 0..200 {
            buffer.extend(&[round; 777]);
            assert!(buffer.as_slice().as_ptr().addr().is_multiple_of(BLOCK_BYTES));
        }
        assert!(buffer.as_slice().chunks(777).enumerate().all(|(round, run)| run == [round as u8; 777]));
        buffer.pad();
        assert_eq!(buffer.len() % BLOCK_BYTES, 0);
        buffer.clear();
        assert_eq!(buffer.len(), 0);
    }
}
