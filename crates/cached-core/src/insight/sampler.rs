//! Samples of requests for names whose hash is below a threshold, queued for the thread that
//! simulates.
//!
//! Sampling costs a request one comparison, with a hash that is computed in any case. Names are
//! sampled rather than requests: all requests for a sampled name are included, so its behaviour in
//! a cache of another size can be simulated. Each thread has its own bounded queue; what does not
//! fit is dropped and counted.

use crate::sync::{AtomicU64, Mutex, Ordering, lock, thread_number, try_lock};

/// The maximum number of samples that wait in one queue.
const QUEUE_SAMPLES_MAX: usize = 2048;
/// The maximum length of a recorded prefix, in bytes. A key with a longer prefix counts as a key
/// without one.
pub(crate) const PREFIX_BYTES_MAX: usize = 26;

/// An event of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The name was read and found.
    Hit,
    /// The name was read, and had no entry.
    Absent,
    /// The name was read, and its entry had expired.
    Expired,
    /// The name was read, and its entry had been flushed.
    Flushed,
    /// An entry was stored under the name.
    Store,
    /// The entry was changed, so it exists and can be evicted. This does not count as a use.
    Return,
    /// The entry's expiry was changed.
    Touch,
    /// The entry was deleted.
    Delete,
}

/// One event of a sampled name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) hash: u64,
    /// The entry's memory; 0 if there is no entry.
    pub(crate) bytes: u32,
    /// The second in which the entry expires; 0 for never.
    pub(crate) expiry: u32,
    /// A number that identifies the name's namespace to the owner of the sampler.
    pub(crate) owner: u32,
    pub(crate) event: Event,
    prefix_bytes: u8,
    prefix: [u8; PREFIX_BYTES_MAX],
}

const _: () = assert!(size_of::<Sample>() == 48);

impl Sample {
    pub(crate) fn new(hash: u64, event: Event) -> Sample {
        Sample { hash, bytes: 0, expiry: 0, owner: 0, event, prefix_bytes: 0, prefix: [0; PREFIX_BYTES_MAX] }
    }

    /// Adds the entry's size and expiry.
    #[must_use]
    pub(crate) fn entry(self, bytes: u64, expiry: u32) -> Sample {
        Sample { bytes: u32::try_from(bytes).unwrap_or(u32::MAX), expiry, ..self }
    }

    /// Adds the number that identifies the namespace.
    #[must_use]
    pub(crate) fn owner(self, owner: u32) -> Sample {
        Sample { owner, ..self }
    }

    /// Adds the prefix, if it is not too long.
    #[must_use]
    pub(crate) fn prefix(mut self, prefix: &[u8]) -> Sample {
        if let Some(place) = self.prefix.get_mut(..prefix.len()) {
            place.copy_from_slice(prefix);
            self.prefix_bytes = prefix.len() as u8;
        }
        self
    }

    /// Returns the prefix; empty if there is none.
    pub(crate) fn prefix_of(&self) -> &[u8] {
        &self.prefix[..usize::from(self.prefix_bytes)]
    }
}

/// The threshold and the queues.
pub(crate) struct Sampler {
    /// The threshold: names with a hash below it are sampled; 0 samples no names. It is on a cache
    /// line that is written only when the threshold changes.
    threshold: Threshold,
    queues: Box<[Queue]>,
}

#[repr(align(128))]
struct Threshold(AtomicU64);

#[repr(align(128))]
struct Queue {
    samples: Mutex<Vec<Sample>>,
    dropped: AtomicU64,
}

impl Sampler {
    /// Memory of one queue in bytes.
    pub(crate) const QUEUE_BYTES: usize = QUEUE_SAMPLES_MAX * size_of::<Sample>();

    /// Returns a sampler with a queue for each of `threads` threads, which samples nothing yet, and
    /// never does if it has no queue.
    pub(crate) fn new(threads: usize) -> Sampler {
        let queue = || Queue {
            samples: Mutex::new(Vec::with_capacity(QUEUE_SAMPLES_MAX)),
            dropped: AtomicU64::new(0),
        };
        Sampler { threshold: Threshold(AtomicU64::new(0)), queues: (0..threads).map(|_| queue()).collect() }
    }

    /// Returns whether the name with this hash is sampled.
    #[inline]
    pub(crate) fn takes(&self, hash: u64) -> bool {
        hash < self.threshold.0.load(Ordering::Relaxed)
    }

    /// Samples names with hashes below `threshold`.
    pub(crate) fn set_threshold(&self, threshold: u64) {
        let threshold = if self.queues.is_empty() { 0 } else { threshold };
        self.threshold.0.store(threshold, Ordering::Relaxed);
    }

    /// Queues a sample; drops it if the thread's queue is full or in use. Never waits.
    #[cold]
    #[inline(never)]
    pub(crate) fn push(&self, sample: Sample) {
        let count = self.queues.len();
        let Some(queue) = self.queues.get(thread_number().checked_rem(count).unwrap_or(0)) else { return };
        match try_lock(&queue.samples) {
            Some(mut samples) if samples.len() < QUEUE_SAMPLES_MAX => samples.push(sample),
            _ => {
                queue.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of samples that have been dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.queues.iter().map(|queue| queue.dropped.load(Ordering::Relaxed)).sum()
    }

    /// Calls `each` with all queued samples. Threads that add samples in the meantime do not wait.
    pub(crate) fn drain(&self, mut each: impl FnMut(&Sample)) {
        let mut taken = Vec::new();
        for queue in &self.queues {
            if taken.capacity() == 0 {
                taken.reserve_exact(QUEUE_SAMPLES_MAX);
            }
            std::mem::swap(&mut *lock(&queue.samples), &mut taken);
            taken.iter().for_each(&mut each);
            taken.clear();
        }
    }

    /// Returns the memory use of the queues in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.queues.len() * Self::QUEUE_BYTES
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn names_below_the_threshold_pass_and_a_full_queue_drops() {
        let sampler = Sampler::new(1);
        assert!(!sampler.takes(0), "nothing is sampled before a threshold is set");
        sampler.set_threshold(100);
        assert!(sampler.takes(99) && !sampler.takes(100));
        for n in 0..QUEUE_SAMPLES_MAX as u64 + 3 {
            sampler.push(Sample::new(n, Event::Hit));
        }
        assert_eq!(sampler.dropped(), 3);
        let mut hashes = Vec::new();
        sampler.drain(|sample| hashes.push(sample.hash));
        assert_eq!(hashes, (0..QUEUE_SAMPLES_MAX as u64).collect::<Vec<_>>());
        sampler.push(Sample::new(7, Event::Hit));
        let mut count = 0;
        sampler.drain(|_| count += 1);
        assert_eq!((count, sampler.dropped()), (1, 3));
        let off = Sampler::new(0);
        off.set_threshold(u64::MAX);
        assert!(!off.takes(0) && off.bytes() == 0);
    }

    #[test]
    fn prefixes_are_kept_whole_or_not_at_all() {
        let sample = Sample::new(1, Event::Store);
        assert_eq!(sample.prefix(b"user").prefix_of(), b"user");
        assert_eq!(sample.prefix(&[b'x'; PREFIX_BYTES_MAX]).prefix_of().len(), PREFIX_BYTES_MAX);
        assert_eq!(sample.prefix(&[b'x'; PREFIX_BYTES_MAX + 1]).prefix_of(), b"");
    }
}
