//! Counts a closed loop's answers per second, and the CPU time of both processes.

use std::time::{Duration, Instant};

use anyhow::Result;
use cached_benches::process::CpuClock;

use crate::shape::Shape;

/// The number of responses between two reads of the clock.
const LOOK_EVERY: u64 = 16;

/// Counts a load: first a warm-up, then the measured span.
pub(crate) struct Meter {
    client: CpuClock,
    server: CpuClock,
    warm_up: Duration,
    duration: Duration,
    count: u64,
    began: Instant,
    counted_from: Option<Reading>,
    counted_to: Option<Reading>,
    /// The number of responses to count, instead of a span of time.
    count_max: Option<u64>,
    failure: Option<anyhow::Error>,
}

#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    count: u64,
    client_ns: u64,
    server_ns: u64,
}

/// One measured span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Responses per second.
    pub(crate) rate: f64,
    /// Time per response: the round trip, at depth 1.
    pub(crate) ns_each: f64,
    /// CPU time of the client's process per response.
    pub(crate) client_ns: f64,
    /// CPU time of the server's process per response.
    pub(crate) server_ns: f64,
}

impl Meter {
    /// Counts responses to this process from process `server`.
    ///
    /// # Errors
    /// Fails if a process's clock cannot be read.
    pub(crate) fn new(server: u32, shape: &Shape) -> Result<Self> {
        Ok(Self {
            client: CpuClock::of(std::process::id())?,
            server: CpuClock::of(server)?,
            warm_up: shape.duration / 5,
            duration: shape.duration,
            count: 0,
            began: Instant::now(),
            counted_from: None,
            counted_to: None,
            count_max: None,
            failure: None,
        })
    }

    /// Ends after `count` responses, without a sample.
    ///
    /// # Errors
    /// Returns the errors of [`Self::new`].
    pub(crate) fn counting(count: u64, shape: &Shape) -> Result<Self> {
        Ok(Self { count_max: Some(count), ..Self::new(std::process::id(), shape)? })
    }

    /// Counts a response.
    pub(crate) fn count(&mut self) {
        self.count += 1;
        if self.count_max.is_some() {
            return;
        }
        // Large payloads are rare, so the clock is read for each request until the request rate is
        // known.
        if self.count.is_multiple_of(LOOK_EVERY) || self.count < 1_000 {
            self.look();
        }
    }

    /// Returns whether the span has ended.
    pub(crate) fn is_done(&self) -> bool {
        match self.count_max {
            Some(count) => self.count >= count,
            None => self.counted_to.is_some() || self.failure.is_some(),
        }
    }

    /// Returns the measurement.
    ///
    /// # Errors
    /// Fails if a clock could not be read, or the load ended early.
    pub(crate) fn sample(self) -> Result<Sample> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let (Some(from), Some(to)) = (self.counted_from, self.counted_to) else {
            anyhow::bail!("the load ended before its time, after {} answers", self.count);
        };
        let count = (to.count - from.count) as f64;
        let ns = (to.at - from.at).as_nanos() as f64;
        Ok(Sample {
            rate: count * 1e9 / ns,
            ns_each: ns / count,
            client_ns: (to.client_ns - from.client_ns) as f64 / count,
            server_ns: (to.server_ns - from.server_ns) as f64 / count,
        })
    }

    fn look(&mut self) {
        let now = Instant::now();
        let is_due = match self.counted_from {
            None => now - self.began >= self.warm_up,
            Some(from) => now - from.at >= self.duration,
        };
        if self.is_done() || !is_due {
            return;
        }
        match self.read(now) {
            Ok(reading) if self.counted_from.is_none() => self.counted_from = Some(reading),
            Ok(reading) => self.counted_to = Some(reading),
            Err(error) => self.failure = Some(error),
        }
    }

    fn read(&self, at: Instant) -> Result<Reading> {
        let (client_ns, server_ns) = (self.client.now_ns()?, self.server.now_ns()?);
        Ok(Reading { at, count: self.count, client_ns, server_ns })
    }
}
