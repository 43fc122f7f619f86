//! `mg`, `me`, and the expiries of meta commands.

use super::Executor;
use cached_core::clock::Expiry;
use cached_core::kv::{FetchOptions, Fetched, ItemView, Miss};
use cached_proto::meta::{
    Debug, DebugItem, Flag, Get, KeyBuffer, MetaFlags, MetaItem, Status, encode_status,
};
use cached_proto::reply;

/// The expiries that `T` and `N` request. Flags apply in the order in which they were written: to
/// an item that exists (`T` only), or to one that the command has just created without an expiry.
#[derive(Clone, Copy)]
pub(super) struct Expiries {
    /// `T`.
    pub(super) touch: Option<Expiry>,
    /// `N`.
    pub(super) vivify: Option<Expiry>,
}

impl Expiries {
    /// Returns the expiry of an item that the command creates, if the command may create one.
    pub(super) fn of_created(self, flags: &MetaFlags) -> Option<Expiry> {
        let touched_last = self.touch.filter(|_| flags.updates_after_vivify());
        self.vivify.map(|vivify| touched_last.unwrap_or(vivify))
    }

    /// Returns the expiry that `t` shows, according to its position among the flags.
    pub(super) fn shown(self, flags: &MetaFlags, created: bool, before: Expiry) -> Expiry {
        let touched = self.touch.filter(|_| !flags.shows_ttl_before_update());
        let made = self.vivify.filter(|_| created && !flags.shows_ttl_before_vivify());
        match (touched, made) {
            (Some(touched), Some(made)) => {
                if flags.updates_after_vivify() {
                    touched
                } else {
                    made
                }
            }
            (None, None) if created => Expiry::NEVER,
            (touched, made) => touched.or(made).unwrap_or(before),
        }
    }
}

/// Returns the remaining seconds as memcached shows them: for an expiry in the past, the wrapped
/// difference.
pub(super) fn ttl_left(expiry: Expiry, now: u32) -> Option<u32> {
    (expiry != Expiry::NEVER).then(|| expiry.as_secs().wrapping_sub(now))
}

/// Executes `mg`.
pub(super) fn get(executor: &mut Executor<'_>, command: &Get<'_>) {
    let (key, flags) = (&command.key, &command.flags);
    let clock = &executor.shared.clock;
    let touch = flags.ttl().map(|exptime| clock.expiry(exptime));
    let vivify = flags.vivify().map(|exptime| clock.expiry(exptime));
    let expiries = Expiries { touch, vivify };
    let options = FetchOptions {
        touch,
        no_bump: flags.has(Flag::NoUpdate),
        vivify: expiries.of_created(flags),
        recache_below: flags.recache().map(|exptime| clock.expiry(exptime)),
        recache_after_touch: flags.recaches_after_update(),
        new_cas: flags.new_cas(),
        key_binary: false,
        tokens: true,
    };
    let mut buffer = KeyBuffer::new();
    let key_bytes = key.bytes(&mut buffer);
    let kv = executor.kv();
    let out = &mut *executor.out;
    let encode = |item: &ItemView<'_>, fetched: &Fetched| {
        let now = item.now();
        let expiry = expiries.shown(flags, fetched.created, fetched.expiry_before);
        let shown = MetaItem {
            key: item.key(),
            key_is_binary: item.key_binary(),
            size: item.value_bytes(),
            client_flags: item.client_flags(),
            cas: item.cas(),
            ttl: ttl_left(expiry, now),
            last_access: fetched.idle_secs,
            fetched: fetched.fetched_before,
            won: fetched.won,
            stale: fetched.stale,
            token_sent: fetched.token_sent,
        };
        command.encode_hit(&mut out.bytes, &shown);
        if command.returns_value(shown.cas) {
            out.push_value(item);
            out.bytes.extend_from_slice(b"\r\n");
        }
    };
    let result = kv.fetch(key_bytes, kv.hash(key_bytes), &options, encode);
    if executor.is_observed() {
        executor.observe_get(key_bytes, result);
    }
    let counters = executor.counters;
    match result {
        Ok(()) if touch.is_some() => {
            counters.touches.bump();
            counters.touch_hits.bump();
        }
        Ok(()) => {
            executor.count_gets(&[key_bytes]);
            counters.get_hits.bump();
        }
        Err(Miss::OutOfMemory) => {
            counters.gets.bump();
            counters.get_misses.bump();
            executor.reply(reply::OUT_OF_MEMORY);
        }
        Err(miss) => {
            // As in memcached, every miss counts as a miss of a get, whatever else was requested.
            counters.gets.bump();
            counters.get_misses.bump();
            executor.count_miss_kind(miss);
            if !flags.quiet() {
                encode_status(&mut executor.out.bytes, Status::Miss, flags, key);
            }
        }
    }
}

/// Executes `me`, which does not count as a use of the item.
pub(super) fn debug(executor: &mut Executor<'_>, command: &Debug<'_>) {
    let mut buffer = KeyBuffer::new();
    let key = command.key.bytes(&mut buffer);
    let kv = executor.kv();
    let out = &mut executor.out.bytes;
    let result = kv.peek(key, kv.hash(key), |item| {
        let size = item.bytes() as usize;
        command.encode_hit(
            out,
            &DebugItem {
                key: item.key(),
                key_is_binary: item.key_binary(),
                ttl: item.expiry().remaining_secs(item.now()),
                last_access: item.now().saturating_sub(item.last_access()),
                cas: item.cas(),
                fetched: item.fetched(),
                class: executor.shared.size_classes.class_of_item(
                    item.key().len(),
                    item.value_bytes(),
                    item.client_flags(),
                    executor.shared.settings.cas,
                ),
                size,
            },
        );
    });
    if result.is_err() {
        command.encode_miss(&mut executor.out.bytes);
    }
    executor.counters.meta_cmds.bump();
}
