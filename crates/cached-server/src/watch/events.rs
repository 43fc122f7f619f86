//! What somebody may want to hear of: one bit each, in one word for the whole server.

/// Counting by key prefix (`stats detail on`).
pub(crate) const DETAIL: u32 = 1;
/// `watch evictions`.
pub(crate) const EVICTIONS: u32 = 1 << 1;
/// `watch fetchers`.
pub(crate) const FETCHERS: u32 = 1 << 2;
/// `watch mutations`.
pub(crate) const MUTATIONS: u32 = 1 << 3;
/// `watch connevents`.
pub(crate) const CONNEVENTS: u32 = 1 << 4;
/// `watch deletions`.
pub(crate) const DELETIONS: u32 = 1 << 5;
/// What never happens here: `rawcmds`, `sysevents`, and what is the proxy's.
pub(crate) const NOTHING: u32 = 1 << 6;

/// All that `watch` may ask for.
pub(crate) const KINDS: u32 = EVICTIONS | FETCHERS | MUTATIONS | CONNEVENTS | DELETIONS | NOTHING;

/// What `watch` calls them. A word may be cut short, as in memcached; the first that fits counts.
pub(crate) const NAMES: [(&str, u32); 10] = [
    ("rawcmds", NOTHING),
    ("evictions", EVICTIONS),
    ("fetchers", FETCHERS),
    ("mutations", MUTATIONS),
    ("sysevents", NOTHING),
    ("connevents", CONNEVENTS),
    ("proxyreqs", NOTHING),
    ("proxyevents", NOTHING),
    ("proxyuser", NOTHING),
    ("deletions", DELETIONS),
];
