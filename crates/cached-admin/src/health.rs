//! The checks behind the probes. Each check returns the reason why the program is unhealthy, or
//! nothing.
//!
//! | probe | 200 while | a 503 means |
//! |---|---|---|
//! | `/livez` | no liveness check fails | restart the process: it does not recover by itself |
//! | `/readyz` | it has started, is not draining, no readiness check fails | send clients elsewhere for a while |
//! | `/startupz` | it has started | wait |

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A check: returns one line with the reason for a problem, or `None` if all is well. A check does
/// not block.
#[derive(Clone)]
struct Check {
    /// The component that is checked; `None` for the program. Once the component is gone, the check
    /// is forgotten.
    of: Option<Weak<dyn Send + Sync>>,
    run: Arc<dyn Fn() -> Option<String> + Send + Sync>,
}

impl Check {
    fn new(check: impl Fn() -> Option<String> + Send + Sync + 'static) -> Check {
        Check { of: None, run: Arc::new(check) }
    }

    fn of<T: Send + Sync + 'static>(
        component: &Arc<T>,
        check: impl Fn(&T) -> Option<String> + Send + Sync + 'static,
    ) -> Check {
        let checked = Arc::downgrade(component);
        let of: Weak<dyn Send + Sync> = checked.clone();
        let run = move || {
            let component = checked.upgrade()?;
            check(&component)
        };
        Check { of: Some(of), run: Arc::new(run) }
    }

    /// Adds the check to `checks`, of which those of components that are gone are removed.
    fn add_to(self, checks: &mut Vec<Check>) {
        checks.retain(|check| check.of.as_ref().is_none_or(|of| of.strong_count() > 0));
        checks.push(self);
    }
}

/// The state that probes report. It is cheap to clone; all clones share the same state.
#[derive(Clone, Default)]
pub struct Health {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    /// The step for which the startup waits; `None` once the startup is complete.
    starting: Option<String>,
    draining: Option<String>,
    live: Vec<Check>,
    ready: Vec<Check>,
    notes: Vec<Check>,
}

impl Default for Inner {
    fn default() -> Self {
        let starting = Some("the program is starting".into());
        Inner { starting, draining: None, live: Vec::new(), ready: Vec::new(), notes: Vec::new() }
    }
}

/// The stage of the program's life cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The program does not serve yet.
    Starting,
    /// The program serves.
    Serving,
    /// The program is shutting down: it responds to the requests it has received, and stores dirty
    /// data.
    Draining,
}

impl Health {
    /// Returns the state of a program that is starting and has no checks.
    #[must_use]
    pub fn new() -> Health {
        Health::default()
    }

    /// Adds a condition for readiness.
    pub fn check_readiness(&self, check: impl Fn() -> Option<String> + Send + Sync + 'static) {
        Check::new(check).add_to(&mut self.inner.lock().ready);
    }

