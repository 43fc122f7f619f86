//! A small journal on a simulated disk, and a model of the records that the journal must return.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::simulated::SimulatedDisk;
use crate::{
    AppendError, Environment, Event, Head, Hold, Journal, JournalConfig, Kind, ManualClock, Object,
    OpenError, Position, Record, Replay,
};
use blocker::rng::Rng;

pub(super) const SEGMENT_BYTES: u64 = 64 * 1024;

/// Returns the factor for the numbers of seeds: `CACHED_TEST_TIMES`, or 1. `.ci/long` sets it.
pub(super) fn times() -> u64 {
    std::env::var("CACHED_TEST_TIMES").map_or(1, |text| text.parse().expect("a number"))
}

pub(super) fn config(segments: u64) -> JournalConfig {
    JournalConfig {
        segment_bytes: SEGMENT_BYTES,
        limit_bytes: segments * SEGMENT_BYTES,
        ..JournalConfig::new("simulated")
    }
}

pub(super) struct Kit {
    pub(super) disk: SimulatedDisk,
    pub(super) clock: Arc<ManualClock>,
    pub(super) events: Arc<Mutex<Vec<Event>>>,
    pub(super) segments: u64,
}

impl Kit {
    pub(super) fn new(segments: u64) -> Self {
        let (disk, clock) = (SimulatedDisk::new(), Arc::default());
        Self { disk, clock, events: Arc::default(), segments }
    }

    pub(super) fn environment(&self) -> Environment {
        let events = Arc::clone(&self.events);
        Environment {
            clock: Arc::clone(&self.clock) as _,
            observer: Arc::new(move |event| events.lock().push(event.clone())),
            ..Environment::new(self.disk.clone())
        }
    }

    pub(super) fn open(&self) -> Result<(Journal, Replay), OpenError> {
        Journal::open_stepped(&config(self.segments), self.environment())
    }

    pub(super) fn open_ready(&self) -> Journal {
        let (journal, _) = self.open().unwrap();
        while journal.step_prepare() {}
        journal
    }
}

/// Appends a record whose payload is drawn from its number.
pub(super) fn append(
    journal: &Journal,
    number: u64,
    payload_bytes: usize,
) -> Result<(Position, Hold), AppendError> {
    let payload = payload(number, payload_bytes);
    let (first, second) = payload.split_at(payload_bytes / 3);
    let record = Record { head: head(number), payload: &[first, second] };
    journal.append(&record).map(|appended| (appended.position, appended.hold))
}

pub(super) fn head(number: u64) -> Head<'static> {
    let object = match number % 3 {
        0 => Object::Number(number),
        1 => Object::Name(format!("object-{number}").into_bytes().into()),
        _ => Object::None,
    };
    Head { sequence: number, epoch: number % 5, namespace: 1, ..Head::new(Kind(1), object) }
}

pub(super) fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let mut random = Rng::new(number);
    let mut payload: Vec<_> = (0..bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    payload.truncate(bytes);
    payload
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Unknown,
    Durable,
    Failed,
}

/// A record in the model.
pub(super) struct Known {
    pub(super) number: u64,
    pub(super) bytes: usize,
    pub(super) hold: Option<Hold>,
    pub(super) fate: Fate,
}

/// The model: appended and acknowledged records, and holds.
#[derive(Default)]
pub(super) struct Model {
    pub(super) records: BTreeMap<Position, Known>,
    pub(super) next_number: u64,
}

impl Model {
    pub(super) fn append(&mut self, journal: &Journal, random: &mut Rng) -> Result<(), AppendError> {
        let bytes = [0, 10, 100, 512, 4096, 5000, 12_000][random.below(7) as usize];
        let number = self.next_number + 1;
        let (position, hold) = append(journal, number, bytes)?;
        self.next_number = number;
        let known = Known { number, bytes, hold: Some(hold), fate: Fate::Unknown };
        assert!(self.records.last_key_value().is_none_or(|(last, _)| *last < position), "positions rise");
        self.records.insert(position, known);
        Ok(())
    }

    /// Notes which records the journal acknowledges.
    pub(super) fn acknowledge(&mut self, journal: &Journal) {
        for (position, known) in &mut self.records {
            if let Some(outcome) = journal.outcome(*position) {
                let fate = if outcome.is_ok() { Fate::Durable } else { Fate::Failed };
                assert!(known.fate == Fate::Unknown || known.fate == fate, "an acknowledgement stays");
                known.fate = fate;
            }
        }
    }

    /// Drops a hold, mostly an old one.
    pub(super) fn release_one(&mut self, random: &mut Rng) {
        let held: Vec<_> = self
            .records
            .iter()
            .filter(|(_, known)| known.hold.is_some())
            .map(|(position, _)| *position)
            .collect();
        if held.is_empty() {
            return;
        }
        let among = if random.permille(700) { held.len().div_ceil(4) } else { held.len() };
        let position = held[random.below(among as u64) as usize];
        if let Some(known) = self.records.get_mut(&position) {
            known.hold = None;
        }
    }

    /// Compares a recovery with the model, and makes it the new model.
    pub(super) fn check(&mut self, journal: &Journal, replay: Replay) -> Result<(), String> {
        let mut found = Vec::new();
        for record in replay.all_records() {
            let record = record.map_err(|error| error.to_string())?;
            let payload = record.payload().map_err(|error| error.to_string())?;
            found.push((record, payload));
        }
        for (record, bytes) in &found {
            let known = self.records.get(&record.position);
            let known = known.ok_or_else(|| format!("{:?} was never appended", record.position))?;
            if record.head != head(known.number) || *bytes != payload(known.number, known.bytes) {
                return Err(format!("{:?} has another content", record.position));
            }
        }
        let first = found.first().map(|(record, _)| record.position);
        let last = found.last().map_or(Position(0), |(record, _)| record.position);
        let is_found =
            |position: &Position| found.binary_search_by_key(position, |(record, _)| record.position).is_ok();
        for (position, known) in &self.records {
            let is_there = is_found(position);
            if known.fate == Fate::Durable && known.hold.is_some() && !is_there {
                return Err(format!("{position:?} was acknowledged and is held, but lost"));
            }
            let is_inside = first.is_some_and(|first| (first..=last).contains(position));
            if is_inside && !is_there && known.fate != Fate::Failed {
                return Err(format!("{position:?} is lost, but a later record is there"));
            }
            // A failed record may nevertheless have become durable, but only if nothing came after
            // it.
            let has_durable_after =
                self.records.range(position..).skip(1).any(|(_, later)| later.fate == Fate::Durable);
            if is_there && known.fate == Fate::Failed && has_durable_after {
                return Err(format!("{position:?} had failed, and is there before a record that had not"));
            }
        }
        self.records.retain(|position, _| is_found(position));
        for (position, known) in &mut self.records {
            let hold = journal.hold(*position);
            known.hold = Some(hold.ok_or_else(|| format!("{position:?} was recovered, but cannot be held"))?);
            known.fate = Fate::Durable;
        }
        Ok(())
    }
}
