//! The memory of an arena or an index, tables in it, and its prefetch: a private anonymous mapping,
//! part of a file's mapping, or the heap under miri.

use memmap2::MmapRaw;
use std::sync::Arc;

/// A span of zeroed memory at a fixed address, touched lazily.
pub(crate) struct Memory {
    base: *mut u8,
    len: usize,
    /// The mapping, which keeps the bytes mapped.
    #[cfg(not(miri))]
    map: Arc<MmapRaw>,
    #[cfg(miri)]
    layout: std::alloc::Layout,
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
            // This is only advice: a kernel without huge pages uses small ones, which is not an
            // error.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Memory::part(&Arc::new(MmapRaw::from(map)), 0, len))
    }

    /// Returns `len` bytes of a mapping, starting at `offset`.
    ///
    /// # Panics
    /// Panics if the mapping has fewer.
    #[cfg(not(miri))]
    pub(crate) fn part(map: &Arc<MmapRaw>, offset: usize, len: usize) -> Memory {
        assert!(offset <= map.len() && len <= map.len() - offset, "a part beyond the mapping");
        Memory { base: map.as_mut_ptr().wrapping_add(offset), len, map: map.clone() }
    }

    /// Miri cannot map files.
    #[cfg(miri)]
    pub(crate) fn part(_map: &Arc<MmapRaw>, _offset: usize, _len: usize) -> Memory {
        unreachable!("a file is mapped")
    }

    #[cfg(miri)]
    pub(crate) fn map(len: usize, _huge_pages: bool) -> std::io::Result<Memory> {
        let layout = std::alloc::Layout::from_size_align(len.max(1), 4096)
            .map_err(|_| std::io::Error::other("too large"))?;
        // SAFETY: the layout's size is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = std::ptr::NonNull::new(base).ok_or_else(|| std::io::Error::other("out of memory"))?;
        Ok(Memory { base: base.as_ptr(), len, layout })
    }

    /// Asks the system not to use huge pages, because [`discard`](Memory::discard) cannot return a
    /// part of one. On a best-effort basis: a kernel without huge pages has none to avoid.
    #[cfg(not(miri))]
    pub(crate) fn keep_pages_small(&self) {
        #[cfg(target_os = "linux")]
        let _ = self.map.advise_range(memmap2::Advice::NoHugePage, self.offset(), self.len);
    }

    #[cfg(miri)]
    pub(crate) fn keep_pages_small(&self) {}

    /// Makes the system provide the memory of `len` bytes from `offset` on in one call, which is cheaper
    /// than a page fault for each page. Both numbers are multiples of the page size. On a best-effort
    /// basis: a kernel that cannot leaves the faults.
    #[cfg(not(miri))]
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        debug_assert!(offset <= self.len && len <= self.len - offset);
        #[cfg(target_os = "linux")]
        let _ = self.map.advise_range(memmap2::Advice::PopulateWrite, self.offset() + offset, len);
    }

    #[cfg(miri)]
    pub(crate) fn populate(&self, _offset: usize, _len: usize) {}

    /// Returns `len` bytes from `offset` on to the system; they are zero when used again. Both
    /// numbers are multiples of the page size.
    ///
    /// # Errors
    /// Fails if the system refuses; the bytes may then keep their content.
    ///
    /// # Safety
    /// The memory is anonymous, the range lies within it, and no thread refers to a byte of it.
    #[cfg(not(miri))]
    pub(crate) unsafe fn discard(&self, offset: usize, len: usize) -> std::io::Result<()> {
        debug_assert!(offset <= self.len && len <= self.len - offset);
        let offset = self.offset() + offset;
        // SAFETY: as the caller promises; anonymous memory that is not needed reads as zero.
        unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len) }
    }

    #[cfg(miri)]
    pub(crate) unsafe fn discard(&self, offset: usize, len: usize) -> std::io::Result<()> {
        debug_assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: as the caller promises.
        unsafe { self.base.add(offset).write_bytes(0, len) };
        Ok(())
    }

    /// Returns the position of these bytes in their mapping.
    #[cfg(not(miri))]
    fn offset(&self) -> usize {
        self.base.addr() - self.map.as_mut_ptr().addr()
    }

    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(miri)]
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `map` with this very layout, freed once.
        unsafe { std::alloc::dealloc(self.base, self.layout) };
    }
}

/// A type that consists of atomic integers alone.
///
/// # Safety
/// Any bytes must be a valid value, and all zeros the default one.
pub(crate) unsafe trait Atomics: Default + Sync {}

/// Values at consecutive numbers, in memory that is touched when a value is used.
#[cfg(not(shuttle))]
pub(crate) struct Table<T> {
    memory: Memory,
    count: usize,
    _values: std::marker::PhantomData<T>,
}

#[cfg(not(shuttle))]
impl<T: Atomics> Table<T> {
    /// Creates a table of `count` zeroed values.
    pub(crate) fn new(count: usize, huge_pages: bool) -> std::io::Result<Table<T>> {
        Ok(Table::over(Memory::map(count * size_of::<T>(), huge_pages)?, count))
    }

    /// Takes over the values of an earlier process.
    ///
    /// # Panics
    /// Panics if the memory is too small for the values.
    pub(crate) fn over(memory: Memory, count: usize) -> Table<T> {
        assert!(memory.len() >= count * size_of::<T>(), "the memory is smaller than the table");
        assert!(memory.base().cast::<T>().is_aligned());
        Table { memory, count, _values: std::marker::PhantomData }
    }
}

#[cfg(not(shuttle))]
impl<T: Atomics> std::ops::Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the memory is aligned and has room for `count` values, as `over` has checked, and any bytes
        // are valid values, which are shared and hold only atomics.
        unsafe { std::slice::from_raw_parts(self.memory.base().cast(), self.count) }
    }
}

/// Under shuttle, atomics are objects that must be created one by one.
#[cfg(shuttle)]
pub(crate) struct Table<T>(Box<[T]>);

#[cfg(shuttle)]
impl<T: Atomics> Table<T> {
    pub(crate) fn new(count: usize, _huge_pages: bool) -> std::io::Result<Table<T>> {
        Ok(Table((0..count).map(|_| T::default()).collect()))
    }

    pub(crate) fn over(_memory: Memory, _count: usize) -> Table<T> {
        unreachable!("no test of interleavings has its memory in a file")
    }
}

#[cfg(shuttle)]
impl<T: Atomics> std::ops::Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// Asks the CPU to fetch the cache line at an address that will be read soon. This is only a hint,
/// and every address is valid. On CPUs other than x86-64 it does nothing.
#[inline]
pub fn prefetch<T>(at: *const T) {
    hint::<3>(at.cast());
}

/// Does the same as [`prefetch`], but only up to the second-level cache, for a line among many: the
/// nearest cache can wait for few at a time, and delays everything else meanwhile.
#[inline]
pub(crate) fn prefetch_to_l2<T>(at: *const T) {
    hint::<2>(at.cast());
}

/// Prefetches a line: `HINT` is x86-64's `_MM_HINT_T0` (3) or `_MM_HINT_T1` (2).
#[inline]
fn hint<const HINT: i32>(at: *const i8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is only a hint; it never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<HINT>(at);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}
