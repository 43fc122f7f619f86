//! The life of the process: its first log line, the shutdown request, panics, and notifications of
//! the service manager.

use crate::log::{Format, print_panic};
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::{io, panic};
use tokio::sync::{Notify, SetOnce};

/// The request to shut the process down, which a signal, an administrator or a client makes. Clones
/// share the same request.
#[derive(Clone, Debug, Default)]
pub struct Drain(Arc<SetOnce<()>>);

impl Drain {
    /// Requests the shutdown. From now on, the process is not ready. Calls after the first have no
    /// effect.
    pub fn request(&self) {
        // This fails after the first call.
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

/// Logs that a program starts: its version, and the path of its configuration file, if it has one.
pub fn log_start(program: &str, version: &str, file: Option<&Path>) {
    let config = file.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    let config = config.as_deref().map(|path| tracing::field::display(path.display()));
    tracing::info!(version, config, "{program} starts");
}

static FIRST_PANIC: OnceLock<String> = OnceLock::new();
static PANICKED: Notify = Notify::const_new();

/// Starts recording panics of all threads. Each panic is printed, as usual or as a line of a JSON
/// log; the first one is recorded, and `main` is notified that the process has to shut down. A
/// process that lacks some of its threads cannot serve correctly, and its acknowledged data are
/// safer in the store than in memory. This must be called once per process.
pub fn watch_panics() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("a thread without a name");
        let reason = info.payload_as_str().unwrap_or("no reason is given");
        let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
        let line = format!("thread {thread} has panicked{place}: {reason}");
        match Format::outside() {
            Format::Text => usual(info),
            Format::Json => print_panic(line.clone()),
        }
        // The first panic is the cause of the later ones.
        let _ = FIRST_PANIC.set(line);
        PANICKED.notify_one();
    }));
}

/// Returns the description of the first panic, if there was one.
pub fn first_panic() -> Option<&'static str> {
    FIRST_PANIC.get().map(String::as_str)
}

/// Waits until a thread has panicked, which may have happened before the call. Only one task may
/// wait.
pub async fn panicked() {
    PANICKED.notified().await;
}

/// Sends a change of state, such as `READY=1`, to the service manager that has set `NOTIFY_SOCKET`
/// (systemd's `sd_notify`, without its library). Does nothing if the variable is not set. A failure
/// is logged.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&path, state) {
        tracing::warn!(cause = %error, "cannot notify the service manager");
    }
}

/// Reports that the configuration is being reloaded, until `READY=1` is sent.
pub(crate) fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

fn send(path: &OsStr, state: &str) -> io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
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
