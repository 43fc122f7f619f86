//! Shared code of the tests on a simulated disk: opening a store, and checking an object after a
//! crash.

use std::path::Path;
use std::sync::Arc;

use super::simulated::SimulatedDisk;
use crate::executor::block_on;
use crate::file::{Access, FileConfig, FileStore};
use crate::{
    Blocker, Error, InfoRequest, Name, Namespace, ObjectId, ReadRequest, Result, Stamp, SystemClock, Version,
};

pub(super) const ROOT: &str = "/store";

pub(super) fn new_disk() -> SimulatedDisk {
    SimulatedDisk::new(Path::new(ROOT))
}

/// Opens a store on the caller's thread, with few open files, so that closing files is tested too.
pub(super) fn open(disk: &SimulatedDisk) -> Result<FileStore> {
    open_with(disk, 32)
}

pub(super) fn open_with(disk: &SimulatedDisk, open_files_max: usize) -> Result<FileStore> {
    let config = FileConfig { threads: 0, open_files_max, access: Access::Create, ..FileConfig::default() };
    FileStore::over(Path::new(ROOT), config, Arc::new(SystemClock), Arc::new(disk.clone()), None)
}

pub(super) fn object_in(namespace: &str, name: impl AsRef<[u8]>) -> ObjectId {
    let namespace = Namespace::new(namespace.to_owned()).unwrap();
    ObjectId::new(namespace, Name::copy_from(name.as_ref()).unwrap())
}

/// An object's state after a change.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Seen {
    pub(super) content: Option<Vec<u8>>,
    pub(super) stamp: Option<Stamp>,
}

/// The acknowledged history of an object: its state when it was last stored, and all states since.
#[derive(Clone, Default)]
pub(super) struct History {
    pub(super) states: Vec<Seen>,
}

impl History {
    pub(super) fn last(&self) -> Seen {
        self.states.last().cloned().unwrap_or_default()
    }

    pub(super) fn push(&mut self, seen: Seen, is_stored: bool) {
        if self.states.is_empty() {
            self.states.push(Seen::default());
        }
        if is_stored {
            self.states.clear();
        }
        self.states.push(seen);
    }

    /// Records that the current state has been stored.
    pub(super) fn stored(&mut self) {
        let last = self.last();
        self.states = vec![last];
    }

    /// Checks that the history explains the found state: it is a state of the history, or each byte
    /// comes from one of several states, and a stored stamp covers the data up to it. Returns the
    /// state and its version.
    #[track_caller]
    pub(super) fn explain(&self, store: &FileStore, id: &ObjectId) -> (Seen, Version) {
        let none = [Seen::default()];
        let possible = if self.states.is_empty() { &none[..] } else { &self.states };
        let info = match block_on(store.info(InfoRequest::new(id.clone()))) {
            Err(Error::Missing) => {
                assert!(possible.iter().any(|seen| seen.content.is_none()), "{id} is gone");
                return (Seen::default(), Version(0));
            }
            info => info.unwrap(),
        };
        let since = possible.iter().position(|seen| seen.stamp == info.stamp);
        let since = since.unwrap_or_else(|| panic!("{id} never had stamp {:?}", info.stamp));
        let possible = if info.stamp.is_some() { &possible[since..] } else { possible };
        let read = block_on(store.read(ReadRequest::new(id.clone(), 0, 100_000))).unwrap();
        let found = read.data.to_vec();
        if let [only] = possible {
            assert_eq!(only.stamp, info.stamp, "{id}: another stamp");
            let wanted = only.content.as_ref().unwrap_or_else(|| panic!("{id} is back"));
            let at = found.iter().zip(wanted).position(|(a, b)| a != b);
            let (has, wants) = (found.len(), wanted.len());
            assert!(
                found == *wanted,
                "{id}: {has} bytes, not the {wants} there should be, differing at {at:?}; {info:?}"
            );
        }
        for (at, byte) in found.iter().enumerate() {
            let known = possible.iter().any(|seen| match &seen.content {
                Some(content) => content.get(at).map_or(*byte == 0, |known| known == byte),
                None => *byte == 0,
            });
            assert!(known, "{id}: byte {at} was never written");
        }
        (Seen { content: Some(found), stamp: info.stamp }, read.version)
    }
}
