//! The keys in the bucket.
//!
//! ```text
//! [PREFIX/]h/<namespace>/n|x/<name>            the head of an object
//! [PREFIX/]d/<namespace>/n|x/<name>/<blob>     bytes of one change, never overwritten
//! [PREFIX/]c/all                               the record of everything
//! [PREFIX/]c/<namespace>/scope                 the record of a namespace
//! [PREFIX/]c/<namespace>/domain.<16 hex>       the record of an order domain
//! [PREFIX/]s/last                              when the last sweep began
//! [PREFIX/]s/layout                            the edition of the layout (`start.rs`)
//! [PREFIX/]p/...                               what the probe at the start writes, and removes
//!
//! namespace = n.<text> | x.<hex> | s.<SHA-256 in hex>
//! ```
//!
//! A name of `A-Z a-z 0-9 . _ -` that does not begin with a dot stays readable (`n`), any other is
//! written in hex (`x`). Each kind sorts bytewise, so a page of a listing merges two of the
//! server's. A namespace with a long text is named by its hash; its original name is in its record.
//! The longest key has 756 bytes besides the prefix; S3 allows 1 024.
//!
//! **Long names are cut.** A server that keeps objects as files has a limit for each segment of a
//! key, of 255 bytes or less. So a name whose text is longer than 200 bytes is cut into segments of
//! 200 bytes, and an underscore marks both sides of a cut:
//!
//! ```text
//! h/<namespace>/n/<200 bytes>_/_<200 bytes>_/_<rest>
//! ```
//!
//! A segment that continues is longer than any that ends a key in the same directory, so no key is
//! the directory of another, which such a server could not store. Names with equal first 200 bytes
//! have equal segments up to there, so the order stays bytewise. The first edition of the layout
//! did not cut names, and a bucket keeps its edition.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use blocker::{Error, Name, Namespace, ObjectId, OrderDomain, Result};
use object_store::path::Path;
use sha2::{Digest, Sha256};

/// The maximum length of a namespace that is written in hex.
const HEX_NAMESPACE_BYTES_MAX: usize = 64;
/// The maximum length of the text in one segment of a key, without the marks of cuts.
const SEGMENT_BYTES_MAX: usize = 200;
/// The mark on both sides of a cut.
const CUT: &str = "_";
/// The directory of all heads.
pub(crate) const HEADS: &str = "h";
/// The directory of all blobs.
pub(crate) const BLOBS: &str = "d";
/// The directory of all records.
pub(crate) const RECORDS: &str = "c";
/// The key of the record of everything.
pub(crate) const RECORD_OF_ALL: &str = "c/all";
/// The directory of the probes' small objects.
pub(crate) const PROBES: &str = "p";
/// The key of the object whose age shows the time of the last sweep.
pub(crate) const LAST_SWEEP: &str = "s/last";
/// The key of the object that states the layout's edition.
pub(crate) const EDITION: &str = "s/layout";
/// The maximum length of the prefix in bytes.
pub(crate) const PREFIX_BYTES_MAX: usize = 128;

/// The two spellings of names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spelling {
    /// Unchanged.
    Plain,
    /// In hex.
    Hex,
}

impl Spelling {
    pub(crate) const ALL: [Self; 2] = [Self::Plain, Self::Hex];

    fn directory(self) -> &'static str {
        match self {
            Self::Plain => "n",
            Self::Hex => "x",
        }
    }

    fn of(bytes: &[u8]) -> Self {
        if is_plain(bytes) { Self::Plain } else { Self::Hex }
    }

    /// Spells `bytes`. Returns `None` if no name with this prefix has this spelling.
    fn write(self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Plain if bytes.is_empty() => Some(String::new()),
            Self::Plain => is_plain(bytes).then(|| String::from_utf8_lossy(bytes).into_owned()),
            Self::Hex => Some(hex(bytes)),
        }
    }
}

/// The content of a blob's key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BlobKey {
    pub(crate) object: ObjectId,
    pub(crate) blob: u128,
}

/// The location of the objects in a bucket.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The prefix: empty, or with a slash at the end.
    prefix: String,
    /// Whether long names are cut.
    cuts: AtomicBool,
}

impl Layout {
    /// Returns the layout with this prefix, which [`crate::S3Config`] has checked.
    pub(crate) fn new(prefix: &str) -> Self {
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Self { prefix, cuts: AtomicBool::new(true) }
    }

    /// Sets whether long names are cut. The edition of the bucket's layout decides this.
    pub(crate) fn set_cuts(&self, cuts: bool) {
        self.cuts.store(cuts, Ordering::Relaxed);
    }

    fn cuts(&self) -> bool {
        self.cuts.load(Ordering::Relaxed)
    }

