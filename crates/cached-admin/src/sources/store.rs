//! The store: latency by operation, and whether it answers.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use blocker::{Blocker, Clock, InfoRequest, Measured, Measurements, ObjectId, SystemClock};
use cached_config::Store as Opened;
use cached_metrics::{Collect, Families};
use tokio::time::MissedTickBehavior;

use super::Shown;
use crate::listener::AdminServer;
use crate::status::Source;
use crate::status::document::{Distribution, Document, OperationPart, Store};

/// For how long a store may answer nothing before the program is not ready.
pub const AWAY_AFTER: Duration = Duration::from_secs(5);

/// How long a store may be without an answer before it is asked for one, and how long that may take.
const ASK_AFTER: Duration = Duration::from_secs(5);

/// Returns the store under a layer that measures it, and what that measures; `kind` is the label of its metrics.
#[must_use]
pub fn measured(store: Opened, kind: &'static str) -> (Opened, Option<Arc<Measurements>>) {
    let mut measurements = None;
    let store = store.with_layer(|below| {
        let layer = Measured::new(below, kind, Arc::new(SystemClock));
        measurements = Some(layer.measurements());
        Arc::new(layer)
    });
    (store, measurements)
}

/// What is shown of a store.
pub struct StoreSource {
    name: String,
    measurements: Arc<Measurements>,
    /// The store's own.
    metrics: Weak<dyn Collect>,
}

impl fmt::Debug for StoreSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSource").field("name", &self.name).finish_non_exhaustive()
    }
}

impl StoreSource {
    /// Shows the store called `name`, which is measured by `measurements` and counts `metrics` itself: all of these, its part of
    /// the document, and that the program is not ready while the store answers nothing.
    pub fn show(
        admin: &AdminServer,
        name: String,
        measurements: &Arc<Measurements>,
        metrics: Weak<dyn Collect>,
    ) -> Shown {
        let source = Arc::new(StoreSource { name, measurements: Arc::clone(measurements), metrics });
        let checked = Arc::downgrade(&source);
        admin.health().check_readiness(move || {
            let silence = checked.upgrade()?.measurements.silence();
            (silence >= AWAY_AFTER).then(|| format!("the store has not answered for {} s", silence.as_secs()))
        });
        Shown::new(admin, &source)
    }

    /// Asks the store something small whenever it has not answered anything for a while, so that its absence is noticed when no
    /// client needs it. Ends with the store.
    pub async fn watch(store: Weak<dyn Blocker>, measurements: Arc<Measurements>) {
        // It need not exist: that it does not is an answer.
        let Ok(object) = "cached/readiness".parse::<ObjectId>() else { return };
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if measurements.since_answer() < ASK_AFTER {
                continue;
            }
            let mut request = InfoRequest::new(object.clone());
            request.call.deadline = Some(SystemClock.now() + ASK_AFTER);
            let reply = match store.upgrade() {
                Some(store) => store.info(request),
                None => return,
            };
            // The measurements have the outcome. A store that breaks the contract's deadline is given up here.
            let _ = tokio::time::timeout(2 * ASK_AFTER, async { reply.await.is_ok() }).await;
        }
    }
}

impl Collect for StoreSource {
    fn collect(&self, into: &mut Families) {
        self.measurements.collect(into);
        if let Some(store) = self.metrics.upgrade() {
            store.collect(into);
        }
    }
}

impl Source for StoreSource {
    fn fill(&self, document: &mut Document) {
        let silence = self.measurements.silence();
        let operations = self.measurements.operations();
        let shown = operations.into_iter().filter(|operation| operation.latency.count() > 0);
        document.store = Some(Store {
            backend: self.name.clone(),
            kind: self.measurements.backend(),
            state: if silence >= AWAY_AFTER { "away" } else { "serving" },
            away_ms: u64::try_from(silence.as_millis()).unwrap_or(u64::MAX),
            operations: shown
                .map(|operation| OperationPart {
                    operation: operation.name,
                    errors: operation.failures,
                    distribution: Distribution(operation.latency),
                })
                .collect(),
        });
    }
}
