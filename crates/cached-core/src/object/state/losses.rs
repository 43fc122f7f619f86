//! Changes that were acknowledged as *cached* and can never be stored: they are kept by object
//! until they are repaired, whether or not the object stays in the cache.
//!
//! A flush of any scope that covers a loss fails with `WritesLost` until the object is written in
//! full or deleted, or its scope is invalidated. The list is bounded; losses that do not fit are
//! counted by namespace, and then every flush in that namespace fails with `WritesLost` until the
//! namespace, or everything, is invalidated.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use blocker::{Error, Namespace, ObjectId, OrderDomain, Reason, Result, Scope};

use crate::object::lock_ranks;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The maximum number of objects that are listed individually.
const OBJECTS_MAX: usize = 16 * 1024;
/// The maximum number of namespaces whose unlisted losses are counted separately.
const NAMESPACES_MAX: usize = 64;

/// An object with acknowledged changes that can never be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LostObject {
    /// The object.
    pub object: ObjectId,
    /// The number of acknowledged changes lost.
    pub changes: u64,
    /// The amount of data that these changes had written, in bytes, counted by whole buckets.
    pub bytes: u64,
    /// The reason why the store refuses the changes.
    pub why: Reason,
}

/// The changes that a cache has lost and no caller has repaired yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LostWrites {
    /// The objects with losses, ordered by name.
    pub objects: Vec<LostObject>,
    /// The number of objects that the list had no room for.
    pub unlisted_objects: u64,
    /// The amount of data lost of these objects, in bytes.
    pub unlisted_bytes: u64,
}

impl LostWrites {
    /// Returns the total amount of data lost, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum::<u64>() + self.unlisted_bytes
    }
}

/// Acknowledged changes of an object that are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lost {
    pub(crate) changes: u64,
    pub(crate) bytes: u64,
    /// The order domain of the lost changes.
    pub(crate) domain: Option<OrderDomain>,
}

struct Listed {
    /// The sequence number of the object's last loss.
    last: u64,
    lost: LostObject,
    /// The order domain of the losses; `None` if losses of several domains have been combined.
    domain: Option<Option<OrderDomain>>,
}

#[derive(Default)]
struct State {
    /// The number of losses so far.
    count: u64,
    objects: HashMap<ObjectId, Listed>,
    /// Unlisted losses by namespace; `None` stands for any namespace.
    unlisted: HashMap<Option<Namespace>, Unlisted>,
}

#[derive(Clone, Copy, Default)]
struct Unlisted {
    last: u64,
    objects: u64,
    bytes: u64,
}

/// See the module. The lock is a leaf and a plain mutex: a flush checks all losses of its scope
/// together, and without losses the lock is not taken.
pub(crate) struct Losses {
    /// Whether there is any loss; avoids the lock if nothing was ever lost.
    is_any: AtomicBool,
    state: Mutex<State>,
}

impl Default for Losses {
    fn default() -> Self {
        Self { is_any: AtomicBool::new(false), state: Mutex::ranked(State::default(), &lock_ranks::LOSSES) }
    }
}

impl Losses {
    /// Returns whether there is any loss that is not repaired.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Records a loss; returns whether it is the object's first that is not repaired.
    pub(crate) fn record(&self, object: &ObjectId, lost: Lost, why: &Error) -> bool {
        let mut state = lock(&self.state);
        self.is_any.store(true, Ordering::Release);
        state.count += 1;
        let (last, is_full) = (state.count, state.objects.len() >= OBJECTS_MAX);
        match state.objects.entry(object.clone()) {
            Entry::Occupied(mut listed) => {
                let listed = listed.get_mut();
                listed.last = last;
                listed.lost.changes = listed.lost.changes.saturating_add(lost.changes);
                listed.lost.bytes = listed.lost.bytes.saturating_add(lost.bytes);
                listed.domain = listed.domain.filter(|domain| *domain == lost.domain);
                return false;
            }
            Entry::Vacant(place) if !is_full => {
                let Lost { changes, bytes, domain } = lost;
                let why = why.to_string().into();
                let lost = LostObject { object: object.clone(), changes, bytes, why };
                place.insert(Listed { last, lost, domain: Some(domain) });
                return true;
            }
            Entry::Vacant(_) => (),
        }
        let namespace = Some(object.namespace.clone());
        let is_apart = state.unlisted.contains_key(&namespace) || state.unlisted.len() < NAMESPACES_MAX;
        let unlisted = state.unlisted.entry(namespace.filter(|_| is_apart)).or_default();
        unlisted.last = last;
        unlisted.objects += 1;
        unlisted.bytes = unlisted.bytes.saturating_add(lost.bytes);
        true
    }

