//! Reports of a server: `stats` in the text and binary protocols, metrics and documents of the
//! admin listener. Reports only read the counters, the table of connections, the store and the
//! settings.
//!
//! A report of `stats` is a list of names and values written to a [`Sink`], which encodes them for
//! the client's protocol.
//!
//! | module | content |
//! |---|---|
//! | `general` | plain `stats`, `stats settings`, `items`, `slabs`, `sizes` |
//! | `cluster` | `stats cluster`: the sums of all nodes of a ring |
//! | `ring` | `stats ring`, and the same as documents and metrics |
//! | `insight` | `stats mrc`, `hot`, `misses`, `shape`, `slow`, and the same as documents and metrics |
//! | `admin` | the metrics, status and routes of the admin listener |

pub(crate) mod admin;
mod cluster;
mod general;
mod insight;
pub(crate) mod ring;

pub(crate) use cluster::Sums;

use crate::connections::Endpoints;
use crate::shared::Shared;
use blocker::{Clock, SystemClock};
use cached_admin::insight::ObjectStatistics;
use cached_core::object::JournalState;
use cached_proto::binary::{Head, Status, encode_error, encode_stat, encode_stat_end};
use cached_proto::reply;
use cached_proto::text::{self, Tokens};
use std::fmt::{self, Display, Write as _};
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// The units of work for summing up the counters of all threads and shards.
const SUMS_UNITS: usize = 32;
/// The approximate length of the shortest line of `stats detail dump`.
const PREFIX_LINE_BYTES: usize = 32;

/// The destination of a report.
pub(crate) struct Sink<'a> {
    out: &'a mut Vec<u8>,
    /// The header of the request, if it is a binary one.
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

    /// Writes each of these names with the value 0.
    pub(crate) fn put_zeros(&mut self, names: &[&str]) {
        names.iter().for_each(|name| self.put(name, 0));
    }

    fn end(self) {
        match self.head {
            None => self.out.extend_from_slice(reply::END),
            Some(head) => encode_stat_end(self.out, head),
        }
    }
}

/// Writes the report called `name`. Returns false if there is no such report.
fn report(shared: &Shared, sink: &mut Sink<'_>, name: &[u8], client: RawFd) -> bool {
    match name {
        b"" => general::write_general(shared, sink),
        b"settings" => general::write_settings(shared, sink),
        b"items" => general::write_items(shared, sink),
        b"slabs" => general::write_slabs(shared, sink),
        b"sizes" => general::write_sizes(shared, sink),
        // There is no external storage. A memcached without it reports nothing either.
        b"extstore" => {}
        b"conns" => write_conns(shared, sink, client),
        b"objects" | b"objects_lost" | b"journal" => {
            let Some(statistics) = shared.objects.get() else { return false };
            match name {
                // The metrics of the object cache have the same names in every output.
                b"objects" => statistics.metrics().iter().for_each(|pair| sink.put(&pair.name, pair.value)),
                b"objects_lost" => statistics.lost().iter().for_each(|(name, text)| sink.put(name, text)),
                _ => return write_journal(statistics, sink),
            }
        }
        // Keys of other clients are shown only where key dumps are allowed.
        b"hot" | b"slow" if !shared.settings.dump_enabled => return false,
        b"hot" | b"mrc" | b"misses" | b"shape" => {
            // These reports evaluate all samples so far, or examine thousands of items.
            sink.work.use_up();
            match name {
                b"hot" => insight::write_hot(shared, sink),
                b"mrc" => insight::write_mrc(shared, sink),
                b"misses" => insight::write_misses(shared, sink),
                _ => insight::write_shape(shared, sink),
            }
        }
        b"slow" => insight::write_slow(shared, sink),
        b"flush_prefix" => write_flush_prefix(shared, sink),
        // This node's part of the sums. The node that a client asks makes them of all nodes' parts.
        b"cluster" if shared.ring.is_some() => general::write_general(shared, sink),
        b"ring" => match &shared.ring {
            Some(ring) => ring::write(ring, sink),
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

/// Executes `stats …` for the connection `client`, except `cachedump`, which is a dump.
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
    // As in memcached, `settings`, `conns` and `reset` may be abbreviated; the other names may not.
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

/// Executes a binary STAT.
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
    // In memcached, only the text protocol has `conns`.
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

/// The remaining budget of one iteration of a worker's event loop for work that is not proportional
/// to the bytes of requests and replies: reports, key dumps and administrative commands.
///
/// All connections of the worker share the budget. A costly request begins while some budget is
/// left and may exceed it, so an iteration executes at most one report more than allowed, however
/// many clients send however many requests. A request that finds no budget left is deferred to the
/// next iteration. Dumps pause in between.
///
/// One unit is a hash bucket walked (about ten items) or a line of a report: half a microsecond.
#[derive(Debug)]
pub(crate) struct Work {
    left: u32,
}

impl Work {
    /// The units of one iteration, worth about a millisecond.
    pub(crate) const UNITS_MAX: u32 = 2048;

    /// Returns the budget of a first iteration.
    pub(crate) fn new() -> Work {
        Work { left: Work::UNITS_MAX }
    }

    /// Renews the budget for another iteration.
    #[inline]
    pub(crate) fn renew(&mut self) {
        self.left = Work::UNITS_MAX;
    }

    /// Returns whether the budget is used up.
    pub(crate) fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// Returns whether nothing has been taken from the budget in this iteration.
    pub(crate) fn is_untouched(&self) -> bool {
        self.left == Work::UNITS_MAX
    }

    /// Takes `units` from the budget; if fewer are left, the budget is then empty.
    pub(crate) fn take(&mut self, units: usize) {
        self.left = self.left.saturating_sub(u32::try_from(units).unwrap_or(u32::MAX));
    }

    /// Takes the whole budget, for work that always takes a millisecond or more.
    pub(crate) fn use_up(&mut self) {
        self.left = 0;
    }
}

/// An address as `stats conns` shows it: `tcp:127.0.0.1:11211`, `tcp6:[::1]:11211`.
struct Address<'a>(&'a SocketAddr);

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.0.is_ipv6() { "tcp6" } else { "tcp" };
        write!(f, "{family}:{}", self.0)
    }
}

