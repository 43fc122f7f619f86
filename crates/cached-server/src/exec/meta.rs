//! `mg`: a get with everything optional.

use super::Executor;
use cached_core::clock::Expiry;
use cached_core::kv::{FetchOptions, Fetched, ItemView, Miss};
use cached_proto::meta::{Flag, Get, KeyBuffer, MetaItem, Status, encode_status};

/// `mg`.
pub(super) fn get(executor: &mut Executor<'_>, command: &Get<'_>) {
    let (key, flags) = (&command.key, &command.flags);
    let clock = &executor.shared.clock;
    let touch = flags.ttl().map(|exptime| clock.expiry(exptime));
    let vivify = flags.vivify().map(|exptime| clock.expiry(exptime));
    let options = FetchOptions {
        touch,
        no_bump: flags.has(Flag::NoUpdate),
        vivify,
        recache_below_secs: flags.recache().map(|secs| u32::try_from(secs).unwrap_or(0)),
        new_cas: flags.new_cas(),
        key_binary: false,
        tokens: true,
    };
    let mut buffer = KeyBuffer::new();
    let key_bytes = key.bytes(&mut buffer);
    let kv = executor.kv();
    let out = &mut *executor.out;
    let mut created = false;
    let encode = |item: &ItemView<'_>, fetched: &Fetched| {
        let now = item.now();
        // Flags act in the order in which they were written.
        let touched = touch.filter(|_| !flags.shows_ttl_before_update());
        let made = vivify.filter(|_| fetched.created && !flags.shows_ttl_before_vivify());
        let expiry = match (touched, made) {
            (Some(touched), Some(made)) => {
                if flags.updates_after_vivify() {
                    touched
                } else {
                    made
                }
            }
            (None, None) if fetched.created => Expiry::NEVER,
            (touched, made) => touched.or(made).unwrap_or(fetched.expiry_before),
        };
        created = fetched.created;
        let told = MetaItem {
            key: item.key(),
            key_is_binary: item.key_binary(),
            size: item.value_bytes(),
            client_flags: item.client_flags(),
            cas: item.cas(),
            ttl: expiry.remaining_secs(now),
            last_access: fetched.idle_secs,
            fetched: fetched.fetched_before,
            won: fetched.won,
            stale: fetched.stale,
            token_sent: fetched.token_sent,
        };
        command.encode_hit(&mut out.bytes, &told);
        if command.returns_value(told.cas) {
            out.push_value(item);
            out.bytes.extend_from_slice(b"\r\n");
        }
    };
    let result = kv.fetch(key_bytes, kv.hash(key_bytes), &options, encode);
    // `T` has been applied to what was just made; if `N` came after it, `N` has the last word.
    if let Some(expiry) = vivify
        && created
        && touch.is_some()
        && !flags.updates_after_vivify()
    {
        // Gone already: then there is nothing to put right.
        let _ = kv.touch(key_bytes, kv.hash(key_bytes), expiry);
    }
    if executor.observed() {
        executor.tell_get(key_bytes, result);
    }
    let counters = executor.counters;
    match result {
        Ok(()) if touch.is_some() => {
            counters.touch_cmds.bump();
            counters.touch_hits.bump();
        }
        Ok(()) => {
            counters.get_cmds.bump();
            counters.get_hits.bump();
        }
        // An item created to be expired at once is shown to its creator, and to nobody after.
        Err(miss) if vivify == Some(Expiry::PAST) && miss != Miss::OutOfMemory => {
            counters.get_cmds.bump();
            counters.get_hits.bump();
            let told = MetaItem {
                key: key_bytes,
                key_is_binary: key.is_binary(),
                ttl: Some(Expiry::PAST.as_secs().wrapping_sub(clock.now_secs())),
                won: true,
                ..MetaItem::default()
            };
            command.encode_hit(&mut executor.out.bytes, &told);
            if command.returns_value(told.cas) {
                executor.reply(b"\r\n");
            }
        }
        Err(miss) => {
            // memcached counts a miss as a get's, whatever else was asked for.
            counters.get_cmds.bump();
            counters.get_misses.bump();
            executor.count_miss_kind(miss);
            if !flags.quiet() {
                encode_status(&mut executor.out.bytes, Status::Miss, flags, key);
            }
        }
    }
}
