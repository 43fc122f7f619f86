//! The shutdown request, from a signal, an administrator or a client, and the state that readiness
//! reports.

use std::sync::Arc;
use tokio::sync::SetOnce;

/// Requests the shutdown of the process, and tells whether it has been requested. Clones share one
/// request.
#[derive(Clone, Debug, Default)]
pub struct Drain(Arc<SetOnce<()>>);

impl Drain {
    /// Requests the shutdown. From now on, the process is not ready. Calls after the first have no
    /// effect.
    pub fn request(&self) {
        // Fails after the first call.
        let _ = self.0.set(());
    }

    /// Returns whether the shutdown has been requested.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.initialized()
    }

    /// Waits until the shutdown is requested, which may have happened before the call. Any number
    /// of tasks may wait.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn requested(&self) {
        self.0.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Waker};

    #[test]
    fn every_waiter_sees_the_request_whenever_it_comes() {
        let drain = Drain::default();
        let mut cx = Context::from_waker(Waker::noop());
        let (mut first, mut second) = (Box::pin(drain.requested()), Box::pin(drain.requested()));
        assert!(first.as_mut().poll(&mut cx).is_pending() && second.as_mut().poll(&mut cx).is_pending());
        assert!(!drain.is_requested());
        drain.clone().request();
        drain.request();
        assert!(first.as_mut().poll(&mut cx).is_ready() && second.as_mut().poll(&mut cx).is_ready());
        assert!(Box::pin(drain.requested()).as_mut().poll(&mut cx).is_ready() && drain.is_requested());
    }
}
