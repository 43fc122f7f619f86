//! The representation of the contract's objects in RADOS: object names, and the extended attributes
//! beside an object's bytes, so that one RADOS operation can compare and change both.
//!
//! # Names
//! ```text
//! namespace N, object O     RADOS namespace [ROOT/]esc(N), object PREFIX esc(O)
//! epoch of a namespace      RADOS namespace [ROOT/]esc(N), object PREFIX %scope
//! epoch of domain D         RADOS namespace [ROOT/]esc(N), object PREFIX %domain.<D in hex>
//! epoch of everything       RADOS namespace ROOT,          object PREFIX %scope
//! events (watched)          RADOS namespace ROOT,          object PREFIX %news
//! ```
//!
//! RADOS names are C strings, so `esc` writes every byte that is not printable ASCII, and `%`, as
//! `%` and two hex digits: names stay readable in `rados ls`, any bytes can be a name, and no name
//! collides with the store's own objects, which begin with a bare `%`. In a namespace `/`, which
//! ends the root, is escaped as well. If the escaped name would be too long for RADOS (256 bytes),
//! it is replaced by `%#` and the 64 digits of its SHA-256; the original name is kept in an
//! attribute of the namespace's `%scope`.
//!
//! # Attributes
//! ```text
//! cached.head              kind u8 │ size u64 │ gate u64    kind 1: an object; 2: a ghost (size 0)
//! cached.fence             epoch u64                        no change of an older epoch is applied
//! cached.fence.<domain>    epoch u64                        the same for changes in that order domain
//! cached.stamp             epoch u64 │ sequence u64         of the last stamped change
//! cached.intro             nonce u64                        an introduction is in progress, see `object/claims.rs`
//! cached.claim             claim                            the last claim of this object by itself
//!
//! cached.epoch             claim                            of a scope, on %scope and %domain.*
//! cached.epoch.domains     epoch u64                        the highest of a claim of a domain, on a namespace's %scope
//! cached.epoch.objects     epoch u64                        the same of an object
//! cached.epoch.narrower    epoch u64                        the same of anything, on the root's %scope
//! cached.namespace         bytes                            the namespace's own name, on %scope
//!
//! claim = state u8 │ epoch u64 │ writer u128, with state 2: held, 3: asked for (`object/claims.rs`); or as older
//! versions have written it, epoch u64: held by an unknown writer
//! ```
//!
//! Integers are big-endian, so that RADOS's bytewise comparison orders them. A *ghost* is a RADOS
//! object that callers do not see as an object: one being created, or the memory of a claim or of a
//! stamped deletion. A RADOS object without a head was created by another program; it counts as an
//! object, and gets a head with its first change. The *gate* is a random number that every change
//! compares: a new gate shuts out all changes in flight (`object/view.rs`).

use std::ffi::{CStr, CString};
use std::fmt::Write;

use blocker::conditional::claims::Claim;
use blocker::{Name, Namespace, OrderDomain, Stamp, WriterId};
use sha2::{Digest, Sha256};

pub(crate) const HEAD: &CStr = c"cached.head";
pub(crate) const FENCE: &CStr = c"cached.fence";
pub(crate) const STAMP: &CStr = c"cached.stamp";
pub(crate) const INTRO: &CStr = c"cached.intro";
pub(crate) const EPOCH: &CStr = c"cached.epoch";
pub(crate) const NAMESPACE: &CStr = c"cached.namespace";
pub(crate) const CLAIM: &CStr = c"cached.claim";
pub(crate) const DOMAINS: &CStr = c"cached.epoch.domains";
pub(crate) const OBJECTS: &CStr = c"cached.epoch.objects";
pub(crate) const NARROWER: &CStr = c"cached.epoch.narrower";
const DOMAIN_FENCE: &[u8] = b"cached.fence.";

const LIVE: u8 = 1;
const GHOST: u8 = 2;
/// A value above the head of every object, and below the head of every ghost.
pub(crate) const BELOW_GHOSTS: [u8; 1] = [GHOST];

/// The length of an encoded head.
pub(crate) const HEAD_BYTES: usize = 17;

/// The kind of RADOS object behind a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Head {
    /// There is no RADOS object.
    Absent,
    /// A RADOS object that callers do not see as an object.
    Ghost { gate: u64 },
    /// An object.
    Live { size_bytes: u64, gate: u64 },
    /// An object that another program created, with the size that RADOS reports.
    Foreign { size_bytes: u64 },
}

