//! Changes that a server has acknowledged as *cached* and not flushed since: a crash of the server
//! loses them.
//!
//! If another instance than the one that accepted the writes answers a flush, it would report bytes
//! as *stored* that were lost with the old instance's memory. So the client records which objects
//! have such writes. When the instance changes they count as lost, and flushes that cover them fail
//! with `WritesLost`, until the objects are written in full, deleted, or invalidated. Nothing is
//! lost if the old instance is known to have stored everything before it ended.
//!
//! The record is bounded: beyond the limit the namespace with the most objects counts as a whole,
//! until it or everything is flushed. A flush removes its entries in small steps, so that no caller
//! waits for all of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use blocker::{Error, Name, Namespace, ObjectId, OrderDomain, Scope};
use foldhash::{HashMap, HashSet};
use parking_lot::Mutex;

use crate::codec::InstanceId;

/// The maximum number of objects recorded individually, separately for dirty and lost ones.
const OBJECTS_MAX: usize = 64 * 1024;
/// The maximum number of recorded namespaces. If there are more, everything counts as dirty.
const NAMESPACES_MAX: usize = 4096;
/// The number of objects that a flush removes before the lock is released once.
const STEP_COUNT: usize = 256;

#[derive(Default)]
pub(super) struct Unflushed {
    /// Whether anything was ever recorded. It avoids the lock in clients whose changes are all
    /// stored immediately.
    is_any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    instance: Option<InstanceId>,
    /// Instances known to have stored everything before they ended.
    closed: Vec<InstanceId>,
    /// A number that rises with each acknowledgement, so that a flush can tell earlier ones from
    /// later ones.
    tick: u64,
    dirty: HashMap<Namespace, Dirty>,
    dirty_count: usize,
    /// The last tick of a change in an unrecorded namespace. If it is set, everything counts as
    /// dirty.
    dirty_all: Option<u64>,
    lost: HashMap<Namespace, Lost>,
    lost_count: usize,
    lost_all: bool,
    /// A number that rises with each loss, so that an invalidation accepts none after its beginning.
    losses: u64,
}

/// The order domains of an object's changes since its last flush.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Domains {
    None,
    One(OrderDomain),
    Several,
}

/// The dirty objects of a namespace.
#[derive(Default)]
struct Dirty {
    objects: HashMap<Name, (u64, Domains)>,
    /// The same objects by tick, the oldest first, for flushes.
    by_tick: BTreeMap<(Domains, u64), Name>,
    /// The last tick of a change in the namespace, if the namespace has too many objects to record.
    /// If it is set, the whole namespace counts as dirty.
    whole: Option<u64>,
}

/// The lost objects of a namespace.
#[derive(Default)]
struct Lost {
    objects: HashSet<Name>,
    whole: bool,
}

impl Unflushed {
    /// Records that a connection to `instance` was accepted; `closed` are instances known to have
    /// stored everything before they ended. Returns whether the instance has changed. If so, dirty
    /// objects are lost, unless the previous instance is among `closed`.
    pub(super) fn connected_to(&self, instance: InstanceId, closed: &[InstanceId]) -> bool {
        let mut state = self.state.lock();
        state.closed.clear();
        state.closed.extend_from_slice(closed);
        let before = state.instance.replace(instance);
        let Some(before) = before.filter(|before| *before != instance) else { return false };
        let (dirty, all) = (std::mem::take(&mut state.dirty), state.dirty_all.take());
        state.dirty_count = 0;
        if state.closed.contains(&before) {
            drop(state);
            // All recorded changes are stored; the record is dropped outside the lock.
            drop(dirty);
            return true;
        }
        if all.is_some() {
            state.lose_all();
        }
        for (namespace, dirty) in dirty {
            if dirty.whole.is_some() {
                state.lose_namespace(namespace);
                continue;
            }
            for name in dirty.objects.into_keys() {
                state.lose(&namespace, name);
            }
        }
        true
    }

