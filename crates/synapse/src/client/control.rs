//! `impl Control for SynapseBlocker`: the server's control plane, as this process's.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use blocker::metrics::{Collect, Families, Label, Value};
use blocker::{
    Attachment, Control, DirtyData, LossPage, Namespace, NamespacePage, NamespaceSettings, NamespaceState,
    ObjectId, Policy, Quota, RemovedNamespace, Reply, Result,
};

use super::call::Call;
use super::operations::send;
use super::{Core, SynapseBlocker};
use crate::codec::{Answer, Features, Request};

/// The most samples that are fetched of a server's metrics.
const SAMPLES_MAX: u64 = 65_536;

/// The control plane of the server. Its metrics come with those of this client, which carry the label
/// `server`.
///
/// A server without typed metrics returns names and numbers; they become gauges without help texts. One that
/// cannot list losses makes [`losses`](Control::losses) fail with `Unsupported`, as one that does not know the
/// state of namespaces does with what concerns them. To change or remove them a server may refuse with `Denied`.
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
                let page = Call::new(Arc::clone(&core), request, |answer| match answer {
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
}

async fn typed_metrics(core: &Arc<Core>) -> Result<Families> {
    let (mut all, mut sample_count) = (Families::new(), 0);
    loop {
        let page = Call::new(Arc::clone(core), Request::Metrics(sample_count), |answer| match answer {
            Answer::Metrics(families, has_more) => Some((families, has_more)),
            _ => None,
        });
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
    let pairs = Call::new(Arc::clone(core), Request::Statistics, |answer| match answer {
        Answer::Statistics(pairs) => Some(pairs),
        _ => None,
    });
    let mut all = Families::new();
    pairs.await?.into_iter().for_each(|(name, value)| all.gauge(name, "", value));
    Ok(all)
}

/// What this client counts on its side of the wire, with the server's address as the label `server`.
impl Collect for SynapseBlocker {
    fn collect(&self, into: &mut Families) {
        let server = || vec![Label::from(("server", self.core.config.address.to_string()))];
        for (_, name, help, value) in self.core.shared.counters.all() {
            into.sample(name, help, server(), Value::Counter(value));
        }
    }
}

impl SynapseBlocker {
    fn done(&self, request: Request) -> Reply<()> {
        let core = Arc::clone(&self.core);
        Reply::pending(Call::new(core, request, |answer| matches!(answer, Answer::Done).then_some(())))
    }
}
