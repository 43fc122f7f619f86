//! Slow requests: the most recent ones, and a log line for each, at most ten a second. It also has
//! a layer over the object store that records slow requests to the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use blocker::{
    Blocker, Change, ChangeReply, ChangeRequest, Info, InfoRequest, ObjectId, ReadReply, ReadRequest, Reply,
    Run,
};
use parking_lot::Mutex;
use serde::Serialize;

use crate::routes::{Request, Response};

/// The maximum number of requests that are kept.
const KEPT_MAX: usize = 512;
/// The maximum number of lines that are logged per second.
const LINES_PER_SECOND: u32 = 10;

/// Returns a duration in whole microseconds.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn millis(duration: Duration) -> u64 {
    micros(duration) / 1000
}

/// A request that took longer than the threshold.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlowRequest {
    /// The time at which the request ended, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The origin of the request: `memcached`, or `store` for a request that the object cache sends
    /// to its store.
    pub listener: &'static str,
    /// The client's address, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The command or operation, or the activity of the worker.
    pub command: &'static str,
    /// The object. The keys of memcached's protocols are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The number of bytes requested or sent, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The duration of the request in microseconds; for memcached's protocols, accurate to 50 ms.
    pub total_us: u64,
    /// The time spent in the object store, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_us: Option<u64>,
}

/// The most recent slow requests.
#[derive(Debug)]
pub struct SlowLog {
    /// The threshold in milliseconds, which can change; 0 records nothing.
    threshold_ms: AtomicU64,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    requests: VecDeque<SlowRequest>,
    count: u64,
    /// The second in which lines are being counted, and the number of lines in that second.
    second: u64,
    lines: u32,
    /// The number of suppressed lines since the last line that was logged.
    unlogged: u64,
}

/// The slow requests that are kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlowReport {
    /// The duration from which a request counts as slow; 0 if no requests are recorded.
    pub threshold_ms: u64,
    /// The number of slow requests since startup.
    pub count: u64,
    /// The last 512 slow requests, the latest first.
    pub requests: Vec<SlowRequest>,
}

impl SlowReport {
    /// Returns the document `/slow.json`. Names are data of clients: without a token, they are not
    /// shown.
    #[must_use]
    pub fn response(mut self, request: &Request) -> Response {
        if !request.has_token {
            self.requests.iter_mut().for_each(|slow| slow.key = None);
        }
        Response::json(&self)
    }

    /// Adds the requests of another log, and keeps the latest.
    pub fn append(&mut self, other: SlowReport) {
        self.count += other.count;
        self.requests.extend(other.requests);
        self.requests.sort_by_key(|request| std::cmp::Reverse(request.unix_ms));
        self.requests.truncate(KEPT_MAX);
    }
}

impl SlowLog {
    /// Returns an empty log of requests that take `threshold` or longer; 0 records nothing.
    #[must_use]
    pub fn new(threshold: Duration) -> SlowLog {
        let kept = Kept { requests: VecDeque::new(), count: 0, second: 0, lines: 0, unlogged: 0 };
        let log = SlowLog { threshold_ms: AtomicU64::new(0), kept: Mutex::new(kept) };
        log.set_threshold(threshold);
        log
    }

    /// Returns the duration from which a request counts as slow; `None` if no requests are
    /// recorded.
    #[must_use]
    pub fn threshold(&self) -> Option<Duration> {
        Some(self.threshold_ms.load(Ordering::Relaxed)).filter(|ms| *ms > 0).map(Duration::from_millis)
    }

    /// Changes the duration from which a request counts as slow, with a resolution of one
    /// millisecond; 0 records nothing.
    pub fn set_threshold(&self, threshold: Duration) {
        let millis = u64::try_from(threshold.as_millis()).unwrap_or(u64::MAX);
        self.threshold_ms.store(millis, Ordering::Relaxed);
    }

    /// Records a request that has just ended, if it was slow.
    pub fn record(&self, took: Duration, request: impl FnOnce() -> SlowRequest) {
        if self.threshold().is_some_and(|threshold| took >= threshold) {
            let mut request = request();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            (request.unix_ms, request.total_us) = (millis(now), micros(took));
            self.keep(request, now.as_secs());
        }
    }

