//! Receives from several sockets, or sends to several, with one system call (io_uring).
//!
//! Every operation has `MSG_DONTWAIT`: the kernel performs it within the call that submits it,
//! however ready the socket is. Between two calls no operation is in progress. A connection is
//! therefore closed or handed over without a cancellation, a process that takes over inherits
//! nothing, and no completion can overflow its queue, which has room for two bundles.

use crate::settings::IO_URING_SOCKETS_MAX;
use io_uring::{IoUring, opcode, squeue, types};
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// The maximum number of sockets in one system call: larger bundles save less than 1 % more, and
/// delay the first reply.
pub(crate) const BUNDLE: usize = IO_URING_SOCKETS_MAX;

/// The memory of a ring: 64 bytes for each operation, 16 for each of twice as many results, and the
/// rest of the pages.
pub(crate) const URING_BYTES: usize = 12 << 10;

/// The result of each operation: the number of bytes or the error; `None` if the operation was not
/// performed.
pub(crate) type Results = [Option<rustix::io::Result<usize>>; BUNDLE];

/// A ring, which is used by one thread at a time.
pub(crate) struct Uring {
    /// `None` once the system has refused a call; no operation is performed from then on.
    ring: Option<IoUring>,
}

impl Uring {
    /// Opens a ring, and tries to send and to receive: some sandboxes allow the setup alone, or
    /// only some operations.
    ///
    /// # Errors
    /// Fails if the system does not allow io_uring, or is older than Linux 5.18.
    pub(crate) fn open() -> io::Result<Uring> {
        // Operations after one that fails are submitted as well.
        let ring = IoUring::builder().setup_submit_all().build(BUNDLE as u32)?;
        let mut ring = Uring { ring: Some(ring) };
        let (near, far) = UnixStream::pair()?;
        let mut byte = [0];
        let [sent, ..] = ring.send([(0, near.as_fd(), &b"t"[..])].into_iter());
        let [received, ..] = ring.receive([(0, far.as_fd(), &mut byte[..])].into_iter());
        for tried in [sent, received] {
            match tried {
                Some(Ok(1)) => {}
                Some(Err(error)) => return Err(error.into()),
                None | Some(Ok(_)) => return Err(Errno::PERM.into()),
            }
        }
        Ok(ring)
    }

    /// Returns whether operations are performed.
    pub(crate) fn is_open(&self) -> bool {
        self.ring.is_some()
    }

    /// Closes the ring, as a failing system call does.
    #[cfg(test)]
    pub(crate) fn close(&mut self) {
        self.ring = None;
    }

