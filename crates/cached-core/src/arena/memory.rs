//! The bytes behind an arena or an index: a private anonymous mapping, or the heap under miri.

#[cfg(not(miri))]
use memmap2::MmapRaw;

/// A span of zeroed memory at a fixed address, touched lazily.
pub(crate) struct Memory {
    #[cfg(not(miri))]
    map: MmapRaw,
    #[cfg(miri)]
    heap: (std::ptr::NonNull<u8>, std::alloc::Layout),
    len: usize,
}

// SAFETY: the mapping is plain memory that lives as long as this value; the owners of the regions decide
// which thread may access which bytes.
unsafe impl Send for Memory {}
// SAFETY: as above; this type hands out raw pointers only, and never reads or writes itself.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `len` zeroed bytes, at least one, without reserving swap for them.
    #[cfg(not(miri))]
    pub(crate) fn map(len: usize, huge_pages: bool) -> std::io::Result<Memory> {
        let map = memmap2::MmapOptions::new().len(len.max(1)).no_reserve_swap().map_anon()?;
        if huge_pages {
            // Only advice: a kernel without huge pages uses small ones, which is not an error.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Memory { map: MmapRaw::from(map), len })
    }

    #[cfg(miri)]
    pub(crate) fn map(len: usize, _huge_pages: bool) -> std::io::Result<Memory> {
        let layout = std::alloc::Layout::from_size_align(len.max(1), 4096)
            .map_err(|_| std::io::Error::other("too large"))?;
        // SAFETY: the layout's size is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = std::ptr::NonNull::new(base).ok_or_else(|| std::io::Error::other("out of memory"))?;
        Ok(Memory { heap: (base, layout), len })
    }

    #[cfg(not(miri))]
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    #[cfg(miri)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.heap.0.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(miri)]
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `map` with this very layout, freed once.
        unsafe { std::alloc::dealloc(self.heap.0.as_ptr(), self.heap.1) };
    }
}
