//! Helpers for tests of abusive clients: a witness that must continue to be served, and a limit on
//! the server's memory.

use crate::conn::Conn;
use crate::daemon::Daemon;
use crate::server::{Server, status_kib};
use std::time::{Duration, Instant};

/// A well-behaved client alongside the abusive ones.
pub struct Witness {
    conn: Conn,
    slowest: Duration,
    served: usize,
}

impl Witness {
    /// Connects and stores the item that it will request.
    pub fn new(server: &Server) -> Self {
        let mut conn = server.connect();
        conn.ask(b"set witness 3 0 7\r\nis here\r\n", b"STORED\r\n");
        Self { conn, slowest: Duration::ZERO, served: 0 }
    }

    /// Requests the item, and measures the time until the reply.
    ///
    /// # Panics
    /// Panics if the reply is wrong or late.
    pub fn check(&mut self, during: &str) {
        let start = Instant::now();
        self.conn.send(b"get witness\r\n");
        self.conn.expect(b"VALUE witness 3 7\r\nis here\r\nEND\r\n", during);
        self.slowest = self.slowest.max(start.elapsed());
        self.served += 1;
    }

    /// Stores an item.
    pub fn check_store(&mut self, during: &str) {
        self.conn.send(b"set witness 3 0 7\r\nis here\r\n");
        self.conn.expect(b"STORED\r\n", during);
        self.check(during);
    }

    /// Prints how well the witness was served.
    pub fn report(&self, test: &str) {
        println!("{test}: the witness was served {} times, slowest {:?}", self.served, self.slowest);
    }
}

/// A program whose resident memory is measured.
pub trait Resident {
    /// Returns the resident memory in KiB, as counted by the kernel.
    fn rss_kib(&self) -> u64;

    /// Returns the peak of the resident memory, in KiB.
    fn rss_peak_kib(&self) -> u64;
}

impl Resident for Server {
    fn rss_kib(&self) -> u64 {
        self.rss_kib()
    }

    fn rss_peak_kib(&self) -> u64 {
        self.rss_peak_kib()
    }
}

impl Resident for Daemon {
    fn rss_kib(&self) -> u64 {
        status_kib(self.pid(), "VmRSS:").expect("the program runs")
    }

    fn rss_peak_kib(&self) -> u64 {
        status_kib(self.pid(), "VmHWM:").expect("the program runs")
    }
}

/// The resident memory of a server before an abuse.
pub struct Memory {
    before_kib: u64,
}

impl Memory {
    /// Measures the memory.
    pub fn of(server: &impl Resident) -> Self {
        Self { before_kib: server.rss_kib() }
    }

    /// Asserts that the memory, present and peak, has grown by at most `mib` MiB, and prints the
    /// growth.
    ///
    /// # Panics
    /// Panics if the memory has grown by more.
    pub fn assert_grew_at_most(&self, server: &impl Resident, limit_mib: u64, test: &str) {
        let now = server.rss_kib().saturating_sub(self.before_kib);
        let peak = server.rss_peak_kib().saturating_sub(self.before_kib);
        println!(
            "{test}: resident memory grew by {now} KiB, at its peak by {peak} KiB (limit {limit_mib} MiB)"
        );
        assert!(peak <= limit_mib << 10, "{test}: memory grew by {peak} KiB, more than {limit_mib} MiB");
    }
}

/// Runs `times` rounds of `step` over many connections; the witness sends a request in each round.
pub fn rounds(witness: &mut Witness, times: usize, during: &str, mut step: impl FnMut(usize)) {
    for round in 0..times {
        step(round);
        witness.check(during);
    }
}
