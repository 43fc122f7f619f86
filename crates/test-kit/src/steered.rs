//! A store that the test controls: a rule lets each call pass, fails it or holds it. Held calls are
//! performed, answered or failed when the test decides, in any order.
//!
//! Dropping the reply to a held call does not cancel the call: it is performed when the test
//! performs it, like a request already on the network.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use blocker::*;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
/// An operation of the contract.
pub enum Op {
    /// `read`.
    Read,
    /// `write`.
    Write,
    /// `write_zeroes`.
    WriteZeroes,
    /// `write_runs`.
    WriteRuns,
    /// `discard`.
    Discard,
    /// `compare_and_write`.
    CompareAndWrite,
    /// `write_full`.
    WriteFull,
    /// `truncate`.
    Truncate,
    /// `delete`.
    Delete,
    /// `copy`.
    Copy,
    /// `info`.
    Info,
    /// `list`.
    List,
    /// `flush`.
    Flush,
    /// `claim`.
    Claim,
    /// `invalidate`.
    Invalidate,
}

impl Op {
    /// Returns whether the operation changes an object.
    pub fn is_change(self) -> bool {
        (Op::Write..=Op::Copy).contains(&self)
    }
}

/// A call of the store.
#[derive(Clone, Debug)]
pub struct CallInfo {
    /// The call's number, in the order of the calls.
    pub number: u64,
    /// The operation.
    pub op: Op,
    /// The object, if the operation has one.
    pub object: Option<ObjectId>,
    /// The start of the call's range.
    pub offset: u64,
    /// The length of the call's range.
    pub len: u64,
    /// The durability that a change requests.
    pub durability: Option<Durability>,
    /// The stamp of a change.
    pub stamp: Option<Stamp>,
    /// The deadline of a write.
    pub deadline: Option<Timestamp>,
}

