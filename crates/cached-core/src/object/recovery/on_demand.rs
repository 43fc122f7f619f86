//! Recovering one object out of turn, because an operation asks for it.

use blocker::{Error, Result};
use cached_journal::{Head, Position};

use super::apply::{self, Redo};
use super::busy::Busy;
use crate::object::journal::unapplied::Standing;
use crate::object::shared::Shared;
use crate::sync::Arc;

/// Applies the rest of an object's records. Runs in the background of the cache, so that an operation that
/// gives up stops nothing.
pub(super) async fn recover(shared: Arc<Shared>, object: u32) {
    let _requested = Requested { shared: Arc::clone(&shared), object };
    loop {
        match shared.recovery.begin_object(object) {
            Standing::Waiting => break,
            Standing::Busy => shared.recovery.free(object).await,
            Standing::Recovered | Standing::Failed(_) => return,
        }
    }
    let _busy = Busy { shared: Arc::clone(&shared), object };
    while let Some((number, place)) = shared.recovery.next_of(object) {
        let made = async {
            let (position, head, payload) = apply::read(&shared, place).await?;
            match prepare(&shared, object, number, position, &head, payload)? {
                Some(redo) => redo.make(&shared).await,
                None => {
                    keep_part(&shared, object, number, position);
                    Ok(())
                }
            }
        };
        match made.await {
            Ok(()) => shared.recovery.applied(object),
            Err(why) => return fail(&shared, object, why),
        }
    }
}

/// Returns the change of an object's record `number`; nothing if a later record states it as well.
///
/// # Errors
/// Why it cannot be made.
pub(super) fn prepare(
    shared: &Shared,
    object: u32,
    number: u32,
    position: Position,
    head: &Head<'static>,
    payload: Vec<u8>,
) -> Result<Option<Redo>> {
    let earlier = |count| read_earlier(shared, object, number, count);
    apply::redo(shared, position, head, payload, earlier)
}

/// Keeps an object's record `number`, which is passed without being applied: the last part of its state needs
/// it.
pub(super) fn keep_part(shared: &Shared, object: u32, number: u32, position: Position) {
    // What could not be read on has ended the pass, and what it kept is kept elsewhere.
    if shared.recovery.has_failed(object) {
        return;
    }
    if let Some(hold) = shared.log.as_ref().and_then(|log| log.journal().hold(position)) {
        shared.recovery.parts().keep(object, number, hold);
    }
}

/// Returns the `count` records before an object's record `number`, fewer if there are not as many.
fn read_earlier(
    shared: &Shared,
    object: u32,
    number: u32,
    count: u32,
) -> Result<Vec<(Position, Head<'static>, Vec<u8>)>> {
    let places = shared.recovery.places_up_to(object, number, count.saturating_add(1));
    let source = shared.recovery.source();
    let read = |place| {
        let source = source.ok_or_else(|| Error::Corrupt("the cache has no journal".into()))?;
        source.read(place).map_err(|error| apply::damage(&error))
    };
    let before = places.split_last().map_or(&[][..], |(_, before)| before);
    before.iter().copied().map(read).collect()
}

/// Gives an object up: the log states it once, and operations on the object fail.
pub(super) fn fail(shared: &Shared, object: u32, why: Error) {
    tracing::error!(%why, "an object cannot be recovered from the journal: operations on it fail");
    shared.recovery.fail(object, why);
}

/// Ends a request when it is dropped.
struct Requested {
    shared: Arc<Shared>,
    object: u32,
}

impl Drop for Requested {
    fn drop(&mut self) {
        self.shared.recovery.end_request(self.object);
    }
}