impl Head {
    /// Returns the attribute's value; `None` for a missing attribute.
    pub(crate) fn encode(self) -> Option<[u8; HEAD_BYTES]> {
        let (kind, size_bytes, gate) = match self {
            Self::Absent | Self::Foreign { .. } => return None,
            Self::Ghost { gate } => (GHOST, 0, gate),
            Self::Live { size_bytes, gate } => (LIVE, size_bytes, gate),
        };
        let mut bytes = [kind; HEAD_BYTES];
        bytes[1..9].copy_from_slice(&size_bytes.to_be_bytes());
        bytes[9..].copy_from_slice(&gate.to_be_bytes());
        Some(bytes)
    }

    /// Decodes an attribute's value. Returns `None` if this program never writes such a value.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (size_bytes, gate) = rest.split_at_checked(8)?;
        let (size_bytes, gate) = (u64_of(size_bytes)?, u64_of(gate)?);
        match *kind {
            LIVE => Some(Self::Live { size_bytes, gate }),
            GHOST if size_bytes == 0 => Some(Self::Ghost { gate }),
            _ => None,
        }
    }

    /// Returns the object's size; `None` if there is no object.
    pub(crate) fn size_bytes(self) -> Option<u64> {
        match self {
            Self::Absent | Self::Ghost { .. } => None,
            Self::Live { size_bytes, .. } | Self::Foreign { size_bytes } => Some(size_bytes),
        }
    }
}

const HELD: u8 = 2;
const ASKED: u8 = 3;
/// The length of a claim that names its writer.
const CLAIM_BYTES: usize = 25;

/// Returns the attribute's value of a claim.
pub(crate) fn encode_claim(claim: Claim) -> Vec<u8> {
    let Some(writer) = claim.writer else { return claim.epoch.to_be_bytes().to_vec() };
    let mut bytes = Vec::with_capacity(CLAIM_BYTES);
    bytes.push(if claim.is_held { HELD } else { ASKED });
    bytes.extend(claim.epoch.to_be_bytes());
    bytes.extend(writer.0.to_be_bytes());
    bytes
}

/// Decodes a claim. Returns `None` if no version of this program writes such a value.
pub(crate) fn decode_claim(bytes: &[u8]) -> Option<Claim> {
    if let Some(epoch) = u64_of(bytes) {
        return Some(Claim { epoch, writer: None, is_held: true });
    }
    let (state, rest) = bytes.split_first()?;
    let (epoch, writer) = rest.split_at_checked(8)?;
    let writer = Some(WriterId(writer.try_into().ok().map(u128::from_be_bytes)?));
    let claim = Claim { epoch: u64_of(epoch)?, writer, is_held: *state == HELD };
    [HELD, ASKED].contains(state).then_some(claim)
}

/// Returns a random nonce.
///
/// # Panics
/// Panics if the operating system has no random bytes.
pub(crate) fn nonce() -> u64 {
    getrandom::u64().expect("random bytes from the operating system")
}

pub(crate) fn u64_of(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

pub(crate) fn encode_stamp(stamp: Stamp) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&stamp.epoch.0.to_be_bytes());
    bytes[8..].copy_from_slice(&stamp.sequence.to_be_bytes());
    bytes
}

pub(crate) fn decode_stamp(bytes: &[u8]) -> Option<Stamp> {
    let (epoch, sequence) = bytes.split_at_checked(8)?;
    Some(Stamp::new(u64_of(epoch)?, u64_of(sequence)?))
}

/// Returns the name of the attribute with a domain's fence.
pub(crate) fn domain_fence(domain: OrderDomain) -> CString {
    CString::new(format!("cached.fence.{:016x}", domain.0)).expect("text without NUL")
}

/// Returns the domain whose fence is in the attribute with this name.
pub(crate) fn fenced_domain(name: &[u8]) -> Option<OrderDomain> {
    let digits = std::str::from_utf8(name.strip_prefix(DOMAIN_FENCE)?).ok()?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok().map(OrderDomain))?
}

/// The longest escaped namespace that is used unchanged.
const NAMESPACE_CHARS_MAX: usize = 180;