    /// Returns a key, for example [`EDITION`], with the prefix.
    pub(crate) fn path(&self, rest: &str) -> Path {
        Path::from(format!("{}{rest}", self.prefix))
    }

    pub(crate) fn head(&self, object: &ObjectId) -> Path {
        self.of_object('h', object, "")
    }

    pub(crate) fn blob(&self, object: &ObjectId, blob: u128) -> Path {
        self.of_object('d', object, &format!("/{blob:032x}"))
    }

    fn of_object(&self, kind: char, object: &ObjectId, rest: &str) -> Path {
        let name = object.name.as_bytes();
        let spelling = Spelling::of(name);
        let namespace = self.namespace_segment(&object.namespace);
        let name = self.cut(spelling.write(name).unwrap_or_else(|| hex(name)));
        self.path(&format!("{kind}/{namespace}/{}/{name}{rest}", spelling.directory()))
    }

    /// Returns the directory of a namespace's heads with this spelling.
    pub(crate) fn heads(&self, namespace: &Namespace, spelling: Spelling) -> Path {
        self.path(&format!("h/{}/{}", self.namespace_segment(namespace), spelling.directory()))
    }

    /// Returns a key in [`Self::heads`] for `bytes`, which need not be a name. Returns `None` if no
    /// name with this prefix has this spelling.
    pub(crate) fn head_from(&self, namespace: &Namespace, spelling: Spelling, bytes: &[u8]) -> Option<Path> {
        let text = self.cut(spelling.write(bytes)?);
        Some(self.path(&format!("h/{}/{}/{text}", self.namespace_segment(namespace), spelling.directory())))
    }

    pub(crate) fn records(&self, namespace: &Namespace) -> Path {
        self.path(&format!("c/{}", self.namespace_segment(namespace)))
    }

    pub(crate) fn record(&self, namespace: &Namespace) -> Path {
        self.path(&format!("c/{}/scope", self.namespace_segment(namespace)))
    }

    pub(crate) fn domain(&self, namespace: &Namespace, domain: OrderDomain) -> Path {
        self.path(&format!("c/{}/domain.{:016x}", self.namespace_segment(namespace), domain.0))
    }

    /// Returns whether a namespace's keys contain its name.
    pub(crate) fn has_name(&self, namespace: &Namespace) -> bool {
        !self.namespace_segment(namespace).starts_with("s.")
    }

    /// Returns a key for the probe.
    pub(crate) fn probe(&self, nonce: u64) -> Path {
        self.path(&format!("p/{nonce:016x}"))
    }

    /// Returns whether the key of a head has a cut name.
    pub(crate) fn is_cut(&self, path: &Path) -> bool {
        let rest = path.as_ref().strip_prefix(&self.prefix).and_then(|rest| rest.splitn(4, '/').nth(3));
        rest.is_some_and(|rest| rest.contains('/')) && self.name_of(path).is_some()
    }

    /// Returns the namespace of a segment below `h`, `d` or `c`. If the segment is a hash, returns
    /// as `Err` the path of the record that contains the namespace's name.
    pub(crate) fn namespace_of(&self, segment: &str) -> Option<std::result::Result<Namespace, Path>> {
        let (kind, text) = segment.split_at_checked(2)?;
        let namespace = match kind {
            "n." => text.as_bytes().to_vec(),
            "x." => unhex(text)?,
            "s." if text.len() == 64 => return Some(Err(self.path(&format!("c/{segment}/scope")))),
            _ => return None,
        };
        let namespace = Namespace::new(namespace).ok()?;
        self.is_written_as(&namespace, segment).then_some(Ok(namespace))
    }

