//! A backend: objects in a map, as small as the contract allows. It has no fencing, conditions or
//! compare-and-write, and its capabilities say so. The conformance suite checks the rest. Run it
//! with `cargo run -p cached-blocker --example backend`.

use std::collections::BTreeMap;
use std::sync::Arc;

use blocker::admission::range_end;
use blocker::conformance::{Options, Plain, run};
use blocker::*;
use parking_lot::Mutex;

#[derive(Default)]
struct Map {
    objects: Mutex<BTreeMap<ObjectId, (Version, Vec<u8>)>>,
    last_version: std::sync::atomic::AtomicU64,
    events: EventHub,
}

impl Map {
    /// Makes one change in a critical section. `change` gets the old content and returns the new
    /// one; `None` means no object.
    fn change(
        &self,
        object: ObjectId,
        terms: Change,
        call: Call,
        change: impl FnOnce(Option<Vec<u8>>) -> Result<Option<Vec<u8>>>,
    ) -> Reply<ChangeReply> {
        let apply = || {
            check_call(call)?;
            if terms.stamp.is_some() || terms.condition != Condition::None {
                return Err(Error::Unsupported("no stamps and no conditions here".into()));
            }
            let mut objects = self.objects.lock();
            let old = objects.get(&object).map(|(_, data)| data.clone());
            let new = change(old)?;
            let version = Version(1 + self.last_version.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            let size_bytes = new.as_ref().map_or(0, |data| data.len() as u64);
            match new {
                Some(data) => objects.insert(object, (version, data)),
                None => objects.remove(&object),
            };
            Ok(ChangeReply::new(version, size_bytes, Durability::Stored))
        };
        apply().into()
    }

    fn get<T>(&self, object: &ObjectId, call: Call, read: impl FnOnce(Version, &[u8]) -> T) -> Result<T> {
        check_call(call)?;
        self.objects.lock().get(object).map(|(version, data)| read(*version, data)).ok_or(Error::Missing)
    }
}

fn check_call(call: Call) -> Result<()> {
    if call.deadline.is_some_and(|deadline| SystemClock.now() >= deadline) {
        return Err(Error::DeadlinePassed);
    }
    Ok(())
}

/// Returns the content with `bytes` at `offset`, extended if necessary.
fn patched(old: Option<Vec<u8>>, offset: u64, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let end = range_end(offset, bytes.len() as u64, OBJECT_BYTES_MAX_DEFAULT)? as usize;
    let mut data = old.unwrap_or_default();
    if !bytes.is_empty() {
        data.resize(data.len().max(end), 0);
        data[offset as usize..end].copy_from_slice(bytes);
    }
    Ok(Some(data))
}

impl Blocker for Map {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full(OBJECT_BYTES_MAX_DEFAULT);
        (can.compare_bytes_max, can.conditions, can.fencing, can.tombstones) = (0, false, false, false);
        can
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        let ReadRequest { object, offset, len_bytes, condition, call, .. } = request;
        if condition != Condition::None {
            return Reply::err(Error::Unsupported("no conditions here".into()));
        }
        if len_bytes > self.capabilities().request_bytes_max {
            return Reply::err(Error::TooLarge { limit_bytes: self.capabilities().request_bytes_max });
        }
        let read = self.get(&object, call, |version, data| {
            let size = data.len() as u64;
            let range = offset.min(size) as usize..offset.saturating_add(len_bytes).min(size) as usize;
            ReadReply::new(data[range].to_vec().into(), size, version)
        });
        read.into()
    }

    fn write(&self, request: WriteRequest) -> Reply<ChangeReply> {
        let WriteRequest { object, offset, data, change, call, .. } = request;
        self.change(object, change, call, |old| patched(old, offset, &data.to_vec()))
    }

    fn write_zeroes(&self, request: WriteZeroesRequest) -> Reply<ChangeReply> {
        let WriteZeroesRequest { object, offset, len_bytes, change, call, .. } = request;
        if let Err(error) = range_end(offset, len_bytes, OBJECT_BYTES_MAX_DEFAULT) {
            return Reply::err(error);
        }
        self.change(object, change, call, |old| patched(old, offset, &vec![0; len_bytes as usize]))
    }

