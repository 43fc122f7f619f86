//! A batch while it fills.

use crate::buffer::AlignedBuffer;
use crate::format::batch::{BATCH_HEADER_BYTES, BatchHeader, Layout};
use crate::format::head::{self, PayloadSum};
use crate::record::{Object, Record};

/// The memory of a batch, used again and again.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    heads: AlignedBuffer,
    payload: AlignedBuffer,
}

/// Records that will become durable together.
#[derive(Debug)]
pub(crate) struct Batch {
    buffers: Buffers,
    /// The number of the segment's file.
    pub(crate) segment: u32,
    pub(crate) first_position: u64,
    pub(crate) count: u32,
    /// The bytes of the records: what waits for the disk.
    pub(crate) unsynced_bytes: u64,
}

/// A record, measured and checksummed before the journal is locked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) heads_bytes: u64,
    pub(crate) payload: PayloadSum,
}

impl Measured {
    pub(crate) fn new(record: &Record<'_>) -> Self {
        let mut crc = crc32fast::Hasher::new();
        record.payload.iter().for_each(|slice| crc.update(slice));
        let payload = PayloadSum { bytes: record.payload_bytes() as u32, crc: crc.finalize() };
        Self { heads_bytes: head::encoded_bytes(&record.head) as u64, payload }
    }
}

impl Batch {
    pub(crate) fn new(mut buffers: Buffers, segment: u32, first_position: u64) -> Self {
        buffers.heads.clear();
        buffers.payload.clear();
        buffers.heads.extend_zeros(BATCH_HEADER_BYTES);
        Self { buffers, segment, first_position, count: 0, unsynced_bytes: 0 }
    }

    fn heads_bytes(&self) -> u64 {
        (self.buffers.heads.len() - BATCH_HEADER_BYTES) as u64
    }

    /// Returns the bytes that the batch takes in its segment.
    pub(crate) fn total_bytes(&self) -> u64 {
        Layout::new(self.heads_bytes(), self.buffers.payload.len() as u64).total
    }

    /// Returns the bytes that the batch would take with one more record.
    pub(crate) fn total_bytes_with(&self, record: &Measured) -> u64 {
        let payload_bytes = self.buffers.payload.len() as u64 + u64::from(record.payload.bytes);
        Layout::new(self.heads_bytes() + record.heads_bytes, payload_bytes).total
    }

    /// Copies a record into the batch. Returns its bytes.
    pub(crate) fn push(&mut self, record: &Record<'_>, measured: &Measured) -> u64 {
        self.buffers.heads.extend(&head::encode(&record.head, measured.payload));
        if let Object::Name(name) = &record.head.object {
            self.buffers.heads.extend(name);
            self.buffers.heads.extend_zeros(name.len().next_multiple_of(8) - name.len());
        }
        record.payload.iter().for_each(|slice| self.buffers.payload.extend(slice));
        self.count += 1;
        let bytes = measured.heads_bytes + u64::from(measured.payload.bytes);
        self.unsynced_bytes += bytes;
        bytes
    }

    /// Writes the header, pads, and returns the check. `header` needs the numbers that only the commit knows.
    pub(crate) fn finish(&mut self, salt: u32, mut header: BatchHeader) -> u32 {
        header.count = self.count;
        header.heads_bytes = self.heads_bytes() as u32;
        header.payload_bytes = self.buffers.payload.len() as u32;
        header.first_position = self.first_position;
        let check = header.encode_into(salt, self.buffers.heads.as_mut_slice());
        let layout = header.layout();
        if layout.payload_at == layout.heads_end {
            let Buffers { heads, payload } = &mut self.buffers;
            heads.extend(payload.as_slice());
            payload.clear();
        }
        self.buffers.heads.pad();
        self.buffers.payload.pad();
        check
    }

    /// Returns the parts to write, each a multiple of 4 KiB. Only after [`finish`](Self::finish).
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        [self.buffers.heads.as_slice(), self.buffers.payload.as_slice()]
    }

    pub(crate) fn into_buffers(self) -> Buffers {
        self.buffers
    }
}
