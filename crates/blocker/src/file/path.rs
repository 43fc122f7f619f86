//! Conversion of names to paths and back: any 1 to 255 bytes become a path that every file system
//! accepts. A readable name becomes a readable path.
//!
//! Letters, digits, `-` and `_` stay, and so do dots except leading ones; every other byte becomes
//! `%XX`. A text longer than one component is cut into several, all but the last a directory ending
//! in `~`:
//!
//! ```text
//! objects/vm.ns/disk-0%2Fa.obj           namespace "vm", object "disk-0/a"
//! objects/vm.ns/nnnn…nnn~/nnn.obj        a name longer than one component
//! ```
//!
//! `~` and a leading dot are always escaped, so no name collides with another, with a directory, or
//! with `..`.

use std::path::{Path, PathBuf};

use super::disk::Kind;

/// The longest piece of an escaped name in one component; with its suffix it is shorter than 255
/// bytes.
const PIECE_BYTES_MAX: usize = 200;

/// The suffix of an object's file name.
pub(super) const OBJECT_SUFFIX: &str = ".obj";
/// The suffix of a namespace's directory name.
pub(super) const NAMESPACE_SUFFIX: &str = ".ns";
/// The suffix of a directory with the rest of longer names.
const PIECE_SUFFIX: char = '~';

/// Returns the path of `name` below `dir`.
pub(super) fn encode(dir: &Path, name: &[u8], suffix: &str) -> PathBuf {
    let escaped = escape(name);
    let mut path = dir.to_path_buf();
    let mut rest = escaped.as_str();
    while rest.len() > PIECE_BYTES_MAX {
        let (piece, after) = rest.split_at(PIECE_BYTES_MAX);
        path.push(format!("{piece}{PIECE_SUFFIX}"));
        rest = after;
    }
    path.push(format!("{rest}{suffix}"));
    path
}

fn escape(name: &[u8]) -> String {
    let mut escaped = String::with_capacity(name.len());
    for (index, byte) in name.iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => escaped.push(char::from(*byte)),
            // No component may begin with a dot.
            b'.' if index > 0 && !escaped.len().is_multiple_of(PIECE_BYTES_MAX) => escaped.push('.'),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// The meaning of a directory entry.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Entry {
    /// The last piece of a name, with the escaped text so far.
    Last(String),
    /// A directory with the rest of longer names, with the escaped text so far.
    More(String),
}

/// Returns the meaning of the entry `file_name`, found below the pieces `before`, or `None` if the
/// store never creates such an entry. Any kind of file under an object's name counts as the
/// object's file.
pub(super) fn entry(
    before: &str,
    file_name: &[u8],
    is_last_dir: bool,
    kind: Kind,
    suffix: &str,
) -> Option<Entry> {
    let text = std::str::from_utf8(file_name).ok()?;
    let is_dir = kind == Kind::Dir;
    if is_dir && let Some(piece) = text.strip_suffix(PIECE_SUFFIX) {
        return (piece.len() == PIECE_BYTES_MAX).then(|| Entry::More(format!("{before}{piece}")));
    }
    let piece = text.strip_suffix(suffix)?;
    ((is_dir || !is_last_dir) && piece.len() <= PIECE_BYTES_MAX)
        .then(|| Entry::Last(format!("{before}{piece}")))
}

/// Returns the name with this escaped form, or `None` if no name has it.
pub(super) fn decode(escaped: &str) -> Option<Vec<u8>> {
    let mut parts = escaped.split('%');
    let mut name = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        name.push(u8::from_str_radix(digits, 16).ok()?);
        name.extend_from_slice(rest.as_bytes());
    }
    // Only the canonical form is accepted, so that no two paths denote the same name.
    ((1..=255).contains(&name.len()) && escape(&name) == escaped).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn there_and_back(name: &[u8]) {
        let path = encode(Path::new("d"), name, OBJECT_SUFFIX);
        let mut text = String::new();
        let components: Vec<_> = path.iter().skip(1).collect();
        for (index, component) in components.iter().enumerate() {
            assert!(component.len() <= 255, "{component:?} is too long");
            assert!(!component.as_encoded_bytes().starts_with(b"."), "{component:?}");
            let kind = if index + 1 < components.len() { Kind::Dir } else { Kind::File };
            match entry(&text, component.as_encoded_bytes(), false, kind, OBJECT_SUFFIX) {
                Some(Entry::More(so_far) | Entry::Last(so_far)) => text = so_far,
                None => panic!("{component:?} is not recognised"),
            }
        }
        assert_eq!(decode(&text).as_deref(), Some(name));
    }

    #[test]
    fn readable_names_stay_readable() {
        assert_eq!(encode(Path::new("o"), b"disk-0/a.b", ".obj"), Path::new("o/disk-0%2Fa.b.obj"));
        assert_eq!(encode(Path::new("o"), b"..", ".obj"), Path::new("o/%2E..obj"));
    }

    #[test]
    fn other_spellings_of_a_name_are_not_names() {
        for text in ["%41", "%2f", "%", "%2", ".a", "a~", "", "%zz"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_name_comes_back(name in prop::collection::vec(any::<u8>(), 1..=255)) {
            there_and_back(&name);
        }

        #[test]
        fn dotted_names_come_back(name in "[.%a]{1,255}") {
            there_and_back(name.as_bytes());
        }

        #[test]
        fn any_file_name_is_taken_or_left(name in prop::collection::vec(any::<u8>(), 0..255), dir: bool) {
            let kind = if dir { Kind::Dir } else { Kind::File };
            if let Some(Entry::Last(text)) = entry("", &name, false, kind, OBJECT_SUFFIX) {
                let _ = decode(&text);
            }
        }
    }
}
