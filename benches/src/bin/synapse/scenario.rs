//! The scenarios, and the bar of each against raw TCP.

use std::time::Duration;

use crate::shape::{Operation, Shape};

/// What is compared with the raw figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Measure {
    /// Rate over raw's, at least the bar.
    Rate,
    /// Round trip over raw's, at most the bar.
    RoundTrip,
}

/// One closed loop and its bar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    /// The loop.
    pub(crate) shape: Shape,
    /// What counts.
    pub(crate) measure: Measure,
    /// What synapse without payload checksums is held to.
    pub(crate) bar: f64,
}

impl Scenario {
    /// All of them.
    pub(crate) fn all(working_set_bytes: usize, duration: Duration) -> Vec<Self> {
        let table = [
            (4 << 10, 1, Measure::RoundTrip, 1.25),
            (4 << 10, 32, Measure::Rate, 0.80),
            (64 << 10, 8, Measure::Rate, 0.85),
            (1 << 20, 4, Measure::Rate, 0.85),
        ];
        let scenarios = table.into_iter().flat_map(|(bytes, depth, measure, bar)| {
            [Operation::Read, Operation::Write].map(|operation| {
                let shape = Shape { operation, bytes, depth, duration, working_set_bytes };
                Self { shape, measure, bar }
            })
        });
        scenarios.collect()
    }

    /// What it is called in output.
    pub(crate) fn name(&self) -> String {
        self.shape.to_string()
    }
}
