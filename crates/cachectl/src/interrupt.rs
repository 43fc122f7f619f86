//! SIGINT and SIGTERM, for commands that clean up after themselves: the first one requests the end, the second
//! one ends the process at once.

use std::io::{PipeReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Failure, INTERRUPTED};

/// What a command asks whether it is to end.
pub(crate) struct Interrupt {
    /// Readable from the first signal on; nothing reads it.
    bell: PipeReader,
}

impl Interrupt {
    /// Begins to watch for signals, which no longer end the process by themselves.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn watch() -> Result<Self, Failure> {
        let watched = || {
            let (bell, mut ring) = std::io::pipe()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            let mut signals = {
                let _entered = runtime.enter();
                [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]
            };
            let watching = move || {
                runtime.block_on(any(&mut signals));
                // A pipe that nothing reads has room for a byte.
                let _ = ring.write_all(&[1]);
                runtime.block_on(any(&mut signals));
                std::process::exit(INTERRUPTED.into());
            };
            std::thread::Builder::new().name("signals".into()).spawn(watching)?;
            Ok(Self { bell })
        };
        watched().map_err(Failure::io("signals"))
    }

    /// Returns an error if a signal has requested the end.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.sleep(Duration::ZERO)
    }

    /// Waits until the time has passed.
    ///
    /// # Errors
    /// A signal has requested the end.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), Failure> {
        self.wait(None, Some(time))
    }

    /// Waits until `input` can be read.
    ///
    /// # Errors
    /// A signal has requested the end.
    pub(crate) fn wait_for(&self, input: BorrowedFd<'_>) -> Result<(), Failure> {
        self.wait(Some(input), None)
    }

    fn wait(&self, input: Option<BorrowedFd<'_>>, time: Option<Duration>) -> Result<(), Failure> {
        let mut all = vec![PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        all.extend(input.map(|input| PollFd::from_borrowed_fd(input, PollFlags::IN)));
        let time = time.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        loop {
            match poll(&mut all, time.as_ref()) {
                // By a signal that another thread handles.
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failure::io("signals")(error.into())),
                Ok(_) if all[0].revents().is_empty() => return Ok(()),
                Ok(_) => return Err(Failure::Interrupted),
            }
        }
    }
}

/// Waits for one of the signals.
async fn any(signals: &mut [Signal; 2]) {
    std::future::poll_fn(|context| {
        // Both are polled, so that both wake this task.
        let ready = signals.each_mut().map(|signal| signal.poll_recv(context).is_ready());
        if ready.contains(&true) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
