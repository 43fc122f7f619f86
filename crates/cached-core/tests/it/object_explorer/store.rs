//! The store below: every request waits until the scheduler performs it, and then until the
//! scheduler sends the response, in any order of the requests.
//!
//! Requests are performed on a [`Memory`], which has the store's content; the content that a power
//! failure would leave is kept separately. A request whose response is dropped may still be
//! performed later, like one on the wire, but no later than the next read of the object: the
//! contract guarantees this to a caller that reads back.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use blocker::*;

use test_kit::content;

/// More calls than this between two steps of the scheduler indicate a loop.
const CALLS_MAX: u64 = 2_000;

/// The stage of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The request is not performed.
    Queued,
    /// The request is performed, but has no response yet.
    Done,
    /// The outcome was reported as unknown, or the caller has dropped the request; the request may
    /// be performed later.
    Stray,
}

/// A request of the store.
#[derive(Clone, Debug)]
pub struct Request {
    pub number: u64,
    /// The number of the requesting cache.
    pub cache: usize,
    pub name: &'static str,
    pub object: Option<ObjectId>,
    pub is_change: bool,
    /// The scope that the request makes durable; a failed sync affects this scope.
    pub syncs: Option<Scope>,
    pub stamp: Option<Stamp>,
    /// The new epoch and its scope; `None` for a request for the epoch in force.
    pub claim: Option<(Scope, Epoch)>,
    /// Whether the request writes a whole object or deletes it, and thereby repairs a failed sync.
    pub renews: bool,
    /// The scope of an invalidation.
    pub forgets: Option<Scope>,
    pub text: String,
}

struct Held {
    request: Request,
    stage: Stage,
    call: Box<dyn Call_>,
}

/// A request of any type.
trait Call_: Send {
    /// Performs the request; returns whether it succeeded.
    fn perform(&mut self, memory: &Memory, weaken: bool) -> Result<()>;
    fn answer(&mut self, error: Option<Error>);
    fn is_dropped(&self) -> bool;
}

type Act<T> = Box<dyn FnOnce(&Memory) -> Reply<T> + Send>;

struct CallOf<T> {
    act: Option<Act<T>>,
    done: Option<Result<T>>,
    slot: Arc<Mutex<Slot<T>>>,
}

struct Slot<T> {
    answer: Option<Result<T>>,
    waker: Option<Waker>,
}

/// Responses that contain the durability of a change.
pub trait Weaken {
    fn weaken(&mut self) {}
}
impl Weaken for ChangeReply {
    fn weaken(&mut self) {
        self.durability = Durability::Cached;
    }
}
impl Weaken for ReadReply {}
impl Weaken for Info {}
impl Weaken for ListReply {}
impl Weaken for FlushReply {}
impl Weaken for ClaimReply {}
impl Weaken for InvalidateReply {}

