//! Asking the store: past the gate, counted and timed by namespace.

use blocker::{Error, Result, Timestamp};

use super::Shared;
use crate::object::control::store_metrics::StoreMetrics;
use crate::object::store::{Ask, Class, Gate, Lane, Number, Pass, enter};
use crate::sync::Arc;

/// The gate, reached through the cache.
#[derive(Clone)]
struct GateOf(Arc<Shared>);

impl std::ops::Deref for GateOf {
    type Target = Gate;
    fn deref(&self) -> &Gate {
        &self.0.gate
    }
}

/// A request that the store can be asked now. Dropped, it ends without an answer.
#[must_use = "the store is asked while this is held"]
pub(crate) struct StoreCall {
    pass: Pass<GateOf>,
    namespace: u16,
    began: Timestamp,
}

/// Waits until a request of a namespace that carries `bytes` bytes may go to the store. A task that has one
/// waits for no other.
///
/// # Errors
/// `Retryable` if too many wait already.
pub(crate) async fn begin(
    shared: &Arc<Shared>,
    namespace: u16,
    (lane, class): (Lane, Class),
    bytes: u64,
) -> Result<StoreCall> {
    let ask = Ask { namespace: Number::from(namespace), lane, class, bytes };
    let pass = enter(GateOf(Arc::clone(shared)), ask).await?;
    if let Some(waited) = pass.waited {
        metrics(shared, namespace).count_wait(waited);
    }
    Ok(StoreCall { pass, namespace, began: shared.clock.now() })
}

fn metrics(shared: &Shared, namespace: u16) -> &StoreMetrics {
    &shared.namespaces.record(namespace).metrics.store
}

impl StoreCall {
    /// Ends the request, which has carried `bytes` bytes. The time of one that has failed says nothing of the
    /// store's load.
    pub(crate) fn end<T>(self, shared: &Shared, answer: &Result<T>, bytes: u64) {
        let latency = shared.clock.now().since(self.began);
        metrics(shared, self.namespace).count(bytes, latency);
        if matches!(answer, Ok(_) | Err(Error::Missing)) {
            self.pass.answered(bytes, latency);
        }
    }
}
