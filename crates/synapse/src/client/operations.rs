//! The operations of [`Blocker`](blocker::Blocker) as calls: futures that take a slot of a lane,
//! and wait for the answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use blocker::metrics::{Collect, Families, Label};
use blocker::trace::{Span, SpanKind};
use blocker::*;

use super::lane::{Lane, Submitted};
use super::{Core, SynapseBlocker};
use crate::codec::{Answer, Features, Outcome, Request, RequestId, is_unmatchable_prefix};

/// Returns the call of a request. The call takes `$reply` from an answer that matches `$answer`.
macro_rules! call {
    ($core:expr, $request:expr, $answer:pat => $reply:expr) => {
        Call::new(Arc::clone($core), $request, |answer| match answer {
            $answer => Some($reply),
            _ => None,
        })
    };
}

macro_rules! send {
    ($self:ident, $request:expr, $answer:ident) => {
        Reply::pending(call!(&$self.core, $request, Answer::$answer(reply) => reply))
    };
}

impl SynapseBlocker {
    fn check_deadline(&self, call: &blocker::Call) -> Result<()> {
        call.check(&*self.core.shared.config.clock)
    }
}

/// Returns early if `$result` is an error.
macro_rules! check {
    ($result:expr) => {
        if let Err(error) = $result {
            return Reply::err(error);
        }
    };
}

impl Blocker for SynapseBlocker {
    fn capabilities(&self) -> Capabilities {
        *self.core.shared.capabilities.read()
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        check!(self.check_deadline(&request.call));
        let limit_bytes = self.capabilities().request_bytes_max;
        if request.len_bytes > limit_bytes {
            return Reply::err(Error::TooLarge { limit_bytes });
        }
        send!(self, Request::Read(request), Read)
    }

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        check!(self.check_deadline(&request.call));
        let can = self.capabilities();
        check!(request.change.check_runs(|| can));
        let mut request = Request::Change(request);
        check!(request.fit(&can, Features::default()));
        send!(self, request, Change)
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        check!(self.check_deadline(&request.call));
        send!(self, Request::Info(request), Info)
    }

    fn list(&self, mut request: ListRequest) -> Reply<ListReply> {
        check!(self.check_deadline(&request.call));
        if is_unmatchable_prefix(&request.prefix) {
            return Reply::ok(ListReply::new(Vec::new(), false));
        }
        request.entries_max = request.entries_max.clamp(1, self.capabilities().list_entries_max);
        send!(self, Request::List(request), List)
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        check!(self.check_deadline(&request.call));
        check!(self.core.shared.unflushed.check(&request.scope));
        let (shared, scope) = (Arc::clone(&self.core.shared), request.scope.clone());
        let begun = shared.unflushed.begin_flush();
        let call = call!(&self.core, Request::Flush(request), Answer::Flush(reply) => reply);
        Reply::pending(async move {
            let reply = call.await?;
            // A change that is only *cached* does not survive a crash of the server.
            if reply.durability > Durability::Cached {
                shared.unflushed.flushed(&scope, begun)?;
            }
            Ok(reply)
        })
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        check!(self.check_deadline(&request.call));
        send!(self, Request::Claim(request), Claim)
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        check!(self.check_deadline(&request.call));
        let (shared, scope) = (Arc::clone(&self.core.shared), request.scope.clone());
        let accepts = request.accepts_losses.then(|| shared.unflushed.begin_invalidation());
        let call = call!(&self.core, Request::Invalidate(request), Answer::Invalidate(reply) => reply);
        Reply::pending(async move {
            let reply = call.await?;
            if let Some(begun) = accepts {
                shared.unflushed.invalidated(&scope, begun);
            }
            Ok(reply)
        })
    }

    /// Returns the control plane of the server.
    fn control(&self) -> &dyn Control {
        self
    }

    /// Events are missed while there is no connection; [`Event::Missed`] reports that.
    fn subscribe(&self) -> Subscription {
        self.core.shared.events.subscribe()
    }
}

// ---- One call: a future that takes a slot, waits for the response, and cancels the request when
// it is dropped.

