//! Signals: which of them end the daemon, and how often they must come.
//!
//! TERM, INT, QUIT and USR1 ask it to end in order; HUP and USR2 are taken note of. A second one that asks for the end
//! is answered by a line that says what the end is waiting for, a third ends it at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that the daemon answers to. From its making on none of them kills the process.
pub(crate) struct Signals {
    streams: Vec<(&'static str, Signal)>,
}

impl Signals {
    /// Takes the signals over.
    ///
    /// # Errors
    /// What the system says.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn take_over() -> io::Result<Self> {
        let all = [
            ("SIGTERM", SignalKind::terminate()),
            ("SIGINT", SignalKind::interrupt()),
            ("SIGQUIT", SignalKind::quit()),
            ("SIGUSR1", SignalKind::user_defined1()),
            ("SIGUSR2", SignalKind::user_defined2()),
            ("SIGHUP", SignalKind::hangup()),
        ];
        let streams = all.into_iter().map(|(name, kind)| Ok((name, signal(kind)?)));
        Ok(Self { streams: streams.collect::<io::Result<_>>()? })
    }

    /// Waits until the process is asked to end. Which signal did.
    pub(crate) async fn end_requested(&mut self) -> &'static str {
        loop {
            match self.next().await {
                "SIGHUP" => tracing::info!("SIGHUP: there is nothing to read again"),
                "SIGUSR2" => tracing::info!("SIGUSR2: it means nothing here"),
                name => return name,
            }
        }
    }

    async fn next(&mut self) -> &'static str {
        std::future::poll_fn(|cx| {
            for (name, stream) in &mut self.streams {
                if stream.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*name);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// Waits until the process is asked to end for the third time, after the first. `waiting_for` says what holds the
    /// end up when it is asked for the second time.
    pub(crate) async fn end_forced(&mut self, waiting_for: impl Fn() -> String) {
        let signal = self.end_requested().await;
        tracing::warn!(signal, "asked to end again; still {}; once more ends at once", waiting_for());
        let signal = self.end_requested().await;
        tracing::error!(signal, "asked to end for the third time: ending at once");
    }
}
