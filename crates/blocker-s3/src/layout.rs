//! What is called how in the bucket.
//!
//! ```text
//! [PREFIX/]h/<namespace>/n|x/<name>            the head of an object
//! [PREFIX/]d/<namespace>/n|x/<name>/<blob>     bytes of one change, never overwritten
//! [PREFIX/]c/all                               the record of everything
//! [PREFIX/]c/<namespace>/scope                 the record of a namespace
//! [PREFIX/]c/<namespace>/domain.<16 hex>       the record of an order domain
//! [PREFIX/]s/last                              when the last sweep began
//! [PREFIX/]p/...                               what the probe at the start writes, and removes
//!
//! namespace = n.<text> | x.<hex> | s.<SHA-256 in hex>
//! ```
//!
//! A name of `A-Z a-z 0-9 . _ -` that does not begin with a dot stays readable (`n`), any other is written in
//! hex (`x`). Both sort bytewise among themselves, so a page of a listing merges two of the server's. A
//! namespace whose hex would be long is named by its hash; its own name is in its record. The longest key has
//! 805 bytes beside the prefix; S3 allows 1 024.

use std::fmt::Write;

use blocker::{Error, Name, Namespace, ObjectId, OrderDomain, Result};
use object_store::path::Path;
use sha2::{Digest, Sha256};

/// The longest namespace that is written in hex.
const HEX_NAMESPACE_BYTES_MAX: usize = 64;
/// The longest prefix in bytes.
pub(crate) const PREFIX_BYTES_MAX: usize = 128;

/// How the names of a part of a namespace are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spelling {
    /// As they are.
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

    /// How `bytes` are written here; `None` if no name that begins with them is.
    fn write(self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Plain if bytes.is_empty() => Some(String::new()),
            Self::Plain => is_plain(bytes).then(|| String::from_utf8_lossy(bytes).into_owned()),
            Self::Hex => Some(hex(bytes)),
        }
    }
}

/// What a key of a data blob names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BlobKey {
    pub(crate) object: ObjectId,
    pub(crate) blob: u128,
}

/// Where in a bucket the objects lie.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Empty, or with a slash at the end.
    prefix: String,
}

impl Layout {
    /// `prefix` as [`crate::S3Config`] has checked it.
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") } }
    }

    fn path(&self, rest: &str) -> Path {
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
        let namespace = namespace_segment(&object.namespace);
        let name = spelling.write(name).unwrap_or_else(|| hex(name));
        self.path(&format!("{kind}/{namespace}/{}/{name}{rest}", spelling.directory()))
    }

    /// Under which the heads of a namespace lie whose names are written so.
    pub(crate) fn heads(&self, namespace: &Namespace, spelling: Spelling) -> Path {
        self.path(&format!("h/{}/{}", namespace_segment(namespace), spelling.directory()))
    }

    /// A key in [`Self::heads`] for the name `bytes`, which need not be one; `None` if none that begins
    /// so is written like that.
    pub(crate) fn head_from(&self, namespace: &Namespace, spelling: Spelling, bytes: &[u8]) -> Option<Path> {
        let text = spelling.write(bytes)?;
        Some(self.path(&format!("h/{}/{}/{text}", namespace_segment(namespace), spelling.directory())))
    }

    /// Under which the heads of all namespaces lie.
    pub(crate) fn all_heads(&self) -> Path {
        self.path("h")
    }

    /// Under which the blobs of all namespaces lie.
    pub(crate) fn all_blobs(&self) -> Path {
        self.path("d")
    }

    /// Under which the small objects of probes lie.
    pub(crate) fn all_probes(&self) -> Path {
        self.path("p")
    }

    pub(crate) fn record_of_all(&self) -> Path {
        self.path("c/all")
    }

    /// Under which the records of all namespaces lie.
    pub(crate) fn all_records(&self) -> Path {
        self.path("c")
    }

    pub(crate) fn records(&self, namespace: &Namespace) -> Path {
        self.path(&format!("c/{}", namespace_segment(namespace)))
    }

    pub(crate) fn record(&self, namespace: &Namespace) -> Path {
        self.path(&format!("c/{}/scope", namespace_segment(namespace)))
    }

    pub(crate) fn domain(&self, namespace: &Namespace, domain: OrderDomain) -> Path {
        self.path(&format!("c/{}/domain.{:016x}", namespace_segment(namespace), domain.0))
    }

    /// Whether the keys of a namespace have its name.
    pub(crate) fn has_name(&self, namespace: &Namespace) -> bool {
        !namespace_segment(namespace).starts_with("s.")
    }

    /// The key whose age is that of the last sweep.
    #[cfg(feature = "http")]
    pub(crate) fn last_sweep(&self) -> Path {
        self.path("s/last")
    }

    /// A key for the probe.
    pub(crate) fn probe(&self, nonce: u64) -> Path {
        self.path(&format!("p/{nonce:016x}"))
    }

    /// The namespace that a segment below `h`, `d` or `c` stands for; `Err` with the path of the record that
    /// has its name where the segment is a hash.
    pub(crate) fn namespace_of(&self, segment: &str) -> Option<std::result::Result<Namespace, Path>> {
        let (kind, text) = segment.split_at_checked(2)?;
        let namespace = match kind {
            "n." => text.as_bytes().to_vec(),
            "x." => unhex(text)?,
            "s." if text.len() == 64 => return Some(Err(self.path(&format!("c/{segment}/scope")))),
            _ => return None,
        };
        let namespace = Namespace::new(namespace).ok()?;
        (namespace_segment(&namespace) == segment).then_some(Ok(namespace))
    }

    /// The segment of a namespace in a key below `h`, `d` or `c`.
    pub(crate) fn segment_of<'a>(&self, path: &'a Path) -> Option<&'a str> {
        path.as_ref().strip_prefix(&self.prefix)?.split('/').nth(1)
    }

    /// The name of a head's key within a namespace; `None` for what is none of this store's.
    pub(crate) fn name_of(&self, path: &Path) -> Option<Name> {
        let mut parts = path.as_ref().strip_prefix(&self.prefix)?.split('/').skip(2);
        let name = name(parts.next()?, parts.next()?)?;
        parts.next().is_none().then_some(name)
    }

    /// What a blob's key names, in the namespace of its segment.
    pub(crate) fn blob_of(&self, path: &Path, namespace: &Namespace) -> Option<BlobKey> {
        let mut parts = path.as_ref().strip_prefix(&self.prefix)?.split('/').skip(2);
        let name = name(parts.next()?, parts.next()?)?;
        let blob = parts.next().filter(|digits| digits.len() == 32)?;
        let blob = u128::from_str_radix(blob, 16).ok()?;
        let object = ObjectId::new(namespace.clone(), name);
        parts.next().is_none().then_some(BlobKey { object, blob })
    }

    /// The domain of a record's key.
    pub(crate) fn domain_of(path: &Path) -> Option<OrderDomain> {
        let digits = path.filename()?.strip_prefix("domain.").filter(|digits| digits.len() == 16)?;
        u64::from_str_radix(digits, 16).ok().map(OrderDomain)
    }
}

