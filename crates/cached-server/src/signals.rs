//! Signals: INT and TERM stop the server in order.

use tokio::signal::unix::{SignalKind, signal};

/// Ready when the process is asked to end. Must be polled on a runtime.
pub async fn end_requested() {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        tracing::error!("cannot listen for signals; the default action ends the process");
        return std::future::pending().await;
    };
    let name = tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    };
    tracing::info!(signal = name, "asked to end");
}