    /// Records that `instance` has acknowledged a change of `object` as *cached*.
    pub(super) fn acknowledged(&self, instance: InstanceId, object: &ObjectId, domain: Option<OrderDomain>) {
        let mut state = self.state.lock();
        self.is_any.store(true, Ordering::Release);
        if state.instance != Some(instance) {
            // The response arrives after its server has ended.
            if !state.closed.contains(&instance) {
                state.lose(&object.namespace, object.name.clone());
            }
            return;
        }
        state.tick += 1;
        let tick = state.tick;
        let within = domain.map_or(Domains::None, Domains::One);
        if !state.dirty.contains_key(&object.namespace) && state.dirty.len() >= NAMESPACES_MAX {
            state.dirty_all = Some(tick);
            return;
        }
        let dirty = state.dirty.entry(object.namespace.clone()).or_default();
        if dirty.whole.is_some() {
            dirty.whole = Some(tick);
            return;
        }
        if dirty.touch(&object.name, tick, within) {
            state.dirty_count += 1;
        }
        if state.dirty_count > OBJECTS_MAX
            && let Some(largest) = state.dirty.values_mut().max_by_key(|dirty| dirty.objects.len())
        {
            let count = largest.objects.len();
            *largest = Dirty { whole: Some(tick), ..Dirty::default() };
            state.dirty_count -= count;
        }
    }

    /// Returns the tick at which a flush begins: it covers earlier acknowledgements.
    pub(super) fn begin_flush(&self) -> u64 {
        if self.is_any.load(Ordering::Acquire) { self.state.lock().tick } else { 0 }
    }

    /// Removes the changes that a flush covers, which began at `begun` and which the server has
    /// answered with *stored*.
    ///
    /// # Errors
    /// Returns `WritesLost` if the flush covers lost changes.
    pub(super) fn flushed(&self, scope: &Scope, begun: u64) -> Result<(), Error> {
        if !self.is_any.load(Ordering::Acquire) {
            return Ok(());
        }
        // There is one check, before the first step: changes that are lost later were stored when
        // the server responded.
        self.state.lock().check(scope)?;
        loop {
            let mut state = self.state.lock();
            if state.drop_flushed(scope, begun) < STEP_COUNT {
                return Ok(());
            }
        }
    }

    /// Checks that nothing in `scope` is lost, since a flush of it could not succeed.
    ///
    /// # Errors
    /// Returns `WritesLost`.
    pub(super) fn check(&self, scope: &Scope) -> Result<(), Error> {
        if self.is_any.load(Ordering::Acquire) { self.state.lock().check(scope) } else { Ok(()) }
    }

    /// Clears the record of an object whose content was replaced.
    pub(super) fn replaced(&self, object: &ObjectId) {
        if !self.is_any.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(dirty) = state.dirty.get_mut(&object.namespace) {
            state.dirty_count -= usize::from(dirty.remove(&object.name));
        }
        state.accept_object(object);
    }

    /// Returns the number of losses so far, which an invalidation that begins now accepts.
    pub(super) fn begin_invalidation(&self) -> u64 {
        if self.is_any.load(Ordering::Acquire) { self.state.lock().losses } else { 0 }
    }

    /// Clears the losses of `scope`, which an invalidation has accepted that began at `begun`. If
    /// more was lost in the meantime, all losses stay. Dirty objects stay in any case: the server
    /// still has their changes in memory.
    pub(super) fn invalidated(&self, scope: &Scope, begun: u64) {
        if !self.is_any.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        if state.losses == begun {
            state.accept(scope);
        }
    }
}

impl State {
    fn lose(&mut self, namespace: &Namespace, name: Name) {
        if !self.lost.contains_key(namespace) && self.lost.len() >= NAMESPACES_MAX {
            return self.lose_all();
        }
        self.losses += 1;
        let lost = self.lost.entry(namespace.clone()).or_default();
        if lost.whole || !lost.objects.insert(name) {
            return;
        }
        self.lost_count += 1;
        if self.lost_count > OBJECTS_MAX
            && let Some(largest) = self.lost.values_mut().max_by_key(|lost| lost.objects.len())
        {
            self.lost_count -= largest.objects.len();
            *largest = Lost { objects: HashSet::default(), whole: true };
        }
    }

    fn lose_namespace(&mut self, namespace: Namespace) {
        if !self.lost.contains_key(&namespace) && self.lost.len() >= NAMESPACES_MAX {
            return self.lose_all();
        }
        self.losses += 1;
        let lost = Lost { objects: HashSet::default(), whole: true };
        self.lost_count -= self.lost.insert(namespace, lost).map_or(0, |lost| lost.objects.len());
    }

