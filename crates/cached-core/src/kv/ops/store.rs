//! Storage of a complete value.

use super::Reservation;
use super::link::{Decision, Inherited, Linked, Replaces};
use crate::KeyHash;
use crate::kv::{ItemView, Kv, PinnedValue, StoreMode, StoreOptions, StoreOutcome};

impl Kv {
    /// Stores a value. A key has 1 to [`KEY_BYTES_MAX`](crate::kv::KEY_BYTES_MAX) bytes; others are
    /// [`StoreOutcome::TooLarge`].
    ///
    /// ```
    /// use cached_core::kv::{Kv, StoreMode, StoreOptions, StoreOutcome};
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// let options = StoreOptions { mode: StoreMode::Add, client_flags: 7, ..StoreOptions::default() };
    /// let hash = kv.hash(b"k");
    /// assert!(matches!(kv.store(b"k", hash, b"v", &options), StoreOutcome::Stored { .. }));
    /// assert_eq!(kv.store(b"k", hash, b"w", &options), StoreOutcome::NotStored);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn store(&self, key: &[u8], hash: KeyHash, value: &[u8], options: &StoreOptions) -> StoreOutcome {
        if matches!(options.mode, StoreMode::Append | StoreMode::Prepend) {
            return self.join(key, hash, value, options);
        }
        let inner = &self.inner;
        if !inner.fits(key.len(), value.len()) {
            return StoreOutcome::TooLarge;
        }
        let Some(shape) = inner.inline_shape(key.len(), value.len(), options) else {
            return self.store_large(key, hash, value, options);
        };
        let now = inner.now();
        let bytes = inner.log.padded(shape.entry_bytes());
        let stream = inner.log.stream_for(options.expiry, now);
        let outcome = {
            let locked = inner.index.shard(hash).lock(hash);
            let old = inner.find(&locked, hash, key, now).ok();
            let attributes = match inner.decide(&locked, old, options, now) {
                Decision::Store(attributes) => attributes,
                Decision::Refuse(outcome) => return outcome,
            };
            if let Some(old) = old
                && let Some(outcome) = inner.overwrite(&locked, hash, old, shape, value, &attributes)
            {
                return outcome;
            }
            inner.log.try_alloc(stream, bytes).map(|entry| {
                inner.fill(entry, shape, key, value, &attributes);
                inner.link(&locked, hash, key, entry, old, value.len(), &attributes, options)
            })
        };
        let outcome = outcome.unwrap_or_else(|| {
            // The open region is full: make room, then apply the mode again, since the item may have changed.
            let Some(entry) = inner.log.alloc(&**inner, stream, bytes, now) else {
                return StoreOutcome::OutOfMemory;
            };
            inner.fill(entry, shape, key, value, &inner.fresh_attributes(options, now));
            match inner.decide_and_link(hash, key, entry, value.len(), options, None, now) {
                Linked::Done(outcome) | Linked::Refused(outcome) => outcome,
            }
        });
        inner.grow_index(hash);
        outcome
    }

    fn store_large(&self, key: &[u8], hash: KeyHash, value: &[u8], options: &StoreOptions) -> StoreOutcome {
        match self.reserve_at_once(key, hash, value.len(), options) {
            Ok(mut reservation) => {
                if !reservation.write(value) {
                    return StoreOutcome::OutOfMemory;
                }
                reservation.commit()
            }
            Err(outcome) => outcome,
        }
    }

    /// Appends or prepends: the joined value is written to a new entry, which is linked if the item has not
    /// changed.
    fn join(&self, key: &[u8], hash: KeyHash, value: &[u8], options: &StoreOptions) -> StoreOutcome {
        let inner = &self.inner;
        loop {
            let now = inner.now();
            let snapshot = {
                let locked = inner.index.shard(hash).lock(hash);
                inner.find(&locked, hash, key, now).ok().map(|found| {
                    let view = ItemView { kv: inner, item: found.item, location: found.location, now };
                    (view.pin(), found.location, found.item.attributes(), view.key_binary())
                })
            };
            let Some((old, location, attributes, key_binary)) = snapshot else {
                let Some(expiry) = options.vivify else { return StoreOutcome::NotStored };
                let create = StoreOptions { mode: StoreMode::Add, expiry, compare: 0, ..*options };
                match self.store(key, hash, value, &create) {
                    StoreOutcome::NotStored => continue,
                    outcome => return outcome,
                }
            };
            if options.compare != 0 && options.compare != attributes.cas {
                return StoreOutcome::Exists;
            }
            let joined = StoreOptions {
                mode: StoreMode::Set,
                client_flags: attributes.client_flags,
                expiry: attributes.expiry,
                key_binary,
                ..*options
            };
            let mut reservation = match self.reserve_at_once(key, hash, old.bytes() + value.len(), &joined) {
                Ok(reservation) => reservation,
                // memcached's reply when the joined item does not fit.
                Err(_) => return StoreOutcome::NotStored,
            };
            let written = match options.mode {
                StoreMode::Prepend => reservation.write(value) && write_pinned(&mut reservation, &old),
                _ => write_pinned(&mut reservation, &old) && reservation.write(value),
            };
            if !written {
                return StoreOutcome::NotStored;
            }
            // The old value is pinned until here, so its memory cannot have been reused: the same
            // location means the same, unchanged value.
            let inherited = Inherited::Attributes { marks: 0 };
            let replaces = Replaces { location, cas: attributes.cas, number: None, marks: 0, inherited };
            match reservation.commit_replacing(replaces) {
                Some(outcome) => return outcome,
                None => drop(old),
            }
        }
    }
}

fn write_pinned(reservation: &mut Reservation, value: &PinnedValue) -> bool {
    value.chunks().all(|chunk| reservation.write(chunk))
}
