//! A layer over the store of objects that records requests which take long.

use blocker::{
    Blocker, ChangeReply, CompareAndWriteRequest, CopyRequest, DeleteReply, DeleteRequest, DiscardRequest,
    Info, InfoRequest, ObjectId, ReadReply, ReadRequest, Reply, TruncateRequest, WriteFullRequest,
    WriteRequest, WriteRunsRequest, WriteZeroesRequest,
};
use std::sync::Arc;
use std::time::Instant;

use super::slow::{SlowLog, SlowRequest, micros};

/// Records slow requests to the store below. Those that concern no object are forwarded only.
pub struct SlowStore {
    below: Arc<dyn Blocker>,
    log: Arc<SlowLog>,
}

impl SlowStore {
    /// Returns the layer over `below`, which records in `log`.
    #[must_use]
    pub fn new(below: Arc<dyn Blocker>, log: Arc<SlowLog>) -> SlowStore {
        SlowStore { below, log }
    }

    /// Measures until the reply is there. One that is there at once is not slow.
    fn watch<T: Send + 'static>(
        &self,
        operation: &'static str,
        object: &ObjectId,
        bytes: Option<u64>,
        ask: impl FnOnce(&dyn Blocker) -> Reply<T>,
    ) -> Reply<T> {
        if self.log.threshold().is_none() {
            return ask(&*self.below);
        }
        let (begun, object) = (Instant::now(), object.clone());
        let future = match ask(&*self.below) {
            Reply::Ready(answer) => return Reply::Ready(answer),
            Reply::Pending(future) => future,
        };
        let log = self.log.clone();
        Reply::pending(async move {
            let answer = future.await;
            let took = begun.elapsed();
            log.record(took, || SlowRequest {
                unix_ms: 0,
                listener: "store",
                client: None,
                command: operation,
                key: Some(object.to_string()),
                bytes,
                total_us: 0,
                store_us: Some(micros(took)),
            });
            answer
        })
    }
}

impl std::fmt::Debug for SlowStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlowStore").field("log", &self.log).finish_non_exhaustive()
    }
}

/// Writes the operations that are watched: each with its name, its request and reply, and how many bytes it
/// asks for or sends.
macro_rules! watched {
    ($($name:ident($request:ident: $type:ty) -> $reply:ty, $object:ident, $bytes:expr;)*) => {$(
        fn $name(&self, $request: $type) -> Reply<$reply> {
            let (object, bytes) = ($request.$object.clone(), $bytes);
            self.watch(stringify!($name), &object, bytes, |below| below.$name($request))
        }
    )*};
}

impl Blocker for SlowStore {
    blocker::delegate!(|this| *this.below, except read write write_zeroes write_runs discard compare_and_write
        write_full truncate delete copy info);

    watched! {
        read(request: ReadRequest) -> ReadReply, object, Some(request.len_bytes);
        write(request: WriteRequest) -> ChangeReply, object, Some(request.data.len_bytes() as u64);
        write_zeroes(request: WriteZeroesRequest) -> ChangeReply, object, Some(request.len_bytes);
        write_runs(request: WriteRunsRequest) -> ChangeReply, object,
            Some(request.runs.iter().map(blocker::Run::len_bytes).sum());
        discard(request: DiscardRequest) -> ChangeReply, object, Some(request.len_bytes);
        compare_and_write(request: CompareAndWriteRequest) -> ChangeReply, object,
            Some(request.data.len_bytes() as u64);
        write_full(request: WriteFullRequest) -> ChangeReply, object, Some(request.data.len_bytes() as u64);
        truncate(request: TruncateRequest) -> ChangeReply, object, None;
        delete(request: DeleteRequest) -> DeleteReply, object, None;
        copy(request: CopyRequest) -> ChangeReply, from, None;
        info(request: InfoRequest) -> Info, object, None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::executor::block_on;
    use blocker::{BlockerExt, Memory};
    use std::time::Duration;

    /// Answers reads only after a while, and all else at once.
    struct Late(Memory);

    impl Blocker for Late {
        blocker::delegate!(|this| this.0, except read);

        fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
            let reply = self.0.read(request);
            Reply::pending(async move {
                std::thread::sleep(Duration::from_millis(2));
                reply.await
            })
        }
    }

    #[test]
    fn requests_that_take_long_are_recorded_with_their_object() {
        for (threshold, count) in [(Duration::from_millis(1), 1), (Duration::from_secs(3600), 0)] {
            let log = Arc::new(SlowLog::new(threshold));
            let store = SlowStore::new(Arc::new(Late(Memory::default())), log.clone());
            let disk: ObjectId = "vm/disk.0".parse().unwrap();
            block_on(store.put(&disk, b"hello")).unwrap();
            let read = block_on(store.read(ReadRequest::new(disk, 0, 5))).unwrap();
            assert_eq!(read.data.to_vec(), b"hello");
            let report = log.report();
            assert_eq!(report.count, count);
            if let [slow] = &report.requests[..] {
                assert_eq!((slow.listener, slow.command), ("store", "read"));
                assert_eq!((slow.key.as_deref(), slow.bytes), (Some("vm/disk.0"), Some(5)));
                assert!(slow.total_us >= 2000 && slow.store_us == Some(slow.total_us));
            }
        }
    }
}