    fn lose_all(&mut self) {
        self.losses += 1;
        self.lost_all = true;
    }

    /// Clears the losses of a scope.
    fn accept(&mut self, scope: &Scope) {
        match scope {
            Scope::Object(object) => self.accept_object(object),
            // The record does not hold the domains of lost objects.
            Scope::Domain(..) => {}
            Scope::Namespace(namespace) => {
                self.lost_count -= self.lost.remove(namespace).map_or(0, |lost| lost.objects.len());
            }
            _ => (self.lost, self.lost_count, self.lost_all) = Default::default(),
        }
    }

    fn accept_object(&mut self, object: &ObjectId) {
        let Some(lost) = self.lost.get_mut(&object.namespace) else { return };
        self.lost_count -= usize::from(lost.objects.remove(&object.name));
        if lost.objects.is_empty() && !lost.whole {
            self.lost.remove(&object.namespace);
        }
    }

    fn check(&self, scope: &Scope) -> Result<(), Error> {
        let within = |namespace: &Namespace| self.lost.get(namespace);
        let is_lost = self.lost_all
            || match scope {
                Scope::Object(object) => within(&object.namespace)
                    .is_some_and(|lost| lost.whole || lost.objects.contains(&object.name)),
                // The domain's changes may be in any object of its namespace.
                Scope::Domain(namespace, _) | Scope::Namespace(namespace) => within(namespace).is_some(),
                _ => !self.lost.is_empty(),
            };
        if is_lost {
            let text = "the server has restarted, or another one has taken over, since it acknowledged writes that \
                        were not stored yet";
            return Err(Error::WritesLost(text.into()));
        }
        Ok(())
    }

    /// Removes the objects that a flush of `scope`, begun at `begun`, covers, at most
    /// [`STEP_COUNT`]. Returns their number.
    fn drop_flushed(&mut self, scope: &Scope, begun: u64) -> usize {
        let mut count = 0;
        match scope {
            Scope::Object(object) => {
                let Some(dirty) = self.dirty.get_mut(&object.namespace) else { return 0 };
                if dirty.objects.get(&object.name).is_some_and(|(tick, _)| *tick <= begun) {
                    dirty.remove(&object.name);
                    self.dirty_count -= 1;
                }
            }
            Scope::Domain(namespace, domain) => {
                let Some(dirty) = self.dirty.get_mut(namespace) else { return 0 };
                count = dirty.drop_flushed(Some(Domains::One(*domain)), begun, STEP_COUNT);
                self.dirty_count -= count;
            }
            Scope::Namespace(namespace) => {
                let Some(dirty) = self.dirty.get_mut(namespace) else { return 0 };
                count = dirty.drop_flushed(None, begun, STEP_COUNT);
                self.dirty_count -= count;
                if dirty.is_empty() {
                    self.dirty.remove(namespace);
                }
            }
            _ => {
                if self.dirty_all.is_some_and(|tick| tick <= begun) {
                    self.dirty_all = None;
                }
                let dirty_count = &mut self.dirty_count;
                self.dirty.retain(|_, dirty| {
                    let dropped = dirty.drop_flushed(None, begun, STEP_COUNT - count);
                    *dirty_count -= dropped;
                    count += dropped;
                    !dirty.is_empty()
                });
            }
        }
        count
    }
}

impl Dirty {
    /// Records a change of an object. Returns whether the object was clean.
    fn touch(&mut self, name: &Name, tick: u64, within: Domains) -> bool {
        let before = self.objects.get(name).copied();
        let within = match before {
            Some((_, before)) if before != within => Domains::Several,
            _ => within,
        };
        if let Some((tick, within)) = before {
            self.by_tick.remove(&(within, tick));
        }
        self.by_tick.insert((within, tick), name.clone());
        self.objects.insert(name.clone(), (tick, within));
        before.is_none()
    }

    fn remove(&mut self, name: &Name) -> bool {
        let Some((tick, within)) = self.objects.remove(name) else { return false };
        self.by_tick.remove(&(within, tick));
        true
    }

