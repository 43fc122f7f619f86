//! What was acknowledged as *cached* and can never be stored: kept by object until it is repaired, whatever
//! became of the object's place in the cache.
//!
//! A flush of any scope that covers a loss answers `WritesLost` until the object is written in full, deleted,
//! or its scope is invalidated. The list is bounded; what does not fit is counted by namespace, and then
//! every flush in that namespace answers `WritesLost` until the namespace, or everything, is invalidated.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use blocker::{Error, Namespace, ObjectId, OrderDomain, Reason, Result, Scope};

use crate::object::lock_ranks;
use crate::object::mutation::Mutation;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Objects that are listed one by one.
const OBJECTS_MAX: usize = 16 * 1024;
/// Namespaces whose unlisted losses are counted apart.
const NAMESPACES_MAX: usize = 64;

/// An object with acknowledged changes that can never be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LostObject {
    /// Which one.
    pub object: ObjectId,
    /// How many acknowledged changes are gone.
    pub changes: u64,
    /// How much they had written, in bytes, counted by whole buckets.
    pub bytes: u64,
    /// Why the store does not take them.
    pub why: Reason,
}

/// What a cache has lost and no caller has repaired yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LostWrites {
    /// Object by object, by name.
    pub objects: Vec<LostObject>,
    /// The number of objects that the list had no room for.
    pub unlisted_objects: u64,
    /// See `unlisted_objects`.
    pub unlisted_bytes: u64,
}

impl LostWrites {
    /// How much is lost in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum::<u64>() + self.unlisted_bytes
    }
}

/// Acknowledged changes of one object that are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lost {
    pub(crate) changes: u64,
    pub(crate) bytes: u64,
    /// The order domain they belonged to.
    pub(crate) domain: Option<OrderDomain>,
}

struct Listed {
    /// The number of the last loss.
    last: u64,
    changes: u64,
    bytes: u64,
    /// `None` once losses of different domains have come together.
    domain: Option<Option<OrderDomain>>,
    why: Reason,
}

#[derive(Default)]
struct State {
    /// How many losses there have been.
    count: u64,
    objects: HashMap<ObjectId, Listed>,
    /// By namespace; `None`: in any.
    unlisted: HashMap<Option<Namespace>, Unlisted>,
}

#[derive(Clone, Copy, Default)]
struct Unlisted {
    last: u64,
    objects: u64,
    bytes: u64,
}

/// See the module. A leaf lock, and a plain one: a flush checks all losses of its scope together, and without losses the
/// lock is not taken.
pub(crate) struct Losses {
    /// Whether there is any; spares the lock where nothing was ever lost.
    is_any: AtomicBool,
    state: Mutex<State>,
}

impl Default for Losses {
    fn default() -> Self {
        Self { is_any: AtomicBool::new(false), state: Mutex::ranked(State::default(), &lock_ranks::LOSSES) }
    }
}

