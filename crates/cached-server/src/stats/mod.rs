//! `stats` and all its sub-commands, in text and binary.
//!
//! A report is a list of names and values written to a [`Sink`], which encodes them for the client's
//! protocol. Reports only read: the counters, the table of connections, the store and the settings.

pub(crate) mod admin;
mod conns;
mod flush_prefix;
mod general;
mod insight;
mod items;
mod objects;
pub(crate) mod reports;
mod settings;
mod work;

pub(crate) use work::Work;

use crate::shared::Shared;
use cached_proto::binary::{Head, Status, encode_error, encode_stat, encode_stat_end};
use cached_proto::reply;
use cached_proto::text::{self, Tokens};
use std::fmt::{Display, Write as _};
use std::os::fd::RawFd;

/// The work of summing up the counters of all threads and shards.
const SUMS_UNITS: usize = 32;
/// The shortest line of `stats detail dump`, about.
const PREFIX_LINE_BYTES: usize = 32;

/// The destination of a report.
pub(crate) struct Sink<'a> {
    out: &'a mut Vec<u8>,
    /// The header of the request, if it was a binary one.
    head: Option<&'a Head>,
    value: String,
    work: &'a mut Work,
}

impl<'a> Sink<'a> {
    fn new(out: &'a mut Vec<u8>, head: Option<&'a Head>, work: &'a mut Work) -> Sink<'a> {
        Sink { out, head, value: String::new(), work }
    }

    /// Writes one name and its value.
    pub(crate) fn put(&mut self, name: &str, value: impl Display) {
        self.work.take(1);
        self.value.clear();
        // Writing to a String cannot fail.
        let _ = write!(self.value, "{value}");
        match self.head {
            None => text::encode_stat(self.out, name.as_bytes(), self.value.as_bytes()),
            Some(head) => encode_stat(self.out, head, name.as_bytes(), self.value.as_bytes()),
        }
    }

    fn end(self) {
        match self.head {
            None => self.out.extend_from_slice(reply::END),
            Some(head) => encode_stat_end(self.out, head),
        }
    }
}

/// Writes the report called `name`; returns false if there is none.
fn report(shared: &Shared, sink: &mut Sink<'_>, name: &[u8], client: RawFd) -> bool {
    match name {
        b"" => general::write(shared, sink),
        b"settings" => settings::write(shared, sink),
        b"items" => items::write_items(shared, sink),
        b"slabs" => items::write_slabs(shared, sink),
        b"sizes" => items::write_sizes(shared, sink),
        // There is no external storage; memcached without one reports nothing either.
        b"extstore" => {}
        b"conns" => conns::write(shared, sink, client),
        b"objects" => match shared.objects.get() {
            Some(statistics) => objects::write(statistics, sink),
            None => return false,
        },
        b"objects_lost" => match shared.objects.get() {
            Some(statistics) => objects::write_lost(statistics, sink),
            None => return false,
        },
        // Keys of other clients are shown where key dumps are.
        b"hot" | b"slow" if !shared.settings.dump_enabled => return false,
        b"hot" | b"mrc" | b"misses" | b"shape" => {
            // They take what has been sampled so far, or look at thousands of items.
            sink.work.use_up();
            match name {
                b"hot" => insight::write_hot(shared, sink),
                b"mrc" => insight::write_mrc(shared, sink),
                b"misses" => insight::write_misses(shared, sink),
                _ => insight::write_shape(shared, sink),
            }
        }
        b"slow" => insight::write_slow(shared, sink),
        b"flush_prefix" => flush_prefix::write(shared, sink),
        b"journal" => match shared.objects.get() {
            Some(statistics) => return objects::write_journal(statistics, sink),
            None => return false,
        },
        _ => return false,
    }
    true
}

/// Returns the names and values of the report called `name`; none if there is no such report.
pub(crate) fn pairs(shared: &Shared, name: &[u8]) -> Vec<(String, String)> {
    let (mut text, mut work) = (Vec::new(), Work::new());
    let mut sink = Sink::new(&mut text, None, &mut work);
    report(shared, &mut sink, name, -1);
    let line = |line: &str| {
        let (name, value) = line.strip_prefix("STAT ")?.trim_end().split_once(' ')?;
        Some((name.to_owned(), value.to_owned()))
    };
    String::from_utf8_lossy(&text).lines().filter_map(line).collect()
}

/// `stats …` from the connection `client`, except for `cachedump`, which is a dump.
pub(crate) fn text(shared: &Shared, client: RawFd, out: &mut Vec<u8>, work: &mut Work, tokens: &Tokens<'_>) {
    work.take(SUMS_UNITS);
    if tokens.len() > 1 {
        if tokens.is_prefix_of(1, "reset") {
            shared.reset_stats();
            return out.extend_from_slice(reply::RESET);
        }
        if tokens.is_prefix_of(1, "detail") {
            return detail(shared, out, work, tokens);
        }
    }
    // `settings` and `conns` may be abbreviated, as `reset` may; the other names may not.
    let name = match tokens.get(1) {
        None => &b""[..],
        Some(_) if tokens.is_prefix_of(1, "settings") => b"settings",
        Some(_) if tokens.is_prefix_of(1, "conns") => b"conns",
        Some(name) => name,
    };
    let mut sink = Sink::new(out, None, work);
    if report(shared, &mut sink, name, client) {
        sink.end();
    } else {
        out.extend_from_slice(reply::ERROR);
    }
}

/// STAT.
pub(crate) fn binary(
    shared: &Shared,
    client: RawFd,
    out: &mut Vec<u8>,
    work: &mut Work,
    head: &Head,
    name: &[u8],
) {
    work.take(SUMS_UNITS);
    if name.starts_with(b"reset") {
        shared.reset_stats();
        return encode_stat_end(out, head);
    }
    if let Some(what) = name.strip_prefix(b"detail") {
        if !shared.live.dump_commands() {
            return encode_error(out, head, Status::NotFound);
        }
        let known = [&b" dump"[..], b" on", b" off"].into_iter().find(|known| what.starts_with(known));
        match known {
            Some(b" dump") => {
                let mut dump = Vec::new();
                dump_prefixes(shared, &mut dump, work);
                encode_stat(out, head, b"detailed", &dump);
            }
            Some(on_or_off) => shared.prefixes.set(on_or_off == b" on"),
            None => return encode_error(out, head, Status::NotFound),
        }
        return encode_stat_end(out, head);
    }
    let name = if name.starts_with(b"settings") { b"settings" } else { name };
    let mut sink = Sink::new(out, Some(head), work);
    // memcached has `conns` in text only.
    if name != b"conns" && report(shared, &mut sink, name, client) {
        sink.end();
    } else {
        encode_error(out, head, Status::NotFound);
    }
}

fn detail(shared: &Shared, out: &mut Vec<u8>, work: &mut Work, tokens: &Tokens<'_>) {
    if !shared.live.dump_commands() {
        return out.extend_from_slice(b"CLIENT_ERROR stats detail not allowed\r\n");
    }
    let what = if tokens.len() < 3 { 0 } else { 2 };
    if tokens.is_prefix_of(what, "on") {
        shared.prefixes.set(true);
        out.extend_from_slice(reply::OK);
    } else if tokens.is_prefix_of(what, "off") {
        shared.prefixes.set(false);
        out.extend_from_slice(reply::OK);
    } else if tokens.is_prefix_of(what, "dump") {
        dump_prefixes(shared, out, work);
    } else {
        out.extend_from_slice(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n");
    }
}

/// Writes a line for each prefix.
fn dump_prefixes(shared: &Shared, out: &mut Vec<u8>, work: &mut Work) {
    let before = out.len();
    shared.prefixes.dump(out);
    work.take((out.len() - before) / PREFIX_LINE_BYTES);
}