    fn discard(&self, request: DiscardRequest) -> Reply<ChangeReply> {
        let DiscardRequest { object, offset, len_bytes, change, call, .. } = request;
        self.change(object, change, call, |old| {
            let mut data = old.ok_or(Error::Missing)?;
            let size = data.len() as u64;
            data[offset.min(size) as usize..offset.saturating_add(len_bytes).min(size) as usize].fill(0);
            Ok(Some(data))
        })
    }

    fn compare_and_write(&self, _: CompareAndWriteRequest) -> Reply<ChangeReply> {
        Reply::err(Error::Unsupported("no compare-and-write here".into()))
    }

    fn write_full(&self, request: WriteFullRequest) -> Reply<ChangeReply> {
        let WriteFullRequest { object, data, change, call, .. } = request;
        self.change(object, change, call, |_| patched(None, 0, &data.to_vec()))
    }

    fn truncate(&self, request: TruncateRequest) -> Reply<ChangeReply> {
        let TruncateRequest { object, size_bytes, change, call, .. } = request;
        self.change(object, change, call, |old| {
            let mut data = old.ok_or(Error::Missing)?;
            data.resize(range_end(0, size_bytes, OBJECT_BYTES_MAX_DEFAULT)? as usize, 0);
            Ok(Some(data))
        })
    }

    fn delete(&self, request: DeleteRequest) -> Reply<DeleteReply> {
        let DeleteRequest { object, change, call, .. } = request;
        let removed = self.change(object, change, call, |old| old.map(|_| None).ok_or(Error::Missing));
        removed.then(|answer| answer.map(|reply| DeleteReply::new(reply.durability)))
    }

    fn copy(&self, request: CopyRequest) -> Reply<ChangeReply> {
        let CopyRequest { from, from_condition, to, change, call, .. } = request;
        if from_condition != Condition::None {
            return Reply::err(Error::Unsupported("no conditions here".into()));
        }
        match self.get(&from, call, |_, data| data.to_vec()) {
            Ok(data) => self.change(to, change, call, |_| Ok(Some(data))),
            Err(error) => Reply::err(error),
        }
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        let info = |version, data: &[u8]| Info::new(data.len() as u64, version, None);
        self.get(&request.object, request.call, info).into()
    }

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        let ListRequest { namespace, prefix, after, entries_max, call, .. } = request;
        if let Err(error) = check_call(call) {
            return Reply::err(error);
        }
        let objects = self.objects.lock();
        let mut entries = objects.iter().filter(|(id, _)| {
            let name = &id.name;
            id.namespace == namespace
                && name.as_bytes().starts_with(&prefix)
                && after.as_ref().is_none_or(|after| name > after)
        });
        let page = entries.by_ref().take(entries_max.max(1) as usize);
        let page =
            page.map(|(id, (version, data))| ListEntry::new(id.name.clone(), data.len() as u64, *version));
        let page = page.collect();
        Reply::ok(ListReply::new(page, entries.next().is_some()))
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        check_call(request.call).map(|()| FlushReply::new(Durability::Stored)).into()
    }

    fn claim(&self, _: ClaimRequest) -> Reply<ClaimReply> {
        Reply::err(Error::Unsupported("no fencing here".into()))
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        let checked = check_call(request.call);
        if checked.is_ok() {
            self.events.publish(&Event::Changed(request.scope));
        }
        checked.map(|()| InvalidateReply::new(0)).into()
    }

    fn subscribe(&self) -> Subscription {
        self.events.subscribe()
    }
}

fn main() {
    let report = run(&Plain::new(Arc::new(Map::default())), &Options::default());
    let (passed, skipped, failed) = report.counts();
    report.failures().for_each(|case| println!("{case}"));
    println!("{passed} cases passed, {skipped} skipped, {failed} failed");
    assert_eq!(failed, 0, "the contract is broken");
}
