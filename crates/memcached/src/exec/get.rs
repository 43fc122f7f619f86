//! `get`, `gets`, `gat`, `gats`, `touch`.
//!
//! A single key takes the shortest path. Several keys are read in batches
//! ([`Kv::read_many`](cached_core::kv::Kv::read_many)), so that their cache misses overlap.

use super::{Executor, Next};
use crate::stream::{Output, PIN_BYTES_MIN};
use cached_core::KeyHash;
use cached_core::clock::Expiry;
use cached_core::kv::{FetchOptions, ItemView, Miss, READ_BATCH};
use cached_proto::reply;
use cached_proto::text::{Get, Touch, encode_value_head, plain_get, plain_gets};

/// Executes the run of single-key `get`s at the front of `input`, as a pipelining client sends
/// them; `key` and `consumed` belong to the first. Returns the number of input bytes consumed.
#[inline]
pub(crate) fn plain_run(executor: &mut Executor<'_>, input: &[u8], key: &[u8], consumed: usize) -> usize {
    if input.len() == consumed {
        plain(executor, key);
        return consumed;
    }
    plain_batch(executor, input, key, consumed)
}

/// Executes a `get` of two to [`READ_BATCH`] keys at the front of `input`, and returns the number
/// of input bytes consumed. Returns `None` if the input begins with anything else.
#[inline(never)]
pub(crate) fn plain_keys(executor: &mut Executor<'_>, input: &[u8]) -> Option<usize> {
    let mut keys: [&[u8]; READ_BATCH] = [b""; READ_BATCH];
    let (count, consumed) = plain_gets(input, &mut keys)?;
    read_batch::<false, false>(executor, &keys[..count]);
    executor.reply(reply::END);
    Some(consumed)
}

/// Executes up to [`READ_BATCH`] single-key `get`s, prefetched like the keys of one retrieval.
#[inline(never)]
fn plain_batch(executor: &mut Executor<'_>, input: &[u8], key: &[u8], consumed: usize) -> usize {
    let mut keys: [&[u8]; READ_BATCH] = [key; READ_BATCH];
    let (mut count, mut used) = (1, consumed);
    while count < READ_BATCH
        && let Some((key, consumed)) = plain_get(&input[used..])
    {
        keys[count] = key;
        count += 1;
        used += consumed;
    }
    read_batch::<true, false>(executor, &keys[..count]);
    used
}

/// Writes and counts the replies for a batch of keys: a complete reply for each key with `LAST`,
/// otherwise only the values.
#[inline(always)]
fn read_batch<const LAST: bool, const WITH_CAS: bool>(executor: &mut Executor<'_>, keys: &[&[u8]]) {
    if executor.is_observed() {
        return read_one_by_one::<LAST>(executor, keys, WITH_CAS);
    }
    let kv = executor.kv();
    let mut answer = (executor, 0);
    kv.read_many(
        keys,
        &mut answer,
        |(executor, _), key, item| encode::<LAST>(executor.out, key, item, WITH_CAS),
        |(executor, misses), _, miss| {
            *misses += 1;
            executor.count_miss_kind(miss);
            if LAST {
                executor.reply(reply::END);
            }
        },
    );
    let (executor, misses) = answer;
    count_gets(executor, keys, keys.len() as u64 - misses);
}

/// As `read_batch`, while requests are observed: the attributes of an item are looked up after its
/// hash bucket has been unlocked.
#[cold]
fn read_one_by_one<const LAST: bool>(executor: &mut Executor<'_>, keys: &[&[u8]], with_cas: bool) {
    let mut hits = 0;
    for key in keys {
        if read_one::<LAST>(executor, key, executor.kv().hash(key), with_cas) {
            hits += 1;
        } else if LAST {
            executor.reply(reply::END);
        }
    }
    count_gets(executor, keys, hits);
}

fn count_gets(executor: &Executor<'_>, keys: &[&[u8]], hits: u64) {
    executor.count_gets(keys);
    executor.counters.get_hits.add(hits);
    executor.counters.get_misses.add(keys.len() as u64 - hits);
}

/// Executes `get` of one key: the shortest path.
#[inline]
fn plain(executor: &mut Executor<'_>, key: &[u8]) {
    let counters = executor.counters;
    executor.count_gets(&[key]);
    if read_one::<true>(executor, key, executor.kv().hash(key), false) {
        counters.get_hits.bump();
    } else {
        counters.get_misses.bump();
        executor.reply(reply::END);
    }
}

/// Executes a retrieval of any number of keys, starting at the first key or where the retrieval was
/// suspended.
pub(crate) fn many(executor: &mut Executor<'_>, get: &mut Get<'_>) -> Next {
    if let Some(exptime) = get.exptime {
        return touch_many(executor, get, exptime);
    }
    if get.with_cas { many_of::<true>(executor, get) } else { many_of::<false>(executor, get) }
}

