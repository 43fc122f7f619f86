//! Slots and the buckets behind them: put in place, let go, copied before they are changed, filled up from
//! the store.

use super::super::slots::{SECTOR_BYTES, Slot, State};
use super::parts::{BUCKET_U64, SECTORS, touched};
use super::{Env, Known, Loaded, Means, Object};

impl Object {
    /// Whether the slot's bucket may be changed in its place.
    #[inline]
    pub(super) fn is_exclusive(env: &Env<'_>, slot: Slot) -> bool {
        slot.state().has_bucket() && slot.state() != State::Writing && env.meta(slot.bucket()).refs() == 1
    }

    /// Puts another slot in a slot's place, and lets go of the bucket there was. Forgotten, the slot no longer covers
    /// what the store has been asked for before: that may be older.
    pub(super) fn put(&mut self, env: &Env<'_>, at: u32, slot: Slot) {
        let old = self.slots.set(at, slot);
        if slot == Slot::ABSENT && old != Slot::ABSENT {
            self.spoil_bytes(at..at + 1);
        }
        env.gauges.shift(old, slot);
        if matches!(old.state(), State::Dirty | State::DirtyWhole) {
            env.gauges.give_back(1);
        }
        if !old.state().has_bucket() {
            return;
        }
        if old.state() == State::Clean {
            env.queues.unlink(env.pool, old.bucket(), env.bucket_name(at));
        }
        if !slot.state().has_bucket() || slot.bucket() != old.bucket() {
            let meta = env.meta(old.bucket());
            if meta.owner() == Some((env.node, at)) {
                meta.set_owner(None);
            }
            env.pool.release(old.bucket());
        }
    }

    /// Forgets a slot.
    pub(super) fn clear(&mut self, env: &Env<'_>, at: u32) {
        self.put(env, at, Slot::ABSENT);
    }

    /// Forgets the slots from `from` on.
    pub(super) fn clear_from(&mut self, env: &Env<'_>, from: u32) {
        let known: Vec<u32> = self.slots.known_from(from).map(|(at, _)| at).collect();
        known.into_iter().for_each(|at| self.clear(env, at));
    }

    /// Forgets everything; what an object that leaves the cache does.
    pub(crate) fn clear_all(&mut self, env: &Env<'_>) {
        self.clear_from(env, 0);
        self.forget_head(env);
        *self = Self::default();
    }

    /// Forgets what is known of the object as a whole, all of which the store has.
    pub(crate) fn forget_head(&mut self, env: &Env<'_>) {
        let head = &mut self.head;
        if let Some(store) = head.store_version.filter(|store| *store != head.version) {
            env.versions.remember(env.hash, store, head.version);
        }
        (head.known, head.is_full, head.store_version) = (Known::Unknown, false, None);
    }

    /// Evicts one clean bucket, if it still is what the evictor took it for. Not while the store is asked for it:
    /// that would have to be asked again.
    pub(crate) fn evict(&mut self, env: &Env<'_>, at: u32, bucket: u32) -> bool {
        let slot = self.slots.get(at);
        let is_loading = self.activity.as_ref().is_some_and(|activity| activity.ranges.is_loading(at));
        let goes = slot == Slot::of(State::Clean, bucket) && env.meta(bucket).refs() == 1 && !is_loading;
        if goes {
            self.clear(env, at);
        }
        goes
    }

    /// The valid sectors of a slot, with those that are zeros because nothing reaches so far.
    pub(super) fn valid(&self, env: &Env<'_>, at: u32) -> u8 {
        let slot = self.slots.get(at);
        match slot.state() {
            State::Absent => self.beyond(at),
            state if state.has_bucket() => env.meta(slot.bucket()).valid(),
            _ => u8::MAX,
        }
    }

    /// The sectors of a slot that begin beyond the store's content.
    pub(super) fn beyond(&self, at: u32) -> u8 {
        let start = u64::from(at) * BUCKET_U64;
        let within = self.content_end().saturating_sub(start).min(BUCKET_U64) as usize;
        !touched(0, within)
    }

    /// Takes a bucket that starts with what the slot has, and puts it in its place. Sectors that were not
    /// valid are taken from `loaded` where it has them.
    pub(super) fn copy_up(
        &mut self,
        env: &Env<'_>,
        at: u32,
        means: &mut Means<'_>,
        keep: bool,
    ) -> Option<u32> {
        let slot = self.slots.get(at);
        let beyond = self.beyond(at);
        let has_old = slot.state().has_bucket();
        let old = has_old.then(|| env.pool.bytes(slot.bucket()));
        let bucket = means.reserved.take(|bytes| match old {
            Some(old) if keep => bytes.copy_from_slice(old),
            _ if keep => bytes.fill(0),
            _ => (),
        })?;
        let valid = match slot.state() {
            State::Absent => beyond,
            _ if has_old => env.meta(slot.bucket()).valid(),
            _ => u8::MAX,
        };
        let meta = env.meta(bucket);
        meta.set_valid(if keep { valid } else { 0 });
        meta.set_dirty(match slot.state() {
            State::Dirty => env.meta(slot.bucket()).dirty(),
            State::DirtyWhole => env.meta(slot.bucket()).valid(),
            State::ZeroDirty => u8::MAX,
            _ => 0,
        });
        meta.set_owner(Some((env.node, at)));
        Some(bucket)
    }

    /// Fills sectors of an exclusive bucket that are not valid with what the store gave.
    pub(super) fn fill_up(&self, env: &Env<'_>, at: u32, bucket: u32, loaded: Option<&Loaded>) {
        let meta = env.meta(bucket);
        let missing = !meta.valid();
        if missing == 0 {
            return;
        }
        let start = u64::from(at) * BUCKET_U64;
        let beyond = self.beyond(at);
        let data = loaded.and_then(|loaded| loaded.slice(start, start + BUCKET_U64));
        if data.is_none() && missing & beyond == 0 {
            return;
        }
        let data = data.map(|data| data.to_bytes());
        let bytes = env.bytes_mut(bucket);
        let end = self.content_end().saturating_sub(start).min(BUCKET_U64) as usize;
        for sector in (0..SECTORS).filter(|sector| missing & 1 << sector != 0) {
            let (lo, hi) = (sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES);
            if beyond & 1 << sector != 0 {
                bytes[lo..hi].fill(0);
            } else if let Some(data) = &data {
                let reach = end.clamp(lo, hi);
                bytes[lo..reach].copy_from_slice(&data[lo..reach]);
                bytes[reach..hi].fill(0);
            } else {
                continue;
            }
            meta.set_valid(meta.valid() | 1 << sector);
        }
    }
}
