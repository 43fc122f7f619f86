//! The registry in a file: documents that a person writes, for groups of hosts that do not change.
//!
//! The file is TOML. Each of its keys is a document; a text is the document's value, and any other
//! value becomes JSON:
//!
//! ```toml
//! "nodes/a" = { address = "10.0.0.1:11311", zone = "east" }
//! motd = "hello"
//! ```
//!
//! The documents are read when the registry is opened, and again by a reload.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use named_file::FileError;
use tokio::sync::watch;

use crate::document::{Changes, Document, Event, Key, Listing, Revision, VALUE_BYTES_MAX};
use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct FileBody {
    path: PathBuf,
    loaded: watch::Sender<Loaded>,
}

#[derive(Clone, Debug, Default)]
struct Loaded {
    documents: BTreeMap<Key, Document>,
    /// The documents that reloads have removed.
    removed: BTreeMap<Key, Revision>,
    /// The revision of the first load, before which no change is known.
    first: Revision,
    revision: Revision,
}

impl FileBody {
    /// Reads the file.
    ///
    /// # Errors
    /// Returns the mistake in the file, or the reason why it cannot be read.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let (values, time) = read(path)?;
        let mut loaded = Loaded { first: time, ..Loaded::default() };
        loaded.replace(values, time);
        Ok(Self { path: path.to_owned(), loaded: watch::Sender::new(loaded) })
    }

    /// Reads the file again. After an error, the documents stay unchanged.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`].
    pub(crate) fn reload(&self) -> Result<()> {
        let (values, time) = read(&self.path)?;
        self.loaded.send_if_modified(|loaded| loaded.replace(values, time));
        Ok(())
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Document> {
        self.loaded.borrow().documents.get(key).cloned()
    }

    pub(crate) fn list(&self, prefix: &str) -> Listing {
        let loaded = self.loaded.borrow();
        let documents =
            loaded.documents.values().filter(|document| document.key.as_str().starts_with(prefix));
        Listing { documents: documents.cloned().collect(), revision: loaded.revision }
    }

    pub(crate) async fn changes(&self, prefix: &str, after: Revision) -> Result<Changes> {
        let mut loaded = self.loaded.subscribe();
        loop {
            if let Some(changes) = loaded.borrow_and_update().changes(prefix, after)? {
                return Ok(changes);
            }
            if loaded.changed().await.is_err() {
                return Err(Error::Unavailable("it is closed".into()));
            }
        }
    }

    pub(crate) fn refuse<T>(&self) -> Result<T> {
        let text =
            format!("the registry in {} is read-only: change the file, and reload it", self.path.display());
        Err(Error::Denied(text.into()))
    }
}

impl Loaded {
    /// Replaces the documents by those of a file that was changed at `time`. Returns whether any
    /// document differs.
    fn replace(&mut self, values: BTreeMap<Key, Bytes>, time: Revision) -> bool {
        let next = Revision(time.0.max(self.revision.0 + 1));
        let old = std::mem::take(&mut self.documents);
        let mut differs = self.revision == Revision::default();
        for key in old.keys().filter(|key| !values.contains_key(key)) {
            self.removed.insert(key.clone(), next);
            differs = true;
        }
        for (key, value) in values {
            let revision = match old.get(&key) {
                Some(document) if document.value == value => document.revision,
                _ => next,
            };
            differs |= revision == next;
            self.removed.remove(&key);
            self.documents.insert(key.clone(), Document { key, value, revision, lease: None });
        }
        if differs {
            self.revision = next;
        }
        differs
    }

    fn changes(&self, prefix: &str, after: Revision) -> Result<Option<Changes>> {
        if after < self.first || after > self.revision {
            return Err(Error::Compacted { after });
        }
        let documents = self.documents.values().filter(|document| document.revision > after);
        let changed = documents.cloned().map(Event::Changed);
        let removed = self.removed.iter().filter(|(_, revision)| **revision > after);
        let removed = removed.map(|(key, _)| Event::Removed(key.clone()));
        let mut events: Vec<Event> =
            changed.chain(removed).filter(|event| event.key().as_str().starts_with(prefix)).collect();
        events.sort_by(|a, b| a.key().cmp(b.key()));
        Ok((!events.is_empty()).then_some(Changes { events, revision: self.revision }))
    }
}