    fn keep(&self, request: SlowRequest, second: u64) {
        let mut kept = self.kept.lock();
        kept.count += 1;
        if kept.second != second {
            (kept.second, kept.lines) = (second, 0);
        }
        let unlogged = (kept.lines < LINES_PER_SECOND).then(|| std::mem::take(&mut kept.unlogged));
        match unlogged {
            Some(_) => kept.lines += 1,
            None => kept.unlogged += 1,
        }
        if kept.requests.len() == KEPT_MAX {
            kept.requests.pop_back();
        }
        kept.requests.push_front(request.clone());
        drop(kept);
        if let Some(unlogged) = unlogged {
            let SlowRequest { listener, command, client, key, bytes, total_us, .. } = request;
            let (client, key) = (client.unwrap_or_default(), key.unwrap_or_default());
            let millis = total_us / 1000;
            tracing::warn!(
                listener,
                client,
                key,
                bytes,
                unlogged,
                "slow request: {command} took {millis} ms"
            );
        }
    }

    /// Returns the recorded requests, the latest first.
    #[must_use]
    pub fn report(&self) -> SlowReport {
        let kept = self.kept.lock();
        SlowReport {
            threshold_ms: millis(self.threshold().unwrap_or_default()),
            count: kept.count,
            requests: kept.requests.iter().cloned().collect(),
        }
    }
}

/// Records slow requests to the store below. Requests that concern no object are only forwarded.
pub struct SlowStore {
    below: Arc<dyn Blocker>,
    log: Arc<SlowLog>,
}

impl SlowStore {
    /// Returns a layer over `below` that records in `log`.
    #[must_use]
    pub fn new(below: Arc<dyn Blocker>, log: Arc<SlowLog>) -> SlowStore {
        SlowStore { below, log }
    }

    /// Measures the time until the reply. An immediate reply is not slow.
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

/// Returns the object under which a change is recorded (for a copy, its source), and the number of
/// bytes that the change writes.
fn described(request: &ChangeRequest) -> (ObjectId, Option<u64>) {
    let bytes = match &request.change {
        Change::Write { data, .. } | Change::CompareAndWrite { data, .. } | Change::WriteFull { data } => {
            Some(data.len_bytes() as u64)
        }
        Change::WriteZeroes { len_bytes, .. } | Change::Discard { len_bytes, .. } => Some(*len_bytes),
        Change::WriteRuns { runs } => Some(runs.iter().map(Run::len_bytes).sum()),
        Change::Copy { from, .. } => return (from.clone(), None),
        Change::Truncate { .. } | Change::Delete => None,
    };
    (request.object.clone(), bytes)
}

impl Blocker for SlowStore {
    blocker::delegate!(|this| *this.below, except read change info);

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        let (object, bytes) = (request.object.clone(), Some(request.len_bytes));
        self.watch("read", &object, bytes, |below| below.read(request))
    }

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        let (object, bytes) = described(&request);
        self.watch(request.change.name(), &object, bytes, |below| below.change(request))
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        let object = request.object.clone();
        self.watch("info", &object, None, |below| below.info(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(command: &'static str) -> SlowRequest {
        SlowRequest {
            unix_ms: 0,
            listener: "store",
            client: None,
            command,
            key: None,
            bytes: None,
            total_us: 0,
            store_us: None,
        }
    }

    #[test]
    fn the_last_slow_requests_are_kept_latest_first() {
        let log = SlowLog::new(Duration::from_millis(100));
        log.record(Duration::from_millis(99), || request("fast"));
        for _ in 0..KEPT_MAX {
            log.record(Duration::from_millis(100), || request("old"));
        }
        log.record(Duration::from_secs(2), || request("new"));
        let report = log.report();
        assert_eq!((report.count, report.requests.len(), report.threshold_ms), (513, KEPT_MAX, 100));
        assert_eq!((report.requests[0].command, report.requests[0].total_us), ("new", 2_000_000));
        assert!(report.requests[1..].iter().all(|request| request.command == "old"));
        let off = SlowLog::new(Duration::ZERO);
        off.record(Duration::from_secs(1000), || request("any"));
        assert_eq!((off.report().count, off.threshold()), (0, None));
        off.set_threshold(Duration::from_secs(1000));
        off.record(Duration::from_secs(1000), || request("any"));
        assert_eq!(off.report().count, 1);
    }

    #[test]
    fn at_most_ten_lines_are_logged_in_a_second() {
        let log = SlowLog::new(Duration::from_millis(1));
        (0..25).for_each(|_| log.keep(request("r"), 7));
        let counts = || {
            let kept = log.kept.lock();
            (kept.lines, kept.unlogged)
        };
        assert_eq!(counts(), (10, 15));
        log.keep(request("r"), 8);
        assert_eq!(counts(), (1, 0));
    }
}

#[cfg(test)]
mod slow_store_tests {
    use super::*;
    use blocker::executor::block_on;
    use blocker::{BlockerExt, Memory};
    use std::time::Duration;

    /// Delays reads, and executes everything else immediately.
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
