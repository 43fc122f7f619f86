//! `warm`: reads objects through a server's cache, so that later reads of them are hits.
//!
//! The storage contract has no request that loads data without returning them, so the data are
//! transferred to this process, in ranges and with low priority, and dropped.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blocker::executor::{block_on, block_on_for};
use blocker::{
    Blocker, BlockerExt, Entries, Error, Hints, Namespace, ObjectId, Priority, ReadReply, ReadRequest, Result,
};
use clap::Args;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use volumes::{Options, Volumes};

use crate::command::volume::{Source, shown_size};
use crate::command::{Context, size, within};
use crate::output::{About, Failure, Interrupt, Progress};

/// The maximum length of a read. It is long enough to keep a store busy, and short enough for the
/// limits of a server's sessions.
const STEP_BYTES: u64 = 1 << 20;

/// The number of failed reads after which the command gives up.
const FAILURES_MAX: u64 = 100;

/// The time span whose unused bytes may be read later, in addition to the bytes of that later time.
const UNUSED_MAX: Duration = Duration::from_secs(1);

/// The interval at which a waiting command looks for a signal.
const TICK: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct Warm {
    /// Read only objects of the namespace whose names begin with this prefix.
    #[arg(default_value = "")]
    prefix: String,
    /// Read the objects of a volume, or of a snapshot, including those that it shares with others.
    #[arg(long, value_name = "VOLUME[@SNAPSHOT]", conflicts_with = "prefix")]
    volume: Option<Source>,
    /// The prefix of the names of the volumes' namespaces: `prefix` in [volumes] of the server's
    /// configuration.
    #[arg(long, value_name = "NAME", default_value = "volumes")]
    volume_prefix: String,
    /// The maximum number of reads in flight.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=256))]
    concurrency: u64,
    /// The maximum number of bytes read per second, for example 100MiB.
    #[arg(long, value_name = "SIZE", value_parser = within(size, 1..=u64::MAX))]
    rate: Option<u64>,
}

impl Warm {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let state = |namespace: &Namespace| {
            block_on(context.opened.backend.control().namespace_state(namespace.clone()))
        };
        if let Err(Error::Unsupported(_)) = state(context.namespace) {
            let text =
                "the backend has no cache; name a server that has one, for example -b synapse:HOST:PORT";
            return Err(Failure::usage(text));
        }
        let interrupt = Interrupt::watch()?;
        let mut queue = self.queue(context)?;
        let began = Instant::now();
        let mut done = Done::default();
        let read = self.read_all(context, &mut queue, &mut done, &interrupt);
        let (objects, bytes, took) = (done.objects, done.bytes, began.elapsed());
        let text = format!("{objects} objects, {} read in {:.1} s", shown_size(bytes), took.as_secs_f64());
        read.map_err(|failure| failure.leaves(&text))?;
        if let Some((object, error)) = &done.first_failure {
            let left = format!("{} ranges could not be read; {text}", done.failures);
            return Err(Failure::backend(object, error).leaves(left));
        }
        let cached = queue.namespaces.iter().filter_map(|namespace| {
            let counts = state(namespace).ok()?.counts;
            counts.into_iter().find(|(name, _)| name == "cached_bytes").map(|(_, bytes)| bytes)
        });
        let (cached, removed) = (cached.sum::<u64>(), done.removed);
        let of = if queue.namespaces.len() > 1 { "namespaces" } else { "namespace" };
        let text = format!("{text}; the cache has {} of the {of}", shown_size(cached));
        let value = json!({
            "objects": objects, "bytes": bytes, "seconds": took.as_secs_f64(), "removed_meanwhile": removed,
            "cached_bytes": cached,
        });
        context.output.write(text, &value)
    }

    /// Returns the objects to read.
    fn queue<'a>(&self, context: &'a Context<'_>) -> Result<Queue<'a>, Failure> {
        let backend = &context.opened.backend;
        let mut queue = Queue::default();
        match &self.volume {
            Some(Source { volume, snapshot }) => {
                let volumes =
                    Volumes::new(Arc::clone(backend), Options::new(&self.volume_prefix)).about("")?;
                let objects = block_on(volumes.objects(volume, snapshot.as_deref())).about(volume)?;
                queue.total = Some(objects.len());
                objects.into_iter().for_each(|object| queue.add(object));
            }
            None => {
                let namespace = context.namespace.clone();
                let entries = backend.entries(namespace.clone(), self.prefix.as_bytes().to_vec());
                queue.namespaces.insert(namespace.clone());
                queue.listing = Some((namespace, entries));
            }
        }
        Ok(queue)
    }

    fn read_all(
        &self,
        context: &Context<'_>,
        queue: &mut Queue<'_>,
        done: &mut Done,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let step = STEP_BYTES.min(context.opened.backend.capabilities().request_bytes_max);
        let (began, mut progress) = (Instant::now(), Progress::new(None));
        let mut in_flight = FuturesUnordered::new();
        let mut has_more = true;
        // Returns the time that these bytes take at the requested rate.
        let time = |bytes: u64| {
            self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate as f64))
        };
        // The time by which the completed reads would have ended at the requested rate.
        let mut paced = began;
        loop {
            let now = Instant::now();
            paced = paced.max(now.checked_sub(UNUSED_MAX).unwrap_or(now));
            // The time for which the next read must wait to keep the rate. Reads in flight count as
            // if they were complete, so that many of them do not form a burst.
            let wait = loop {
                let due = paced + time(step * in_flight.len() as u64);
                let wait = due.saturating_duration_since(now);
                if !has_more || !wait.is_zero() || in_flight.len() >= self.concurrency as usize {
                    break wait;
                }
                match queue.next(step)? {
                    Some((object, offset)) => {
                        in_flight.push(read(Arc::clone(&context.opened.backend), object, offset, step));
                    }
                    None => has_more = false,
                }
            };
            let pause = if wait.is_zero() { TICK } else { wait.min(TICK) };
            if in_flight.is_empty() {
                if !has_more {
                    return Ok(());
                }
                interrupt.sleep(pause)?;
                continue;
            }
            interrupt.check()?;
            let Some(Some((object, offset, reply))) = block_on_for(in_flight.next(), pause) else { continue };
            paced += time(reply.as_ref().map_or(0, |reply| reply.data.len_bytes() as u64));
            if let Some(rest) = done.note(object, offset, reply, step) {
                queue.pieces.push_front(rest);
                has_more = true;
            }
            if done.failures >= FAILURES_MAX {
                return Ok(());
            }
            progress.write(|| {
                let total = queue.total.map_or_else(String::new, |total| format!(" of {total}"));
                let rate = (done.bytes as f64 / began.elapsed().as_secs_f64()) as u64;
                let (bytes, rate) = (shown_size(done.bytes), shown_size(rate));
                format!("{}{total} objects  {bytes}  {rate}/s", done.objects)
            });
        }
    }
}