    /// Receives from each socket into its buffer, without waiting. Each result has the index that
    /// the iterator yields, which is less than [`BUNDLE`]; 0 bytes mean the end of the stream.
    pub(crate) fn receive<'a>(
        &mut self,
        operations: impl Iterator<Item = (usize, BorrowedFd<'a>, &'a mut [u8])>,
    ) -> Results {
        let operations = operations.map(|(index, socket, into)| {
            opcode::Recv::new(types::Fd(socket.as_raw_fd()), into.as_mut_ptr(), into.len() as u32)
                .flags(MSG_DONTWAIT)
                .build()
                .user_data(index as u64)
        });
        // SAFETY: the iterator yields each buffer as an exclusive reference. `'a`, a parameter of
        // this function, outlives the call, for buffers as for descriptors.
        unsafe { self.perform(operations) }
    }

    /// Sends each socket its bytes, or as many as fit, without waiting. Each result has the index
    /// that the iterator yields, which is less than [`BUNDLE`].
    pub(crate) fn send<'a>(
        &mut self,
        operations: impl Iterator<Item = (usize, BorrowedFd<'a>, &'a [u8])>,
    ) -> Results {
        let operations = operations.map(|(index, socket, bytes)| {
            opcode::Send::new(types::Fd(socket.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32)
                .flags(MSG_DONTWAIT | MSG_NOSIGNAL)
                .build()
                .user_data(index as u64)
        });
        // SAFETY: `'a`, a parameter of this function, outlives the call, for bytes as for
        // descriptors.
        unsafe { self.perform(operations) }
    }

    /// Performs at most [`BUNDLE`] operations, and returns once all of them are complete. If the
    /// system refuses the call, the ring is closed.
    ///
    /// # Safety
    /// The descriptors and buffers of the operations must be valid until this function returns.
    unsafe fn perform(&mut self, operations: impl Iterator<Item = squeue::Entry>) -> Results {
        let mut results: Results = [None; BUNDLE];
        // The ring is moved out. If the iterator panics, it is thereby closed, and with it the
        // operations that are in its queue by then.
        let Some(mut ring) = self.ring.take() else { return results };
        let mut incomplete = 0;
        let mut submission = ring.submission();
        for operation in operations.take(BUNDLE) {
            // SAFETY: the caller's promise holds until this function returns or unwinds. It returns
            // when every operation that the kernel has taken is complete. Operations that the
            // kernel has not taken are out of its reach with the ring, which is then closed. Only
            // the iterator can panic, before the kernel has taken any.
            if unsafe { submission.push(&operation) }.is_err() {
                break;
            }
            incomplete += 1;
        }
        drop(submission);
        // The first call does not wait: usually every operation is complete when it returns.
        let mut wanted = 0;
        while incomplete > 0 {
            let entered = ring.submit_and_wait(wanted);
            for done in ring.completion() {
                incomplete -= 1;
                if let Some(result) = results.get_mut(done.user_data() as usize) {
                    *result = Some(match done.result() {
                        code if code < 0 => Err(Errno::from_raw_os_error(-code)),
                        bytes => Ok(bytes as usize),
                    });
                }
            }
            if let Err(error) = entered
                && error.kind() != io::ErrorKind::Interrupted
                && incomplete > 0
                && ring.submission().len() == incomplete
            {
                tracing::warn!(cause = %error, "io_uring fails and is not used any more");
                return results;
            }
            wanted = incomplete;
        }
        self.ring = Some(ring);
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use test_kit::outside::announce_skip;

    /// Returns a ring; `None`, with a message, where the system does not allow any.
    fn ring() -> Option<Uring> {
        let told = |error: &io::Error| announce_skip("io_uring", &format!("not allowed here: {error}"));
        Uring::open().inspect_err(told).ok()
    }

    fn pairs(count: usize) -> (Vec<UnixStream>, Vec<UnixStream>) {
        (0..count).map(|_| UnixStream::pair().expect("sockets")).unzip()
    }

    #[test]
    fn each_socket_has_its_own_result() {
        let Some(mut ring) = ring() else { return };
        let (near, mut far) = pairs(4);
        far[0].write_all(b"one").unwrap();
        far[1].write_all(b"longer than the buffer").unwrap();
        // The third has nothing to read, although the socket would block; the fourth has ended.
        drop(far.pop());
        let mut buffers = [[0; 8]; 4];
        let results = ring.receive(
            near.iter()
                .zip(&mut buffers)
                .enumerate()
                .map(|(at, (near, into))| (3 - at, near.as_fd(), &mut into[..])),
        );
        let expected = [Some(Ok(0)), Some(Err(Errno::AGAIN)), Some(Ok(8)), Some(Ok(3)), None];
        assert_eq!(results[..5], expected);
        assert_eq!((&buffers[0][..3], &buffers[1][..]), (&b"one"[..], &b"longer t"[..]));
    }

    #[test]
    fn sends_take_what_fits_and_one_failure_stops_no_other() {
        let Some(mut ring) = ring() else { return };
        let (near, mut far) = pairs(BUNDLE);
        drop(far.remove(0));
        // More than the buffer of the last socket holds.
        let large = vec![b'l'; 4 << 20];
        let bytes = |at: usize| if at + 1 == BUNDLE { &large[..] } else { b"reply" };
        let results = ring.send(near.iter().enumerate().map(|(at, near)| (at, near.as_fd(), bytes(at))));
        assert_eq!(results[0], Some(Err(Errno::PIPE)));
        for far in &mut far[..BUNDLE - 2] {
            let mut received = [0; 5];
            far.read_exact(&mut received).unwrap();
            assert_eq!(&received, b"reply");
        }
        assert!(results[1..BUNDLE - 1].iter().all(|result| *result == Some(Ok(5))));
        let Some(Ok(sent)) = results[BUNDLE - 1] else { panic!("{:?}", results[BUNDLE - 1]) };
        assert!(sent > 0 && sent < large.len(), "{sent}");
        let again = ring.send([(0, near[BUNDLE - 1].as_fd(), &large[sent..])].into_iter());
        assert_eq!(again[0], Some(Err(Errno::AGAIN)));
    }

    #[test]
    fn a_panic_of_the_iterator_closes_the_ring() {
        let Some(mut ring) = ring() else { return };
        let (near, far) = pairs(2);
        let operations = near.iter().enumerate().map(|(at, near)| {
            assert!(at == 0, "the second operation");
            (at, near.as_fd(), &b"reply"[..])
        });
        let send = std::panic::AssertUnwindSafe(|| ring.send(operations));
        std::panic::catch_unwind(send).expect_err("the panic");
        assert!(!ring.is_open());
        // No later call submits the first operation.
        assert_eq!(ring.send([(0, near[1].as_fd(), &b"more"[..])].into_iter())[0], None);
        drop(near);
        for mut far in far {
            assert_eq!(far.read(&mut [0; 8]).unwrap(), 0);
        }
    }

    #[test]
    fn a_ring_serves_many_bundles() {
        let Some(mut ring) = ring() else { return };
        let (near, far) = pairs(BUNDLE);
        for round in 0..1000_u32 {
            let bytes = round.to_le_bytes();
            let sent = ring.send(near.iter().enumerate().map(|(at, near)| (at, near.as_fd(), &bytes[..])));
            assert!(sent.iter().all(|result| *result == Some(Ok(4))), "{sent:?}");
            let mut buffers = [[0; 16]; BUNDLE];
            let received = ring.receive(
                far.iter()
                    .zip(&mut buffers)
                    .enumerate()
                    .map(|(at, (far, into))| (at, far.as_fd(), &mut into[..])),
            );
            assert!(received.iter().all(|result| *result == Some(Ok(4))), "{received:?}");
            assert!(buffers.iter().all(|buffer| buffer[..4] == bytes));
        }
    }
}
