//! Whether the journal's files are where a recovery will look for them. An open file outlives its name: what
//! is written to it after its directory was removed, replaced or unmounted succeeds, and is lost.

use std::io;
use std::sync::Arc;

use crate::disk::DiskFile;
use crate::error::DiskError;
use crate::recovery;
use crate::shared::Shared;
use crate::survey::{SUPERBLOCK_NAME, read_superblock};
use crate::table::{Segment, segment_name};

impl Shared {
    /// Checks that a name leads to the file that was opened by it.
    ///
    /// Called behind a sync, before what was synced is believed to be durable.
    pub(crate) fn check_name(&self, name: &str, file: &dyn DiskFile) -> Result<(), DiskError> {
        let failed = |error| DiskError::new(name, "find", error);
        match self.disk.id(name).map_err(failed)? == file.id().map_err(failed)? {
            true => Ok(()),
            false => Err(failed(io::Error::new(io::ErrorKind::NotFound, "another file has its name"))),
        }
    }

    /// Checks that the directory holds this journal.
    pub(crate) fn check_place(&self) -> Result<(), DiskError> {
        let failed = |error| DiskError::new(SUPERBLOCK_NAME, "find", error);
        let other = |why: String| failed(io::Error::other(why));
        match read_superblock(&*self.disk) {
            Ok(Some(superblock)) if superblock.journal == self.journal => Ok(()),
            Ok(Some(_)) => Err(other("another journal is in its directory".into())),
            Ok(None) => Err(failed(io::ErrorKind::NotFound.into())),
            Err(error) => Err(other(error.to_string())),
        }
    }

    /// Opens all files anew, after a failure: the disk may have been away, and what was opened before is of no
    /// use then. Free segments whose files are gone are forgotten, and made anew later.
    pub(crate) fn reopen(&self) -> Result<(), DiskError> {
        self.check_place()?;
        let mut lock = self.lock.lock();
        // The lock may be another file's by now; and the same file's cannot be taken twice.
        lock.take();
        *lock = Some(
            recovery::lock(&*self.disk)
                .map_err(|error| DiskError::new("lock", "lock", io::Error::other(error.to_string())))?,
        );
        drop(lock);
        let open = |index: &u32| -> Option<(u32, Arc<dyn DiskFile>)> {
            let file = self.disk.open(&segment_name(*index)).ok()?;
            (file.len().ok()? == self.segment_bytes).then_some((*index, file))
        };
        let table = |segments: &mut dyn Iterator<Item = &mut Segment>| -> Vec<u32> {
            segments.map(|segment| segment.index).collect()
        };
        let mut state = self.state.lock();
        let known = table(&mut state.table.all());
        // Opening may take as long as a disk that is failing wants.
        drop(state);
        let opened: Vec<_> = known.iter().filter_map(open).collect();
        let mut state = self.state.lock();
        for segment in state.table.all() {
            if let Some((_, file)) = opened.iter().find(|(index, _)| *index == segment.index) {
                segment.file = Arc::clone(file);
            }
        }
        let is_gone = |segment: &Segment| {
            known.contains(&segment.index) && !opened.iter().any(|(index, _)| *index == segment.index)
        };
        state.table.free.retain(|segment| !is_gone(segment));
        self.prepare.notify_one();
        Ok(())
    }
}
