//! A backend: objects in a map, as small as the contract allows. It has no fencing, conditions or
//! compare-and-write, and its capabilities say so. The conformance suite checks the rest. Run it
//! with `cargo run -p cached-blocker --example backend`.

use std::collections::BTreeMap;
use std::sync::Arc;

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
    /// Makes one change in one critical section.
    fn make(&self, request: &ChangeRequest) -> Result<ChangeReply> {
        let ChangeRequest { object, change, terms, call, .. } = request;
        call.check(&SystemClock)?;
        if terms.stamp.is_some() || terms.condition != Condition::None {
            return Err(Error::Unsupported("no stamps and no conditions here".into()));
        }
        change.check_end(OBJECT_BYTES_MAX_DEFAULT)?;
        let mut objects = self.objects.lock();
        let content =
            |object: &ObjectId| objects.get(object).map(|(_, data)| data.clone()).ok_or(Error::Missing);
        let old = content(object);
        let new = match change {
            Change::Write { offset, data } => patched(old, *offset, &data.to_vec()),
            Change::WriteZeroes { offset, len_bytes } => patched(old, *offset, &vec![0; *len_bytes as usize]),
            Change::Discard { offset, len_bytes } => {
                let mut data = old?;
                let size = data.len() as u64;
                let end = offset.saturating_add(*len_bytes).min(size);
                data[(*offset).min(size) as usize..end as usize].fill(0);
                data
            }
            Change::WriteFull { data } => data.to_vec(),
            Change::Truncate { size_bytes } => {
                let mut data = old?;
                data.resize(*size_bytes as usize, 0);
                data
            }
            Change::Delete => {
                old?;
                objects.remove(object);
                return Ok(ChangeReply::removed(Durability::Stored));
            }
            Change::Copy { from, from_condition: Condition::None } => content(from)?,
            Change::Copy { .. } => return Err(Error::Unsupported("no conditions here".into())),
            Change::CompareAndWrite { .. } => {
                return Err(Error::Unsupported("no compare-and-write here".into()));
            }
            Change::WriteRuns { .. } => {
                return Err(Error::Unsupported("one range in one change here".into()));
            }
        };
        let version = Version(1 + self.last_version.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let size_bytes = new.len() as u64;
        objects.insert(object.clone(), (version, new));
        Ok(ChangeReply::new(version, size_bytes, Durability::Stored))
    }

    fn get<T>(&self, object: &ObjectId, call: Call, read: impl FnOnce(Version, &[u8]) -> T) -> Result<T> {
        call.check(&SystemClock)?;
        self.objects.lock().get(object).map(|(version, data)| read(*version, data)).ok_or(Error::Missing)
    }
}

/// Returns the content, or none if there is no object, with `bytes` at `offset`; the content
/// becomes longer if necessary.
fn patched(old: Result<Vec<u8>>, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let (offset, mut data) = (offset as usize, old.unwrap_or_default());
    if !bytes.is_empty() {
        let end = offset + bytes.len();
        data.resize(data.len().max(end), 0);
        data[offset..end].copy_from_slice(bytes);
    }
    data
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

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        self.make(&request).into()
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        let info = |version, data: &[u8]| Info::new(data.len() as u64, version, None);
        self.get(&request.object, request.call, info).into()
    }

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        let ListRequest { namespace, prefix, after, entries_max, call, .. } = request;
        if let Err(error) = call.check(&SystemClock) {
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
        request.call.check(&SystemClock).map(|()| FlushReply::new(Durability::Stored)).into()
    }

    fn claim(&self, _: ClaimRequest) -> Reply<ClaimReply> {
        Reply::err(Error::Unsupported("no fencing here".into()))
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        let checked = request.call.check(&SystemClock);
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
