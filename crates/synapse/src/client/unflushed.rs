//! What a server has acknowledged as *cached* and has not flushed since: lost if the server starts anew.
//!
//! A flush that is answered by another instance than the one that took the writes would say *stored* of
//! bytes that went with the old one's memory. So the client remembers which objects have such writes; when
//! the instance changes they count as lost, and flushes that cover them answer `WritesLost`, until they
//! are written in full, deleted, or invalidated. Bounded: beyond the limit everything counts.

use std::sync::atomic::{AtomicBool, Ordering};

use blocker::{Error, ObjectId, OrderDomain, Scope};
use foldhash::{HashMap, HashSet};
use parking_lot::Mutex;

use crate::codec::InstanceId;

/// How many objects are remembered one by one.
const OBJECTS_MAX: usize = 64 * 1024;

#[derive(Default)]
pub(super) struct Unflushed {
    /// Whether there is anything at all; spares the lock where everything is stored at once.
    is_any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    instance: Option<InstanceId>,
    /// Rises with each acknowledgement: tells those before a flush from those after.
    tick: u64,
    dirty: HashMap<ObjectId, Dirty>,
    /// More than could be remembered is dirty, last at this tick.
    dirty_all: Option<u64>,
    lost: HashSet<ObjectId>,
    lost_all: bool,
}

struct Dirty {
    tick: u64,
    /// `None` once it was changed in different domains.
    domain: Option<Option<OrderDomain>>,
}

impl Unflushed {
    /// A connection was greeted by this instance. Whether it is another than before; then what was dirty
    /// is lost.
    pub(super) fn greeted(&self, instance: InstanceId) -> bool {
        let mut state = self.state.lock();
        let before = state.instance.replace(instance);
        if before.is_none_or(|before| before == instance) {
            return false;
        }
        let dirty = std::mem::take(&mut state.dirty);
        state.lost_all |= state.dirty_all.take().is_some();
        for (object, _) in dirty {
            state.lose(object);
        }
        true
    }

    /// This instance has acknowledged a change of `object` as *cached*.
    pub(super) fn acknowledged(&self, instance: InstanceId, object: &ObjectId, domain: Option<OrderDomain>) {
        let mut state = self.state.lock();
        self.is_any.store(true, Ordering::Release);
        if state.instance != Some(instance) {
            // An answer that was on its way when its server went.
            return state.lose(object.clone());
        }
        state.tick += 1;
        let tick = state.tick;
        if let Some(dirty) = state.dirty.get_mut(object) {
            dirty.tick = tick;
            dirty.domain = dirty.domain.filter(|before| *before == domain);
        } else if state.dirty.len() < OBJECTS_MAX {
            state.dirty.insert(object.clone(), Dirty { tick, domain: Some(domain) });
        } else {
            state.dirty_all = Some(tick);
        }
    }

    /// A flush begins: what it covers is what was acknowledged until now.
    pub(super) fn flush_begins(&self) -> u64 {
        if self.is_any.load(Ordering::Acquire) { self.state.lock().tick } else { 0 }
    }

    /// A flush that began at `begun` has been answered with *stored*: whether that can be believed.
    ///
    /// # Errors
    /// `WritesLost`.
    pub(super) fn flushed(&self, scope: &Scope, begun: u64) -> Result<(), Error> {
        if !self.is_any.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.check(scope)?;
        state.dirty.retain(|object, dirty| {
            let covered = match dirty.domain {
                Some(domain) => scope.covers(object, domain),
                None => !matches!(scope, Scope::Domain(..)) && scope.covers(object, None),
            };
            !covered || dirty.tick > begun
        });
        if *scope == Scope::All && state.dirty_all.is_some_and(|tick| tick <= begun) {
            state.dirty_all = None;
        }
        Ok(())
    }

    /// Whether a flush of `scope` can succeed at all.
    ///
    /// # Errors
    /// `WritesLost`.
    pub(super) fn check(&self, scope: &Scope) -> Result<(), Error> {
        if self.is_any.load(Ordering::Acquire) { self.state.lock().check(scope) } else { Ok(()) }
    }

