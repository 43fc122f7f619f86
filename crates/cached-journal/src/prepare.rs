//! Making segments: zeroed and synced before they get their names, in the background.

use std::sync::Arc;
use std::time::Duration;

use crate::disk::{Disk, DiskFile};
use crate::error::DiskError;
use crate::event::Event;
use crate::shared::{RETRY_AFTER, Shared};
use crate::table::{NEW_SUFFIX, Segment, segment_name};

/// How much is zeroed by one write.
const ZERO_BYTES: u64 = 256 * 1024;

/// Makes a file of zeros, durably, and gives it its name then. Gives up, with `Interrupted`, when `is_wanted`
/// returns false.
///
/// Zeros are written, not only allocated: the first write to an allocated block changes the file system's own
/// records, and its sync takes many times as long.
pub(crate) fn make_segment(
    disk: &dyn Disk,
    index: u32,
    segment_bytes: u64,
    is_wanted: &dyn Fn() -> bool,
) -> Result<Arc<dyn DiskFile>, DiskError> {
    let name = segment_name(index);
    let new_name = format!("{name}{NEW_SUFFIX}");
    let failed = |operation| {
        let new_name = &new_name;
        move |error| DiskError::new(new_name, operation, error)
    };
    let file = disk.create(&new_name).map_err(failed("create"))?;
    let mut zeros = crate::buffer::AlignedBuffer::default();
    zeros.extend_zeros(ZERO_BYTES.min(segment_bytes) as usize);
    let mut at = 0;
    while at < segment_bytes {
        if !is_wanted() {
            return Err(failed("write")(std::io::ErrorKind::Interrupted.into()));
        }
        let run = ZERO_BYTES.min(segment_bytes - at);
        file.write_at(at, &[&zeros.as_slice()[..run as usize]]).map_err(failed("write"))?;
        at += run;
    }
    file.sync().map_err(failed("sync"))?;
    disk.rename(&new_name, &name).map_err(failed("rename"))?;
    disk.sync_names().map_err(failed("sync the directory of"))?;
    Ok(file)
}

impl Shared {
    /// Makes one segment, or removes one that has failed. Returns whether there was something to do.
    pub(crate) fn prepare_next(&self) -> bool {
        let mut state = self.state.lock();
        if self.clock.now() < state.prepare_at || state.is_closing {
            return false;
        }
        let durable_tail = state.durable_tail;
        // Until the log on disk states that the segment is behind the tail, a recovery would look for it.
        let removable = state.table.condemned.iter().position(|segment| segment.life < durable_tail);
        let Some(removable) = removable else {
            drop(state);
            return self.make_next();
        };
        let segment = state.table.condemned.swap_remove(removable);
        state.in_hand += 1;
        drop(state);
        let name = segment_name(segment.index);
        let removed = self.check_place().and_then(|()| self.remove(&name, &*segment.file));
        let mut state = self.state.lock();
        state.in_hand -= 1;
        if let Err(DiskError { file, error, .. }) = removed {
            state.table.condemned.push(segment);
            state.prepare_at = self.clock.now() + RETRY_AFTER;
            self.unlock(state, Some(Event::PrepareFailed { file, error: error.to_string() }));
        }
        true
    }

    /// Removes a segment's file, unless another file has its name by now.
    fn remove(&self, name: &str, file: &dyn DiskFile) -> Result<(), DiskError> {
        if self.check_name(name, file).is_err() {
            return Ok(());
        }
        self.disk.remove(name).map_err(|error| DiskError::new(name, "remove", error))?;
        self.disk.sync_names().map_err(|error| DiskError::new(name, "sync the directory of", error))
    }

    fn make_next(&self) -> bool {
        let mut state = self.state.lock();
        let table = &state.table;
        let count = (table.live.len() + table.free.len() + table.condemned.len()) as u64 + state.in_hand;
        if count >= self.segments_max || self.clock.now() < state.prepare_at || state.is_closing {
            return false;
        }
        let used: Vec<_> = table
            .live
            .iter()
            .chain(&table.free)
            .chain(&table.condemned)
            .map(|segment| segment.index)
            .collect();
        let in_restart = state.restarting;
        let Some(index) = (0..).find(|index| !used.contains(index) && in_restart != Some(*index)) else {
            return false;
        };
        let segment_bytes = table.segment_bytes;
        state.in_hand += 1;
        drop(state);
        let is_wanted = || !self.state.lock().is_closing;
        let made = self.check_place();
        let made = made.and_then(|()| make_segment(&*self.disk, index, segment_bytes, &is_wanted));
        let mut state = self.state.lock();
        state.in_hand -= 1;
        match made {
            Ok(file) => {
                state.table.free.push_back(Segment::fresh(index, file));
                self.unlock(state, None);
            }
            Err(DiskError { error, .. }) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(DiskError { file, error, .. }) => {
                state.prepare_at = self.clock.now() + RETRY_AFTER;
                self.unlock(state, Some(Event::PrepareFailed { file, error: error.to_string() }));
            }
        }
        true
    }

    /// The preparing thread: makes segments until the journal closes.
    pub(crate) fn run_prepares(&self) {
        loop {
            while self.prepare_next() {}
            let mut state = self.state.lock();
            if state.is_closing {
                return;
            }
            let wait = state.prepare_at.saturating_sub(self.clock.now());
            if wait > Duration::ZERO {
                self.prepare.wait_for(&mut state, wait);
            } else {
                self.prepare.wait(&mut state);
            }
        }
    }
}
