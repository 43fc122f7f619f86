//! Executes requests, and traces some of them.

use std::future::Future;
use std::pin::Pin;

use blocker::metrics::render;
use blocker::trace::{Span, SpanKind, Tracer};
use blocker::{Change, Control, Error, Namespace, Reply, note_error};
use connection::Peer;

use super::Shared;
use crate::codec::{Answer, CONTROL_ENTRIES_MAX, Features, Outcome, Request, RequestId, metrics_page};

/// The outcome of a request, ready or pending.
pub(super) enum Step {
    Ready(Outcome),
    Pending(Pin<Box<dyn Future<Output = Outcome> + Send>>),
}

impl Shared {
    /// Executes a decoded request of a client with these features.
    pub(super) fn execute(&self, mut request: Request, features: Features) -> Step {
        let sees_reserved = features.has(Features::RESERVED_NAMESPACES);
        let check = || request.namespaces().into_iter().flatten().try_for_each(Namespace::check_unreserved);
        if !sees_reserved && let Err(error) = check() {
            return Step::Ready(Outcome::Failed(error));
        }
        if !self.config.allow_namespace_changes
            && let Request::Change(request) = &mut request
        {
            // A client that may not set quotas may not exceed them either.
            request.terms.settles = false;
        }
        if let Some(limit_bytes) = self.exceeds(&request) {
            return Step::Ready(Outcome::Failed(Error::TooLarge { limit_bytes }));
        }
        let backend = &*self.backend;
        match request {
            Request::Read(r) => step(backend.read(r), Answer::Read),
            Request::Change(r) => step(backend.change(r), Answer::Change),
            Request::Info(r) => step(backend.info(r), Answer::Info),
            Request::List(mut r) => {
                r.entries_max = r.entries_max.min(self.capabilities.list_entries_max);
                step(backend.list(r), Answer::List)
            }
            Request::Flush(r) => step(backend.flush(r), Answer::Flush),
            Request::Claim(r) => step(backend.claim(r), Answer::Claim),
            Request::Invalidate(r) => step(backend.invalidate(r), Answer::Invalidate),
            Request::Statistics => step(self.metrics(), |families| {
                let pairs = render::pairs(&families).into_iter();
                Answer::Statistics(pairs.map(|pair| (pair.name, pair.value.to_u64())).collect())
            }),
            Request::Metrics(after) => step(self.metrics(), move |families| {
                let (page, has_more) = metrics_page(families, after);
                Answer::Metrics(page, has_more)
            }),
            request => self.control(backend.control(), request, sees_reserved),
        }
    }

    fn control(&self, control: &dyn Control, request: Request, sees_reserved: bool) -> Step {
        let is_seen = move |namespace: &Namespace| sees_reserved || !namespace.is_reserved();
        match request {
            Request::Attach(namespace) => {
                let own = self.capabilities;
                step(control.attach(namespace), move |mut attachment| {
                    attachment.capabilities = super::limited(attachment.capabilities, &own);
                    Answer::Attach(attachment)
                })
            }
            Request::Detach(namespace) => step(control.detach(namespace), |()| Answer::Done),
            Request::Policy(namespace) => step(control.policy(namespace), Answer::Policy),
            Request::SetPolicy(namespace, policy) => {
                step(control.set_policy(namespace, policy), |()| Answer::Done)
            }
            Request::Quota(namespace) => step(control.quota(namespace), Answer::Quota),
            Request::SetQuota(namespace, bytes_max) => {
                step(control.set_quota(namespace, bytes_max), |()| Answer::Done)
            }
            Request::Namespaces(after) => step(control.namespaces(), move |mut namespaces| {
                namespaces.retain(is_seen);
                if let Some(after) = after {
                    namespaces.retain(|namespace| *namespace > after);
                }
                let has_more = namespaces.len() > CONTROL_ENTRIES_MAX;
                namespaces.truncate(CONTROL_ENTRIES_MAX);
                Answer::Namespaces(namespaces, has_more)
            }),
            Request::Losses(after) => step(control.losses(after), move |mut page| {
                page.losses.retain(|loss| is_seen(&loss.object.namespace));
                Answer::Losses(page)
            }),
            Request::NamespaceState(namespace) => {
                step(control.namespace_state(namespace), Answer::NamespaceState)
            }
            Request::NamespaceStates(after) => step(control.namespace_states(after), move |mut page| {
                page.states.retain(|state| is_seen(&state.namespace));
                Answer::NamespaceStates(page)
            }),
            Request::ChangeNamespace(..) | Request::RemoveNamespace(..)
                if !self.config.allow_namespace_changes =>
            {
                let why =
                    "this server lets no client change namespaces: its allow_namespace_changes is false";
                Step::Ready(Outcome::Failed(Error::Denied(why.into())))
            }
            Request::ChangeNamespace(namespace, settings) => {
                step(control.change_namespace(namespace, settings), |()| Answer::Done)
            }
            Request::RemoveNamespace(namespace, dirty_data) => {
                step(control.remove_namespace(namespace, dirty_data), Answer::RemoveNamespace)
            }
            _ => Step::Ready(Outcome::Failed(Error::Invalid("not a control request".into()))),
        }
    }

