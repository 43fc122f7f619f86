//! What is called how in RADOS.
//!
//! ```text
//! namespace N, object O     RADOS namespace [ROOT/]esc(N), object PREFIX esc(O)
//! epoch of a namespace      RADOS namespace [ROOT/]esc(N), object PREFIX %scope
//! epoch of domain D         RADOS namespace [ROOT/]esc(N), object PREFIX %domain.<D in hex>
//! epoch of everything       RADOS namespace ROOT,          object PREFIX %scope
//! events (watched)          RADOS namespace ROOT,          object PREFIX %news
//! ```
//!
//! RADOS names are C strings, so `esc` writes every byte that is not printable ASCII, and `%`, as `%` and two
//! hex digits: names stay readable for `rados ls`, any bytes are a name, and no name can be mistaken for one
//! of the objects that begin with a bare `%`. A namespace also escapes `/`, which ends the root. One whose
//! escaped name would be too long for RADOS (256 bytes) is named by its SHA-256 instead, `%#` and 64 digits;
//! its own name is kept in an attribute of its `%scope`.

use std::ffi::CString;
use std::fmt::Write;

use blocker::{Name, Namespace, OrderDomain};
use sha2::{Digest, Sha256};

/// The longest escaped namespace that is used as it is.
const NAMESPACE_CHARS_MAX: usize = 180;

/// The object with the epoch of its namespace, or of everything.
pub(crate) const SCOPE: &str = "%scope";
/// The object that is watched for events.
pub(crate) const EVENTS: &str = "%news";

/// Where in a pool the objects lie.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: String,
    prefix: String,
}

impl Layout {
    /// `root` and `prefix` as [`crate::RadosConfig`] has checked them.
    pub(crate) fn new(root: &str, prefix: &str) -> Self {
        Self { root: root.to_owned(), prefix: prefix.to_owned() }
    }

    /// The RADOS namespace of what belongs to no namespace.
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

    /// Whether a RADOS namespace holds one of this store's namespaces.
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

    /// The name of an object found in a listing; `None` for what is not an object of this store.
    pub(crate) fn name_of(&self, rados_name: &[u8]) -> Option<Name> {
        let rest = rados_name.strip_prefix(self.prefix.as_bytes())?;
        Name::new(unescape(rest, false)?).ok()
    }

    /// [`SCOPE`] or [`EVENTS`], with the prefix.
    pub(crate) fn internal(&self, name: &str) -> CString {
        c_string(format!("{}{name}", self.prefix))
    }

    pub(crate) fn domain(&self, domain: OrderDomain) -> CString {
        c_string(format!("{}%domain.{:016x}", self.prefix, domain.0))
    }

    /// The domain whose epoch a RADOS object of this name has.
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

/// The bytes, if this is what [`escape`] makes of them and of nothing else.
fn unescape(text: &[u8], slash: bool) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    (escape(&bytes, slash).as_bytes() == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

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