/// A call that returns a `T`. It does nothing until it is polled.
pub(super) struct Call<T> {
    core: Arc<Core>,
    /// The request, until it is moved into a slot.
    request: Option<Request>,
    place: Place,
    /// Returns the reply in an answer, if the answer is for this operation.
    take: fn(Answer) -> Option<T>,
    /// The span from the call to its answer, if the call is traced.
    span: Option<Span>,
}

#[derive(Clone, Copy)]
enum Place {
    Start,
    Waits { lane: usize, ticket: u64 },
    Submitted { lane: usize, id: RequestId },
    Done,
}

impl<T> Call<T> {
    pub(super) fn new(core: Arc<Core>, request: Request, take: fn(Answer) -> Option<T>) -> Self {
        let (mut request, mut span) = (request, None);
        if let Some(tracer) = &core.shared.config.tracer
            && let Some(parent) = request.call().trace
            && let Some(name) = request.op().span_name()
        {
            let mut begun = tracer.child(parent, name, SpanKind::Client);
            begun.set("rpc.system", "synapse");
            begun.set("server.address", core.shared.address().to_string());
            request.set_trace(begun.context());
            span = Some(begun);
        }
        Self { core, request: Some(request), place: Place::Start, take, span }
    }

    /// Ends the span with an outcome.
    #[cold]
    fn end_span(&mut self, outcome: &Result<Outcome>) {
        let Some(mut span) = self.span.take() else { return };
        match outcome {
            Ok(Outcome::Answered(_)) => {}
            Ok(Outcome::Failed(error)) | Err(error) => note_error(&mut span, error),
            Ok(Outcome::Cancelled) => span.fail("the server has cancelled the request"),
        }
    }

    fn submit(&mut self, lane: usize, ticket: Option<u64>, cx: &Context<'_>) -> Poll<Result<T>> {
        self.place = match self.core.lanes[lane].submit(&mut self.request, ticket, cx) {
            Submitted::Queued(id) => {
                if let Some(span) = &mut self.span {
                    span.set("synapse.request_id", id.to_string());
                    span.set("synapse.lane", lane as u64);
                }
                Place::Submitted { lane, id }
            }
            Submitted::Waits(ticket) => Place::Waits { lane, ticket },
            Submitted::Failed(error) => {
                self.place = Place::Done;
                if let Some(span) = &mut self.span {
                    note_error(span, &error);
                }
                return Poll::Ready(Err(error));
            }
        };
        Poll::Pending
    }

    fn unwrap(&self, outcome: Result<Outcome>) -> Result<T> {
        match outcome? {
            Outcome::Answered(answer) => {
                let wrong = || Error::Retryable("the server has answered another operation".into());
                (self.take)(answer).ok_or_else(wrong)
            }
            Outcome::Failed(error) => Err(error),
            // Only a dropped call is cancelled, and its outcome is not collected.
            Outcome::Cancelled => Err(Error::OutcomeUnknown("the server has cancelled the request".into())),
        }
    }

    fn lane(&self, index: usize) -> &Lane {
        &self.core.lanes[index]
    }
}

impl<T> Future for Call<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.place {
            Place::Start => {
                let lane = self.core.choose_lane(self.request.as_ref());
                self.submit(lane, None, cx)
            }
            Place::Waits { lane, ticket } => self.submit(lane, Some(ticket), cx),
            Place::Submitted { lane, id } => {
                let outcome = ready!(self.lane(lane).poll(id, cx));
                self.place = Place::Done;
                if self.span.is_some() {
                    self.end_span(&outcome);
                }
                Poll::Ready(self.unwrap(outcome))
            }
            Place::Done => panic!("polled after completion"),
        }
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        match self.place {
            Place::Waits { lane, ticket } => self.lane(lane).cancel_wait(ticket),
            Place::Submitted { lane, id } => self.lane(lane).abandon(id),
            Place::Start | Place::Done => {}
        }
    }
}

// ---- `impl Control for SynapseBlocker`: the server's control plane, as this process's.

/// The maximum number of metric samples that are fetched from a server.
const SAMPLES_MAX: u64 = 65_536;

/// The server's control plane. Its metrics include this client's own, which have the label
/// `server`.
///
/// A server without typed metrics returns names and numbers, which become gauges without help
/// texts. If the server cannot list losses, [`losses`](Control::losses) fails with `Unsupported`;
/// likewise for namespace states. A server may refuse changes and removals of namespaces with
/// `Denied`.
impl Control for SynapseBlocker {
    fn attach(&self, namespace: Namespace) -> Reply<Attachment> {
        send!(self, Request::Attach(namespace), Attach)
    }

