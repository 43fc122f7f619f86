//! Panics anywhere in the process: each is said as usual, the first is remembered, and whoever runs the process learns that it is to
//! end. A process with half of its threads serves nobody, and what it has acknowledged is safer on its way out than inside.

use std::panic;
use std::sync::OnceLock;
use tokio::sync::Notify;

static FIRST: OnceLock<String> = OnceLock::new();
static HAPPENED: Notify = Notify::const_new();

/// Notes panics of all threads from now on. Once per process.
pub fn watch() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        usual(info);
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("a thread without a name");
        let reason = info.payload_as_str().unwrap_or("no reason is given");
        let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
        // The first one is the cause of what follows.
        let _ = FIRST.set(format!("thread {thread} has panicked{place}: {reason}"));
        HAPPENED.notify_one();
    }));
}

/// What the first panic was, if there has been any.
pub fn first() -> Option<&'static str> {
    FIRST.get().map(String::as_str)
}

/// Ready when a thread has panicked, even before anyone asked. For one waiter.
pub async fn happened() {
    HAPPENED.notified().await;
}