/// Executes `get` or `gets` of several keys.
#[inline(never)]
fn many_of<const WITH_CAS: bool>(executor: &mut Executor<'_>, get: &mut Get<'_>) -> Next {
    let mut keys: [&[u8]; READ_BATCH] = [b""; READ_BATCH];
    loop {
        let count = get.next_keys(&mut keys);
        read_batch::<false, WITH_CAS>(executor, &keys[..count]);
        if count < READ_BATCH || get.is_done() {
            break;
        }
        if executor.out.is_full() {
            return Next::Suspend(get.cursor());
        }
    }
    executor.reply(reply::END);
    Next::Continue
}

/// Executes `gat` or `gats` of any number of keys.
fn touch_many(executor: &mut Executor<'_>, get: &mut Get<'_>, exptime: i32) -> Next {
    let expiry = executor.shared.clock.expiry(exptime);
    while let Some(key) = get.next_key() {
        let touched = touch_one(executor, key, executor.kv().hash(key), expiry, get.with_cas);
        if touched == Err(Miss::OutOfMemory) {
            executor.reply(reply::OUT_OF_MEMORY);
            return Next::Continue;
        }
        if executor.out.is_full() {
            return Next::Suspend(get.cursor());
        }
    }
    executor.reply(reply::END);
    Next::Continue
}

/// Writes the reply for one key of the retrieval `get`, if the key is found. An error is the end of
/// the reply.
pub(crate) fn one_of_many(
    executor: &mut Executor<'_>,
    get: &Get<'_>,
    key: &[u8],
) -> Result<(), &'static [u8]> {
    let Some(exptime) = get.exptime else {
        if get.with_cas {
            read_batch::<false, true>(executor, &[key]);
        } else {
            read_batch::<false, false>(executor, &[key]);
        }
        return Ok(());
    };
    let expiry = executor.shared.clock.expiry(exptime);
    match touch_one(executor, key, executor.kv().hash(key), expiry, get.with_cas) {
        Err(Miss::OutOfMemory) => Err(reply::OUT_OF_MEMORY),
        _ => Ok(()),
    }
}

/// Writes the reply for one key of a `get` if the key is found, with `LAST` the complete reply.
/// Returns whether the key was found. The caller counts hits and misses.
#[inline(always)]
fn read_one<const LAST: bool>(
    executor: &mut Executor<'_>,
    key: &[u8],
    hash: KeyHash,
    with_cas: bool,
) -> bool {
    let out = &mut *executor.out;
    let result = executor.shared.kv.read(key, hash, |item| encode::<LAST>(out, key, item, with_cas));
    if let Err(miss) = result {
        executor.count_miss_kind(miss);
    }
    if executor.is_observed() {
        executor.observe_get(key, result);
    }
    result.is_ok()
}

/// Writes the reply for one key of a `gat`.
fn touch_one(
    executor: &mut Executor<'_>,
    key: &[u8],
    hash: KeyHash,
    expiry: Expiry,
    with_cas: bool,
) -> Result<(), Miss> {
    let out = &mut *executor.out;
    let options = FetchOptions { touch: Some(expiry), ..FetchOptions::default() };
    let result =
        executor.shared.kv.fetch(key, hash, &options, |item, _| encode::<false>(out, key, item, with_cas));
    count_touch(executor, key, result);
    result
}

/// Counts a touch, and the retrieval if the touch is part of one.
pub(super) fn count_touch(executor: &Executor<'_>, key: &[u8], result: Result<(), Miss>) {
    executor.counters.touches.bump();
    match result {
        Ok(()) => executor.counters.touch_hits.bump(),
        Err(miss) => {
            executor.counters.touch_misses.bump();
            executor.count_miss_kind(miss);
        }
    }
    if executor.is_observed() {
        executor.observe_get(key, result);
    }
}

/// Appends `VALUE …`, the value and CRLF, and with `LAST` also the end of the reply.
#[inline(always)]
fn encode<const LAST: bool>(out: &mut Output, key: &[u8], item: &ItemView<'_>, with_cas: bool) {
    let cas = with_cas.then(|| item.cas());
    match item.inline_value() {
        Some(value) if value.len() < PIN_BYTES_MIN => match item.client_flags() {
            0 => encode_value::<LAST>(&mut out.bytes, key, 0, value, cas),
            flags => encode_flagged::<LAST>(out, key, flags, value, cas),
        },
        // The view is copied, so that the other cases need not keep it in memory.
        _ => encode_large::<LAST>(out, key, &{ *item }, cas),
    }
}

/// As `encode`, for an item with flags. The function is not inlined, so that items without flags
/// cost only one check.
#[inline(never)]
fn encode_flagged<const LAST: bool>(
    out: &mut Output,
    key: &[u8],
    flags: u32,
    value: &[u8],
    cas: Option<u64>,
) {
    encode_value::<LAST>(&mut out.bytes, key, flags, value, cas);
}