impl Losses {
    /// Whether anything is lost and not repaired.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Records a loss; whether it is the object's first that is not repaired.
    pub(crate) fn record(&self, object: &ObjectId, lost: Lost, why: &Error) -> bool {
        let mut state = lock(&self.state);
        self.is_any.store(true, Ordering::Release);
        state.count += 1;
        let (last, is_full) = (state.count, state.objects.len() >= OBJECTS_MAX);
        match state.objects.entry(object.clone()) {
            Entry::Occupied(mut listed) => {
                let listed = listed.get_mut();
                listed.last = last;
                listed.changes = listed.changes.saturating_add(lost.changes);
                listed.bytes = listed.bytes.saturating_add(lost.bytes);
                listed.domain = listed.domain.filter(|domain| *domain == lost.domain);
                return false;
            }
            Entry::Vacant(place) if !is_full => {
                let Lost { changes, bytes, domain } = lost;
                let (domain, why) = (Some(domain), why.to_string().into());
                place.insert(Listed { last, changes, bytes, domain, why });
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

    /// Whether a flush of `scope` can answer *stored*.
    ///
    /// # Errors
    /// `WritesLost`, with the first object in question and how it is repaired.
    pub(crate) fn check(&self, scope: &Scope) -> Result<()> {
        if !self.is_any() {
            return Ok(());
        }
        let state = lock(&self.state);
        let (count, first) = match scope {
            Scope::Object(object) => {
                let found = state.objects.get_key_value(object);
                (usize::from(found.is_some()), found)
            }
            _ => {
                let covered =
                    || state.objects.iter().filter(|(object, listed)| may_cover(scope, object, listed));
                (covered().count(), covered().min_by_key(|(object, _)| *object))
            }
        };
        if let Some((object, Listed { changes, why, .. })) = first {
            let others =
                if count > 1 { format!(", and of {} other objects", count - 1) } else { String::new() };
            return Err(Error::WritesLost(
                format!(
                    "{changes} acknowledged changes of {object} ({why}){others}; write them in full, delete or \
                     invalidate them"
                )
                .into(),
            ));
        }
        let unlisted =
            state.unlisted.iter().find(|(namespace, _)| namespace.as_ref().is_none_or(|it| is_in(scope, it)));
        match unlisted {
            None => Ok(()),
            Some((_, Unlisted { objects, .. })) => Err(Error::WritesLost(
                format!(
                    "{objects} objects more than are listed have lost changes; invalidate their namespace"
                )
                .into(),
            )),
        }
    }

    /// Forgets what an object has lost if a change has replaced all of its content, or removed it.
    #[inline]
    pub(crate) fn repaired_by(&self, object: &ObjectId, mutation: Mutation<'_>) {
        if self.is_any() && mutation.replaces_content() {
            self.repair(&Scope::Object(object.clone()));
        }
    }

    /// How many losses there have been so far.
    pub(crate) fn count(&self) -> u64 {
        if self.is_any() { lock(&self.state).count } else { 0 }
    }

    /// Forgets what was lost within `scope`: it has been repaired.
    pub(crate) fn repair(&self, scope: &Scope) {
        self.repair_first(scope, u64::MAX);
    }

    /// Forgets what was lost within `scope` before the number of losses exceeded `count`: its owner has
    /// accepted that. An object that has lost something since stays listed with all of its losses.
    pub(crate) fn repair_first(&self, scope: &Scope, count: u64) {
        if !self.is_any() {
            return;
        }
        let mut state = lock(&self.state);
        let State { objects, unlisted, .. } = &mut *state;
        if let Scope::Object(object) = scope {
            // By its name: this comes with every change that makes good.
            if objects.get(object).is_some_and(|listed| listed.last <= count) {
                objects.remove(object);
            }
            self.is_any.store(!objects.is_empty() || !unlisted.is_empty(), Ordering::Release);
            return;
        }
        objects.retain(|object, listed| {
            let is_meant = match scope {
                Scope::Domain(namespace, domain) => {
                    *namespace == object.namespace && listed.domain == Some(Some(*domain))
                }
                Scope::Namespace(namespace) => *namespace == object.namespace,
                Scope::All => true,
                _ => false,
            };
            !is_meant || listed.last > count
        });
        unlisted.retain(|namespace, unlisted| {
            let is_meant = match scope {
                Scope::Namespace(asked) => namespace.as_ref() == Some(asked),
                Scope::All => true,
                _ => false,
            };
            !is_meant || unlisted.last > count
        });
        self.is_any.store(!state.objects.is_empty() || !state.unlisted.is_empty(), Ordering::Release);
    }

    /// How many objects have losses.
    pub(crate) fn objects(&self) -> u64 {
        if !self.is_any() {
            return 0;
        }
        let state = lock(&self.state);
        state.objects.len() as u64 + state.unlisted.values().map(|unlisted| unlisted.objects).sum::<u64>()
    }

    /// All of it.
    pub(crate) fn all(&self) -> LostWrites {
        let state = lock(&self.state);
        let object = |(object, listed): (&ObjectId, &Listed)| LostObject {
            object: object.clone(),
            changes: listed.changes,
            bytes: listed.bytes,
            why: listed.why.clone(),
        };
        let mut objects: Vec<LostObject> = state.objects.iter().map(object).collect();
        objects.sort_by(|one, other| one.object.cmp(&other.object));
        LostWrites {
            objects,
            unlisted_objects: state.unlisted.values().map(|unlisted| unlisted.objects).sum(),
            unlisted_bytes: state.unlisted.values().map(|unlisted| unlisted.bytes).sum(),
        }
    }
}

/// Whether a scope may cover what an object has lost.
fn may_cover(scope: &Scope, object: &ObjectId, listed: &Listed) -> bool {
    match (scope, listed.domain) {
        (Scope::Domain(namespace, _), None) => *namespace == object.namespace,
        (scope, domain) => scope.covers(object, domain.flatten()),
    }
}

/// Whether a scope reaches into a namespace.
fn is_in(scope: &Scope, namespace: &Namespace) -> bool {
    match scope {
        Scope::Object(object) => object.namespace == *namespace,
        Scope::Domain(its, _) | Scope::Namespace(its) => its == namespace,
        _ => true,
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
        // Counted while nothing was lost: what is lost afterwards stays.
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
        // Which object it was is not known: any of its namespace may be.
        assert!(is_lost(&losses, &Scope::Object(id("late", 5))) && is_lost(&losses, &Scope::All));
        losses.repair(&Scope::Namespace(id("full", 0).namespace));
        assert!(is_lost(&losses, &Scope::Object(id("late", 0))));
        assert!(!is_lost(&losses, &Scope::Object(id("full", 0))));
        losses.repair(&Scope::All);
        assert!(!is_lost(&losses, &Scope::All));
    }
}
