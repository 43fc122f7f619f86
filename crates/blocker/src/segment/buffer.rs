//! Reusable small buffers, for backends whose reads are faster than the allocation of a page.
//!
//! Each thread keeps a few buffers. A buffer is taken, filled while it has one owner, shared as a
//! segment, and returned to the thread that drops the last reference. The reference count and the
//! bytes form one allocation, which is reused as a whole: in the steady state a read allocates
//! nothing. Larger buffers are not kept, because allocation is a small part of their cost.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// The length of a buffer.
pub(crate) const BUFFER_BYTES: usize = 4096;
/// The maximum number of buffers that a thread keeps.
const KEPT_MAX: usize = 64;

type Memory = [u8; BUFFER_BYTES];

thread_local! {
    static KEPT: RefCell<Vec<Arc<Memory>>> = const { RefCell::new(Vec::new()) };
}

/// A part of a buffer, which other parts may share.
#[derive(Clone)]
pub(crate) struct Buffer {
    /// `Some` until the buffer is dropped.
    memory: Option<Arc<Memory>>,
    start: u32,
    end: u32,
}

impl Buffer {
    /// Returns a buffer of `len` bytes, which `fill` writes; bytes that `fill` does not write are
    /// unspecified. `None` if `fill` returns false.
    ///
    /// # Panics
    /// Panics if `len` exceeds [`BUFFER_BYTES`].
    #[inline]
    pub(crate) fn filled(len: usize, fill: impl FnOnce(&mut [u8]) -> bool) -> Option<Self> {
        assert!(len <= BUFFER_BYTES, "longer than a buffer");
        let kept = KEPT.try_with(|kept| kept.borrow_mut().pop()).ok().flatten();
        let mut memory = kept.unwrap_or_else(|| Arc::new([0; BUFFER_BYTES]));
        // A kept buffer has no other owner, so `make_mut` does not copy.
        let is_filled = fill(&mut Arc::make_mut(&mut memory)[..len]);
        // A buffer has at most 4 096 bytes.
        let buffer = Self { memory: Some(memory), start: 0, end: len as u32 };
        is_filled.then_some(buffer)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        let memory = self.memory.as_deref().map_or(&[][..], |memory| memory);
        memory.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    pub(crate) fn len_bytes(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Returns the part `range`, which lies within the buffer.
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        let at = |index: usize| self.start + index as u32;
        Self { memory: self.memory.clone(), start: at(range.start), end: at(range.end) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A sole owner cannot gain a second one here. If two owners drop the buffer
        // simultaneously, each sees two owners, and the buffer is freed instead of being kept.
        let Some(memory) = self.memory.take_if(|memory| Arc::strong_count(memory) == 1) else { return };
        // A thread that is ending does not keep buffers.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_MAX {
                kept.push(memory);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(byte: u8, len: usize) -> Buffer {
        let fill = |bytes: &mut [u8]| {
            bytes.fill(byte);
            true
        };
        Buffer::filled(len, fill).unwrap()
    }

    #[test]
    fn a_buffer_is_reused_when_its_last_part_is_dropped() {
        let first = filled(1, 10);
        let address = first.as_slice().as_ptr();
        let part = first.slice(2..8).slice(1..3);
        drop(first);
        let second = filled(2, BUFFER_BYTES);
        assert_ne!(second.as_slice().as_ptr(), address);
        assert_eq!(part.as_slice(), [1, 1]);
        drop(part);
        assert_eq!(filled(3, 4).as_slice().as_ptr(), address);
    }

    #[test]
    fn a_buffer_that_was_not_filled_is_kept() {
        let address = filled(1, 1).as_slice().as_ptr();
        assert!(Buffer::filled(1, |_| false).is_none());
        assert_eq!(filled(2, 1).as_slice().as_ptr(), address);
    }

    #[test]
    fn a_buffer_may_be_dropped_on_another_thread() {
        let buffer = filled(5, 5);
        std::thread::spawn(move || assert_eq!(buffer.clone().as_slice(), [5; 5])).join().unwrap();
    }
}