impl CallInfo {
    /// Returns the end of the range.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// The treatment of a call.
pub enum Verdict {
    /// The call is performed immediately.
    Pass,
    /// The call waits until the test performs or answers it.
    Hold,
    /// The call is not performed, and this error is returned.
    Fail(Error),
    /// The call is performed, and this error is returned.
    DoAndFail(Error),
    /// This error is returned, and the call waits until the test performs it.
    FailAndHold(Error),
}

type Rule = Box<dyn FnMut(&CallInfo) -> Verdict + Send>;

/// The store, see the module.
pub struct SteeredStore {
    inner: Arc<Memory>,
    /// The event hub for subscribers that receive no events.
    silence: EventHub,
    state: Mutex<State>,
}

struct State {
    rule: Rule,
    next: u64,
    log: Vec<CallInfo>,
    held: BTreeMap<u64, (CallInfo, Box<dyn Held>)>,
    capabilities: fn(&mut Capabilities),
    is_silent: bool,
}

trait Held: Send {
    fn perform(&mut self);
    fn answer(self: Box<Self>);
    fn fail(self: Box<Self>, error: Error);
    fn is_awaited(&self) -> bool;
}

struct HeldCall<T> {
    act: Option<Box<dyn FnOnce() -> Reply<T> + Send>>,
    done: Option<Result<T>>,
    slot: Arc<Mutex<Slot<T>>>,
}

struct Slot<T> {
    answer: Option<Result<T>>,
    waker: Option<Waker>,
}

impl<T> HeldCall<T> {
    fn give(&self, answer: Result<T>) {
        let waker = {
            let mut slot = self.slot.lock().unwrap();
            slot.answer = Some(answer);
            slot.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T: Send + Unpin> Held for HeldCall<T> {
    fn perform(&mut self) {
        if let Some(act) = self.act.take() {
            let Reply::Ready(done) = act() else { panic!("the memory backend answers at once") };
            self.done = Some(done);
        }
    }
    fn answer(mut self: Box<Self>) {
        self.perform();
        let done = self.done.take().expect("performed");
        self.give(done);
    }
    fn fail(self: Box<Self>, error: Error) {
        self.give(Err(error));
    }
    fn is_awaited(&self) -> bool {
        // The reply holds the other reference.
        Arc::strong_count(&self.slot) > 1
    }
}

impl SteeredStore {
    /// Creates a store over an empty memory backend; all calls pass.
    pub fn new() -> Arc<Self> {
        // The clock does not advance, so that a held call is not past its deadline when it is
        // performed.
        Self::over(Arc::new(crate::memory(&ManualClock::new())))
    }

    /// Creates a store over `inner`; all calls pass.
    pub fn over(inner: Arc<Memory>) -> Arc<Self> {
        let state = State {
            rule: Box::new(|_| Verdict::Pass),
            next: 0,
            log: Vec::new(),
            held: BTreeMap::new(),
            capabilities: |_| (),
            is_silent: false,
        };
        Arc::new(Self { inner, silence: EventHub::new(), state: Mutex::new(state) })
    }

    /// Returns the backend that contains the data.
    pub fn memory(&self) -> &Memory {
        &self.inner
    }

    /// Changes the capabilities that the store reports.
    pub fn limit(&self, change: fn(&mut Capabilities)) {
        self.state.lock().unwrap().capabilities = change;
    }

    /// Sends no events to subscribers from now on.
    pub fn silence(&self) {
        self.state.lock().unwrap().is_silent = true;
    }

    /// Applies `rule` to each call from now on.
    pub fn rule(&self, rule: impl FnMut(&CallInfo) -> Verdict + Send + 'static) {
        self.state.lock().unwrap().rule = Box::new(rule);
    }

    /// Holds calls of these kinds from now on.
    pub fn hold(&self, ops: &'static [Op]) {
        self.rule(move |call| if ops.contains(&call.op) { Verdict::Hold } else { Verdict::Pass });
    }

    /// Holds every change.
    pub fn hold_changes(&self) {
        self.rule(|call| if call.op.is_change() { Verdict::Hold } else { Verdict::Pass });
    }

    /// Lets calls pass from now on; held calls stay held.
    pub fn pass(&self) {
        self.rule(|_| Verdict::Pass);
    }

    /// Returns all calls so far, regardless of their outcome.
    pub fn log(&self) -> Vec<CallInfo> {
        self.state.lock().unwrap().log.clone()
    }

    /// Returns the number of calls of this kind.
    pub fn count(&self, op: Op) -> usize {
        self.state.lock().unwrap().log.iter().filter(|call| call.op == op).count()
    }

    /// Clears the log.
    pub fn clear_log(&self) {
        self.state.lock().unwrap().log.clear();
    }

    /// Returns the held calls in the order of their arrival.
    pub fn held(&self) -> Vec<CallInfo> {
        self.state.lock().unwrap().held.values().map(|(call, _)| call.clone()).collect()
    }

    /// Returns the held calls whose replies were dropped.
    pub fn abandoned(&self) -> Vec<CallInfo> {
        let state = self.state.lock().unwrap();
        let abandoned = state.held.values().filter(|(_, held)| !held.is_awaited());
        abandoned.map(|(call, _)| call.clone()).collect()
    }

    fn take(&self, number: u64) -> Box<dyn Held> {
        self.state.lock().unwrap().held.remove(&number).expect("held").1
    }

    /// Performs a held call without answering it.
    pub fn perform(&self, number: u64) {
        let mut state = self.state.lock().unwrap();
        state.held.get_mut(&number).expect("held").1.perform();
    }

    /// Performs a held call, unless it has been performed, and answers it.
    pub fn answer(&self, number: u64) {
        self.take(number).answer();
    }

    /// Answers a held call with an error. If the call has not been performed yet, it never will be.
    pub fn fail(&self, number: u64, error: Error) {
        self.take(number).fail(error);
    }

    /// Answers the first held call; returns whether there was one.
    pub fn answer_first(&self) -> bool {
        let first = self.state.lock().unwrap().held.keys().next().copied();
        first.inspect(|number| self.answer(*number)).is_some()
    }

    /// Answers all currently held calls.
    pub fn answer_all(&self) {
        let numbers: Vec<u64> = self.state.lock().unwrap().held.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.answer(number));
    }

    /// Lets calls pass from now on, and answers the held ones.
    pub fn open(&self) {
        self.pass();
        self.answer_all();
    }

    fn call<T: Send + Unpin + 'static>(
        &self,
        mut info: CallInfo,
        act: impl FnOnce(&Memory) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let mut state = self.state.lock().unwrap();
        info.number = state.next;
        state.next += 1;
        state.log.push(info.clone());
        match (state.rule)(&info) {
            Verdict::Pass => {
                drop(state);
                act(&self.inner)
            }
            Verdict::Fail(error) => Reply::err(error),
            Verdict::DoAndFail(error) => {
                drop(state);
                match act(&self.inner) {
                    Reply::Ready(Ok(_)) => Reply::err(error),
                    other => other,
                }
            }
            Verdict::FailAndHold(error) => {
                let slot = Arc::new(Mutex::new(Slot { answer: None, waker: None }));
                let inner = Arc::clone(&self.inner);
                let call = HeldCall { act: Some(Box::new(move || act(&inner))), done: None, slot };
                state.held.insert(info.number, (info, Box::new(call)));
                Reply::err(error)
            }
            Verdict::Hold => {
                let slot = Arc::new(Mutex::new(Slot { answer: None, waker: None }));
                let inner = Arc::clone(&self.inner);
                let call = HeldCall {
                    act: Some(Box::new(move || act(&inner))),
                    done: None,
                    slot: Arc::clone(&slot),
                };
                state.held.insert(info.number, (info, Box::new(call)));
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
    }
}

fn info(op: Op, object: Option<&ObjectId>, offset: u64, len: u64) -> CallInfo {
    let object = object.cloned();
    CallInfo { number: 0, op, object, offset, len, durability: None, stamp: None, deadline: None }
}

/// Returns the operation of a change, and its range.
fn range(change: &Change) -> (Op, u64, u64) {
    match change {
        Change::Write { offset, data } => (Op::Write, *offset, data.len_bytes() as u64),
        Change::WriteZeroes { offset, len_bytes } => (Op::WriteZeroes, *offset, *len_bytes),
        Change::WriteRuns { runs } => {
            let from = runs.first().map_or(0, |run| run.offset);
            (Op::WriteRuns, from, change.end() - from)
        }
        Change::Discard { offset, len_bytes } => (Op::Discard, *offset, *len_bytes),
        Change::CompareAndWrite { offset, data, .. } => {
            (Op::CompareAndWrite, *offset, data.len_bytes() as u64)
        }
        Change::WriteFull { data } => (Op::WriteFull, 0, data.len_bytes() as u64),
        Change::Truncate { size_bytes } => (Op::Truncate, *size_bytes, 0),
        Change::Delete => (Op::Delete, 0, 0),
        Change::Copy { .. } => (Op::Copy, 0, 0),
    }
}

impl Blocker for SteeredStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        (self.state.lock().unwrap().capabilities)(&mut capabilities);
        capabilities
    }
    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        let info = info(Op::Read, Some(&request.object), request.offset, request.len_bytes);
        self.call(info, move |inner| inner.read(request))
    }
    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        let (op, offset, len) = range(&request.change);
        let info = CallInfo {
            durability: Some(request.terms.durability),
            stamp: request.terms.stamp,
            deadline: request.call.deadline,
            ..info(op, Some(&request.object), offset, len)
        };
        self.call(info, move |inner| inner.change(request))
    }
    fn info(&self, request: InfoRequest) -> Reply<Info> {
        let info = info(Op::Info, Some(&request.object), 0, 0);
        self.call(info, move |inner| inner.info(request))
    }
    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        let info = info(Op::List, None, 0, 0);
        self.call(info, move |inner| inner.list(request))
    }
    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        let object = match &request.scope {
            Scope::Object(object) => Some(object),
            _ => None,
        };
        let info = info(Op::Flush, object, 0, 0);
        self.call(info, move |inner| inner.flush(request))
    }
    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        let info = info(Op::Claim, None, 0, 0);
        self.call(info, move |inner| inner.claim(request))
    }
    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        let info = info(Op::Invalidate, None, 0, 0);
        self.call(info, move |inner| inner.invalidate(request))
    }
    fn subscribe(&self) -> Subscription {
        if self.state.lock().unwrap().is_silent { self.silence.subscribe() } else { self.inner.subscribe() }
    }
}
