//! An in-memory server that fails on request: errors, lost responses, late puts, death, ignored
//! conditions. There is also a scheduler that lets tasks and requests overtake each other according
//! to a seed.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use async_trait::async_trait;
use blocker::{Blocker, Clock, ManualClock, Name, Namespace, ObjectId, ReadRequest, Result};
use blocker_s3::object_store::memory::InMemory;
use blocker_s3::object_store::path::Path;
use blocker_s3::object_store::*;
use blocker_s3::{S3Config, S3Store};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

type Outcome<T> = blocker_s3::object_store::Result<T>;

/// The fate of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The request is not executed; the response is an error that does not reveal this.
    Error,
    /// The request is executed, and its response is lost.
    LostAnswer,
    /// The request's response is lost; a put is executed after all other requests.
    Late,
    /// The request is executed, and its caller receives the response at its next poll.
    Slow,
    /// Neither this request nor any later one arrives.
    DeadBefore,
    /// The request is executed, and from then on no request gets a response.
    DeadAfter,
    /// The request never gets a response; a put is executed after all other requests.
    Stall,
}

/// A rule that a server violates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quirk {
    None,
    IgnoresIfNoneMatch,
    IgnoresIfMatch,
    /// Compares ETags without their quotes, like old versions of radosgw.
    BareEtags,
    /// Refuses every put with `If-Match`.
    RefusesIfMatch,
    NamesNoEtag,
    IgnoresRanges,
    /// Never lists an object.
    ListsNothing,
}

/// One request as the server received it.
#[derive(Clone, Debug)]
pub(crate) struct Met {
    pub(crate) kind: &'static str,
    pub(crate) path: String,
    pub(crate) sent_bytes: usize,
}

struct Plan {
    faults: Vec<(usize, Fault)>,
    /// How many of a thousand requests fail with a fault.
    permille: u32,
    is_dead: bool,
    rng: SmallRng,
    /// The maximum number of times that a request yields to others.
    yields_max: u32,
    quirk: Quirk,
    met: Vec<Met>,
    late: Vec<(Path, PutPayload, PutOptions)>,
    /// Selects the requests that never get a response; puts among them take effect late.
    stalls: Option<Stalls>,
}

type Stalls = Box<dyn FnMut(&Met) -> bool + Send>;

/// The server.
pub(crate) struct Server {
    pub(crate) inner: InMemory,
    plan: Mutex<Plan>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("server in memory")
    }
}

fn broken() -> Error {
    Error::Generic { store: "test", source: "the connection broke".into() }
}

