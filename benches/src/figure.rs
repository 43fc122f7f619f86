//! A measured number with its name and unit: one line of output, or one JSON object.

use std::fmt;

use serde::Serialize;

/// A measured number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The name of the measured quantity.
    pub name: String,
    /// The value.
    pub value: f64,
    /// The unit; empty for counts and ratios.
    pub unit: String,
}

impl Figure {
    /// Returns a figure.
    pub fn new(name: impl Into<String>, value: f64, unit: impl Into<String>) -> Self {
        Self { name: name.into(), value, unit: unit.into() }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:<52} {:>14} {}", self.name, Number(self.value), self.unit)
    }
}

/// A number with suitable precision: no decimals if it is large or an integer, three if it is
/// small.
#[derive(Clone, Copy, Debug)]
pub struct Number(pub f64);

impl fmt::Display for Number {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = match self.0.abs() {
            value if value >= 1_000.0 || value.fract() == 0.0 => 0,
            value if value >= 10.0 => 1,
            _ => 3,
        };
        out.pad(&format!("{:.decimals$}", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits() {
        for (number, text) in [(1234.6, "1235"), (12.34, "12.3"), (0.6512, "0.651"), (3.0, "3"), (0.0, "0")] {
            assert_eq!(Number(number).to_string(), text);
        }
    }
}
