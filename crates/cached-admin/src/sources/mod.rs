//! What an object cache, a store and a synapse server show: their metrics under the program's prefix, their part of the
//! document `/status.json`, and what readiness depends on.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};

use cached_metrics::{Collect, Families, Registration};

use crate::listener::AdminServer;
use crate::status::{Document, Source};

mod objects;
mod store;

pub use objects::ObjectsSource;
pub use store::{AWAY_AFTER, Prefixed, StoreSource, SynapseSource, measured};

/// Keeps a component shown. Dropping it removes the component from metrics, status and health, and releases it: to be
/// dropped before the component is closed.
#[must_use = "dropping this removes the component from what is shown"]
pub struct Shown {
    _component: Arc<dyn Any + Send + Sync>,
    _registration: Registration,
}

impl Shown {
    /// Shows the metrics of `component`, with the program's prefix, and its part of the status, until this is dropped.
    pub fn new<C: Collect + Source + 'static>(admin: &AdminServer, component: &Arc<C>) -> Shown {
        let while_shown = Arc::downgrade(component);
        admin.status().add(WhileShown(Weak::clone(&while_shown)));
        let collector = Arc::new(Prefixed(WhileShown(while_shown)));
        let registration = admin.registry().register(collector, std::iter::empty::<(&str, &str)>());
        Shown { _component: Arc::clone(component) as _, _registration: registration }
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shown").finish_non_exhaustive()
    }
}

/// A component that shows nothing once it is gone.
struct WhileShown<C>(Weak<C>);

impl<C: Collect> Collect for WhileShown<C> {
    fn collect(&self, into: &mut Families) {
        if let Some(component) = self.0.upgrade() {
            component.collect(into);
        }
    }
}

impl<C: Source> Source for WhileShown<C> {
    fn fill(&self, document: &mut Document) {
        if let Some(component) = self.0.upgrade() {
            component.fill(document);
        }
    }
}