    /// Checks whether a flush of `scope` can reply *stored*.
    ///
    /// # Errors
    /// `WritesLost`, with the first affected object and how to repair it.
    pub(crate) fn check(&self, scope: &Scope) -> Result<()> {
        if !self.is_any() {
            return Ok(());
        }
        let state = lock(&self.state);
        let covered: Vec<_> = match scope {
            Scope::Object(object) => state.objects.get_key_value(object).into_iter().collect(),
            _ => state.objects.iter().filter(|(object, listed)| may_cover(scope, object, listed)).collect(),
        };
        if let Some((_, first)) = covered.iter().min_by_key(|(object, _)| *object) {
            let LostObject { object, changes, why, .. } = &first.lost;
            let others = match covered.len() - 1 {
                0 => String::new(),
                others => format!(", and of {others} other objects"),
            };
            let lost = format!("{changes} acknowledged changes of {object} ({why}){others}");
            let why = format!("{lost}; write them in full, delete or invalidate them");
            return Err(Error::WritesLost(why.into()));
        }
        let is_in = |it: &Namespace| scope.namespace().is_none_or(|namespace| namespace == it);
        let mut unlisted = state.unlisted.iter();
        match unlisted.find(|(namespace, _)| namespace.as_ref().is_none_or(is_in)) {
            None => Ok(()),
            Some((_, Unlisted { objects, .. })) => {
                let lost = format!("{objects} objects beyond the listed ones have lost changes");
                Err(Error::WritesLost(format!("{lost}; invalidate their namespace").into()))
            }
        }
    }

    /// Forgets the losses of an object if a change has replaced all of its content, or removed it.
    #[inline]
    pub(crate) fn repaired_by(&self, object: &ObjectId, replaces_content: bool) {
        if self.is_any() && replaces_content {
            self.repair(&Scope::Object(object.clone()));
        }
    }

    /// Returns the number of losses so far.
    pub(crate) fn count(&self) -> u64 {
        if self.is_any() { lock(&self.state).count } else { 0 }
    }

    /// Forgets all losses within `scope`, because they have been repaired.
    pub(crate) fn repair(&self, scope: &Scope) {
        self.repair_first(scope, u64::MAX);
    }

    /// Forgets the losses within `scope` that are among the first `count` of all losses, because
    /// their owner has accepted them. An object with a later loss stays listed with all of its
    /// losses.
    pub(crate) fn repair_first(&self, scope: &Scope, count: u64) {
        if !self.is_any() {
            return;
        }
        let mut state = lock(&self.state);
        let State { objects, unlisted, .. } = &mut *state;
        if let Scope::Object(object) = scope {
            // The look-up is by name, because this runs with every change that repairs an object.
            if objects.get(object).is_some_and(|listed| listed.last <= count) {
                objects.remove(object);
            }
        } else {
            objects.retain(|object, listed| {
                listed.last > count || !scope.covers(object, listed.domain.flatten())
            });
            unlisted.retain(|namespace, unlisted| {
                let is_meant = match scope {
                    Scope::Namespace(asked) => namespace.as_ref() == Some(asked),
                    scope => *scope == Scope::All,
                };
                unlisted.last > count || !is_meant
            });
        }
        self.is_any.store(!objects.is_empty() || !unlisted.is_empty(), Ordering::Release);
    }

    /// Returns the number of objects with losses.
    pub(crate) fn objects(&self) -> u64 {
        if !self.is_any() {
            return 0;
        }
        let state = lock(&self.state);
        state.objects.len() as u64 + state.unlisted.values().map(|unlisted| unlisted.objects).sum::<u64>()
    }

    /// Returns all losses.
    pub(crate) fn all(&self) -> LostWrites {
        let state = lock(&self.state);
        let mut objects: Vec<_> = state.objects.values().map(|listed| listed.lost.clone()).collect();
        objects.sort_unstable_by(|one, other| one.object.cmp(&other.object));
        LostWrites {
            objects,
            unlisted_objects: state.unlisted.values().map(|unlisted| unlisted.objects).sum(),
            unlisted_bytes: state.unlisted.values().map(|unlisted| unlisted.bytes).sum(),
        }
    }
}

