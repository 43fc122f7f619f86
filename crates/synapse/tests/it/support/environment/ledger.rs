//! A store that records the changes made to it, in order. Each value is written only once, so an
//! entry identifies its change: one made twice is recorded twice, and a lost one is not recorded.

use std::collections::HashMap;
use std::sync::Arc;

use blocker::{Blocker, Change, ChangeReply, ChangeRequest, Memory, ObjectId, ReadRequest, Reply};
use parking_lot::Mutex;

use crate::support::environment::clock::TokioClock;
use crate::support::history::operation::{Action, Operation, Value};

/// [`Memory`] with a ledger.
pub struct Ledger {
    memory: Memory,
    applied: Mutex<Vec<(ObjectId, Value)>>,
}

impl Ledger {
    /// Returns an empty store.
    pub fn new(clock: TokioClock) -> Arc<Self> {
        Arc::new(Self { memory: clock.memory(), applied: Mutex::default() })
    }

    /// Returns the values written to `object`, in order.
    pub fn applied(&self, object: &ObjectId) -> Vec<Value> {
        let applied = self.applied.lock();
        applied.iter().filter(|(changed, _)| changed == object).map(|&(_, value)| value).collect()
    }

    /// Returns the present value of `object`.
    ///
    /// # Panics
    /// Panics if the object's content is not a complete value.
    pub fn value(&self, object: &ObjectId) -> Value {
        let read = blocker::executor::block_on(self.memory.read(ReadRequest::new(object.clone(), 0, 4096)));
        Value::from_bytes(&read.expect("the register is there").data.to_vec()).expect("a whole value")
    }

    /// Makes a change, and records it if it succeeds. The store replies immediately, so the record
    /// has the order of the changes.
    fn note(
        &self,
        object: ObjectId,
        value: Value,
        change: impl FnOnce() -> Reply<ChangeReply>,
    ) -> Reply<ChangeReply> {
        let mut applied = self.applied.lock();
        let reply = change();
        assert!(reply.is_ready(), "memory answers at once");
        if matches!(reply, Reply::Ready(Ok(_))) {
            applied.push((object, value));
        }
        reply
    }
}

/// Compares the changes made to a register with their outcomes for its clients. An acknowledged
/// change is recorded once, one with unknown outcome at most once, and a refused one never. A
/// change that was acknowledged before another one was called precedes it.
///
/// # Errors
/// Returns the first contradiction.
pub fn compare(applied: &[Value], history: &[Operation]) -> Result<(), String> {
    let mut places: HashMap<Value, usize> = HashMap::new();
    for (place, &value) in applied.iter().enumerate() {
        if places.insert(value, place).is_some() {
            return Err(format!("{value:?} was applied twice"));
        }
    }
    let mut changes: Vec<(&Operation, usize)> = Vec::new();
    for operation in history {
        let (value, is_certain) = match operation.action {
            Action::Write(value) | Action::Swap { value, .. } => (value, true),
            Action::WriteUnknown(value) | Action::SwapUnknown { value, .. } => (value, false),
            Action::Read(_) | Action::Mismatch { .. } => continue,
        };
        match places.remove(&value) {
            Some(place) => changes.push((operation, place)),
            None if is_certain => return Err(format!("lost, though acknowledged: {operation}")),
            None => {}
        }
    }
    if !places.is_empty() {
        return Err(format!("applied, though refused: {places:?}"));
    }
    for (earlier, first) in &changes {
        for (later, second) in &changes {
            if earlier.answered < later.called && first > second {
                return Err(format!("applied in the wrong order: {earlier}, and {later}"));
            }
        }
    }
    Ok(())
}

/// Panics with both lists unless they agree (see [`compare`]).
///
/// # Panics
/// Panics if the lists do not agree.
#[track_caller]
pub fn assert_applied(applied: &[Value], history: &[Operation], context: &str) {
    if let Err(why) = compare(applied, history) {
        let outcomes: Vec<_> = history.iter().map(Operation::to_string).collect();
        panic!("{context}: {why}\napplied: {applied:?}\noutcomes:\n{}", outcomes.join("\n"));
    }
}

/// Returns the value of a payload; if it is invalid, `u32::MAX`, which no client writes.
fn value_of(data: &blocker::Segments) -> Value {
    Value::from_bytes(&data.to_vec()).unwrap_or(Value(u32::MAX))
}

impl Blocker for Ledger {
    blocker::delegate!(|this| this.memory, except change);

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        let (Change::Write { data, .. } | Change::CompareAndWrite { data, .. } | Change::WriteFull { data }) =
            &request.change
        else {
            return self.memory.change(request);
        };
        let (object, value) = (request.object.clone(), value_of(data));
        self.note(object, value, || self.memory.change(request))
    }
}