impl<T: Send + Weaken> Call_ for CallOf<T> {
    fn perform(&mut self, memory: &Memory, weaken: bool) -> Result<()> {
        let Some(act) = self.act.take() else { return Ok(()) };
        let Reply::Ready(mut done) = act(memory) else { panic!("the memory backend answers at once") };
        if let (Ok(reply), true) = (&mut done, weaken) {
            reply.weaken();
        }
        let worked = done.as_ref().map(|_| ()).map_err(Clone::clone);
        self.done = Some(done);
        worked
    }
    fn answer(&mut self, error: Option<Error>) {
        let answer = match error {
            Some(error) => Err(error),
            None => self.done.take().expect("performed before it is answered"),
        };
        let waker = {
            let mut slot = self.slot.lock().unwrap();
            slot.answer = Some(answer);
            slot.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
    fn is_dropped(&self) -> bool {
        Arc::strong_count(&self.slot) == 1
    }
}

/// The events in the store, for the oracle.
pub struct Done {
    pub request: Request,
    pub result: Result<()>,
}

struct State {
    memory: Arc<Memory>,
    events: Subscription,
    held: BTreeMap<u64, Held>,
    next: u64,
    calls: u64,
    /// Whether requests complete immediately.
    is_open: bool,
    /// Whether the store stores durably only what a request requires.
    is_volatile: bool,
    /// The content of each object that a power failure would leave.
    stable: BTreeMap<ObjectId, Option<Vec<u8>>>,
    /// Objects with a failed sync.
    failed: BTreeSet<ObjectId>,
    done: Vec<Done>,
    capabilities: Option<Capabilities>,
}

/// The store from the view of one of the caches.
pub struct Store {
    state: Arc<Mutex<State>>,
    hub: Arc<EventHub>,
    cache: usize,
}

impl Store {
    pub fn new(clock: &ManualClock) -> Self {
        // The clock does not advance, so that a held request is not past its deadline when it is
        // performed.
        let _ = clock;
        let memory = Arc::new(test_kit::memory(&ManualClock::new()));
        let state = State {
            events: memory.subscribe(),
            memory,
            held: BTreeMap::new(),
            next: 0,
            calls: 0,
            is_open: true,
            is_volatile: false,
            stable: BTreeMap::new(),
            failed: BTreeSet::new(),
            done: Vec::new(),
            capabilities: None,
        };
        Self { state: Arc::new(Mutex::new(state)), hub: Arc::default(), cache: 0 }
    }

    /// Returns the same store from the view of another cache.
    pub fn for_cache(&self, cache: usize) -> Self {
        Self { state: Arc::clone(&self.state), hub: Arc::clone(&self.hub), cache }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn limit(&self, change: impl FnOnce(&mut Capabilities)) {
        let mut state = self.state();
        let mut capabilities = state.memory.capabilities();
        change(&mut capabilities);
        state.capabilities = Some(capabilities);
    }

    /// Makes requests wait from now on.
    pub fn close(&self, is_volatile: bool) {
        let mut state = self.state();
        (state.is_open, state.is_volatile) = (false, is_volatile);
    }

    pub fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.state().memory)
    }

    pub fn publish(&self, event: &Event) {
        self.hub.publish(event);
    }

    /// Records that another step of the scheduler begins.
    pub fn step(&self) {
        self.state().calls = 0;
    }

    /// Returns the requests that the scheduler can move.
    pub fn waiting(&self) -> Vec<(u64, Stage)> {
        self.state().held.iter().map(|(number, held)| (*number, held.stage)).collect()
    }

    pub fn request(&self, number: u64) -> Request {
        self.state().held[&number].request.clone()
    }

    /// Performs the requests that are still in flight for an object, because the caller reads the
    /// object back.
    pub fn deliver(&self, object: &ObjectId) {
        let mut state = self.state();
        state.deliver(object, &self.hub);
    }

    /// Returns the events since the last call.
    pub fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut self.state().done)
    }

    /// Returns the content that a power failure would leave.
    pub fn stable(&self, object: &ObjectId) -> Option<Vec<u8>> {
        let state = self.state();
        if state.is_volatile {
            return state.stable.get(object).cloned().flatten();
        }
        content(&*state.memory, object)
    }

    /// Returns the current content of an object.
    pub fn current(&self, object: &ObjectId) -> Option<Vec<u8>> {
        content(&*self.state().memory, object)
    }

    /// Marks the present content of the objects as stored.
    pub fn sync_all(&self, objects: &[ObjectId]) {
        let mut state = self.state();
        for object in objects {
            let found = content(&*state.memory, object);
            state.stable.insert(object.clone(), found);
        }
    }

    /// Applies a change of another client to the store immediately.
    pub fn by_another<T>(&self, act: impl FnOnce(&Memory) -> T) -> T {
        let memory = self.memory();
        let done = act(&memory);
        self.state().pass_on(&self.hub);
        done
    }

    /// Marks another client's change of an object as stored.
    pub fn sync_one(&self, object: &ObjectId) {
        self.sync_all(std::slice::from_ref(object));
    }

    /// Performs a queued request.
    pub fn begin(&self, number: u64) {
        self.state().begin(number, &self.hub);
    }

    /// Sends the response to a performed request, or an error to one that is not performed.
    pub fn answer(&self, number: u64, error: Option<Error>) {
        let mut held = self.state().held.remove(&number).expect("waits");
        held.call.answer(error);
    }

    /// Responds to an unperformed request with an unknown outcome; it may be performed later.
    pub fn answer_unknown(&self, number: u64, why: &'static str) {
        let mut held = self.state().held.remove(&number).expect("waits");
        held.call.answer(Some(Error::OutcomeUnknown(why.into())));
        if held.stage == Stage::Queued && held.request.is_change {
            held.stage = Stage::Stray;
            self.state().held.insert(number, held);
        }
    }

    /// Performs a request and makes its sync fail; returns whether the request includes a sync.
    pub fn fail_sync(&self, number: u64) -> bool {
        let mut state = self.state();
        let request = state.held[&number].request.clone();
        let Some(scope) = &request.syncs else { return false };
        let failed: Vec<_> = match &request.object {
            Some(object) => vec![object.clone()],
            None => state.stable.keys().filter(|id| scope.covers(id, None)).take(1).cloned().collect(),
        };
        if failed.is_empty() || request.name == "delete" {
            return false;
        }
        state.failed.extend(failed);
        drop(state);
        self.begin(number);
        true
    }

    /// Forgets an unperformed request, as if it had never been sent.
    pub fn forget(&self, number: u64) {
        self.state().held.remove(&number);
    }

    /// Turns requests whose callers have given up into strays, and drops those that change nothing.
    pub fn sort_out(&self) {
        let mut state = self.state();
        state.held.retain(|_, held| {
            if !held.call.is_dropped() {
                return true;
            }
            if held.stage == Stage::Queued && held.request.is_change {
                held.stage = Stage::Stray;
            }
            held.stage == Stage::Stray
        });
    }

    fn call<T: Send + Weaken + 'static>(
        &self,
        mut request: Request,
        act: impl FnOnce(&Memory) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let mut state = self.state();
        state.calls += 1;
        if state.calls > CALLS_MAX {
            drop(state);
            panic!("{CALLS_MAX} calls of the store without a pause: {}", request.text);
        }
        if state.is_open {
            let memory = Arc::clone(&state.memory);
            drop(state);
            return act(&memory);
        }
        request.number = state.next;
        request.cache = self.cache;
        state.next += 1;
        let slot = Arc::new(Mutex::new(Slot { answer: None, waker: None }));
        let call = CallOf { act: Some(Box::new(act)), done: None, slot: Arc::clone(&slot) };
        state.held.insert(request.number, Held { request, stage: Stage::Queued, call: Box::new(call) });
        Reply::pending(poll_fn(move |cx| {
            let mut slot = slot.lock().unwrap();
            match slot.answer.take() {
                Some(answer) => Poll::Ready(answer),
                None => {
                    slot.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }
}

impl State {
    fn begin(&mut self, number: u64, hub: &EventHub) {
        let Some(mut held) = self.held.remove(&number) else { return };
        if held.stage == Stage::Done {
            self.held.insert(number, held);
            return;
        }
        if let (Some(object), false) = (&held.request.object, held.request.is_change) {
            // A read sees the requests in flight whose outcome was unknown, so they are performed
            // now.
            let object = object.clone();
            self.deliver(&object, hub);
        }
        if let Some(scope) = &held.request.forgets {
            self.failed.retain(|object| !scope.covers(object, None));
        }
        let weaken = self.is_volatile && held.request.is_change && held.request.syncs.is_none();
        let mut result = held.call.perform(&self.memory, weaken);
        if result.is_ok()
            && let Some(scope) = held.request.syncs.clone()
        {
            result = self.sync(&held.request, &scope);
        }
        if let Err(error @ (Error::WritesLost(_) | Error::NotStored(_))) = &result {
            held.call.answer(Some(error.clone()));
            self.done.push(Done { request: held.request, result });
        } else {
            let is_stray = held.stage == Stage::Stray;
            held.stage = Stage::Done;
            self.done.push(Done { request: held.request.clone(), result });
            if !is_stray {
                self.held.insert(number, held);
            }
        }
        self.pass_on(hub);
    }

    fn deliver(&mut self, object: &ObjectId, hub: &EventHub) {
        let is_stray =
            |held: &Held| held.stage == Stage::Stray && held.request.object.as_ref() == Some(object);
        let strays = self.held.iter().filter(|(_, held)| is_stray(held)).map(|(number, _)| *number);
        let strays: Vec<u64> = strays.collect();
        strays.into_iter().for_each(|stray| self.begin(stray, hub));
    }

    /// Stores durably what a change or a flush requires.
    fn sync(&mut self, request: &Request, scope: &Scope) -> Result<()> {
        let covered: Vec<ObjectId> = match &request.object {
            Some(object) => {
                if request.renews {
                    self.failed.remove(object);
                }
                self.stable.entry(object.clone()).or_insert(None);
                vec![object.clone()]
            }
            None => {
                let wider = match scope {
                    Scope::Domain(namespace, _) => Scope::Namespace(namespace.clone()),
                    scope => scope.clone(),
                };
                self.stable.keys().filter(|id| wider.covers(id, None)).cloned().collect()
            }
        };
        for object in &covered {
            if self.failed.contains(object) {
                return Err(Error::WritesLost("a sync has failed".into()));
            }
            let found = content(&*self.memory, object);
            self.stable.insert(object.clone(), found);
        }
        Ok(())
    }

    fn pass_on(&mut self, hub: &EventHub) {
        while let Some(event) = self.events.try_next() {
            hub.publish(&event);
        }
    }
}

fn request(name: &'static str, object: Option<&ObjectId>, text: String) -> Request {
    Request {
        number: 0,
        cache: 0,
        name,
        object: object.cloned(),
        is_change: false,
        syncs: None,
        stamp: None,
        claim: None,
        renews: false,
        forgets: None,
        text,
    }
}

fn change(object: &ObjectId, change: &Change, terms: &ChangeTerms) -> Request {
    let text = match change {
        Change::Write { offset, data } | Change::CompareAndWrite { offset, data, .. } => {
            format!("{} {}", change.name(), at(*offset, data.len_bytes() as u64))
        }
        Change::WriteZeroes { offset, len_bytes } | Change::Discard { offset, len_bytes } => {
            format!("{} {}", change.name(), at(*offset, *len_bytes))
        }
        Change::WriteRuns { runs } => {
            let runs: Vec<String> = runs.iter().map(|run| at(run.offset, run.len_bytes())).collect();
            format!("write_runs {}", runs.join(" "))
        }
        Change::WriteFull { data } => format!("write_full {}", at(0, data.len_bytes() as u64)),
        Change::Truncate { size_bytes } => format!("truncate to {}", at(*size_bytes, 0)),
        Change::Delete => "delete".into(),
        Change::Copy { from, .. } => format!("copy from {}", from.name),
    };
    Request {
        is_change: true,
        // A store must provide at least the required durability *journaled*: this one syncs.
        syncs: (terms.durability >= Durability::Journaled).then(|| Scope::Object(object.clone())),
        stamp: terms.stamp,
        renews: change.replaces_content(),
        text: format!("{text}{}", if terms.durability == Durability::Stored { ", stored" } else { "" }),
        ..request(change.name(), Some(object), String::new())
    }
}

/// Returns a range in cells.
fn at(offset: u64, len: u64) -> String {
    let cell = super::oracle::CELL;
    format!("[{}..{})", offset as f64 / cell as f64, (offset + len) as f64 / cell as f64)
}

impl Blocker for Store {
    fn capabilities(&self) -> Capabilities {
        let state = self.state();
        state.capabilities.unwrap_or_else(|| state.memory.capabilities())
    }
    fn read(&self, it: ReadRequest) -> Reply<ReadReply> {
        let text = format!("read {}", at(it.offset, it.len_bytes));
        self.call(request("read", Some(&it.object), text), move |memory| memory.read(it))
    }
    fn change(&self, it: ChangeRequest) -> Reply<ChangeReply> {
        self.call(change(&it.object, &it.change, &it.terms), move |memory| memory.change(it))
    }
    fn info(&self, it: InfoRequest) -> Reply<Info> {
        self.call(request("info", Some(&it.object), "info".into()), move |memory| memory.info(it))
    }
    fn list(&self, it: ListRequest) -> Reply<ListReply> {
        self.call(request("list", None, "list".into()), move |memory| memory.list(it))
    }
    fn flush(&self, it: FlushRequest) -> Reply<FlushReply> {
        let mut asked = request("flush", None, format!("flush {:?}", it.scope));
        if let Scope::Object(object) = &it.scope {
            asked.object = Some(object.clone());
        }
        asked.syncs = Some(it.scope.clone());
        self.call(asked, move |memory| memory.flush(it))
    }
    fn claim(&self, it: ClaimRequest) -> Reply<ClaimReply> {
        let mut asked = request("claim", None, format!("claim {:?} with {}", it.scope, it.epoch));
        if it.epoch > Epoch(0) {
            asked.claim = Some((it.scope.clone(), it.epoch));
            asked.is_change = true;
        }
        self.call(asked, move |memory| memory.claim(it))
    }
    fn invalidate(&self, it: InvalidateRequest) -> Reply<InvalidateReply> {
        // Its events go to all subscribers, like the events of any other request.
        let mut asked = request("invalidate", None, format!("invalidate {:?}", it.scope));
        asked.forgets = Some(it.scope.clone());
        self.call(asked, move |memory| memory.invalidate(it))
    }
    fn subscribe(&self) -> Subscription {
        self.hub.subscribe()
    }
}
