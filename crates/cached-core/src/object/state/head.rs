//! What is known of an object as a whole: whether it exists, its size, version and stamp, and what the store
//! has.

use blocker::{Error, Info, ListEntry, Name, OrderDomain, Result, Stamp, Version};

use super::{Env, Object};
use crate::object::memory::pool::Reserved;

/// Whether an object exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Known {
    /// The store has not been asked.
    #[default]
    Unknown,
    Absent,
    Present,
}

/// An object's entry in a listing, as far as the cache knows it.
pub(crate) enum Listed {
    /// The store knows it: nothing is pending of an object of which nothing is known.
    Unknown,
    Absent,
    Present(ListEntry),
}

/// What is known of an object as a whole.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) known: Known,
    /// Whether `stamp` and `claimed` are known as well.
    pub(crate) is_full: bool,
    pub(crate) store_exists: bool,
    /// Whether the store may have had of the object what the log had not: see `Epochs::note_unlogged`. Of use
    /// while the object is recovered.
    pub(crate) has_unlogged: bool,
    /// The number of changes on their way to the store.
    pub(crate) store_changes: u32,
    pub(crate) size: u64,
    /// The version that callers see.
    pub(crate) version: u64,
    pub(crate) stamp: Option<Stamp>,
    /// The epoch that the store reported to be in force for the object.
    pub(crate) claimed: u64,
    /// The size in the store, as far as known.
    pub(crate) store_size: u64,
    /// The store's version of what is known; `None` after changes that overlapped.
    pub(crate) store_version: Option<u64>,
    /// Counts changes of the store begun and ended, to distinguish this cache's from other clients'.
    pub(crate) store_steps: u32,
    /// The generation of the cache's own epochs under which the object may be changed; 0: none.
    pub(crate) owned: u32,
    /// The order domain whose epoch in force has been asked for.
    pub(crate) domain_asked: Option<OrderDomain>,
}

/// What the store has reported of an object as a whole.
#[derive(Clone, Copy)]
pub(crate) struct ReportedHead {
    /// Its size and version; `None`: there is no such object.
    pub(crate) head: Option<(u64, u64)>,
    /// Whether it has reported several versions, one for each range.
    pub(crate) is_mixed: bool,
    /// The value of `Head::store_steps` when the store was asked.
    pub(crate) steps: u32,
}

impl Object {
    /// Returns the offset up to which an absent slot means "ask the store".
    pub(crate) fn content_end(&self) -> u64 {
        match self.head.known {
            Known::Unknown => return u64::MAX,
            Known::Absent => return 0,
            Known::Present => (),
        }
        let flushing = self.flushing.as_deref();
        if self.pending.replace || flushing.is_some_and(|flushing| flushing.replace) {
            return 0;
        }
        let cut_at = flushing.map_or(u64::MAX, |flushing| flushing.truncate_to);
        self.head.store_size.min(self.pending.truncate_to).min(cut_at)
    }

    /// Returns size, version and stamp, if all of them are known.
    pub(crate) fn info(&self) -> Option<Result<Info>> {
        if !self.head.is_full {
            return None;
        }
        match self.head.known {
            Known::Unknown => None,
            Known::Absent => Some(Err(Error::Missing)),
            Known::Present => {
                Some(Ok(Info::new(self.head.size, Version(self.head.version), self.head.stamp)))
            }
        }
    }

    /// Returns the object's entry in a listing, as far as the cache knows it.
    pub(crate) fn listed(&self, name: Name) -> Listed {
        match self.head.known {
            Known::Unknown => Listed::Unknown,
            Known::Absent => Listed::Absent,
            Known::Present => {
                Listed::Present(ListEntry::new(name, self.head.size, Version(self.head.version)))
            }
        }
    }

    /// Takes over what the store reported of the object as a whole.
    pub(crate) fn set_head(&mut self, found: Option<(u64, u64)>) {
        let head = &mut self.head;
        head.known = if found.is_some() { Known::Present } else { Known::Absent };
        let (size, version) = found.unwrap_or((0, head.version));
        (head.size, head.version, head.store_size) = (size, version, size);
        (head.store_exists, head.store_version) = (found.is_some(), found.map(|(_, version)| version));
    }

    /// Forgets what is known of the object as a whole, all of which the store has.
    pub(crate) fn forget_head(&mut self, env: &Env<'_>) {
        let head = &mut self.head;
        if let Some(store) = head.store_version.filter(|store| *store != head.version) {
            env.versions.remember(env.hash, store, head.version);
        }
        (head.known, head.is_full, head.store_version) = (Known::Unknown, false, None);
    }

    /// Takes note of what the store reported of the object as a whole; returns false if the bytes that came
    /// with it must be asked for once more.
    pub(crate) fn apply_head(&mut self, env: &Env<'_>, reported: ReportedHead) -> bool {
        let is_quiet = self.head.store_steps == reported.steps && self.head.store_changes == 0;
        match (self.head.known, reported.head) {
            _ if is_quiet && reported.is_mixed => {
                // Another client has changed it while it was read: which bytes are older is not known.
                self.invalidate(env, &mut Reserved::none(env.pool));
                return false;
            }
            (Known::Present, None) => return self.gone_below(env, reported, is_quiet),
            // A change overlapped it: this may be from before.
            _ if !is_quiet => (),
            (Known::Unknown, found) => self.found_below(env, found),
            (Known::Present, Some((_, version))) => {
                // Another version than the known one, with no change of this cache in between: another client
                // has changed the object in the store. What is here of it is old.
                if self.head.store_version.is_some_and(|known| known != version) {
                    self.invalidate(env, &mut Reserved::none(env.pool));
                    if self.head.known == Known::Unknown {
                        self.found_below(env, reported.head);
                    } else {
                        self.head.store_version = Some(version);
                    }
                }
            }
            (Known::Absent, _) => (),
        }
        true
    }

    /// Takes over what the store reported of an object of which nothing was known.
    fn found_below(&mut self, env: &Env<'_>, found: Option<(u64, u64)>) {
        self.set_head(found);
        self.head.is_full = false;
        if let Some((_, version)) = found {
            self.head.version = env.versions.shown_for(env.hash, version);
        }
    }

    /// The store has no object that was known to exist: another client has removed it. What is newer here
    /// than the store stays, and creates it anew. Returns as [`Self::apply_head`].
    fn gone_below(&mut self, env: &Env<'_>, reported: ReportedHead, is_quiet: bool) -> bool {
        let stays = self.has_pending() || self.flushing.is_some();
        // Of this cache's own changes at most one flush has begun since, and none has ended.
        let is_flushing = self.flushing.is_some() && self.head.store_changes == 1;
        let has_only_begun = is_flushing && self.head.store_steps.wrapping_sub(reported.steps) <= 1;
        self.invalidate(env, &mut Reserved::none(env.pool));
        if stays && (is_quiet || has_only_begun) {
            // Until the flush that creates it anew has ended.
            (self.head.store_size, self.head.store_exists) = (0, false);
        } else if is_quiet {
            self.found_below(env, None);
        } else {
            return false;
        }
        true
    }
}
