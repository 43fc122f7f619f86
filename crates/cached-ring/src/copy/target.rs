//! The target's decisions within one copy session, and until the move has ended.

use super::OutOfOrder;

/// The state of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TargetState {
    /// Earlier items of the slots are being removed.
    Clearing,
    /// COPY is sent; items arrive.
    Copying,
    /// READY has come; the registry is asked whether the move is still in progress.
    Confirming,
    /// SEAL is sent; the last items arrive.
    Sealing,
    /// END has come; the registry is asked to commit the move.
    Committing,
    /// The slots are this node's, with all of their items.
    Committed,
    /// The session is closed; the items are not used.
    Aborted,
}

/// An event at a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TargetEvent {
    /// Earlier items of the slots are removed.
    Cleared,
    /// ITEM or GONE has come.
    Item,
    /// READY has come.
    Ready,
    /// The registry says whether the move is still in progress.
    InProgress(bool),
    /// END has come, with this count.
    End(u64),
    /// The registry has committed the move, or says that it was committed.
    Committed,
    /// The registry has not answered the commit: it may be done or not.
    Unknown,
    /// The move has ended without a commit.
    MoveGone,
    /// Items were flushed here (all, or those of a prefix).
    Flushed,
    /// The session is broken, or the source breaks the protocol.
    Broken,
}

/// An action of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TargetAction {
    /// Send COPY.
    SendCopy,
    /// Store or remove the item.
    Apply,
    /// Ask the registry whether the move is still in progress. Only an answer to a question asked
    /// from now on counts.
    Confirm,
    /// Send SEAL.
    SendSeal,
    /// Raise the CAS counters above END's, then commit the move.
    Commit,
    /// Read the registry until the outcome of the commit is known.
    AskAgain,
    /// Put the map with the commit in force, execute requests, and send COMMITTED.
    PutInForce,
    /// Close the session, and abort the move by the registry.
    CloseAndAbort,
    /// Close the session: the move has ended already.
    Close,
}

/// The target's end of a copy session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    state: TargetState,
    /// The number of ITEM and GONE.
    count: u64,
}

impl Target {
    /// Creates the end of a session for a move that the registry has begun.
    #[must_use]
    pub fn new() -> Target {
        Target { state: TargetState::Clearing, count: 0 }
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> TargetState {
        self.state
    }

    /// Returns what to do after an event.
    ///
    /// # Errors
    /// Returns [`OutOfOrder`] if the event cannot happen now; then nothing has changed, and
    /// [`TargetEvent::Broken`] must follow.
    pub fn on(&mut self, event: TargetEvent) -> Result<Option<TargetAction>, OutOfOrder> {
        use TargetAction as A;
        use TargetEvent as E;
        use TargetState as S;
        let (state, action) = match (self.state, event) {
            (S::Committed | S::Aborted, _) => (self.state, None),
            (S::Clearing, E::Cleared) => (S::Copying, Some(A::SendCopy)),
            (S::Copying | S::Confirming | S::Sealing, E::Item) => {
                self.count += 1;
                (self.state, Some(A::Apply))
            }
            (S::Copying, E::Ready) => (S::Confirming, Some(A::Confirm)),
            (S::Confirming, E::InProgress(true)) => (S::Sealing, Some(A::SendSeal)),
            (S::Sealing, E::End(count)) if count == self.count => (S::Committing, Some(A::Commit)),
            (S::Committing, E::Committed) => (S::Committed, Some(A::PutInForce)),
            (S::Committing, E::Unknown) => (S::Committing, Some(A::AskAgain)),
            // All items are here: a flush has removed them like others, and the connection is not
            // needed any more.
            (S::Committing, E::Flushed | E::Broken) | (S::Clearing, E::Flushed) => (self.state, None),
            (S::Confirming, E::InProgress(false)) | (_, E::MoveGone) => (S::Aborted, Some(A::Close)),
            // What the source has read before its own flush may arrive after the one here.
            (_, E::Flushed | E::Broken) => (S::Aborted, Some(A::CloseAndAbort)),
            (state, event) => return Err(OutOfOrder { event: event.name(), state: state.name() }),
        };
        self.state = state;
        Ok(action)
    }
}

impl Default for Target {
    fn default() -> Self {
        Self::new()
    }
}

impl TargetState {
    fn name(self) -> &'static str {
        match self {
            Self::Clearing => "clearing",
            Self::Copying => "copying",
            Self::Confirming => "confirming",
            Self::Sealing => "sealing",
            Self::Committing => "committing",
            Self::Committed => "committed",
            Self::Aborted => "aborted",
        }
    }
}

impl TargetEvent {
    fn name(self) -> &'static str {
        match self {
            Self::Cleared => "the removal of items",
            Self::Item => "an item",
            Self::Ready => "READY",
            Self::InProgress(_) => "the registry's answer",
            Self::End(_) => "END",
            Self::Committed => "the commit",
            Self::Unknown => "a commit without an answer",
            Self::MoveGone => "the end of the move",
            Self::Flushed => "a flush",
            Self::Broken => "the end of the connection",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_commits_what_is_complete() {
        use TargetEvent as E;
        let reach = |events: &[E]| {
            let mut target = Target::new();
            let last = events.iter().map(|event| target.on(*event)).last().expect("an event");
            (target.state(), last)
        };
        let sealing = [E::Cleared, E::Item, E::Ready, E::Item, E::InProgress(true), E::Item];
        let after = |event| reach(&[&sealing[..], &[event]].concat());
        assert_eq!(after(E::End(3)), (TargetState::Committing, Ok(Some(TargetAction::Commit))));
        let (state, error) = after(E::End(2));
        let line = "END came to a copy session that is sealing";
        assert_eq!((state, error.unwrap_err().to_string().as_str()), (TargetState::Sealing, line));
        for event in [E::Flushed, E::Broken] {
            assert_eq!(after(event), (TargetState::Aborted, Ok(Some(TargetAction::CloseAndAbort))));
            // After END neither matters, and nothing is committed twice.
            let late = [&sealing[..], &[E::End(3), event, E::Unknown, E::Committed, E::Committed]].concat();
            let states: Vec<_> = (late.len() - 4..=late.len()).map(|len| reach(&late[..len])).collect();
            let actions = states.into_iter().map(|(_, action)| action.unwrap());
            let expected = [None, Some(TargetAction::AskAgain), Some(TargetAction::PutInForce), None];
            assert!(actions.skip(1).eq(expected));
        }
        let (state, action) = reach(&[E::Cleared, E::Ready, E::InProgress(false)]);
        assert_eq!((state, action), (TargetState::Aborted, Ok(Some(TargetAction::Close))));
        assert!(reach(&[E::Item]).1.is_err() && reach(&[E::Cleared, E::End(0)]).1.is_err());
    }
}
