//! Programs whose time of day a test sets, while their other clocks go on.
//!
//! A preloaded library answers instead of libc when the program reads `CLOCK_REALTIME`. So this
//! works for programs that read that clock through libc, as Rust's standard library does;
//! [`TimeOfDay::assert_is_read_by`] finds out whether a program does.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::daemon::{Daemon, Environment, wait_for};
use crate::outside::{run, text};

/// The time of day of one program.
#[derive(Debug)]
pub struct TimeOfDay {
    moved_secs: File,
    dir: tempfile::TempDir,
}

impl TimeOfDay {
    /// Prepares the time of day of a program, which is the machine's at first.
    ///
    /// # Panics
    /// If the library cannot be built: it needs a C compiler, as `cached` does.
    #[must_use]
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("time_of_day.c");
        std::fs::write(&source, include_str!("time_of_day.c")).expect("the source");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-o"]);
        let output = run(compiler.arg(dir.path().join("library.so")).arg(&source), Duration::from_secs(240));
        assert!(output.status.success(), "{}", text(&output));
        let time = Self { moved_secs: File::create(dir.path().join("moved")).expect("a file"), dir };
        time.move_by(0);
        time
    }

    /// Returns what the program's environment must contain.
    #[must_use]
    pub fn environment(&self) -> Environment {
        let path = |name: &str| self.dir.path().join(name);
        vec![("LD_PRELOAD", path("library.so")), ("CACHED_TEST_TIME_OF_DAY", path("moved"))]
    }

    /// Sets the time of day this far from the machine's, into the future or the past.
    ///
    /// # Panics
    /// If the file that says so cannot be written.
    pub fn move_by(&self, secs: i64) {
        self.moved_secs.write_all_at(&secs.to_ne_bytes(), 0).expect("it is written");
    }

    /// Asserts that a program logs the time of day that was set by `secs`, which must be at least an hour.
    ///
    /// # Panics
    /// If it does not.
    pub fn assert_is_read_by(daemon: &Daemon, secs: i64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
        // The hour may end before the line is written.
        let hours = [0, 60].map(|more| {
            let time = format!("@{}", now as i64 + secs + more);
            let output = run(
                Command::new("date").args(["-u", "+%Y-%m-%dT%H:", "-d", &time]),
                Duration::from_secs(240),
            );
            format!("\n{}", text(&output).trim())
        });
        // A reload is logged.
        daemon.signal(libc::SIGHUP);
        wait_for("a line with the time that was set", || {
            let log = daemon.log();
            hours.iter().any(|hour| log.contains(hour)).then_some(())
        });
    }
}

impl Default for TimeOfDay {
    fn default() -> Self {
        Self::new()
    }
}
