//! Signals: which of them shut the daemon down, and what repeated ones do.
//!
//! TERM, INT, QUIT and USR1 request an orderly shutdown; HUP and USR2 are logged and ignored. A second
//! request logs what the shutdown waits for, a third ends the process at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that the daemon handles. Once it exists, none of them kills the process.
pub(crate) struct Signals {
    streams: Vec<(&'static str, Signal)>,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// The system's error.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn install() -> io::Result<Self> {
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

    /// Waits for a signal that requests the shutdown, and returns its name.
    pub(crate) async fn shutdown_requested(&mut self) -> &'static str {
        loop {
            match self.next().await {
                "SIGHUP" => tracing::info!("SIGHUP ignored: there is nothing to read again"),
                "SIGUSR2" => tracing::info!("SIGUSR2 ignored: it has no meaning here"),
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

    /// Waits for the second and the third request, after the first. At the second it logs what `waiting_for`
    /// returns: what the shutdown waits for.
    pub(crate) async fn shutdown_forced(&mut self, waiting_for: impl Fn() -> String) {
        let signal = self.shutdown_requested().await;
        tracing::warn!(
            signal,
            "shutdown requested again; still {}; one more signal ends at once",
            waiting_for()
        );
        let signal = self.shutdown_requested().await;
        tracing::error!(signal, "shutdown requested for the third time: ending at once");
    }
}