    /// Adds a condition for readiness, for as long as `component` exists.
    pub fn check_readiness_of<T: Send + Sync + 'static>(
        &self,
        component: &Arc<T>,
        check: impl Fn(&T) -> Option<String> + Send + Sync + 'static,
    ) {
        Check::of(component, check).add_to(&mut self.inner.lock().ready);
    }

    /// Adds a condition for liveness: one that only a restart can restore.
    pub fn check_liveness(&self, check: impl Fn() -> Option<String> + Send + Sync + 'static) {
        Check::new(check).add_to(&mut self.inner.lock().live);
    }

    /// Adds a note for readers of the readiness probe, which does not make the program unready.
    pub fn note_readiness(&self, note: impl Fn() -> Option<String> + Send + Sync + 'static) {
        Check::new(note).add_to(&mut self.inner.lock().notes);
    }

    /// Adds a note for readers of the readiness probe, for as long as `component` exists.
    pub fn note_readiness_of<T: Send + Sync + 'static>(
        &self,
        component: &Arc<T>,
        note: impl Fn(&T) -> Option<String> + Send + Sync + 'static,
    ) {
        Check::of(component, note).add_to(&mut self.inner.lock().notes);
    }

    /// Records the step for which the startup waits. Has no effect once the startup is complete.
    pub fn set_starting(&self, line: impl Into<String>) {
        if let Some(starting) = &mut self.inner.lock().starting {
            *starting = line.into();
        }
    }

    /// Records that the startup is complete.
    pub fn set_started(&self) {
        self.inner.lock().starting = None;
    }

    /// Records that the program is shutting down, and the reason. From now on, the program is not
    /// ready.
    pub fn set_draining(&self, line: impl Into<String>) {
        self.inner.lock().draining = Some(line.into());
    }

    /// Returns the stage of the program's life cycle.
    #[must_use]
    pub fn stage(&self) -> Stage {
        let inner = self.inner.lock();
        match (&inner.draining, &inner.starting) {
            (Some(_), _) => Stage::Draining,
            (None, None) => Stage::Serving,
            (None, Some(_)) => Stage::Starting,
        }
    }

    /// Returns the reasons why the process should be restarted; no reasons if it should not.
    #[must_use]
    pub fn not_live(&self) -> Vec<String> {
        let checks = self.inner.lock().live.clone();
        run(&checks)
    }

    /// Returns the reasons why no client should be sent here; empty if the program is ready.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        let (mut reasons, checks, live) = {
            let inner = self.inner.lock();
            let reasons: Vec<String> = inner.draining.iter().chain(&inner.starting).cloned().collect();
            (reasons, inner.ready.clone(), inner.live.clone())
        };
        // Checks run outside the lock, because a check may use this state.
        reasons.extend(run(&checks));
        reasons.extend(run(&live));
        reasons
    }

    /// Returns the notes: unusual states that do not make the program unready.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let notes = self.inner.lock().notes.clone();
        run(&notes)
    }

    /// Returns the step for which the startup waits; `None` if the startup is complete.
    #[must_use]
    pub fn not_started(&self) -> Option<String> {
        self.inner.lock().starting.clone()
    }
}

/// Returns the reasons, each as a single line.
fn run(checks: &[Check]) -> Vec<String> {
    checks.iter().filter_map(|check| (check.run)()).map(|line| line.replace(['\r', '\n'], " ")).collect()
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("stage", &self.stage()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn readiness_follows_start_checks_and_drain() {
        let health = Health::new();
        assert_eq!(health.stage(), Stage::Starting);
        health.set_starting("waiting for the store");
        assert_eq!(health.not_ready(), ["waiting for the store"]);
        assert_eq!(health.not_started().as_deref(), Some("waiting for the store"));
        assert!(health.not_live().is_empty());
        health.set_started();
        health.set_starting("too late");
        assert!(health.not_ready().is_empty() && health.not_started().is_none());
        let is_away = Arc::new(AtomicBool::new(true));
        let seen = Arc::clone(&is_away);
        health.check_readiness(move || seen.load(Ordering::Relaxed).then(|| "the store is\naway".into()));
        assert_eq!(health.not_ready(), ["the store is away"]);
        is_away.store(false, Ordering::Relaxed);
        assert_eq!((health.not_ready(), health.stage()), (vec![], Stage::Serving));
        health.note_readiness(|| Some("the cache is detached".into()));
        assert_eq!((health.not_ready(), health.notes()), (vec![], vec!["the cache is detached".to_owned()]));
        health.set_draining("the end was requested");
        assert_eq!((health.not_ready().len(), health.stage()), (1, Stage::Draining));
        assert!(health.not_live().is_empty());
    }

    #[test]
    fn what_is_checked_of_a_component_is_forgotten_with_it() {
        let health = Health::new();
        health.set_started();
        for round in 0..3 {
            let component = Arc::new(format!("component {round}"));
            health.check_readiness_of(&component, |component| Some(component.clone()));
            health.note_readiness_of(&component, |component| Some(component.clone()));
            assert_eq!(health.not_ready(), [component.as_str()]);
            assert_eq!(health.notes(), [component.as_str()]);
            let inner = health.inner.lock();
            assert_eq!((inner.ready.len(), inner.notes.len()), (1, 1), "earlier ones are kept");
        }
        assert!(health.not_ready().is_empty() && health.notes().is_empty());
    }

    #[test]
    fn what_is_not_live_is_not_ready() {
        let health = Health::new();
        health.set_started();
        health.check_liveness(|| Some("worker 0 stands still".into()));
        assert_eq!(health.not_live(), ["worker 0 stands still"]);
        assert_eq!(health.not_ready(), ["worker 0 stands still"]);
    }
}