    /// Returns the limit that a request exceeds, if any, before the backend is called.
    fn exceeds(&self, request: &Request) -> Option<u64> {
        let limits = &self.capabilities;
        let over = |bytes: u64, limit: u64| (bytes > limit).then_some(limit);
        match request {
            Request::Read(r) => over(r.len_bytes, limits.request_bytes_max),
            Request::Change(r) => match &r.change {
                Change::CompareAndWrite { expected, data, .. } if limits.compare_bytes_max > 0 => {
                    let expected = over(expected.len_bytes() as u64, limits.compare_bytes_max);
                    expected.or_else(|| over(data.len_bytes() as u64, limits.request_bytes_max))
                }
                // Runs of zeros count towards the limit although they are not sent, as the contract
                // requires.
                Change::WriteRuns { runs } => {
                    let bytes = runs.iter().fold(0_u64, |sum, run| sum.saturating_add(run.len_bytes()));
                    over(bytes, limits.request_bytes_max)
                }
                change => over(change.payload_bytes(), limits.request_bytes_max),
            },
            _ => over(request.payload_bytes() as u64, limits.request_bytes_max),
        }
    }
}

fn step<T: 'static>(reply: Reply<T>, wrap: impl FnOnce(T) -> Answer + Send + 'static) -> Step {
    match reply {
        Reply::Ready(answer) => Step::Ready(answer.map(wrap).into()),
        Reply::Pending(future) => Step::Pending(Box::pin(async move { future.await.map(wrap).into() })),
    }
}

// ---- The span of a request at the server, from decoding to outcome.

/// Begins the span of a request that its client traces, or that is sampled here, and puts its
/// context into the request. Control requests have none.
pub(super) fn begin(
    tracer: &Tracer,
    request: &mut Request,
    peer: Peer,
    session: u64,
    id: RequestId,
) -> Option<Span> {
    let name = request.op().span_name()?;
    let mut span = match request.call().trace {
        Some(parent) => tracer.child(parent, name, SpanKind::Server),
        None => tracer.sample(name, SpanKind::Server)?,
    };
    span.set("rpc.system", "synapse");
    span.set("client.address", peer.to_string());
    span.set("synapse.session", format!("{session:016x}"));
    span.set("synapse.request_id", id.to_string());
    request.set_trace(span.context());
    Some(span)
}

/// Ends a span with the outcome of its request.
pub(super) fn end(mut span: Span, outcome: &Outcome) {
    match outcome {
        Outcome::Answered(_) => {}
        Outcome::Failed(error) => note_error(&mut span, error),
        Outcome::Cancelled => span.fail("its client has cancelled it"),
    }
}
