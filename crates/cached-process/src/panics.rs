//! Handling of panics anywhere in the process: each is printed as usual, the first is recorded, and
//! `main` is notified that the process has to shut down. A process without some of its threads
//! cannot serve correctly, and its acknowledged data are safer in the store than in memory.

use std::panic;
use std::sync::OnceLock;
use tokio::sync::Notify;

static FIRST: OnceLock<String> = OnceLock::new();
static HAPPENED: Notify = Notify::const_new();

/// Starts recording panics of all threads. Call it once per process.
pub fn watch() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        usual(info);
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("a thread without a name");
        let reason = info.payload_as_str().unwrap_or("no reason is given");
        let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
        // The first panic is the cause of later ones.
        let _ = FIRST.set(format!("thread {thread} has panicked{place}: {reason}"));
        HAPPENED.notify_one();
    }));
}

/// Returns the description of the first panic, if there was one.
pub fn first() -> Option<&'static str> {
    FIRST.get().map(String::as_str)
}

/// Waits until a thread has panicked, which may have happened before the call. Only one task may
/// wait.
pub async fn happened() {
    HAPPENED.notified().await;
}