async fn read(
    backend: Arc<dyn Blocker>,
    object: ObjectId,
    offset: u64,
    length: u64,
) -> (ObjectId, u64, Result<ReadReply>) {
    // The read is not marked as sequential: the cache would read ahead the same data, and long
    // sequential reads may bypass it.
    let request =
        ReadRequest::new(object.clone(), offset, length).hints(Hints::RANDOM).priority(Priority::Low);
    (object, offset, backend.read(request).await)
}

/// A range of an object that is to be read.
struct Piece {
    object: ObjectId,
    offset: u64,
    end: u64,
}

/// The objects that are still to be read.
#[derive(Default)]
struct Queue<'a> {
    pieces: VecDeque<Piece>,
    /// The namespace whose objects are listed, and the rest of the list.
    listing: Option<(Namespace, Entries<'a, Arc<dyn Blocker>>)>,
    /// The number of objects, if it is known.
    total: Option<usize>,
    namespaces: BTreeSet<Namespace>,
}

impl Queue<'_> {
    /// Adds an object, whose size the first reply states.
    fn add(&mut self, object: ObjectId) {
        if !self.namespaces.contains(&object.namespace) {
            self.namespaces.insert(object.namespace.clone());
        }
        self.pieces.push_back(Piece { object, offset: 0, end: 1 });
    }

    /// Takes the next range of at most `step` bytes: its object and offset.
    fn next(&mut self, step: u64) -> Result<Option<(ObjectId, u64)>, Failure> {
        loop {
            if let Some(mut piece) = self.pieces.pop_front() {
                let next = (piece.object.clone(), piece.offset);
                piece.offset = piece.offset.saturating_add(step);
                if piece.offset < piece.end {
                    self.pieces.push_front(piece);
                }
                return Ok(Some(next));
            }
            let Some((namespace, entries)) = &mut self.listing else { return Ok(None) };
            let Some(entry) = block_on(entries.next()) else { return Ok(None) };
            let object = ObjectId::new(namespace.clone(), entry.about(&*namespace)?.name);
            self.add(object);
        }
    }
}

/// The results so far.
#[derive(Default)]
struct Done {
    objects: u64,
    bytes: u64,
    /// Objects that were removed after they were listed.
    removed: u64,
    failures: u64,
    first_failure: Option<(ObjectId, Error)>,
}

impl Done {
    /// Counts a reply. Returns the rest of an object of which the first range was read.
    fn note(&mut self, object: ObjectId, offset: u64, reply: Result<ReadReply>, step: u64) -> Option<Piece> {
        match reply {
            Ok(reply) => {
                self.bytes += reply.data.len_bytes() as u64;
                self.objects += u64::from(offset == 0);
                let end = reply.size_bytes;
                (offset == 0 && end > step).then_some(Piece { object, offset: step, end })
            }
            Err(Error::Missing) => {
                self.removed += u64::from(offset == 0);
                None
            }
            Err(error) => {
                self.failures += 1;
                self.first_failure.get_or_insert((object, error));
                None
            }
        }
    }
}
