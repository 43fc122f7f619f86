//! The scenarios, and the required value of each compared with raw TCP.

use std::time::Duration;

use crate::shape::{Operation, Shape};

/// The quantity compared with raw TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Measure {
    /// The rate divided by raw TCP's, at least the required value.
    Rate,
    /// The round-trip time divided by raw TCP's, at most the required value.
    RoundTrip,
}

/// A closed loop and its required value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    /// The loop.
    pub(crate) shape: Shape,
    /// The quantity that counts.
    pub(crate) measure: Measure,
    /// The required value for synapse without payload checksums.
    pub(crate) bar: f64,
}

impl Scenario {
    /// Returns all scenarios.
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

    /// Returns the service's name in the output.
    pub(crate) fn name(&self) -> String {
        self.shape.to_string()
    }
}