/// Returns whether a scope may cover the losses of an object.
fn may_cover(scope: &Scope, object: &ObjectId, listed: &Listed) -> bool {
    match (scope, listed.domain) {
        (Scope::Domain(namespace, _), None) => *namespace == object.namespace,
        (scope, domain) => scope.covers(object, domain.flatten()),
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use blocker::{Epoch, Name};

    use super::*;

    fn id(namespace: &'static str, name: usize) -> ObjectId {
        ObjectId::new(Namespace::new(namespace).unwrap(), Name::new(format!("{name:06}")).unwrap())
    }

    fn record(losses: &Losses, object: &ObjectId, domain: Option<u64>) -> bool {
        let lost = Lost { changes: 1, bytes: 4096, domain: domain.map(OrderDomain) };
        losses.record(object, lost, &Error::Fenced { epoch: Epoch(7) })
    }

    fn is_lost(losses: &Losses, scope: &Scope) -> bool {
        matches!(losses.check(scope), Err(Error::WritesLost(_)))
    }

    #[test]
    fn every_covering_scope_fails_until_it_is_repaired() {
        let losses = Losses::default();
        let (one, mixed) = (id("n", 1), id("n", 2));
        let domain = |namespace: &ObjectId, it| Scope::Domain(namespace.namespace.clone(), OrderDomain(it));
        assert!(record(&losses, &one, Some(1)));
        assert!(record(&losses, &mixed, Some(1)) && !record(&losses, &mixed, Some(2)));
        let other = id("other", 1);
        for scope in [
            Scope::All,
            Scope::Namespace(one.namespace.clone()),
            domain(&one, 1),
            domain(&one, 2),
            Scope::Object(one.clone()),
        ] {
            assert!(is_lost(&losses, &scope), "{scope:?}");
        }
        for scope in [Scope::Object(id("n", 3)), Scope::Namespace(other.namespace.clone()), domain(&other, 1)]
        {
            assert!(!is_lost(&losses, &scope), "{scope:?}");
        }
        assert!(is_lost(&losses, &domain(&one, 9)), "changes of several domains may be of any");
        losses.repair(&Scope::Object(mixed));
        assert!(!is_lost(&losses, &domain(&one, 2)) && is_lost(&losses, &domain(&one, 1)));
        losses.repair(&domain(&one, 1));
        assert!(!losses.is_any() && !is_lost(&losses, &Scope::All));
    }

    #[test]
    fn a_repair_ends_only_earlier_losses() {
        let losses = Losses::default();
        let (one, other) = (id("n", 1), id("n", 2));
        assert_eq!(losses.count(), 0);
        record(&losses, &one, None);
        record(&losses, &other, None);
        let before = losses.count();
        record(&losses, &other, None);
        losses.repair_first(&Scope::All, before);
        assert!(!is_lost(&losses, &Scope::Object(one.clone())), "lost before");
        assert!(is_lost(&losses, &Scope::Object(other.clone())), "lost once more since");
        losses.repair_first(&Scope::Object(other.clone()), before);
        assert!(is_lost(&losses, &Scope::Namespace(other.namespace.clone())));
        losses.repair_first(&Scope::Object(other), losses.count());
        assert!(!losses.is_any());
        // The count was taken while nothing was lost, so later losses stay.
        let before = losses.count();
        record(&losses, &one, None);
        losses.repair_first(&Scope::All, before);
        assert!(is_lost(&losses, &Scope::All));
    }

    #[test]
    fn losses_beyond_the_list_are_not_forgotten() {
        let losses = Losses::default();
        for n in 0..=OBJECTS_MAX {
            assert!(record(&losses, &id("full", n), None));
        }
        record(&losses, &id("late", 0), None);
        let all = losses.all();
        assert_eq!((all.objects.len(), all.unlisted_objects, all.unlisted_bytes), (OBJECTS_MAX, 2, 8192));
        assert_eq!(all.bytes(), (OBJECTS_MAX as u64 + 2) * 4096);
        assert_eq!(losses.objects(), OBJECTS_MAX as u64 + 2);
        for n in 0..=OBJECTS_MAX {
            losses.repair(&Scope::Object(id("full", n)));
        }
        // It is not known which object was lost, so it may be any object of its namespace.
        assert!(is_lost(&losses, &Scope::Object(id("late", 5))) && is_lost(&losses, &Scope::All));
        losses.repair(&Scope::Namespace(id("full", 0).namespace));
        assert!(is_lost(&losses, &Scope::Object(id("late", 0))));
        assert!(!is_lost(&losses, &Scope::Object(id("full", 0))));
        losses.repair(&Scope::All);
        assert!(!is_lost(&losses, &Scope::All));
    }
}