/// The object with the epoch of its namespace, or of everything.
pub(crate) const SCOPE: &str = "%scope";
/// The object watched for events.
pub(crate) const EVENTS: &str = "%news";

/// The location of the objects in a pool.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: String,
    prefix: String,
}

impl Layout {
    /// `root` and `prefix` were checked by [`crate::RadosConfig`].
    pub(crate) fn new(root: &str, prefix: &str) -> Self {
        Self { root: root.to_owned(), prefix: prefix.to_owned() }
    }

    /// Returns the RADOS namespace of objects that belong to no namespace.
    pub(crate) fn root(&self) -> CString {
        c_string(self.root.clone())
    }

    pub(crate) fn namespace(&self, namespace: &Namespace) -> CString {
        let mut name = if self.root.is_empty() { String::new() } else { format!("{}/", self.root) };
        let escaped = escape(namespace.as_bytes(), true);
        if escaped.len() <= NAMESPACE_CHARS_MAX {
            name.push_str(&escaped);
        } else {
            name.push_str("%#");
            for byte in Sha256::digest(namespace.as_bytes()) {
                let _ = write!(name, "{byte:02x}");
            }
        }
        c_string(name)
    }

    /// Returns whether a RADOS namespace belongs to one of this store's namespaces.
    pub(crate) fn holds_namespace(&self, rados_namespace: &[u8]) -> bool {
        let below = if self.root.is_empty() {
            Some(rados_namespace)
        } else {
            rados_namespace.strip_prefix(self.root.as_bytes()).and_then(|rest| rest.strip_prefix(b"/"))
        };
        below.is_some_and(|name| {
            !name.is_empty() && (name.starts_with(b"%#") || unescape(name, true).is_some())
        })
    }

    pub(crate) fn object(&self, name: &Name) -> CString {
        c_string(format!("{}{}", self.prefix, escape(name.as_bytes(), false)))
    }

    /// Returns the name of a listed object; `None` if it is not an object of this store.
    pub(crate) fn name_of(&self, rados_name: &[u8]) -> Option<Name> {
        let rest = rados_name.strip_prefix(self.prefix.as_bytes())?;
        Name::new(unescape(rest, false)?).ok()
    }

    /// Returns the name of [`SCOPE`] or [`EVENTS`], with the prefix.
    pub(crate) fn internal(&self, name: &str) -> CString {
        c_string(format!("{}{name}", self.prefix))
    }

    pub(crate) fn domain(&self, domain: OrderDomain) -> CString {
        c_string(format!("{}%domain.{:016x}", self.prefix, domain.0))
    }

    /// Returns the domain whose epoch is in the RADOS object with this name.
    pub(crate) fn domain_of(&self, rados_name: &[u8]) -> Option<OrderDomain> {
        let digits = rados_name.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"%domain.")?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 16)?;
        u64::from_str_radix(digits, 16).ok().map(OrderDomain)
    }
}

fn c_string(text: String) -> CString {
    CString::new(text).expect("escaped text, and a root and prefix that were checked, have no NUL")
}