    /// Returns the namespace's segment in a key below `h`, `d` or `c`.
    pub(crate) fn segment_of<'a>(&self, path: &'a Path) -> Option<&'a str> {
        path.as_ref().strip_prefix(&self.prefix)?.split('/').nth(1)
    }

    /// Returns the name in a head's key, or `None` for a foreign key.
    pub(crate) fn name_of(&self, path: &Path) -> Option<Name> {
        let mut parts = path.as_ref().strip_prefix(&self.prefix)?.splitn(4, '/').skip(2);
        self.name(parts.next()?, parts.next()?)
    }

    /// Returns the content of a blob's key in this namespace.
    pub(crate) fn blob_of(&self, path: &Path, namespace: &Namespace) -> Option<BlobKey> {
        let mut parts = path.as_ref().strip_prefix(&self.prefix)?.splitn(4, '/').skip(2);
        let (directory, (name, blob)) = (parts.next()?, parts.next()?.rsplit_once('/')?);
        let object = ObjectId::new(namespace.clone(), self.name(directory, name)?);
        let blob = u128::from_str_radix(Some(blob).filter(|digits| digits.len() == 32)?, 16).ok()?;
        Some(BlobKey { object, blob })
    }

    /// Returns whether keys of a namespace have `segment`.
    pub(crate) fn is_written_as(&self, namespace: &Namespace, segment: &str) -> bool {
        self.namespace_segment(namespace) == segment
    }

    /// Returns a namespace's segment.
    fn namespace_segment(&self, namespace: &Namespace) -> String {
        let bytes = namespace.as_bytes();
        let is_plain = is_plain(bytes);
        if is_plain && (bytes.len() <= SEGMENT_BYTES_MAX || !self.cuts()) {
            format!("n.{}", String::from_utf8_lossy(bytes))
        } else if !is_plain && bytes.len() <= HEX_NAMESPACE_BYTES_MAX {
            format!("x.{}", hex(bytes))
        } else {
            format!("s.{}", hex(&Sha256::digest(bytes)))
        }
    }

    /// Returns the text of a name, with cuts.
    fn cut(&self, text: String) -> String {
        // The text is ASCII, so it can be cut anywhere.
        if text.len() <= SEGMENT_BYTES_MAX || !self.cuts() {
            return text;
        }
        let mut key = String::with_capacity(text.len() + 8);
        for (index, byte) in text.bytes().enumerate() {
            if index > 0 && index % SEGMENT_BYTES_MAX == 0 {
                key.extend([CUT, "/", CUT]);
            }
            key.push(byte.into());
        }
        key
    }

    /// Returns the name in the rest of a key, in the directory of its spelling, or `None` for a
    /// foreign key.
    fn name(&self, directory: &str, rest: &str) -> Option<Name> {
        let text = rest.replace(&[CUT, "/", CUT].concat(), "");
        let bytes = match directory {
            "n" => text.as_bytes().to_vec(),
            "x" => unhex(&text)?,
            _ => return None,
        };
        let is_ours = Spelling::of(&bytes).directory() == directory && self.cut(text) == rest;
        is_ours.then(|| Name::new(bytes).ok())?
    }

    /// Returns the domain in a record's key.
    pub(crate) fn domain_of(path: &Path) -> Option<OrderDomain> {
        let digits = path.filename()?.strip_prefix("domain.").filter(|digits| digits.len() == 16)?;
        u64::from_str_radix(digits, 16).ok().map(OrderDomain)
    }
}

/// Checks the prefix of all keys.
///
/// # Errors
/// Returns [`Error::Invalid`], with the valid form.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    let fine = |segment: &str| is_plain(segment.as_bytes());
    if prefix.is_empty() || prefix.len() <= PREFIX_BYTES_MAX && prefix.split('/').all(fine) {
        return Ok(());
    }
    let text = "prefix must have at most 128 characters of A-Z a-z 0-9 . _ - and single slashes in between";
    Err(Error::Invalid(text.into()))
}

