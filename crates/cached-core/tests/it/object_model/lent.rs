//! Payloads whose pages are lent to the kernel: after the payload is dropped and the cache has
//! reused the buckets, the kernel must still see the same bytes.

use std::io::{PipeReader, Read, Write};
use std::os::fd::AsRawFd;

use blocker::Segments;
use cached_core::object::ObjectCache;

/// The maximum number of runs in a pipe, which has 16 pages by default, and of their bytes.
const RUNS_MAX: usize = 12;
const BYTES_MAX: usize = 8 * 4096;

/// A lent payload, whose bytes are in a pipe.
pub(super) struct Lent(PipeReader, usize);

/// Lends a payload, and puts its pages into a pipe; bytes outside of buckets are copied. Returns
/// `None` if the payload is too long or empty.
pub(super) fn lend(cache: &ObjectCache, data: &Segments) -> Option<Lent> {
    if !(1..=RUNS_MAX).contains(&data.iter().count()) || data.len_bytes() > BYTES_MAX {
        return None;
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    for run in data {
        let bytes = run.as_slice();
        if !cache.lend(bytes) {
            writer.write_all(bytes).unwrap();
            continue;
        }
        assert!(cache.has_lent(bytes));
        let place = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the kernel only reads the bytes, and keeps a reference to their page.
        let taken =
            unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const place, 1, libc::SPLICE_F_NONBLOCK) };
        assert_eq!(taken, bytes.len() as isize, "{}", std::io::Error::last_os_error());
    }
    Some(Lent(reader, data.len_bytes()))
}

impl Lent {
    /// Returns the bytes.
    pub(super) fn read(mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.1];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }
}