/// As `encode`, for a value that is sent from the arena, or is not contiguous.
#[cold]
fn encode_large<const LAST: bool>(out: &mut Output, key: &[u8], item: &ItemView<'_>, cas: Option<u64>) {
    encode_value_head(&mut out.bytes, key, item.client_flags(), item.value_bytes(), cas);
    out.push_value(item);
    out.bytes.extend_from_slice(if LAST { b"\r\nEND\r\n" } else { b"\r\n" });
}

/// Executes `touch`.
pub(super) fn touch(executor: &mut Executor<'_>, command: &Touch<'_>) {
    let expiry = executor.shared.clock.expiry(command.exptime);
    let kv = executor.kv();
    let result = kv.touch(command.key, kv.hash(command.key), expiry);
    executor.counters.touches.bump();
    let words = match result {
        Ok(()) => {
            executor.counters.touch_hits.bump();
            reply::TOUCHED
        }
        Err(miss) => {
            executor.counters.touch_misses.bump();
            executor.count_miss_kind(miss);
            // The item is present, but there is no memory for its new expiry.
            if miss == Miss::OutOfMemory { reply::OUT_OF_MEMORY } else { reply::NOT_FOUND }
        }
    };
    executor.reply_unless(command.noreply, words);
}

// The reply to a hit of a classic retrieval, the most frequent reply. `cached_proto` has an
// equivalent encoder built from appends; each append checks the capacity and calls `memcpy` for a
// few bytes, together a third of the cost of a key in a multiget. Here the capacity is reserved
// once and the pieces are stored at their offsets; a test compares the two encoders.

/// The length of `VALUE `, of flags, length and CAS value with a space each, of two CRLFs and
/// `END`, plus the slack that the copies below need.
const OVERHEAD_BYTES: usize = 6 + 1 + 10 + 1 + 20 + 1 + 20 + 2 + 2 + 5 + 32;

/// Appends `VALUE key flags len[ cas]`, CRLF, the value, CRLF, and with `LAST` the reply's `END`.
/// Keys have at most 250 bytes.
#[inline(always)]
fn encode_value<const LAST: bool>(out: &mut Vec<u8>, key: &[u8], flags: u32, value: &[u8], cas: Option<u64>) {
    out.reserve(OVERHEAD_BYTES + key.len() + value.len());
    let start = out.len();
    // SAFETY: `reserve` has allocated space for everything that is written from `start` on: the
    // key, the value, and `OVERHEAD_BYTES` for the rest, including the slack of `put_short` and
    // `put_number`. Every pointer therefore stays within the vector's allocation. All bytes up to
    // `at` have been written when the length is set.
    unsafe {
        let mut at = out.as_mut_ptr().add(start);
        at = put(at, *b"VALUE ");
        at = put_short(at, key);
        if flags == 0 {
            at = put(at, *b" 0 ");
        } else {
            at = put(at, *b" ");
            at = put_number(at, u64::from(flags));
            at = put(at, *b" ");
        }
        at = put_number(at, value.len() as u64);
        if let Some(cas) = cas {
            at = put(at, *b" ");
            at = put_number(at, cas);
        }
        at = put(at, *b"\r\n");
        at = put_value(at, value);
        at = if LAST { put(at, *b"\r\nEND\r\n") } else { put(at, *b"\r\n") };
        let end = at.offset_from_unsigned(out.as_ptr());
        out.set_len(end);
    }
}

/// Writes a constant. Returns the position after it.
///
/// # Safety
/// `N` bytes can be written at `at`.
#[inline(always)]
unsafe fn put<const N: usize>(at: *mut u8, bytes: [u8; N]) -> *mut u8 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        at.cast::<[u8; N]>().write_unaligned(bytes);
        at.add(N)
    }
}

/// Copies a short text without a function call. Returns the position after it.
///
/// # Safety
/// `text.len() + 32` bytes can be written at `at`, which is not within `text`.
#[inline(always)]
unsafe fn put_short(at: *mut u8, text: &[u8]) -> *mut u8 {
    let len = text.len();
    // SAFETY: reads stay within `text`: each is of `N` bytes at its front or at its end, and `len
    // >= N`. Writes stay within `len` bytes, or are covered by the caller's guarantee.
    unsafe {
        let from = text.as_ptr();
        match len {
            16..=32 => {
                at.cast::<[u8; 16]>().write(from.cast::<[u8; 16]>().read());
                at.add(len - 16).cast::<[u8; 16]>().write(from.add(len - 16).cast::<[u8; 16]>().read());
            }
            8..16 => {
                at.cast::<[u8; 8]>().write(from.cast::<[u8; 8]>().read());
                at.add(len - 8).cast::<[u8; 8]>().write(from.add(len - 8).cast::<[u8; 8]>().read());
            }
            _ => std::ptr::copy_nonoverlapping(from, at, len),
        }
        at.add(len)
    }
}