/// Writes the report for the connection `client`, the only one known to be in the middle of a
/// request.
fn write_conns(shared: &Shared, sink: &mut Sink<'_>, client: RawFd) {
    let now = shared.clock.now_secs();
    for listener in shared.listeners.get().into_iter().flatten() {
        let fd = listener.fd;
        match &listener.endpoints {
            Endpoints::Tcp { peer, .. } => sink.put(&format!("{fd}:addr"), Address(peer)),
            Endpoints::Unix { path } => {
                sink.put(&format!("{fd}:addr"), format_args!("unix:{}", path.display()));
            }
            Endpoints::Udp { local } => {
                sink.put(&format!("{fd}:UDP"), "UDP");
                let family = if local.is_ipv6() { "udp6" } else { "udp" };
                sink.put(&format!("{fd}:addr"), format_args!("{family}:{local}"));
                sink.put(&format!("{fd}:state"), "conn_read");
                sink.put(&format!("{fd}:secs_since_last_cmd"), shared.clock.uptime_secs());
                continue;
            }
        }
        sink.put(&format!("{fd}:state"), "conn_listening");
        sink.put(&format!("{fd}:secs_since_last_cmd"), shared.clock.uptime_secs());
    }
    for conn in shared.connections.snapshot() {
        let fd = conn.fd;
        match &conn.endpoints {
            Endpoints::Tcp { peer, local } => {
                sink.put(&format!("{fd}:addr"), Address(peer));
                if let Some(local) = local {
                    sink.put(&format!("{fd}:listen_addr"), Address(local));
                }
            }
            Endpoints::Unix { path } => {
                sink.put(&format!("{fd}:addr"), "unix:");
                sink.put(&format!("{fd}:listen_addr"), format_args!("unix:{}", path.display()));
            }
            // The server does not keep track of clients that send datagrams.
            Endpoints::Udp { .. } => {}
        }
        let state = if fd == client { "conn_parse_cmd" } else { conn.state_text() };
        sink.put(&format!("{fd}:state"), state);
        sink.put(&format!("{fd}:secs_since_last_cmd"), now.saturating_sub(conn.last_active()));
    }
}

/// Writes `stats journal`: the state of the journal, the progress of its recovery, and its metrics.
/// Returns false if there is no journal.
fn write_journal(statistics: &ObjectStatistics, sink: &mut Sink<'_>) -> bool {
    let Some(cache) = statistics.cache() else { return false };
    let Some(health) = cache.journal_health() else { return false };
    let state = match health.state {
        JournalState::Ok => "ok",
        JournalState::Draining => "draining",
        JournalState::Void => "void",
        JournalState::Resuming => "resuming",
        _ => "unknown",
    };
    sink.put("state", state);
    let since = SystemClock.now().0.saturating_sub(health.since.0) / 1_000_000_000;
    sink.put("state_seconds", since);
    if let Some(reason) = health.reason {
        sink.put("reason", reason);
    }
    let recovery = cache.recovery();
    sink.put("recovery_done", u8::from(recovery.is_done));
    sink.put("recovery_records", recovery.records);
    sink.put("recovery_records_applied", recovery.records_applied);
    sink.put("recovery_objects_failed", recovery.objects_failed);
    for pair in statistics.metrics() {
        if pair.name.starts_with("cached_journal_") {
            sink.put(&pair.name, pair.value);
        }
    }
    true
}

fn write_flush_prefix(shared: &Shared, sink: &mut Sink<'_>) {
    let flushes = shared.kv.prefix_flushes();
    sink.put("flushes", flushes.flushes);
    sink.put("refused", flushes.refused);
    sink.put("pending", flushes.pending);
    sink.put("swept_share", format_args!("{:.4}", flushes.swept_share));
    sink.put("sweeps", flushes.sweeps);
    sink.put("items_removed", flushes.items_removed);
    sink.put("bytes_removed", flushes.bytes_removed);
    sink.put("marks", flushes.marks);
    sink.put("marks_max", flushes.marks_max);
}
