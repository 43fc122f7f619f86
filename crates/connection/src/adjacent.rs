//! Ranges of memory that are adjacent, as the buckets of a cache often are.

/// Joins ranges of memory, each given by its start and its length in bytes, where one begins at the
/// end of the previous one. System calls that get few long ranges are faster than with many short
/// ones.
///
/// ```
/// let bytes = [0; 8];
/// let start = bytes.as_ptr().cast_mut();
/// let at = |from: usize, len| (start.wrapping_add(from), len);
/// let joined = connection::join_adjacent([at(0, 2), at(2, 1), at(5, 3), at(3, 2)].into_iter());
/// assert!(joined.eq([at(0, 3), at(5, 3), at(3, 2)]));
/// ```
pub fn join_adjacent(
    ranges: impl Iterator<Item = (*mut u8, usize)>,
) -> impl Iterator<Item = (*mut u8, usize)> {
    let mut ranges = ranges.peekable();
    std::iter::from_fn(move || {
        let (start, mut len) = ranges.next()?;
        while let Some((_, more)) = ranges.next_if(|(next, _)| *next == start.wrapping_add(len)) {
            len += more;
        }
        Some((start, len))
    })
}
