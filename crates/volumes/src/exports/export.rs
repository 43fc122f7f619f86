//! One volume as an export.

use std::sync::Arc;

use crate::error::Result;
use crate::settings::{Change, ExtentKind};
use crate::volume::{Answer, Volume};
use blocker::{Durability, ObjectId, ReceiveBuffer, ReceiveBuffers, Reply, Segments};
use nbd::protocol::wire::{PAYLOAD_BYTES_MAX, state};
use nbd::protocol::{Context, Description, Extent, Zeroes};
use nbd::{Export, READ_AHEAD_BYTES};

use super::attached::Attached;
use super::of_request;

/// The maximum number of bytes that one request reads ahead, equal to the maximum length of a read.
/// More bytes would evict each other from the cache below.
const CACHE_BYTES_MAX: u32 = PAYLOAD_BYTES_MAX;

/// The maximum number of objects whose extents one reply covers; the client asks again for the
/// rest. The extents are read under a lock that every request of the volume takes.
const EXTENT_OBJECTS_MAX: u64 = 64 * 1024;

/// A volume for one connection. The volume stays attached while a connection uses it.
pub(crate) struct VolumeExport {
    pub(crate) volume: Volume,
    pub(crate) description: Description,
    pub(crate) fua_durability: Durability,
    /// The source of a cache's memory for payloads, and an object with whose name that memory is
    /// requested.
    pub(crate) buffers: Option<(ReceiveBuffers, ObjectId)>,
    /// Releases the volume when the last one is dropped.
    pub(crate) attached: Arc<Attached>,
}

impl VolumeExport {
    /// Returns the reply of `operation` on the volume.
    fn reply<T, F>(&self, operation: impl FnOnce(Volume) -> F) -> Reply<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let future = operation(self.volume.clone());
        Reply::pending(async move { future.await.map_err(of_request) })
    }

    fn durability(&self, fua: bool) -> Durability {
        if fua { self.fua_durability } else { Durability::Cached }
    }
}

/// Converts a volume's answer to a reply with the errors of the NBD server's contract.
fn reply_of<T, U>(answer: Answer<T>, of: impl FnOnce(T) -> U + Send + 'static) -> Reply<U>
where
    T: 'static,
{
    match answer {
        Answer::Ready(answer) => Reply::Ready(answer.map(of).map_err(of_request)),
        Answer::Pending(future) => Reply::pending(async move { future.await.map(of).map_err(of_request) }),
    }
}

impl Export for VolumeExport {
    fn description(&self) -> &Description {
        &self.description
    }

    fn read(&self, offset: u64, len_bytes: u32) -> Reply<Segments> {
        reply_of(self.volume.start_read(offset, len_bytes.into()), |data| data)
    }

    fn write(&self, offset: u64, data: Segments, fua: bool) -> Reply<()> {
        let durability = self.durability(fua);
        reply_of(self.volume.start_write(offset, data, durability), |_| ())
    }

    fn receive_buffer(&self, offset: u64, len_bytes: u32) -> Option<Box<dyn ReceiveBuffer>> {
        let (buffers, object) = self.buffers.as_ref()?;
        let within = offset % self.volume.object_bytes();
        // A payload for several objects is split before it is written, so the memory for one object
        // cannot receive it.
        let is_in_one = within + u64::from(len_bytes) <= self.volume.object_bytes();
        is_in_one.then(|| buffers(object, within, len_bytes as usize)).flatten()
    }

    fn flush(&self) -> Reply<()> {
        self.reply(|volume| async move { volume.flush().await })
    }

    fn trim(&self, offset: u64, len_bytes: u32, fua: bool) -> Reply<()> {
        self.reply(move |volume| async move {
            volume.discard(offset, len_bytes.into()).await?;
            if fua { volume.flush().await } else { Ok(()) }
        })
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u32, zeroes: Zeroes) -> Reply<()> {
        self.reply(move |volume| async move {
            volume.write_zeroes(offset, len_bytes.into(), !zeroes.no_hole, zeroes.fast).await?;
            if zeroes.fua { volume.flush().await } else { Ok(()) }
        })
    }

    fn cache(&self, offset: u64, len_bytes: u32) -> Reply<()> {
        // The bytes stay in the cache below and are not sent to the client.
        self.reply(move |volume| async move {
            let end = offset + u64::from(len_bytes.min(CACHE_BYTES_MAX));
            // The bytes occupy memory only in transit, so they are read in parts.
            let part_bytes = u64::from(READ_AHEAD_BYTES);
            for at in (offset..end).step_by(READ_AHEAD_BYTES as usize) {
                volume.read(at, part_bytes.min(end - at)).await?;
            }
            Ok(())
        })
    }

    fn block_status(
        &self,
        context: &Context,
        offset: u64,
        len_bytes: u32,
        _is_one: bool,
    ) -> Reply<Vec<Extent>> {
        let (context, attached) = (context.clone(), Arc::clone(&self.attached));
        self.reply(move |volume| async move {
            match context {
                Context::Allocation => {
                    let len_bytes = u64::from(len_bytes).min(EXTENT_OBJECTS_MAX * volume.object_bytes());
                    let extents = volume.extents(offset, len_bytes).await?;
                    Ok(extents.iter().map(|extent| allocation(extent.kind, extent.length)).collect())
                }
                Context::ChangedSince(snapshot) => {
                    let _alone = attached.comparing.lock().await;
                    let len_bytes = u64::from(len_bytes);
                    let changes = volume.changed_extents_in(Some(&snapshot), offset, len_bytes).await?;
                    Ok(dirty(&changes, offset, len_bytes))
                }
            }
        })
    }
}

fn allocation(kind: ExtentKind, len_bytes: u64) -> Extent {
    let flags = match kind {
        ExtentKind::Data => 0,
        ExtentKind::Zero => state::ZERO,
        ExtentKind::Hole => state::HOLE | state::ZERO,
    };
    Extent { len_bytes, flags }
}

/// Splits the range at `offset` into changed and unchanged extents. `changes` are in order and do
/// not overlap.
fn dirty(changes: &[Change], offset: u64, len_bytes: u64) -> Vec<Extent> {
    let end = offset + len_bytes;
    let mut extents = Vec::new();
    let mut at = offset;
    for change in changes {
        let (from, to) = (change.offset.clamp(at, end), (change.offset + change.length).clamp(at, end));
        if from < to {
            extents.push(Extent { len_bytes: from - at, flags: 0 });
            extents.push(Extent { len_bytes: to - from, flags: state::DIRTY });
            at = to;
        }
    }
    extents.push(Extent { len_bytes: end - at, flags: 0 });
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_cut_to_the_range_and_what_is_between_has_not_changed() {
        let change = |offset, length| Change { offset, length, is_data: true };
        let changes = [change(0, 10), change(20, 10), change(50, 10)];
        let states = |offset, len_bytes| {
            let extents = dirty(&changes, offset, len_bytes);
            let states = extents.iter().filter(|extent| extent.len_bytes > 0);
            states.map(|extent| (extent.len_bytes, extent.flags)).collect::<Vec<_>>()
        };
        assert_eq!(states(0, 100), [(10, 1), (10, 0), (10, 1), (20, 0), (10, 1), (40, 0)]);
        assert_eq!(states(5, 20), [(5, 1), (10, 0), (5, 1)]);
        assert_eq!(states(22, 3), [(3, 1)]);
        assert_eq!(states(30, 20), [(20, 0)]);
    }
}