impl Server {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let plan = Plan {
            faults: Vec::new(),
            permille: 0,
            is_dead: false,
            rng: SmallRng::seed_from_u64(seed),
            yields_max: 0,
            quirk: Quirk::None,
            met: Vec::new(),
            late: Vec::new(),
            stalls: None,
        };
        Arc::new(Self { inner: InMemory::new(), plan: Mutex::new(plan) })
    }

    pub(crate) fn quirk(self: Arc<Self>, quirk: Quirk) -> Arc<Self> {
        self.plan.lock().quirk = quirk;
        self
    }

    /// Makes the request number `at`, counted from now, fail with `fault`.
    pub(crate) fn fail_at(&self, at: usize, fault: Fault) {
        let mut plan = self.plan.lock();
        let at = plan.met.len() + at;
        plan.faults.push((at, fault));
    }

    /// Lets requests overtake each other, and makes some of them fail.
    pub(crate) fn disturb(&self, permille: u32, yields_max: u32) {
        let mut plan = self.plan.lock();
        (plan.permille, plan.yields_max) = (permille, yields_max);
    }

    /// From now on, requests for which `is_it` returns true get no response. Puts among them take
    /// effect late.
    pub(crate) fn stall(&self, is_it: impl FnMut(&Met) -> bool + Send + 'static) {
        self.plan.lock().stalls = Some(Box::new(is_it));
    }

    /// Serves all requests normally from now on. Late puts stay late.
    pub(crate) fn heal(&self) {
        let mut plan = self.plan.lock();
        plan.stalls = None;
        (plan.permille, plan.yields_max, plan.is_dead) = (0, 0, false);
        plan.faults.clear();
    }

    /// Executes the late puts, subject to their conditions.
    pub(crate) fn land(&self) {
        let late = std::mem::take(&mut self.plan.lock().late);
        for (path, payload, options) in late {
            let _ = blocker::executor::block_on(self.inner.put_opts(&path, payload, options));
        }
    }

    /// Returns the requests since the last call.
    pub(crate) fn met(&self) -> Vec<Met> {
        std::mem::take(&mut self.plan.lock().met)
    }

    /// Returns the number of requests met since the last [`Self::met`].
    pub(crate) fn met_count(&self) -> usize {
        self.plan.lock().met.len()
    }

    /// Returns all keys that start with `prefix`.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        let all = blocker::executor::block_on(self.inner.list(None).collect::<Vec<_>>());
        let keys = all.into_iter().map(|meta| meta.unwrap().location.to_string());
        keys.filter(|key| key.starts_with(prefix)).collect()
    }

    async fn meet(&self, kind: &'static str, path: &Path, sent_bytes: usize) -> Outcome<Option<Fault>> {
        let (fault, yields) = {
            let mut plan = self.plan.lock();
            let number = plan.met.len();
            let met = Met { kind, path: path.to_string(), sent_bytes };
            plan.met.push(met.clone());
            if plan.stalls.as_mut().is_some_and(|stalls| stalls(&met)) {
                return Ok(Some(Fault::Stall));
            }
            if plan.is_dead {
                return Err(broken());
            }
            let planned = plan.faults.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault);
            let permille = plan.permille;
            let drawn = (plan.rng.random_range(0..1000) < permille)
                .then(|| [Fault::Error, Fault::LostAnswer, Fault::Late][plan.rng.random_range(0..3)]);
            let yields_max = plan.yields_max;
            (planned.or(drawn), plan.rng.random_range(0..=yields_max))
        };
        for _ in 0..yields {
            yield_now().await;
        }
        match fault {
            Some(Fault::Error) => Err(broken()),
            Some(Fault::Late) if kind != "put" => Err(broken()),
            Some(Fault::DeadBefore) => {
                self.plan.lock().is_dead = true;
                Err(broken())
            }
            fault => Ok(fault),
        }
    }

    async fn answer<T>(&self, fault: Option<Fault>, answer: Outcome<T>) -> Outcome<T> {
        let is_slow = fault == Some(Fault::Slow);
        let yields = {
            let mut plan = self.plan.lock();
            plan.is_dead |= fault == Some(Fault::DeadAfter);
            let yields_max = plan.yields_max;
            plan.rng.random_range(0..=yields_max) + u32::from(is_slow)
        };
        for _ in 0..yields {
            yield_now().await;
        }
        if fault.is_some() && !is_slow { Err(broken()) } else { answer }
    }
}

