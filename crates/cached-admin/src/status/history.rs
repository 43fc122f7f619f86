//! The last hour in steps of ten seconds: what was counted in each, and what was there at its end.

use std::collections::{BTreeMap, VecDeque};

use serde::{Serialize, Serializer};

/// The length of a step.
pub const STEP_SECS: u64 = 10;
/// The number of steps that are kept: one hour.
pub const STEPS_MAX: usize = 360;

/// One value of a column.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Cell {
    /// A count or a size.
    Whole(u64),
    /// A quantile.
    Fraction(f64),
    /// Nothing was measured.
    Nothing,
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Whole(number) => serializer.serialize_u64(*number),
            Cell::Fraction(number) => serializer.serialize_f64(*number),
            Cell::Nothing => serializer.serialize_none(),
        }
    }
}

/// The columns, all of the same length, oldest first.
#[derive(Clone, Debug, Default, Serialize)]
pub struct History {
    step_secs: u64,
    end_unix_ms: u64,
    columns: BTreeMap<&'static str, VecDeque<Cell>>,
    #[serde(skip)]
    len: usize,
}

impl History {
    /// Returns a history without a step.
    #[must_use]
    pub fn new() -> History {
        History { step_secs: STEP_SECS, ..History::default() }
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no step yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a column, oldest value first.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&VecDeque<Cell>> {
        self.columns.get(name)
    }

    /// Adds a step that ended at `end_unix_ms`, and drops the oldest one above the limit.
    pub(super) fn add(&mut self, cells: Vec<(&'static str, Cell)>, end_unix_ms: u64) {
        for (name, cell) in cells {
            let column = self.columns.entry(name).or_default();
            // The part has appeared since the last step.
            column.resize(self.len, Cell::Nothing);
            column.push_back(cell);
        }
        self.len += 1;
        for column in self.columns.values_mut() {
            column.resize(self.len, Cell::Nothing);
            if self.len > STEPS_MAX {
                column.pop_front();
            }
        }
        self.len = self.len.min(STEPS_MAX);
        self.end_unix_ms = end_unix_ms;
    }
}
