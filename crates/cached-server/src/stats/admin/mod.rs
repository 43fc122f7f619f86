//! What the admin listener shows of a server: metrics, its part of the status, and whether its threads make progress.
//!
//! | module | content |
//! |---|---|
//! | `families` | metrics under names of their own |
//! | `exporter` | the same under the names of memcached's exporter |
//! | `document` | the part of `/status.json` |
//! | `flush` | `POST /flush-prefix` |
//! | `insight` | `/mrc.json`, `/hot.json`, `/slow.json` |

mod document;
mod exporter;
mod families;
mod flush;
mod insight;

use crate::shared::Shared;
use crate::stats::reports::Reports;
use cached_admin::AdminServer;
use cached_admin::sources::Shown;
use cached_metrics::{Collect, Families};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// For how many seconds a thread may make no progress before the process should be restarted.
const STALLED_SECS_MAX: u32 = 30;

/// A server as the admin listener sees it.
pub(crate) struct ServerSource {
    shared: Arc<Shared>,
}

impl ServerSource {
    /// Shows a server, until the result is dropped.
    pub(crate) fn show(admin: &AdminServer, shared: &Arc<Shared>) -> Shown {
        let source = Arc::new(ServerSource { shared: shared.clone() });
        let watched = Arc::downgrade(&source);
        insight::add_routes(admin, shared);
        flush::add_route(admin, shared);
        admin.health().check_liveness(move || not_live(&watched.upgrade()?.shared));
        Shown::new(admin, &source)
    }
}

/// Returns which thread makes no progress.
fn not_live(shared: &Shared) -> Option<String> {
    let stalled = shared.stalled_secs.iter().map(|secs| secs.load(Ordering::Relaxed)).enumerate();
    let (index, secs) =
        stalled.max_by_key(|(_, secs)| *secs).filter(|(_, secs)| *secs >= STALLED_SECS_MAX)?;
    let thread = if index < shared.workers() { format!("worker {index}") } else { "the acceptor".into() };
    Some(format!("{thread} has made no progress for {secs} s"))
}

impl Collect for ServerSource {
    fn collect(&self, into: &mut Families) {
        families::collect(&self.shared, into);
        exporter::collect(&self.shared, into);
        if let Some(arbiter) = self.shared.arbiter.get() {
            arbiter.collect(into);
        }
        Reports::new(self.shared.clone()).collect(into);
    }
}

impl cached_admin::status::Source for ServerSource {
    fn fill(&self, document: &mut cached_admin::status::Document) {
        document::fill(&self.shared, document);
    }
}