#[async_trait]
impl ObjectStore for Server {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Outcome<PutResult> {
        let fault = self.meet("put", path, payload.content_length()).await?;
        let quirk = self.plan.lock().quirk;
        let mut options = options;
        options.mode = match (quirk, options.mode) {
            (Quirk::IgnoresIfNoneMatch, PutMode::Create) => PutMode::Overwrite,
            (Quirk::IgnoresIfMatch, PutMode::Update(_)) => PutMode::Overwrite,
            (Quirk::RefusesIfMatch, PutMode::Update(_)) => {
                PutMode::Update(UpdateVersion { e_tag: Some("no".into()), version: None })
            }
            (Quirk::BareEtags, PutMode::Update(mut version)) => {
                version.e_tag = version
                    .e_tag
                    .map(|etag| if etag.starts_with('"') { "never".into() } else { format!("\"{etag}\"") });
                PutMode::Update(version)
            }
            (_, mode) => mode,
        };
        if matches!(fault, Some(Fault::Late | Fault::Stall)) {
            self.plan.lock().late.push((path.clone(), payload, options));
            if fault == Some(Fault::Stall) {
                std::future::pending::<()>().await;
            }
            return Err(broken());
        }
        let mut answer = self.inner.put_opts(path, payload, options).await;
        if let (Quirk::NamesNoEtag, Ok(answer)) = (quirk, &mut answer) {
            answer.e_tag = None;
        }
        self.answer(fault, answer).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Outcome<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Outcome<GetResult> {
        let fault = self.meet("get", path, 0).await?;
        if fault == Some(Fault::Stall) {
            std::future::pending::<()>().await;
        }
        let mut options = options;
        if self.plan.lock().quirk == Quirk::IgnoresRanges {
            options.range = None;
        }
        let answer = self.inner.get_opts(path, options).await;
        self.answer(fault, answer).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Outcome<Path>>) -> BoxStream<'static, Outcome<Path>> {
        let mut plan = self.plan.lock();
        let met = Met { kind: "delete", path: String::new(), sent_bytes: 0 };
        plan.met.push(met.clone());
        if plan.stalls.as_mut().is_some_and(|stalls| stalls(&met)) {
            return futures_util::stream::pending().boxed();
        }
        if plan.is_dead {
            return futures_util::stream::once(async { Err(broken()) }).boxed();
        }
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Outcome<ObjectMeta>> {
        self.listed(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Outcome<ObjectMeta>> {
        self.listed(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Outcome<ListResult> {
        let fault = self.meet("list", prefix.unwrap_or(&Path::default()), 0).await?;
        let answer = self.inner.list_with_delimiter(prefix).await;
        self.answer(fault, answer).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Outcome<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

impl Server {
    fn listed(
        &self,
        listed: BoxStream<'static, Outcome<ObjectMeta>>,
    ) -> BoxStream<'static, Outcome<ObjectMeta>> {
        let mut plan = self.plan.lock();
        let number = plan.met.len();
        plan.met.push(Met { kind: "list", path: String::new(), sent_bytes: 0 });
        let planned = plan.faults.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault);
        plan.is_dead |= matches!(planned, Some(Fault::DeadBefore | Fault::DeadAfter));
        if plan.is_dead || planned.is_some() {
            return futures_util::stream::once(async { Err(broken()) }).boxed();
        }
        if plan.quirk == Quirk::ListsNothing {
            return futures_util::stream::empty().boxed();
        }
        listed
    }
}

/// Yields to other tasks once.
pub(crate) async fn yield_now() {
    let mut is_first = true;
    std::future::poll_fn(|cx| {
        if std::mem::take(&mut is_first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Advances a clock to its next timer, which wakes a sleeper.
fn step(clock: &ManualClock) {
    let next = clock.next_timer().expect("a task waits for nothing");
    clock.advance(next.since(clock.now()).max(Duration::from_nanos(1)));
}

/// Runs a future until it completes. Time advances when it is idle.
pub(crate) fn drive<F: IntoFuture>(clock: &ManualClock, future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&flag));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        if !flag.0.swap(false, Ordering::Acquire) {
            step(clock);
        }
    }
}

/// Runs all tasks until they complete, one poll at a time, in an order drawn from the seed.
pub(crate) fn interleave<'a>(
    clock: &ManualClock,
    seed: u64,
    tasks: Vec<Pin<Box<dyn Future<Output = ()> + 'a>>>,
) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut tasks: Vec<_> = tasks
        .into_iter()
        .map(|task| {
            let flag = Arc::new(Flag(true.into()));
            (task, Waker::from(Arc::clone(&flag)), flag)
        })
        .collect();
    while !tasks.is_empty() {
        let ready: Vec<usize> =
            (0..tasks.len()).filter(|index| tasks[*index].2.0.load(Ordering::Acquire)).collect();
        if ready.is_empty() {
            step(clock);
            continue;
        }
        let index = ready[rng.random_range(0..ready.len())];
        let (task, waker, flag) = &mut tasks[index];
        flag.0.store(false, Ordering::Release);
        if task.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
            drop(tasks.swap_remove(index));
        }
    }
}

pub(crate) fn config() -> S3Config {
    S3Config::new("bucket")
}

/// Opens a store over the server, which must work for that.
pub(crate) fn open(server: &Arc<Server>, clock: &ManualClock) -> S3Store {
    S3Store::open_over(&config(), Arc::clone(server) as Arc<dyn ObjectStore>, Arc::new(clock.clone()))
        .unwrap()
}

pub(crate) fn object(name: impl AsRef<[u8]>) -> ObjectId {
    ObjectId::new(Namespace::new("vm").unwrap(), Name::copy_from(name.as_ref()).unwrap())
}

pub(crate) fn read(store: &S3Store, clock: &ManualClock, object: &ObjectId) -> Result<Vec<u8>> {
    let max = store.capabilities().object_bytes_max;
    drive(clock, store.read(ReadRequest::new(object.clone(), 0, max))).map(|reply| reply.data.to_vec())
}