/// # Errors
/// [`Error::Invalid`], with what would be right.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    let fine = |segment: &str| is_plain(segment.as_bytes());
    if prefix.is_empty() || prefix.len() <= PREFIX_BYTES_MAX && prefix.split('/').all(fine) {
        return Ok(());
    }
    let text = "prefix takes at most 128 characters of A-Z a-z 0-9 . _ - and single slashes between";
    Err(Error::Invalid(text.into()))
}

fn name(directory: &str, text: &str) -> Option<Name> {
    let bytes = match directory {
        "n" => text.as_bytes().to_vec(),
        "x" => unhex(text)?,
        _ => return None,
    };
    let spelling = Spelling::of(&bytes);
    (spelling.directory() == directory).then(|| Name::new(bytes).ok())?
}

fn namespace_segment(namespace: &Namespace) -> String {
    let bytes = namespace.as_bytes();
    if is_plain(bytes) {
        format!("n.{}", String::from_utf8_lossy(bytes))
    } else if bytes.len() <= HEX_NAMESPACE_BYTES_MAX {
        format!("x.{}", hex(bytes))
    } else {
        format!("s.{}", hex(&Sha256::digest(bytes)))
    }
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
            let names = every.chunks(1).chain([&every[..255], b".", b"..", b"a/b", b"disk.0", b"00", b"%41"]);
            for name in names {
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
                .map(|namespace| namespace_segment(&Namespace::copy_from(namespace).unwrap()))
                .collect();
        let mut different = segments.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), segments.len());
        assert!(matches!(layout.namespace_of(&segments[6]), Some(Err(_))));
        assert_eq!(layout.namespace_of("x.6162"), None, "it would be written as n.ab");
        assert_eq!(layout.namespace_of("q"), None);
    }

    #[test]
    fn the_longest_key_fits() {
        let layout = Layout::new(&"p".repeat(PREFIX_BYTES_MAX));
        for byte in [0, b'a'] {
            let key = layout.blob(&object(&[byte; 255], &[0; 255]), u128::MAX);
            assert!(key.as_ref().len() <= 1024, "{} bytes", key.as_ref().len());
        }
    }

    #[test]
    fn both_spellings_sort_bytewise() {
        let layout = Layout::new("");
        for names in [[&b"A"[..], b"AB", b"B", b"a"], [b"\0", b"\0\0", b" ", b"\xff"]] {
            let keys = names.map(|name| layout.head(&object(b"vm", name)));
            assert!(keys.is_sorted(), "{keys:?}");
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
