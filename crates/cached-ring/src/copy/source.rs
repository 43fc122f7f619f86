//! The source's decisions within one copy session.

use super::OutOfOrder;

/// The state of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceState {
    /// Changes are heard of, and the walk over the items goes on.
    Walking,
    /// READY is sent.
    Ready,
    /// The slots are sealed; a worker may still be executing a request that began before.
    Sealing,
    /// Nothing changes any more; the last changes are being sent.
    Draining,
    /// END is sent. The target may commit the move.
    Sealed,
    /// The move is not in the map any more, or the target says that it is committed.
    Ended,
    /// The session has ended before the seal: nothing has happened.
    Dropped,
    /// The session has ended after the seal: the source aborts the move by the registry, and remains
    /// sealed until a map without the move is in force.
    MustAbort,
}

/// An event at a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceEvent {
    /// The walk is over, and few changes wait.
    Walked,
    /// SEAL has come.
    Seal,
    /// Since the slots were sealed, each worker has completed what it was executing.
    Passed,
    /// Since then, all changes have been sent.
    Drained,
    /// COMMITTED has come.
    Committed,
    /// The session is broken, the target breaks the protocol, or more changes wait than may.
    Broken,
    /// A map without the move is in force.
    MoveGone,
}

/// An action of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceAction {
    /// Send READY.
    SendReady,
    /// Seal the slots, then let each worker complete what it is executing.
    Seal,
    /// Send the changes that wait.
    Drain,
    /// Send END.
    SendEnd,
    /// Get the map with the commit from the registry.
    Refresh,
    /// Hear of no change any more, and close the session.
    Close,
    /// The same, and abort the move by the registry.
    CloseAndAbort,
}

/// The source's end of a copy session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    state: SourceState,
}

impl Source {
    /// Creates the end of a session whose COPY has come, for a move in the map in force.
    ///
    /// Changes of the slots' items must be heard of before the walk begins.
    #[must_use]
    pub fn new() -> Source {
        Source { state: SourceState::Walking }
    }

    /// Creates the end of the session that an earlier process of this node may have had, for a move
    /// that the map has when this process begins. The slots are sealed from the start.
    #[must_use]
    pub fn of_earlier_process() -> Source {
        Source { state: SourceState::MustAbort }
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> SourceState {
        self.state
    }

    /// Returns whether no request of the slots may be executed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        use SourceState as S;
        matches!(self.state, S::Sealing | S::Draining | S::Sealed | S::MustAbort)
    }

    /// Returns what to do after an event.
    ///
    /// # Errors
    /// Returns [`OutOfOrder`] if the event cannot happen now; then nothing has changed, and
    /// [`SourceEvent::Broken`] must follow.
    pub fn on(&mut self, event: SourceEvent) -> Result<Option<SourceAction>, OutOfOrder> {
        use SourceAction as A;
        use SourceEvent as E;
        use SourceState as S;
        let (state, action) = match (self.state, event) {
            (S::Walking, E::Walked) => (S::Ready, Some(A::SendReady)),
            (S::Ready, E::Seal) => (S::Sealing, Some(A::Seal)),
            (S::Sealing, E::Passed) => (S::Draining, Some(A::Drain)),
            (S::Draining, E::Drained) => (S::Sealed, Some(A::SendEnd)),
            // The map itself is the proof: until it is in force, the slots are sealed.
            (S::Sealed, E::Committed) => (S::Sealed, Some(A::Refresh)),
            (S::Ended | S::Dropped, _) => (self.state, None),
            (S::MustAbort, E::Broken) => (S::MustAbort, None),
            (_, E::MoveGone) => (S::Ended, Some(A::Close)),
            (S::Walking | S::Ready, E::Broken) => (S::Dropped, Some(A::Close)),
            (S::Sealing | S::Draining | S::Sealed, E::Broken) => (S::MustAbort, Some(A::CloseAndAbort)),
            (state, event) => {
                return Err(OutOfOrder { event: event.name(), state: state.name() });
            }
        };
        self.state = state;
        Ok(action)
    }
}

impl Default for Source {
    fn default() -> Self {
        Self::new()
    }
}

impl SourceState {
    fn name(self) -> &'static str {
        match self {
            Self::Walking => "walking",
            Self::Ready => "ready",
            Self::Sealing => "sealing",
            Self::Draining => "draining",
            Self::Sealed => "sealed",
            Self::Ended => "ended",
            Self::Dropped => "dropped",
            Self::MustAbort => "to be aborted",
        }
    }
}

impl SourceEvent {
    fn name(self) -> &'static str {
        match self {
            Self::Walked => "the end of the walk",
            Self::Seal => "SEAL",
            Self::Passed => "the pass of all workers",
            Self::Drained => "the last change",
            Self::Committed => "COMMITTED",
            Self::Broken => "the end of the connection",
            Self::MoveGone => "a map without the move",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries all events up to `depth` more.
    fn explore(source: &Source, depth: u32, tried: &mut u64) {
        use SourceEvent as E;
        let all = [E::Walked, E::Seal, E::Passed, E::Drained, E::Committed, E::Broken, E::MoveGone];
        for event in all.into_iter().filter(|_| depth > 0) {
            let mut next = source.clone();
            let result = next.on(event);
            *tried += 1;
            match result {
                Err(_) => {
                    assert_eq!(next, *source, "nothing has changed");
                    assert!(next.on(E::Broken).is_ok());
                }
                Ok(action) => {
                    // Only a map without the move ends the seal, and only in order is END sent.
                    assert!(!source.is_sealed() || next.is_sealed() || event == E::MoveGone);
                    assert_eq!(action == Some(SourceAction::Seal), !source.is_sealed() && next.is_sealed());
                    assert!(action != Some(SourceAction::SendEnd) || source.state == SourceState::Draining);
                    explore(&next, depth - 1, tried);
                }
            }
        }
    }

    #[test]
    fn a_source_is_sealed_until_a_map_ends_the_move() {
        let mut tried = 0;
        explore(&Source::new(), 7, &mut tried);
        explore(&Source::of_earlier_process(), 3, &mut tried);
        assert!(tried > 1000, "{tried} events");
        let error = Source::new().on(SourceEvent::Seal).unwrap_err();
        assert_eq!(error.to_string(), "SEAL came to a copy session that is walking");
    }
}
