//! The state that the control thread is asked to reach, by the process's end, by an upgrade, or by
//! its failure.

use tokio::sync::watch;

/// The state that the thread is asked to reach.
///
/// ```text
///  Hold ──► Serve ◄──► Release ──► HandedOver
///    └────────┴───────────┴──────► End
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Wait, because another process may continue instead of this one.
    Hold,
    /// Serve, after opening the store if necessary.
    Serve,
    /// Store everything, release the store, and wait.
    Release,
    /// End, because another process has the store.
    HandedOver,
    /// Store everything, and end.
    End,
}

impl Wanted {
    /// Returns whether this state is final.
    pub(super) fn is_end(self) -> bool {
        matches!(self, Wanted::End | Wanted::HandedOver)
    }
}

/// Waits until a state other than `now` is wanted, and returns it.
pub(super) async fn other_than(now: Wanted, wanted: &mut watch::Receiver<Wanted>) -> Wanted {
    // Fails once no control is left that could ask for another state.
    wanted.wait_for(|wanted| *wanted != now).await.map_or(Wanted::End, |wanted| *wanted)
}

/// Waits until the end is wanted.
pub(super) async fn ended(mut wanted: watch::Receiver<Wanted>) {
    // Fails once no control is left, as above.
    let _ = wanted.wait_for(|wanted| wanted.is_end()).await;
}