    /// Someone has made good what was lost of `scope`, or has let go of it.
    pub(super) fn forgive(&self, scope: &Scope) {
        if !self.is_any.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        state.lost.retain(|object| !covers_in_any_domain(scope, object));
        if *scope == Scope::All {
            state.lost_all = false;
        }
    }
}

impl State {
    fn lose(&mut self, object: ObjectId) {
        if self.lost.len() < OBJECTS_MAX {
            self.lost.insert(object);
        } else {
            self.lost_all = true;
        }
    }

    fn check(&self, scope: &Scope) -> Result<(), Error> {
        if self.lost_all || self.lost.iter().any(|object| covers_in_any_domain(scope, object)) {
            let text = "the server has started anew since it acknowledged writes that were not stored yet";
            return Err(Error::WritesLost(text.into()));
        }
        Ok(())
    }
}

/// Whether a scope may cover changes of `object`: of a domain, all objects in its namespace may.
fn covers_in_any_domain(scope: &Scope, object: &ObjectId) -> bool {
    match scope {
        Scope::Domain(namespace, _) => *namespace == object.namespace,
        scope => scope.covers(object, None),
    }
}

#[cfg(test)]
mod tests {
    use blocker::{Name, Namespace};

    use super::*;

    fn object(name: &'static str) -> ObjectId {
        ObjectId::new(Namespace::new("n").unwrap(), Name::new(name).unwrap())
    }

    fn is_lost(all: &Unflushed, scope: &Scope) -> bool {
        matches!(all.check(scope), Err(Error::WritesLost(_)))
    }

    #[test]
    fn what_was_not_flushed_is_lost_with_the_instance_until_it_is_made_good() {
        let all = Unflushed::default();
        assert!(!all.greeted([1; 16]));
        all.acknowledged([1; 16], &object("flushed"), None);
        let begun = all.flush_begins();
        all.acknowledged([1; 16], &object("after"), None);
        all.flushed(&Scope::All, begun).unwrap();
        assert!(!all.greeted([1; 16]));
        assert!(all.greeted([2; 16]));
        assert!(is_lost(&all, &Scope::All));
        assert!(is_lost(&all, &Scope::Object(object("after"))));
        assert!(!is_lost(&all, &Scope::Object(object("flushed"))));
        // A flush that was under way across the change must not succeed either.
        assert!(all.flushed(&Scope::All, begun + 9).is_err());
        all.forgive(&Scope::Object(object("after")));
        assert!(!is_lost(&all, &Scope::All));
    }

    #[test]
    fn an_answer_of_a_server_that_is_gone_is_no_promise() {
        let all = Unflushed::default();
        all.greeted([1; 16]);
        all.greeted([2; 16]);
        all.acknowledged([1; 16], &object("late"), None);
        assert!(is_lost(&all, &Scope::All));
    }

    #[test]
    fn a_flush_of_a_domain_covers_what_was_only_in_it() {
        let all = Unflushed::default();
        all.greeted([1; 16]);
        let (one, two) = (Some(OrderDomain(1)), Some(OrderDomain(2)));
        all.acknowledged([1; 16], &object("one"), one);
        all.acknowledged([1; 16], &object("both"), one);
        all.acknowledged([1; 16], &object("both"), two);
        let domain = Scope::Domain(object("x").namespace, OrderDomain(1));
        all.flushed(&domain, all.flush_begins()).unwrap();
        all.greeted([2; 16]);
        assert!(!is_lost(&all, &Scope::Object(object("one"))));
        assert!(is_lost(&all, &Scope::Object(object("both"))));
    }

    #[test]
    fn beyond_the_limit_everything_counts() {
        let all = Unflushed::default();
        all.greeted([1; 16]);
        for n in 0..=OBJECTS_MAX {
            let id = ObjectId::new(object("x").namespace, Name::new(n.to_string()).unwrap());
            all.acknowledged([1; 16], &id, None);
        }
        all.greeted([2; 16]);
        assert!(is_lost(&all, &Scope::Object(object("never written"))));
        all.forgive(&Scope::All);
        assert!(!is_lost(&all, &Scope::All));
    }
}