/// Copies a value, without a function call if it has at most 128 bytes. Returns the position after
/// it.
///
/// # Safety
/// `value.len()` bytes can be written at `at`, which is not within `value`.
#[inline(always)]
unsafe fn put_value(at: *mut u8, value: &[u8]) -> *mut u8 {
    type Chunk = [u8; 16];
    let (len, from) = (value.len(), value.as_ptr());
    // SAFETY: if `N` chunks at the front and `N` at the end are copied, the value has at least `N`
    // and at most `2 * N` of them. All of `value` is therefore copied, nothing else is read, and
    // nothing else is written.
    unsafe {
        let copy = |offset: usize| {
            at.add(offset).cast::<Chunk>().write(from.add(offset).cast::<Chunk>().read());
        };
        match len {
            64..=128 => {
                for offset in [0, 16, 32, 48, len - 64, len - 48, len - 32, len - 16] {
                    copy(offset);
                }
            }
            32..64 => {
                for offset in [0, 16, len - 32, len - 16] {
                    copy(offset);
                }
            }
            16..32 => {
                copy(0);
                copy(len - 16);
            }
            _ => std::ptr::copy_nonoverlapping(from, at, len),
        }
        at.add(len)
    }
}

/// The digits of each number below 1000, starting at the lowest byte; the highest byte holds the
/// number of digits.
static DIGITS: [u32; 1000] = {
    let mut table = [0; 1000];
    let mut number = 0;
    while number < 1000 {
        let [a, b, c] = [number / 100, number / 10 % 10, number % 10];
        let (digits, count) = match number {
            0..10 => ([c, 0, 0], 1),
            10..100 => ([b, c, 0], 2),
            _ => ([a, b, c], 3),
        };
        let [a, b, c] = [digits[0] + 48, digits[1] + 48, digits[2] + 48];
        table[number as usize] = count << 24 | c << 16 | b << 8 | a;
        number += 1;
    }
    table
};

/// Writes a number in decimal. Returns the position after it.
///
/// # Safety
/// 20 bytes can be written at `at`.
#[inline(always)]
unsafe fn put_number(at: *mut u8, number: u64) -> *mut u8 {
    match DIGITS.get(number as usize) {
        // SAFETY: guaranteed by the caller; bytes written after the last digit are overwritten.
        Some(&entry) => unsafe {
            at.cast::<u32>().write_unaligned(entry);
            at.add((entry >> 24) as usize)
        },
        // SAFETY: guaranteed by the caller.
        None => unsafe { put_long_number(at, number) },
    }
}

/// # Safety
/// 20 bytes can be written at `at`.
unsafe fn put_long_number(at: *mut u8, number: u64) -> *mut u8 {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number).as_bytes();
    // SAFETY: a 64-bit number has at most 20 digits, for which the caller guarantees space.
    unsafe {
        std::ptr::copy_nonoverlapping(digits.as_ptr(), at, digits.len());
        at.add(digits.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_any_length_are_whole() {
        for len in 0..300 {
            let value: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let (mut ours, mut codecs) = (b"before".to_vec(), b"before".to_vec());
            encode_value::<false>(&mut ours, b"key", 0, &value, None);
            cached_proto::text::encode_value(&mut codecs, b"key", 0, &value, None);
            assert!(ours == codecs, "{len} bytes");
        }
    }

    #[test]
    fn writes_what_the_codec_writes() {
        let numbers = [0, 7, 10, 99, 100, 999, 1000, 9999, 10_000, 12_345_678_901, u64::MAX];
        let (mut ours, mut codecs) = (Vec::new(), Vec::new());
        for key_len in (1..=40).chain([100, 250]) {
            let key: Vec<u8> = (0..key_len).map(|at| b'a' + (at % 26) as u8).collect();
            for (index, number) in numbers.into_iter().enumerate() {
                let value = vec![b'v'; [0, 1, 9, 10, 100, 999, 1000, 5000, 9999, 10_000, 70_000][index]];
                for cas in [None, Some(number)] {
                    encode_value::<false>(&mut ours, &key, number as u32, &value, cas);
                    cached_proto::text::encode_value(&mut codecs, &key, number as u32, &value, cas);
                    encode_value::<true>(&mut ours, &key, number as u32, &value, cas);
                    cached_proto::text::encode_value(&mut codecs, &key, number as u32, &value, cas);
                    codecs.extend_from_slice(b"END\r\n");
                    assert!(ours == codecs, "key of {key_len} bytes, number {number}");
                    if ours.len() > 100_000 {
                        (ours, codecs) = (Vec::new(), Vec::new());
                    }
                }
            }
        }
    }
}
