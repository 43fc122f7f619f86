//! What is not data path, over the wire. Not [`blocker::Control`] itself: two of its methods and the
//! statistics answer on the spot, which a network cannot.

use std::sync::Arc;

use blocker::{Attachment, Namespace, Policy, Quota, Reply};

use super::SynapseBlocker;
use super::call::Call;
use super::operations::send;
use crate::codec::{Answer, Request};

impl SynapseBlocker {
    /// As [`blocker::Control::attach`].
    pub fn attach(&self, namespace: Namespace) -> Reply<Attachment> {
        send!(self, Request::Attach(namespace), Attach)
    }

    /// As [`blocker::Control::detach`].
    pub fn detach(&self, namespace: Namespace) -> Reply<()> {
        self.done(Request::Detach(namespace))
    }

    /// As [`blocker::Control::policy`].
    pub fn policy(&self, namespace: Namespace) -> Reply<Policy> {
        send!(self, Request::Policy(namespace), Policy)
    }

    /// As [`blocker::Control::set_policy`].
    pub fn set_policy(&self, namespace: Namespace, policy: Policy) -> Reply<()> {
        self.done(Request::SetPolicy(namespace, policy))
    }

    /// As [`blocker::Control::quota`].
    pub fn quota(&self, namespace: Namespace) -> Reply<Quota> {
        send!(self, Request::Quota(namespace), Quota)
    }

    /// As [`blocker::Control::set_quota`].
    pub fn set_quota(&self, namespace: Namespace, bytes_max: Option<u64>) -> Reply<()> {
        self.done(Request::SetQuota(namespace, bytes_max))
    }

    /// The figures of the server and of what it serves, by name.
    pub fn statistics(&self) -> Reply<Vec<(String, u64)>> {
        send!(self, Request::Statistics, Statistics)
    }

    /// As [`blocker::Control::namespaces`].
    pub fn namespaces(&self) -> Reply<Vec<Namespace>> {
        let core = Arc::clone(&self.core);
        Reply::pending(async move {
            let mut all: Vec<Namespace> = Vec::new();
            loop {
                let after = Request::Namespaces(all.last().cloned());
                let page = Call::new(Arc::clone(&core), after, |answer| match answer {
                    Answer::Namespaces(namespaces, has_more) => Some((namespaces, has_more)),
                    _ => None,
                });
                let (namespaces, has_more) = page.await?;
                let is_last = !has_more || namespaces.is_empty();
                all.extend(namespaces);
                if is_last {
                    return Ok(all);
                }
            }
        })
    }

    fn done(&self, request: Request) -> Reply<()> {
        let core = Arc::clone(&self.core);
        Reply::pending(Call::new(core, request, |answer| matches!(answer, Answer::Done).then_some(())))
    }
}
