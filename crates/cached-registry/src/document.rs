//! Documents, conditional changes, leases and watched events: the values of the registry.

use std::fmt;
use std::time::Duration;

use blocker::Timestamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;
/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// The maximum number of changes that are made together: the limit of etcd.
pub const CHANGES_MAX: usize = 128;
/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The name of a document: parts of ASCII letters, digits and `-_.:`, separated by slashes, at most
/// [`KEY_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(Box<str>);

impl Key {
    /// Returns the key with this text.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the text is not a valid key.
    pub fn new(text: &str) -> Result<Self> {
        let is_part = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
        };
        if text.len() <= KEY_BYTES_MAX && text.split('/').all(is_part) {
            return Ok(Self(text.into()));
        }
        let form = "letters, digits and -_.: in parts separated by slashes";
        Err(Error::Invalid(format!("{text:?} is not a key: expected at most {KEY_BYTES_MAX} {form}").into()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Key {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(&text)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> String {
        key.0.into()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The number of a change of the registry. Each change, of one or several documents, has a higher
/// revision than all changes before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The identity of a lease, which is never reused: it distinguishes the incarnations of a process
/// that starts several times under one name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A document of the registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Document {
    /// The document's name.
    pub key: Key,
    /// The content.
    pub value: Bytes,
    /// The revision of the document's last change.
    pub revision: Revision,
    /// The lease with which the document ends, if the document is bound to one.
    pub lease: Option<LeaseId>,
}

/// The documents of a listing, and the state of the registry to which they belong.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// The documents in the order of their keys.
    pub documents: Vec<Document>,
    /// The revision from which a watch continues.
    pub revision: Revision,
}

/// The state that a change requires of its document.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Expect {
    /// The document does not exist.
    Absent,
    /// The document's last change has this revision.
    At(Revision),
}

impl Expect {
    /// Returns whether a document whose last change has the revision `found` (`None`: no document)
    /// has the required state.
    #[must_use]
    pub fn is_met(self, found: Option<Revision>) -> bool {
        match self {
            Self::Absent => found.is_none(),
            Self::At(revision) => found == Some(revision),
        }
    }
}

/// A change of one document, which is made only if the document has the required state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The document.
    pub key: Key,
    /// The expected state.
    pub expect: Expect,
    /// The new value; `None` removes the document.
    pub value: Option<Bytes>,
    /// The lease to bind the document to.
    pub lease: Option<LeaseId>,
    /// Whether the document is left as it is, whatever the value is.
    pub is_guard: bool,
}

impl Change {
    /// Returns a change that writes `value` into a document in the expected state.
    #[must_use]
    pub fn put(key: Key, expect: Expect, value: impl Into<Bytes>) -> Self {
        Self { key, expect, value: Some(value.into()), lease: None, is_guard: false }
    }

    /// Returns a change that removes the document whose last change has this revision.
    #[must_use]
    pub fn remove(key: Key, revision: Revision) -> Self {
        Self { key, expect: Expect::At(revision), value: None, lease: None, is_guard: false }
    }

    /// Returns a change that leaves the document as it is: the other changes of the request are made only
    /// if the document has the required state.
    #[must_use]
    pub fn guard(key: Key, expect: Expect) -> Self {
        Self { key, expect, value: None, lease: None, is_guard: true }
    }

    /// Binds the document to a lease: the document is removed when the lease ends.
    #[must_use]
    pub fn with_lease(self, lease: LeaseId) -> Self {
        Self { lease: Some(lease), ..self }
    }
}

/// Checks changes that are to be made together.
///
/// # Errors
/// Returns [`Error::Invalid`] or [`Error::TooLarge`].
pub(crate) fn check_changes(changes: &[Change]) -> Result<()> {
    if changes.is_empty() || changes.len() > CHANGES_MAX {
        let count = changes.len();
        return Err(Error::TooLarge(
            format!("one request has {count} changes; it must have 1 to {CHANGES_MAX}").into(),
        ));
    }
    let mut keys: Vec<_> = changes.iter().map(|change| &change.key).collect();
    keys.sort_unstable();
    if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::Invalid(format!("{} is changed twice in one request", pair[0]).into()));
    }
    for Change { key, value, .. } in changes {
        let len = value.as_ref().map_or(0, Bytes::len);
        if len > VALUE_BYTES_MAX {
            let text = format!("{key} would have {len} bytes; the limit is {VALUE_BYTES_MAX}");
            return Err(Error::TooLarge(text.into()));
        }
    }
    Ok(())
}