/// Returns the values of the documents in a file, for a program that needs no registry: TOML, of
/// which each key is a document.
///
/// # Errors
/// Returns [`Error::Invalid`] for a mistake in the file or in its path, and [`Error::Unavailable`] if
/// a disk or the system fails to read it.
pub fn documents(path: &Path) -> Result<BTreeMap<Key, Bytes>> {
    read(path).map(|(values, _)| values)
}

/// Returns the values in the file, and the time at which the file was changed, in microseconds.
fn read(path: &Path) -> Result<(BTreeMap<Key, Bytes>, Revision)> {
    let mistake = |why: &str| Error::Invalid(format!("{}: {why}", path.display()).into());
    let unread = |error: FileError| match error.is_mistake() {
        true => mistake(&error.to_string()),
        false => Error::Unavailable(format!("{}: {error}", path.display()).into()),
    };
    let file = named_file::open(path, named_file::Kinds::Regular).map_err(unread)?;
    let micros = file.metadata.mtime() * 1_000_000 + file.metadata.mtime_nsec() / 1000;
    let text = file.text().map_err(unread)?;
    let values: BTreeMap<String, serde_json::Value> =
        toml::from_str(&text).map_err(|error| mistake(error.message().lines().next().unwrap_or_default()))?;
    let documents: Result<BTreeMap<Key, Bytes>> = values
        .into_iter()
        .map(|(key, value)| {
            let key = Key::new(&key).map_err(|error| mistake(&error.to_string()))?;
            let value = match value {
                serde_json::Value::String(text) => text,
                other => other.to_string(),
            };
            if value.len() > VALUE_BYTES_MAX {
                return Err(mistake(&format!(
                    "{key} has {} bytes; the limit is {VALUE_BYTES_MAX}",
                    value.len()
                )));
            }
            Ok((key, value.into()))
        })
        .collect();
    Ok((documents?, Revision(u64::try_from(micros).unwrap_or(0).max(1))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::executor::block_on;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn a_reload_is_seen_by_reads_and_watches() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        write("\"nodes/a\" = { address = \"h:1\" }\n\"nodes/b\" = \"x\"\nmotd = \"hello\"\n");
        let body = FileBody::open(file.path()).unwrap();
        let listing = body.list("nodes/");
        let values: Vec<_> = listing.documents.iter().map(|document| &document.value[..]).collect();
        assert_eq!(values, [&b"{\"address\":\"h:1\"}"[..], b"x"]);
        write("\"nodes/b\" = \"y\"\n\"nodes/c\" = 7\nmotd = \"hello\"\n");
        body.reload().unwrap();
        let changes = block_on(body.changes("", listing.revision)).unwrap();
        let document = |text| Event::Changed(body.get(&key(text)).unwrap());
        assert_eq!(
            changes.events,
            [Event::Removed(key("nodes/a")), document("nodes/b"), document("nodes/c")]
        );
        assert!(changes.revision > listing.revision);
        assert_eq!(body.get(&key("nodes/c")).unwrap().value, "7");
        let before = Revision(listing.revision.0 - 1);
        assert_eq!(block_on(body.changes("", before)), Err(Error::Compacted { after: before }));
    }

    #[test]
    fn a_mistake_is_one_line_and_leaves_the_documents() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a = \"1\"").unwrap();
        let body = FileBody::open(file.path()).unwrap();
        for (text, why) in [("a = ", ""), ("\"a b\" = 1", "\"a b\" is not a key: expected at most 255")] {
            std::fs::write(file.path(), text).unwrap();
            let error = body.reload().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{}: {why}", file.path().display())), "{error}");
            assert!(!error.contains('\n'), "{error}");
            assert_eq!(body.get(&key("a")).unwrap().value, "1");
        }
        let missing = FileBody::open("/no/such/file".as_ref()).unwrap_err();
        assert_eq!(missing.to_string(), "/no/such/file: No such file or directory");
    }
}
