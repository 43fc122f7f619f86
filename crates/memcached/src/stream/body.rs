//! A value that has not arrived completely and is too large to be collected in the input buffer.
//!
//! ```text
//!  set k 0 0 1000000␍␊ │ a million bytes            │ ␍␊
//!  kept as `head`       │ read into their place      │ checked, not kept
//! ```
//! The command line is kept, and decoded again when the value is complete: the reply needs the key
//! and the flags, and large values are so rare that a second decoding is cheaper than a second
//! representation.

use cached_core::kv::{Kv, Reservation, StoreOptions, StoreOutcome};
use cached_proto::Protocol;

/// A value that has not arrived completely.
pub(crate) struct Body {
    /// The protocol of `head`.
    pub(crate) protocol: Protocol,
    /// The request up to the value.
    pub(crate) head: Box<[u8]>,
    place: Place,
    /// The store memory that is reserved for the value.
    reserved_bytes: usize,
    /// The two bytes after a text value, as far as they have arrived.
    terminator: [u8; 2],
    terminator_bytes: u8,
    terminator_missing: u8,
}

/// The destination of a value.
#[expect(clippy::large_enum_variant, reason = "it lives in the box of its `Body`")]
enum Place {
    /// Into the store's memory.
    Reserved(Reservation),
    /// Into a buffer: appending and prepending need the whole value first, and other values are
    /// collected when the store has no more memory to reserve. `filled` bytes of `value` have
    /// arrived, followed by space for more.
    Collected { value: Vec<u8>, filled: usize, missing: usize },
}

/// The minimum step by which the buffer of a collected value grows.
const COLLECT_STEP_BYTES: usize = 64 << 10;

/// There is no memory for more of the value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

impl Body {
    /// Returns a value that is written to the store's memory as it arrives.
    pub(crate) fn reserved(protocol: Protocol, head: &[u8], reservation: Reservation) -> Body {
        let reserved_bytes = reservation.remaining();
        Body { reserved_bytes, ..Body::new(protocol, head, Place::Reserved(reservation)) }
    }

    /// Returns a value that is collected first.
    pub(crate) fn collected(protocol: Protocol, head: &[u8], value_bytes: usize) -> Body {
        Body::new(protocol, head, Place::Collected { value: Vec::new(), filled: 0, missing: value_bytes })
    }

    fn new(protocol: Protocol, head: &[u8], place: Place) -> Body {
        let terminator_missing = match protocol {
            Protocol::Text => 2,
            Protocol::Binary => 0,
        };
        Body {
            protocol,
            head: head.into(),
            place,
            reserved_bytes: 0,
            terminator: [0; 2],
            terminator_bytes: 0,
            terminator_missing,
        }
    }

    /// Returns the number of bytes of the value, without its terminator, that have not arrived.
    pub(crate) fn value_missing(&self) -> usize {
        match &self.place {
            Place::Reserved(reservation) => reservation.remaining(),
            Place::Collected { missing, .. } => *missing,
        }
    }

    /// Returns the number of bytes that have not arrived, including the terminator.
    pub(crate) fn missing(&self) -> usize {
        self.value_missing() + usize::from(self.terminator_missing)
    }

    /// Returns the memory held outside the store, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.head.len()
            + match &self.place {
                Place::Reserved(_) => 0,
                Place::Collected { value, .. } => value.capacity(),
            }
    }

    /// Returns the store memory that is reserved for the value, in bytes.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Takes the bytes that belong to the body from the front of `input`, and returns their number.
    pub(crate) fn feed(&mut self, input: &[u8]) -> (usize, Result<(), OutOfMemory>) {
        let mut used = 0;
        while self.value_missing() > 0 && used < input.len() {
            let Some(spare) = self.spare() else { return (used, Err(OutOfMemory)) };
            let count = spare.len().min(input.len() - used);
            spare[..count].copy_from_slice(&input[used..used + count]);
            self.advance(count);
            used += count;
        }
        while self.value_missing() == 0 && self.terminator_missing > 0 && used < input.len() {
            self.terminator[usize::from(self.terminator_bytes)] = input[used];
            self.terminator_bytes += 1;
            self.terminator_missing -= 1;
            used += 1;
        }
        (used, Ok(()))
    }

    /// Returns the number of bytes by which the buffer outside the store must grow for the next
    /// bytes of the value.
    pub(crate) fn growth_bytes(&self) -> usize {
        match &self.place {
            Place::Collected { value, filled, missing } if *filled == value.len() => {
                // As many as have already arrived, so that a value that is only announced costs
                // little.
                COLLECT_STEP_BYTES.max(*filled).min(*missing)
            }
            Place::Collected { .. } | Place::Reserved(_) => 0,
        }
    }

    /// Returns the space for the next bytes of the value, which is not empty while bytes are
    /// missing. Returns `None` if there is no memory.
    pub(crate) fn spare(&mut self) -> Option<&mut [u8]> {
        let step = self.growth_bytes();
        match &mut self.place {
            Place::Reserved(reservation) => reservation.spare(),
            Place::Collected { value, filled, .. } => {
                if step > 0 {
                    value.try_reserve_exact(step).ok()?;
                    value.resize(*filled + step, 0);
                }
                Some(&mut value[*filled..])
            }
        }
    }

    /// Records that `count` bytes were written to the space that [`spare`](Body::spare) returned.
    pub(crate) fn advance(&mut self, count: usize) {
        match &mut self.place {
            Place::Reserved(reservation) => reservation.advance(count),
            Place::Collected { filled, missing, .. } => {
                *filled += count;
                *missing -= count;
            }
        }
    }

    /// Returns whether the value ends with CRLF, if its protocol requires that.
    pub(crate) fn is_terminated(&self) -> bool {
        self.terminator_bytes == 0 || self.terminator == *b"\r\n"
    }

    /// Returns the bytes of the whole request, whose value is complete.
    pub(crate) fn into_request(self) -> Vec<u8> {
        let mut bytes = match self.place {
            Place::Collected { value, .. } => value,
            Place::Reserved(reservation) => {
                let mut value = Vec::with_capacity(self.reserved_bytes);
                reservation.copy_to(&mut value);
                value
            }
        };
        bytes.reserve_exact(self.head.len() + usize::from(self.terminator_bytes));
        bytes.splice(0..0, self.head.iter().copied());
        bytes.extend_from_slice(&self.terminator[..usize::from(self.terminator_bytes)]);
        bytes
    }

    /// Stores the complete value under `key`.
    pub(crate) fn store(self, kv: &Kv, key: &[u8], options: &StoreOptions) -> StoreOutcome {
        match self.place {
            Place::Reserved(reservation) => reservation.commit(),
            Place::Collected { value, .. } => kv.store(key, kv.hash(key), &value, options),
        }
    }
}