    fn detach(&self, namespace: Namespace) -> Reply<()> {
        self.done(Request::Detach(namespace))
    }

    fn policy(&self, namespace: Namespace) -> Reply<Policy> {
        send!(self, Request::Policy(namespace), Policy)
    }

    fn set_policy(&self, namespace: Namespace, policy: Policy) -> Reply<()> {
        self.done(Request::SetPolicy(namespace, policy))
    }

    fn quota(&self, namespace: Namespace) -> Reply<Quota> {
        send!(self, Request::Quota(namespace), Quota)
    }

    fn set_quota(&self, namespace: Namespace, bytes_max: Option<u64>) -> Reply<()> {
        self.done(Request::SetQuota(namespace, bytes_max))
    }

    fn metrics(&self) -> Reply<Families> {
        let (core, mut all) = (Arc::clone(&self.core), self.families());
        Reply::pending(async move {
            let features = Features(core.shared.features.load(Ordering::Relaxed));
            let fetched = match features.has(Features::METRICS) {
                true => typed_metrics(&core).await?,
                false => untyped_metrics(&core).await?,
            };
            all.append(fetched);
            Ok(all)
        })
    }

    fn losses(&self, after: Option<ObjectId>) -> Reply<LossPage> {
        send!(self, Request::Losses(after), Losses)
    }

    fn namespace_state(&self, namespace: Namespace) -> Reply<NamespaceState> {
        send!(self, Request::NamespaceState(namespace), NamespaceState)
    }

    fn namespace_states(&self, after: Option<Namespace>) -> Reply<NamespacePage> {
        send!(self, Request::NamespaceStates(after), NamespaceStates)
    }

    fn change_namespace(&self, namespace: Namespace, settings: NamespaceSettings) -> Reply<()> {
        self.done(Request::ChangeNamespace(namespace, settings))
    }

    fn remove_namespace(&self, namespace: Namespace, dirty_data: DirtyData) -> Reply<RemovedNamespace> {
        send!(self, Request::RemoveNamespace(namespace, dirty_data), RemoveNamespace)
    }

    fn namespaces(&self) -> Reply<Vec<Namespace>> {
        let core = Arc::clone(&self.core);
        Reply::pending(async move {
            let mut all: Vec<Namespace> = Vec::new();
            loop {
                let request = Request::Namespaces(all.last().cloned());
                let page = call!(&core, request, Answer::Namespaces(page, has_more) => (page, has_more));
                let (namespaces, has_more) = page.await?;
                let is_last = !has_more || namespaces.is_empty();
                all.extend(namespaces);
                if is_last {
                    return Ok(all);
                }
            }
        })
    }
}

async fn typed_metrics(core: &Arc<Core>) -> Result<Families> {
    let (mut all, mut sample_count) = (Families::new(), 0);
    loop {
        let request = Request::Metrics(sample_count);
        let page = call!(core, request, Answer::Metrics(page, has_more) => (page, has_more));
        let (families, has_more) = page.await?;
        let fetched: usize = families.as_slice().iter().map(|family| family.samples.len()).sum();
        sample_count += fetched as u64;
        all.append(families);
        if !has_more || fetched == 0 || sample_count >= SAMPLES_MAX {
            return Ok(all);
        }
    }
}

async fn untyped_metrics(core: &Arc<Core>) -> Result<Families> {
    let pairs = call!(core, Request::Statistics, Answer::Statistics(pairs) => pairs);
    let mut all = Families::new();
    pairs.await?.into_iter().for_each(|(name, value)| all.gauge(name, "", value));
    Ok(all)
}

/// Collects this client's counters, with the addresses of its servers as the label `server`.
impl Collect for SynapseBlocker {
    fn collect(&self, into: &mut Families) {
        let server = Label::from(("server", self.core.shared.config.addresses.to_string()));
        into.append_labelled(&[server], self.core.shared.counters.families());
    }
}

impl SynapseBlocker {
    fn done(&self, request: Request) -> Reply<()> {
        Reply::pending(call!(&self.core, request, Answer::Done => ()))
    }
}