fn is_plain(bytes: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    bytes.first().is_some_and(|first| *first != b'.') && bytes.iter().all(plain)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(namespace: &[u8], name: &[u8]) -> ObjectId {
        ObjectId::new(Namespace::copy_from(namespace).unwrap(), Name::copy_from(name).unwrap())
    }

    #[test]
    fn any_bytes_come_back_from_their_keys() {
        let every: Vec<u8> = (0..=255).collect();
        for prefix in ["", "a/b"] {
            let layout = Layout::new(prefix);
            let long: Vec<_> = [199, 200, 201, 255].map(|len| vec![b'_'; len]).into();
            let names = every.chunks(1).chain([&every[..255], b".", b"..", b"a/b", b"disk.0", b"00", b"%41"]);
            for name in names.chain(long.iter().map(Vec::as_slice)) {
                let object = object(b"vm", name);
                let head = layout.head(&object);
                assert_eq!(layout.name_of(&head).as_ref(), Some(&object.name), "{head}");
                assert_eq!(
                    layout.namespace_of(layout.segment_of(&head).unwrap()),
                    Some(Ok(object.namespace.clone()))
                );
                let blob = layout.blob(&object, 7);
                assert_eq!(layout.blob_of(&blob, &object.namespace), Some(BlobKey { object, blob: 7 }));
                assert_eq!(layout.name_of(&blob), None);
                assert_eq!(Path::parse(blob.as_ref()).unwrap(), blob, "no character is escaped once more");
            }
        }
    }

    #[test]
    fn namespaces_stay_apart_and_long_ones_are_hashed() {
        let layout = Layout::new("");
        let segments: Vec<_> =
            [&b"n"[..], b"x", b"n.x", b".x", b"a/b", &[0; 64], &[0; 65], &[0; 255], &[b'a'; 255]]
                .into_iter()
                .map(|namespace| layout.namespace_segment(&Namespace::copy_from(namespace).unwrap()))
                .collect();
        let mut different = segments.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), segments.len());
        for hashed in [&segments[6], &segments[8]] {
            assert!(matches!(layout.namespace_of(hashed), Some(Err(_))), "{hashed}");
        }
        assert_eq!(layout.namespace_of("x.6162"), None, "it would be written as n.ab");
        assert_eq!(layout.namespace_of("q"), None);
    }

    #[test]
    fn the_longest_key_fits() {
        let layout = Layout::new(&"p".repeat(PREFIX_BYTES_MAX));
        let namespaces = [&[0; 255][..], &[0; 64], &[b'a'; 200], &[b'a'; 255]];
        let keys = namespaces.map(|namespace| layout.blob(&object(namespace, &[0; 255]), u128::MAX));
        let longest = keys.iter().map(|key| key.as_ref().len()).max();
        assert_eq!(longest, Some(PREFIX_BYTES_MAX + 1 + 756), "S3 allows 1 024");
    }

    #[test]
    fn both_spellings_sort_bytewise() {
        let layout = Layout::new("");
        for names in [[&b"A"[..], b"AB", b"B", b"a"], [b"\0", b"\0\0", b" ", b"\xff"]] {
            let keys = names.map(|name| layout.head(&object(b"vm", name)));
            assert!(keys.is_sorted(), "{keys:?}");
        }
    }

    /// Names around the cuts, many with equal prefixes, in either spelling.
    fn long_names() -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        for byte in [b'a', b'_', b'-', 0] {
            for len in [99, 100, 101, 199, 200, 201, 202, 203, 204, 254] {
                names.extend([b"".as_slice(), b"_", b"-", b".", b"z", b"\xff"].map(|end| {
                    let end = if byte == 0 || end != b"\xff" { end } else { b"0" };
                    [&vec![byte; len][..], end].concat()
                }));
            }
        }
        names.sort();
        names.dedup();
        names
    }

    #[test]
    fn long_names_sort_bytewise_as_well() {
        let layout = Layout::new("");
        for spelling in Spelling::ALL {
            let names = long_names().into_iter().filter(|name| Spelling::of(name) == spelling);
            let keys: Vec<_> = names.map(|name| layout.head(&object(b"vm", &name))).collect();
            assert!(keys.len() > 50 && keys.is_sorted(), "{spelling:?}");
        }
    }

    /// The limits of a server that keeps objects as files.
    #[test]
    fn no_segment_is_long_and_no_key_is_the_directory_of_another() {
        let layout = Layout::new("");
        let objects: Vec<_> =
            long_names().iter().map(|name| object(&name[..name.len().min(255)], name)).collect();
        let mut keys: Vec<_> = objects.iter().map(|object| layout.head(object).to_string()).collect();
        keys.extend(objects.iter().map(|object| layout.blob(object, 7).to_string()));
        let directories: std::collections::HashSet<_> =
            keys.iter().flat_map(|key| key.match_indices('/').map(|(at, _)| &key[..at])).collect();
        for key in &keys {
            assert!(key.split('/').all(|segment| segment.len() <= 202), "{key}");
            assert!(!directories.contains(key.as_str()), "{key}");
        }
    }

    #[test]
    fn the_first_edition_cuts_nothing_and_each_knows_its_own_keys_only() {
        let (first, second) = (Layout::new(""), Layout::new(""));
        first.set_cuts(false);
        let long = object(&[b'n'; 255], &[b'a'; 255]);
        let key = first.head(&long);
        assert_eq!(key.as_ref(), format!("h/n.{}/n/{}", "n".repeat(255), "a".repeat(255)));
        assert_eq!(first.name_of(&key), Some(long.name.clone()));
        assert_eq!(first.namespace_of(first.segment_of(&key).unwrap()), Some(Ok(long.namespace.clone())));
        assert_eq!(second.name_of(&key), None);
        assert_eq!(second.namespace_of(second.segment_of(&key).unwrap()), None);
        assert_eq!(first.name_of(&second.head(&long)), None);
        let short = object(b"vm", b"disk.0");
        assert_eq!(first.head(&short), second.head(&short));
    }

    #[test]
    fn keys_that_nothing_is_written_for_name_nothing() {
        let layout = Layout::new("");
        let long = "a".repeat(200);
        for rest in
            ["", "a/b", "a_/_b", "/", &format!("{long}_/_"), &format!("{long}/_b"), &format!("{long}b")]
        {
            let key = Path::parse(format!("h/n.vm/n/{rest}").trim_end_matches('/')).unwrap();
            assert_eq!(layout.name_of(&key), None, "{key}");
        }
    }

    #[test]
    fn a_prefix_is_checked() {
        for fine in ["", "a", "a/b.c/d_e-f"] {
            check_prefix(fine).unwrap();
        }
        for wrong in ["/", "a/", "/a", "a//b", "a/../b", ".", "ä", "a b"] {
            assert!(check_prefix(wrong).is_err(), "{wrong}");
        }
    }
}
