//! All that an object has pending, to be logged once more.

use super::flush::pinned;
use super::flush_plan::{push, spans};
use super::{Env, Known, Object};
use crate::object::journal::records::PendingState;
use crate::object::memory::pool::BUCKET;
use crate::object::memory::slots::State;

impl Object {
    /// Returns what the object has pending. No flush of it may be under way.
    pub(crate) fn pending_state(&self, env: &Env<'_>) -> PendingState {
        let (head, pending) = (self.head, self.pending);
        let is_present = head.known == Known::Present;
        let truncate_to = (pending.truncate_to != u64::MAX).then_some(pending.truncate_to);
        let has_size = is_present && (pending.size_dirty || pending.replace || truncate_to.is_some());
        let mut state = PendingState {
            is_present,
            is_replaced: pending.replace,
            truncate_to,
            size: has_size.then_some(head.size),
            runs: Vec::new(),
        };
        if !is_present {
            return state;
        }
        for (at, slot) in self.slots.known_from(0) {
            let start = u64::from(at) * BUCKET as u64;
            let reach = head.size.saturating_sub(start).min(BUCKET as u64) as usize;
            let mask = match slot.state() {
                State::Dirty if !pending.replace => env.meta(slot.bucket()).dirty(),
                State::Dirty | State::DirtyWhole => env.meta(slot.bucket()).valid(),
                // Part of a replacement as well.
                State::Clean if pending.replace => env.meta(slot.bucket()).valid(),
                State::ZeroDirty if reach > 0 => {
                    push(&mut state.runs, start, reach as u64, None, u64::MAX);
                    continue;
                }
                _ => continue,
            };
            for (lo, hi) in spans(mask) {
                let hi = hi.min(reach);
                if lo < hi {
                    let bytes = pinned(env, slot.bucket(), lo..hi);
                    push(&mut state.runs, start + lo as u64, (hi - lo) as u64, Some(bytes), u64::MAX);
                }
            }
        }
        state
    }
}