fn escape(bytes: &[u8], slash: bool) -> String {
    let mut text = String::with_capacity(bytes.len() + 8);
    for &byte in bytes {
        if byte.is_ascii_graphic() && byte != b'%' && !(slash && byte == b'/') {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

/// Returns the bytes for which [`escape`] returns exactly this text, if there are any.
fn unescape(text: &[u8], slash: bool) -> Option<Vec<u8>> {
    let mut parts = text.split(|byte| *byte == b'%');
    let mut bytes = parts.next()?.to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        bytes.extend_from_slice(rest);
    }
    (escape(&bytes, slash).as_bytes() == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_and_ghosts_lie_above_objects() {
        for head in [Head::Live { size_bytes: 4096, gate: u64::MAX }, Head::Ghost { gate: 0 }] {
            let bytes = head.encode().unwrap();
            assert_eq!(Head::decode(&bytes), Some(head));
            assert_eq!(BELOW_GHOSTS[..] > bytes[..], head.size_bytes().is_some());
        }
        for wrong in [&b""[..], &[1; 16], &[3; 17], &[2; 17], &[1; 18]] {
            assert_eq!(Head::decode(wrong), None);
        }
    }

    #[test]
    fn stamps_are_ordered_as_their_bytes_are() {
        let stamps = [Stamp::new(0, u64::MAX), Stamp::new(1, 0), Stamp::new(1, 256), Stamp::new(256, 1)];
        assert!(stamps.map(encode_stamp).is_sorted());
        assert_eq!(stamps.map(|stamp| decode_stamp(&encode_stamp(stamp))), stamps.map(Some));
        assert_eq!(decode_stamp(&[0; 15]), None);
    }

    #[test]
    fn a_claim_names_its_writer_unless_an_older_version_has_written_it() {
        let (one, other) = (WriterId(u128::MAX - 1), WriterId(7));
        for is_held in [true, false] {
            let claim = Claim { epoch: 5, writer: Some(one), is_held };
            assert_eq!(decode_claim(&encode_claim(claim)), Some(claim));
            assert_eq!((claim.excludes(5, one), claim.excludes(5, other)), (false, true));
            assert!(!claim.excludes(6, other));
            assert_eq!((claim.is_held_by(5, one), claim.is_held_by(5, other)), (is_held, false));
        }
        let old = decode_claim(&5_u64.to_be_bytes()).unwrap();
        assert_eq!((old.epoch, old.excludes(5, one), old.is_held_by(5, one)), (5, true, false));
        assert_eq!(decode_claim(&encode_claim(old)), Some(old));
        for wrong in [&b""[..], &[2; 24], &[2; 26], &[1; 25], &[0; 9]] {
            assert_eq!(decode_claim(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_domains_fence_names_its_domain() {
        let name = domain_fence(OrderDomain(0xab));
        assert_eq!(fenced_domain(name.as_bytes()), Some(OrderDomain(0xab)));
        assert_eq!(fenced_domain(FENCE.to_bytes()), None);
        assert_eq!(fenced_domain(b"cached.fence.12"), None);
    }

    fn namespace(bytes: &[u8]) -> Namespace {
        Namespace::copy_from(bytes).unwrap()
    }

    #[test]
    fn any_bytes_come_back_from_their_rados_name() {
        let layout = Layout::new("", "p.");
        let every: Vec<u8> = (0..=255).collect();
        for bytes in every.chunks(1).chain([&every[..255], b"%41", b"%scope", b"a/b", b"disk 0"]) {
            let name = Name::copy_from(bytes).unwrap();
            let rados = layout.object(&name);
            assert_eq!(layout.name_of(rados.as_bytes()), Some(name));
        }
        assert_eq!(layout.object(&Name::new("a/b c%").unwrap()).to_str().unwrap(), "p.a/b%20c%25");
    }

    #[test]
    fn nothing_else_is_taken_for_an_object() {
        let layout = Layout::new("", "p.");
        let own = [layout.internal(SCOPE), layout.internal(EVENTS), layout.domain(OrderDomain(7))];
        for name in
            own.iter().map(|own| own.as_bytes()).chain([&b"other"[..], b"p.%4", b"p.%zz", b"p.%61", b"p."])
        {
            assert_eq!(layout.name_of(name), None, "{}", name.escape_ascii());
        }
        assert_eq!(own.map(|own| layout.domain_of(own.as_bytes())), [None, None, Some(OrderDomain(7))]);
    }

    #[test]
    fn roots_keep_stores_apart() {
        let (bare, rooted) = (Layout::new("", ""), Layout::new("cache", ""));
        let slashed = bare.namespace(&namespace(b"cache/vm"));
        assert_eq!(slashed.to_str().unwrap(), "cache%2fvm");
        let vm = rooted.namespace(&namespace(b"vm"));
        assert_eq!(vm.to_str().unwrap(), "cache/vm");
        assert!(rooted.holds_namespace(vm.as_bytes()) && !bare.holds_namespace(vm.as_bytes()));
        assert!(bare.holds_namespace(slashed.as_bytes()) && !rooted.holds_namespace(slashed.as_bytes()));
        assert!(!bare.holds_namespace(b"") && !rooted.holds_namespace(b"cache"));
    }

    #[test]
    fn long_namespaces_are_hashed_and_stay_apart() {
        let layout = Layout::new("", "");
        let (one, other) = (layout.namespace(&namespace(&[0; 255])), layout.namespace(&namespace(&[0; 254])));
        assert!(one.as_bytes().len() < 80 && one != other);
        assert!(layout.holds_namespace(one.as_bytes()));
    }
}
