//! A walk over the entries of a region that another process has left.

use crate::KeyHash;
use crate::arena::RegionId;
use crate::kv::extent;
use crate::kv::item::{ItemPtr, KEY_BYTES_MAX, Shape};
use crate::kv::log::Log;

/// An entry that lies within its region.
#[derive(Clone, Copy)]
pub(in crate::kv) struct Entry {
    pub(in crate::kv) location: u32,
    /// With its padding.
    pub(in crate::kv) bytes: u32,
    pub(in crate::kv) kind: Kind,
}

#[derive(Clone, Copy)]
pub(in crate::kv) enum Kind {
    /// Perhaps live.
    Item(ItemPtr),
    /// Perhaps in use: an item's list decides.
    Piece { data_bytes: u32, owner: KeyHash },
}

/// Walks over the entries of a region up to the end of what was allocated, or to the first that cannot be one.
pub(in crate::kv) struct Scan<'a> {
    log: &'a Log,
    region: RegionId,
    cursor: u32,
    end: u32,
}

impl<'a> Scan<'a> {
    pub(in crate::kv) fn new(log: &'a Log, region: RegionId) -> Scan<'a> {
        // Regions are at most 1 MiB.
        let end = log.arena().region(region).used_bytes().min(log.arena().region_bytes() as u32);
        Scan { log, region, cursor: log.first_entry(), end }
    }

    /// Where the walk stands: after its end, what is not an entry starts here.
    pub(in crate::kv) fn cursor(&self) -> u32 {
        self.cursor
    }

    /// Whether everything allocated was entries.
    pub(in crate::kv) fn is_complete(&self) -> bool {
        self.cursor >= self.end
    }
}

impl Iterator for Scan<'_> {
    type Item = Entry;

    #[inline]
    fn next(&mut self) -> Option<Entry> {
        // The smallest entry has two words and a byte.
        let left = self.end.checked_sub(self.cursor).filter(|left| *left >= 12)?;
        let location = self.log.location_at(self.region, self.cursor);
        let ptr = self.log.ptr(location);
        // SAFETY: at least twelve bytes of the mapped region are left at the cursor, which is aligned to a
        // granule.
        let shape = unsafe { Shape::read(ptr) };
        let bytes = self.log.padded(shape.entry_bytes());
        if bytes > left {
            return None;
        }
        let kind = match shape.piece_bytes() {
            // SAFETY: the entry lies inside the region, and a piece has room for its header.
            Some(data_bytes) => Kind::Piece { data_bytes, owner: unsafe { extent::piece_owner(ptr) } },
            None if (1..=KEY_BYTES_MAX).contains(&shape.key_bytes()) => {
                // SAFETY: the entry lies inside the region, which no other thread changes during the restart.
                Kind::Item(unsafe { ItemPtr::new(ptr) })
            }
            None => return None,
        };
        self.cursor += bytes;
        Some(Entry { location, bytes, kind })
    }
}