    /// Removes at most `count_max` objects whose last change is not after `begun`, either those of
    /// one domain or all.
    fn drop_flushed(&mut self, only: Option<Domains>, begun: u64, count_max: usize) -> usize {
        if only.is_none() && self.whole.is_some_and(|tick| tick <= begun) {
            self.whole = None;
        }
        let mut count = 0;
        let mut next = only.or_else(|| self.by_tick.first_key_value().map(|((within, _), _)| *within));
        while let Some(within) = next {
            while count < count_max
                && let Some((key, _)) = self.by_tick.range((within, 0)..=(within, begun)).next()
                && let key = *key
                && let Some(name) = self.by_tick.remove(&key)
            {
                self.objects.remove(&name);
                count += 1;
            }
            let later = || self.by_tick.range((within, u64::MAX)..).next().map(|((within, _), _)| *within);
            next = if only.is_some() || count == count_max { None } else { later() };
        }
        count
    }

    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.whole.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &'static str) -> ObjectId {
        within("n", name)
    }

    fn within(namespace: &'static str, name: impl AsRef<str>) -> ObjectId {
        let name = Name::new(name.as_ref().to_owned()).unwrap();
        ObjectId::new(Namespace::new(namespace).unwrap(), name)
    }

    fn namespace(name: &'static str) -> Scope {
        Scope::Namespace(Namespace::new(name).unwrap())
    }

    fn is_lost(all: &Unflushed, scope: &Scope) -> bool {
        matches!(all.check(scope), Err(Error::WritesLost(_)))
    }

    #[test]
    fn what_was_not_flushed_is_lost_with_the_instance_until_it_is_written_anew() {
        let all = Unflushed::default();
        assert!(!all.connected_to([1; 16], &[]));
        all.acknowledged([1; 16], &object("flushed"), None);
        let begun = all.begin_flush();
        all.acknowledged([1; 16], &object("after"), None);
        all.flushed(&Scope::All, begun).unwrap();
        assert!(!all.connected_to([1; 16], &[]));
        assert!(all.connected_to([2; 16], &[[9; 16]]));
        assert!(is_lost(&all, &Scope::All));
        assert!(is_lost(&all, &Scope::Object(object("after"))));
        assert!(!is_lost(&all, &Scope::Object(object("flushed"))));
        // A flush that began before the restart must not succeed either.
        assert!(all.flushed(&Scope::All, begun + 9).is_err());
        all.replaced(&object("after"));
        assert!(!is_lost(&all, &Scope::All));
    }

    #[test]
    fn an_invalidation_accepts_the_losses_before_it_and_keeps_what_may_still_be_lost() {
        let all = Unflushed::default();
        all.connected_to([1; 16], &[]);
        all.acknowledged([1; 16], &object("a"), None);
        all.invalidated(&Scope::All, all.begin_invalidation());
        let begun = all.begin_invalidation();
        all.connected_to([2; 16], &[]);
        assert!(is_lost(&all, &Scope::Object(object("a"))), "its change was not stored");
        all.invalidated(&Scope::All, begun);
        assert!(is_lost(&all, &Scope::All), "it was lost after the invalidation began");
        all.invalidated(&namespace("n"), all.begin_invalidation());
        assert!(!is_lost(&all, &Scope::All));
    }

    #[test]
    fn nothing_is_lost_with_an_instance_that_ended_with_everything_stored() {
        let all = Unflushed::default();
        all.connected_to([1; 16], &[]);
        all.acknowledged([1; 16], &object("a"), None);
        // There were two restarts, of which this client has seen only the second.
        assert!(all.connected_to([3; 16], &[[2; 16], [1; 16]]));
        assert!(!is_lost(&all, &Scope::All));
        // A late response of the first instance changes nothing.
        all.acknowledged([1; 16], &object("late"), None);
        assert!(!is_lost(&all, &Scope::All));
        // The end of the third instance loses only the changes that it acknowledged, and no earlier
        // ones.
        all.acknowledged([3; 16], &object("b"), None);
        assert!(all.connected_to([4; 16], &[[2; 16], [1; 16]]));
        assert!(is_lost(&all, &Scope::Object(object("b"))));
        assert!(!is_lost(&all, &Scope::Object(object("a"))));
    }

    #[test]
    fn a_late_answer_of_an_earlier_instance_counts_as_lost() {
        let all = Unflushed::default();
        all.connected_to([1; 16], &[]);
        all.connected_to([2; 16], &[]);
        all.acknowledged([1; 16], &object("late"), None);
        assert!(is_lost(&all, &Scope::All));
    }

    #[test]
    fn a_flush_of_a_domain_covers_objects_changed_in_that_domain_only() {
        let all = Unflushed::default();
        all.connected_to([1; 16], &[]);
        let (one, two) = (Some(OrderDomain(1)), Some(OrderDomain(2)));
        all.acknowledged([1; 16], &object("one"), one);
        all.acknowledged([1; 16], &object("two"), two);
        all.acknowledged([1; 16], &object("both"), one);
        all.acknowledged([1; 16], &object("both"), two);
        let domain = Scope::Domain(object("x").namespace, OrderDomain(1));
        all.flushed(&domain, all.begin_flush()).unwrap();
        all.connected_to([2; 16], &[]);
        assert!(!is_lost(&all, &Scope::Object(object("one"))));
        assert!(is_lost(&all, &Scope::Object(object("two"))));
        assert!(is_lost(&all, &Scope::Object(object("both"))));
    }

    #[test]
    fn beyond_the_limit_one_namespace_counts_as_a_whole_until_it_is_flushed() {
        let all = Unflushed::default();
        all.connected_to([1; 16], &[]);
        all.acknowledged([1; 16], &within("small", "a"), None);
        for n in 0..=OBJECTS_MAX {
            all.acknowledged([1; 16], &within("large", n.to_string()), None);
        }
        assert!(all.state.lock().dirty_count <= OBJECTS_MAX);
        // A flush of the overflowed namespace suffices; one of another namespace does not.
        all.flushed(&namespace("large"), all.begin_flush()).unwrap();
        all.acknowledged([1; 16], &within("large", "new"), None);
        all.connected_to([2; 16], &[]);
        assert!(!is_lost(&all, &Scope::Object(within("large", "never written"))));
        assert!(is_lost(&all, &Scope::Object(within("large", "new"))));
        assert!(is_lost(&all, &Scope::Object(within("small", "a"))));

        all.invalidated(&Scope::All, all.begin_invalidation());
        for n in 0..=OBJECTS_MAX {
            all.acknowledged([2; 16], &within("large", n.to_string()), None);
        }
        all.flushed(&namespace("small"), all.begin_flush()).unwrap();
        all.connected_to([3; 16], &[]);
        assert!(is_lost(&all, &namespace("large")));
        assert!(!is_lost(&all, &namespace("small")));
        all.invalidated(&namespace("large"), all.begin_invalidation());
        assert!(!is_lost(&all, &Scope::All));
    }

    #[test]
    fn a_flush_removes_everything_before_it_step_by_step_and_nothing_after_it() {
        let all = Unflushed::default();
        all.connected_to([1; 16], &[]);
        for n in 0..3 * STEP_COUNT as u64 {
            let domain = (n % 3 > 0).then_some(OrderDomain(n % 3));
            let name = if n % 2 == 0 { "n" } else { "m" };
            all.acknowledged([1; 16], &within(name, n.to_string()), domain);
        }
        assert!(
            all.state.lock().drop_flushed(&Scope::All, u64::MAX) <= STEP_COUNT,
            "too much under one lock"
        );
        let begun = all.begin_flush();
        all.acknowledged([1; 16], &object("later"), None);
        all.flushed(&Scope::All, begun).unwrap();
        let state = all.state.lock();
        assert_eq!(state.dirty_count, 1);
        assert_eq!(state.dirty.values().map(|dirty| dirty.by_tick.len()).sum::<usize>(), 1);
    }

    #[test]
    fn beyond_the_limit_of_namespaces_everything_counts() {
        let all = Unflushed::default();
        all.connected_to([1; 16], &[]);
        let named = |n: usize| ObjectId::new(Namespace::new(format!("n{n}")).unwrap(), object("o").name);
        for n in 0..=NAMESPACES_MAX {
            all.acknowledged([1; 16], &named(n), None);
        }
        all.flushed(&Scope::Namespace(named(0).namespace), all.begin_flush()).unwrap();
        all.connected_to([2; 16], &[]);
        assert!(is_lost(&all, &Scope::Object(named(NAMESPACES_MAX + 7))));
        all.invalidated(&Scope::All, all.begin_invalidation());
        assert!(!is_lost(&all, &Scope::All));
    }
}