/// A lease held by this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The identity, which is the incarnation of the lease's holder.
    pub id: LeaseId,
    /// The time for which the registry keeps the lease after a renewal.
    pub duration: Duration,
    /// The time until which the holder may rely on the lease, on `CLOCK_BOOTTIME`: two
    /// thirds of its duration after the last renewal was *sent*.
    pub until: Timestamp,
}

impl Lease {
    pub(crate) fn new(id: LeaseId, duration: Duration, sent: Timestamp) -> Self {
        Self { id, duration, until: sent + relied_on(duration) }
    }
}

/// Returns the time for which a holder may rely on a lease, counted from before a renewal was sent.
pub(crate) fn relied_on(lease: Duration) -> Duration {
    lease / 3 * 2
}

/// Checks the duration of a lease.
///
/// # Errors
/// Returns [`Error::Invalid`].
pub(crate) fn check_lease(duration: Duration) -> Result<()> {
    if (Duration::from_secs(1)..=LEASE_MAX).contains(&duration) {
        return Ok(());
    }
    Err(Error::Invalid(format!("a lease of {duration:?}: it must last 1 s to {LEASE_MAX:?}").into()))
}

/// A watched change of one document. A body may omit states that did not last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The document was created or changed.
    Changed(Document),
    /// The document was removed, or its lease has ended.
    Removed(Key),
}

impl Event {
    /// Returns the document's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Changed(document) => &document.key,
            Self::Removed(key) => key,
        }
    }
}

/// The changes that a watch has received: all changes up to `revision`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changes {
    /// The changes of documents; at least one.
    pub events: Vec<Event>,
    /// The revision from which another watch can continue.
    pub revision: Revision,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_non_empty_parts_of_plain_characters() {
        for right in ["a", "nodes/host-1:11211", "a.b_c/D/0"] {
            assert_eq!(Key::new(right).unwrap().as_str(), right);
        }
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        for wrong in ["", "/a", "a/", "a//b", "a b", "a\n", "ä", "a\0", &long] {
            let error = Key::new(wrong).unwrap_err().to_string();
            assert!(error.contains("is not a key: expected at most 255"), "{error}");
        }
        assert!(Key::new(&long[1..]).is_ok());
    }

    #[test]
    fn changes_have_limits_and_distinct_keys() {
        let change = |index: usize| Change::put(Key::new(&format!("k{index}")).unwrap(), Expect::Absent, "v");
        let some = |count| (0..count).map(change).collect::<Vec<_>>();
        assert!(check_changes(&some(CHANGES_MAX)).is_ok());
        assert!(matches!(check_changes(&some(CHANGES_MAX + 1)), Err(Error::TooLarge(_))));
        assert!(matches!(check_changes(&[]), Err(Error::TooLarge(_))));
        let twice = check_changes(&[change(1), change(2), change(1)]).unwrap_err();
        assert_eq!(twice.to_string(), "k1 is changed twice in one request");
        let large = Change { value: Some(vec![0; VALUE_BYTES_MAX + 1].into()), ..change(1) };
        assert_eq!(
            check_changes(&[large]).unwrap_err().to_string(),
            "too large: k1 would have 65537 bytes; the limit is 65536"
        );
    }

    #[test]
    fn an_error_names_what_was_found() {
        let key = Key::new("a").unwrap();
        let conflict = |found| Error::Conflict { key: key.clone(), found }.to_string();
        assert_eq!(conflict(Some(Revision(7))), "a is not as expected: it has revision 7");
        assert_eq!(conflict(None), "a is not as expected: it does not exist");
    }
}
