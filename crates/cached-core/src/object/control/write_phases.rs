//! The write mode of a namespace, and the changes in flight in its current and earlier modes.
//!
//! ```text
//!  phase      1: back          2: through             3: read-only
//!  changes    ├────────┤ ├─────┼──┤   ├────────┤      │
//!                              └ taken in phase 1: until it ends, and what it wrote is stored, phase 1 is left
//! ```
//! A change reads its mode once, when it begins. A change that may wait is counted in the phase in
//! which it read its mode. A change that is applied at once reads the mode within its object's
//! exclusive section, and is not counted: a change of the mode waits for the end of all sections
//! that may have begun before it.

use blocker::WriteMode;

use crate::object::lock_ranks;
use crate::object::tasks::wait_queue::WaitQueue;
use crate::sync::{AtomicU8, Mutex, Ordering, lock};

/// Returns the mode that an atomic stores as a number.
#[inline]
fn load(mode: &AtomicU8) -> WriteMode {
    match mode.load(Ordering::Acquire) {
        number if number == WriteMode::Back as u8 => WriteMode::Back,
        number if number == WriteMode::Through as u8 => WriteMode::Through,
        number if number == WriteMode::Around as u8 => WriteMode::Around,
        _ => WriteMode::ReadOnly,
    }
}

/// The write mode of a namespace, and its changes in flight.
pub(crate) struct WritePhases {
    /// The effective mode, as a number. Written under the lock.
    mode: AtomicU8,
    /// The configured mode, which is effective unless the cache is detached or the namespace is
    /// being removed. Written under the lock.
    set_mode: AtomicU8,
    state: Mutex<State>,
    /// The tasks that wait for the changes of earlier phases to end.
    pub(crate) waiters: WaitQueue,
}

#[derive(Default)]
struct State {
    phase: u64,
    /// The number of changes in flight, for each phase that has any.
    under_way: Vec<(u64, u64)>,
    /// Whether there may be dirty data that were written back in an earlier phase.
    has_dirty_left: bool,
}

impl WritePhases {
    /// Returns the phases of an unused namespace with the configured mode `set` and the effective
    /// mode `mode`.
    pub(crate) fn new(set: WriteMode, mode: WriteMode) -> Self {
        Self {
            mode: AtomicU8::new(mode as u8),
            set_mode: AtomicU8::new(set as u8),
            state: Mutex::ranked(State::default(), &lock_ranks::WRITE_PHASES),
            waiters: WaitQueue::default(),
        }
    }

    /// Returns the effective mode.
    #[inline]
    pub(crate) fn mode(&self) -> WriteMode {
        load(&self.mode)
    }

    /// Returns the configured mode.
    pub(crate) fn set_mode(&self) -> WriteMode {
        load(&self.set_mode)
    }

    /// Counts a change that begins. Returns its mode, and its phase for [`Self::end`].
    pub(crate) fn begin(&self) -> (u64, WriteMode) {
        let mut state = lock(&self.state);
        let phase = state.phase;
        match state.under_way.iter_mut().find(|(each, _)| *each == phase) {
            Some((_, count)) => *count += 1,
            None => state.under_way.push((phase, 1)),
        }
        (phase, self.mode())
    }

    /// Counts a change of `phase` as ended.
    pub(crate) fn end(&self, phase: u64) {
        let mut state = lock(&self.state);
        if let Some(at) = state.under_way.iter().position(|(each, _)| *each == phase) {
            state.under_way[at].1 -= 1;
            if state.under_way[at].1 == 0 {
                state.under_way.swap_remove(at);
            }
        }
        let is_old = phase < state.phase;
        drop(state);
        if is_old {
            self.waiters.notify();
        }
    }

    /// Records the configured mode, and makes `mode` effective for all new changes.
    pub(crate) fn set(&self, set: WriteMode, mode: WriteMode) {
        let mut state = lock(&self.state);
        self.set_mode.store(set as u8, Ordering::Release);
        let before = self.mode();
        if before == mode {
            return;
        }
        state.phase += 1;
        state.has_dirty_left = mode != WriteMode::Back && (state.has_dirty_left || before == WriteMode::Back);
        self.mode.store(mode as u8, Ordering::Release);
    }

    /// Returns the current phase.
    pub(crate) fn phase(&self) -> u64 {
        lock(&self.state).phase
    }

    /// Returns whether all changes that began before `phase` have ended.
    pub(crate) fn have_ended_before(&self, phase: u64) -> bool {
        lock(&self.state).under_way.iter().all(|(each, _)| *each >= phase)
    }

    /// Returns whether there may be dirty data that were written back in an earlier phase.
    pub(crate) fn has_dirty_left(&self) -> bool {
        lock(&self.state).has_dirty_left
    }

    /// Records that all data written back before `phase` began are stored.
    pub(crate) fn note_stored(&self, phase: u64) {
        let mut state = lock(&self.state);
        if state.phase == phase {
            state.has_dirty_left = false;
        }
    }

    /// Returns whether anything of an earlier phase is left: a change in flight, or dirty data.
    pub(crate) fn is_changing(&self) -> bool {
        let state = lock(&self.state);
        state.has_dirty_left || state.under_way.iter().any(|(phase, _)| *phase < state.phase)
    }

    /// Returns whether changes are in flight.
    pub(crate) fn is_busy(&self) -> bool {
        !lock(&self.state).under_way.is_empty()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn new() -> WritePhases {
        WritePhases::new(WriteMode::Back, WriteMode::Back)
    }

    #[test]
    fn what_began_in_a_mode_is_left_until_it_has_ended_and_is_stored() {
        let phases = new();
        let set = |mode| phases.set(mode, mode);
        let (first, mode) = phases.begin();
        assert_eq!((mode, phases.is_changing()), (WriteMode::Back, false));
        set(WriteMode::Back);
        assert_eq!(phases.phase(), first, "nothing has changed");
        set(WriteMode::Through);
        let (second, mode) = phases.begin();
        assert_eq!((second, mode), (first + 1, WriteMode::Through));
        assert!(!phases.have_ended_before(second) && phases.have_ended_before(first));
        phases.end(first);
        assert!(phases.have_ended_before(second) && phases.is_changing() && phases.has_dirty_left());
        set(WriteMode::ReadOnly);
        assert!(!phases.have_ended_before(phases.phase()) && phases.has_dirty_left());
        phases.note_stored(second);
        assert!(phases.has_dirty_left(), "the mode has changed since");
        phases.end(second);
        phases.note_stored(phases.phase());
        assert!(!phases.is_changing() && !phases.is_busy());
        set(WriteMode::Back);
        set(WriteMode::Around);
        assert!(phases.has_dirty_left());
        set(WriteMode::Back);
        assert!(!phases.is_changing(), "what is dirty is of the mode in force again");
    }
    #[test]
    fn another_mode_than_the_one_that_was_set_can_be_in_force_for_a_while() {
        let phases = new();
        phases.set(WriteMode::Back, WriteMode::Around);
        assert_eq!((phases.mode(), phases.set_mode()), (WriteMode::Around, WriteMode::Back));
        assert!(phases.has_dirty_left());
        phases.set(WriteMode::Back, WriteMode::Back);
        assert_eq!((phases.mode(), phases.set_mode()), (WriteMode::Back, WriteMode::Back));
        assert!(!phases.has_dirty_left(), "what is dirty is of the mode in force again");
    }
}
