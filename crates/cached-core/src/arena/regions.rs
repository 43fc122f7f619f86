//! The table of regions: a record for each, beside the arena.

use super::region::Region;
use std::ops::Deref;

/// The records of all regions.
#[cfg(not(shuttle))]
pub(super) struct Regions {
    memory: super::Memory,
    count: usize,
}

#[cfg(not(shuttle))]
impl Regions {
    /// Makes the records of `count` free regions.
    pub(super) fn new(count: u32) -> std::io::Result<Regions> {
        Ok(Regions::over(super::Memory::map(count as usize * size_of::<Region>(), false)?, count))
    }

    /// Takes over the records of `count` regions.
    ///
    /// # Panics
    /// If the memory does not hold as many.
    pub(super) fn over(memory: super::Memory, count: u32) -> Regions {
        let count = count as usize;
        assert!(memory.len() >= count * size_of::<Region>(), "a table of fewer regions");
        assert!(memory.base().cast::<Region>().is_aligned());
        Regions { memory, count }
    }
}

#[cfg(not(shuttle))]
impl Deref for Regions {
    type Target = [Region];

    #[inline]
    fn deref(&self) -> &[Region] {
        // SAFETY: the memory is aligned and holds `count` records (checked where it was taken); any bytes are
        // valid records, which are shared and hold only atomics.
        unsafe { std::slice::from_raw_parts(self.memory.base().cast(), self.count) }
    }
}

/// Under shuttle, atomics are objects that must be made one by one.
#[cfg(shuttle)]
pub(super) struct Regions(Box<[Region]>);

#[cfg(shuttle)]
impl Regions {
    pub(super) fn new(count: u32) -> std::io::Result<Regions> {
        Ok(Regions((0..count).map(|_| Region::new()).collect()))
    }

    pub(super) fn over(_memory: super::Memory, _count: u32) -> Regions {
        unreachable!("no test of interleavings has its memory in a file")
    }
}

#[cfg(shuttle)]
impl Deref for Regions {
    type Target = [Region];

    fn deref(&self) -> &[Region] {
        &self.0
    }
}
