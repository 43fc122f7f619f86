//! The values that may be read and those that must be stored: for each object a history of changes,
//! with the moments of their requests, responses and storage, and a register for each cell.
//!
//! An object is regarded as its content followed by infinitely many zeros; every operation sets a
//! cell or leaves it unchanged. A read of a cell may find the value of a change, unless another
//! change began after the first had ended, and itself ended before the read began. A change that
//! was cancelled or whose outcome is unknown does not end until everything is idle. The same rule
//! with *stored* instead of *ended* applies to the store: its content is never older than the
//! content that a flush has reported as stored. The size is checked against all possible orders of
//! the changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use blocker::{ObjectId, Scope, Version};

/// The unit of writes: half a sector, so that changes fill neither sectors nor buckets.
pub const CELL: u64 = 256;
pub const CELLS_PER_BUCKET: u32 = 16;
/// The time of an event that has not happened.
pub const NEVER: u64 = u64::MAX;

pub type Problem = String;

/// The effect of a change.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Runs of cells: the first cell, the end, and whether the cells get data or zeros.
    Write(Vec<(u32, u32, bool)>),
    Discard(u32, u32),
    Truncate(u32),
    Full(u32),
    Delete,
    Copy(usize),
}

impl Kind {
    /// Returns whether the change determines the content of the cell.
    pub fn covers(&self, cell: u32) -> bool {
        match self {
            Self::Write(runs) => runs.iter().any(|(from, to, _)| (*from..*to).contains(&cell)),
            Self::Discard(from, to) => (*from..*to).contains(&cell),
            Self::Truncate(size) => cell >= *size,
            Self::Full(_) | Self::Delete | Self::Copy(_) => true,
        }
    }

    fn value(&self, id: u32, cell: u32) -> u32 {
        match self {
            Self::Write(runs) if runs.iter().any(|(from, to, is)| *is && (*from..*to).contains(&cell)) => id,
            Self::Full(len) if cell < *len => id,
            _ => 0,
        }
    }

    fn size(&self, before: Size) -> Size {
        match self {
            Self::Write(runs) => {
                let end = runs.iter().filter(|(from, to, _)| from < to).map(|(_, to, _)| *to).max();
                Some(before.unwrap_or(0).max(end.unwrap_or(0)))
            }
            Self::Truncate(size) => before.map(|_| *size),
            Self::Full(len) => Some(*len),
            Self::Delete => None,
            Self::Discard(..) | Self::Copy(_) => before,
        }
    }

    /// Returns whether the change fails if the object does not exist.
    pub fn needs_present(&self) -> bool {
        matches!(self, Self::Discard(..) | Self::Truncate(_) | Self::Delete)
    }
}

/// The size in cells; `None` if the object does not exist.
pub type Size = Option<u32>;

/// The party that makes a change: a cache, or another client of the store.
pub type Writer = usize;
pub const ANOTHER: Writer = 99;

#[derive(Clone, Debug)]
pub struct Op {
    /// The number of the operation, which is also the value that it writes.
    pub id: u32,
    pub writer: Writer,
    pub kind: Kind,
    pub domain: Option<u64>,
    pub asked: u64,
    /// The time of the response; for another client's change, the time of the cache's notification.
    pub answered: u64,
    /// The time of the change in the store.
    pub ended: u64,
    pub stored: u64,
    /// Whether the operation has failed without a change.
    pub is_void: bool,
    /// Whether the operation was acknowledged.
    pub is_acknowledged: bool,
    /// Whether another writer had claimed the scope before the change was stored.
    pub may_be_lost: bool,
    /// Whether the loss of the change was reported and accepted.
    pub is_forgiven: bool,
    /// The moment after which the store must not accept the change.
    pub fenced: u64,
    /// The values that a copy found, by cell.
    values: Option<Rc<Vec<BTreeSet<u32>>>>,
    is_pending: bool,
    bit: u64,
}

/// A read or info of an object in flight.
#[derive(Clone, Debug)]
pub struct Look {
    pub object: usize,
    pub asked: u64,
    key: u64,
}

struct Object {
    id: ObjectId,
    ops: Vec<Op>,
    /// The currently possible sizes, each with the pending changes that it includes.
    sizes: BTreeSet<(Size, u64)>,
    /// The sizes that were possible at any time of a look.
    looks: BTreeMap<u64, BTreeSet<Size>>,
    /// The time at which a value was first found, by `(op, cell)`.
    found: HashMap<(u32, u32), u64>,
    versions: HashMap<Version, (u32, BTreeMap<u32, u32>)>,
    /// The store's stable content when it was last checked.
    stable: Vec<u32>,
    /// Whether the size is unchecked until everything is idle.
    pub is_loose: bool,
}

pub struct Oracle {
    objects: Vec<Object>,
    now: u64,
    next_key: u64,
    next_id: u32,
    pub cells: u32,
    pub checks_versions: bool,
    /// Objects vanish in the store, so their content is checked only when everything is idle.
    pub is_lenient: bool,
}

/// Returns the cells of a byte range.
pub fn cells_of(bytes: &[u8], first: u32) -> Result<Vec<u32>, Problem> {
    let each = bytes.chunks(CELL as usize).enumerate();
    each.map(|(at, bytes)| {
        let value = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        match bytes.chunks(4).all(|word| word == value.to_le_bytes()) {
            true => Ok(value),
            false => Err(format!("torn: cell {} is a mix", first + at as u32)),
        }
    })
    .collect()
}

/// Returns the bytes of a run of cells with this value.
pub fn bytes_of(value: u32, cells: u32) -> Vec<u8> {
    value.to_le_bytes().repeat(cells as usize * CELL as usize / 4)
}

mod reads;
mod stored;

impl Oracle {
    pub fn new(cells: u32) -> Self {
        Self {
            objects: Vec::new(),
            now: 1,
            next_key: 0,
            next_id: 1,
            cells,
            checks_versions: true,
            is_lenient: false,
        }
    }

    pub fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Adds an object with its initial content.
    pub fn add(&mut self, id: ObjectId, size: Size, value: u32) {
        let kind = size.map_or(Kind::Delete, Kind::Full);
        let op = Op {
            id: value,
            writer: ANOTHER,
            kind,
            domain: None,
            asked: 0,
            answered: 0,
            ended: 0,
            stored: 0,
            is_void: false,
            is_acknowledged: true,
            may_be_lost: false,
            is_forgiven: false,
            fenced: NEVER,
            values: None,
            is_pending: false,
            bit: 0,
        };
        let stable = (0..self.cells).map(|cell| op.kind.value(value, cell)).collect();
        self.objects.push(Object {
            id,
            ops: vec![op],
            sizes: BTreeSet::from([(size, 0)]),
            looks: BTreeMap::new(),
            found: HashMap::new(),
            versions: HashMap::new(),
            stable,
            is_loose: false,
        });
    }

    pub fn fresh_value(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub fn asked(&mut self, writer: Writer, object: usize, id: u32, kind: Kind, domain: Option<u64>) -> u32 {
        let asked = self.tick();
        let is_copy = matches!(kind, Kind::Copy(_));
        let it = &mut self.objects[object];
        let used = it.ops.iter().filter(|op| op.is_pending).fold(0, |bits, op| bits | op.bit);
        let bit = 1u64 << (!used).trailing_zeros().min(63);
        it.ops.push(Op {
            id,
            writer,
            kind,
            domain,
            asked,
            answered: NEVER,
            ended: NEVER,
            stored: NEVER,
            is_void: false,
            is_acknowledged: false,
            may_be_lost: false,
            is_forgiven: false,
            fenced: NEVER,
            values: None,
            is_pending: true,
            bit,
        });
        if is_copy {
            // The source may change until the copy ends, and the oracle does not track the sizes of
            // copies.
            it.is_loose = true;
        }
        it.grow();
        id
    }

    /// Returns the operation with this number.
    fn op(&mut self, object: usize, id: u32) -> &mut Op {
        let ops = &mut self.objects[object].ops;
        ops.iter_mut().rev().find(|op| op.id == id).expect("an operation that was asked")
    }

    pub fn acknowledged(&mut self, object: usize, id: u32, is_stored: bool) -> Result<(), Problem> {
        let now = self.tick();
        if let Kind::Copy(source) = self.op(object, id).kind.clone() {
            let asked = self.op(object, id).asked;
            let cells = self.cells;
            let values = (0..cells).map(|cell| self.values_at(source, cell, asked, now)).collect();
            self.op(object, id).values = Some(Rc::new(values));
        }
        let op = self.op(object, id);
        (op.answered, op.ended, op.is_acknowledged) = (now, now, true);
        if is_stored {
            op.stored = now;
        }
        let (bit, kind) = (op.bit, op.kind.clone());
        op.is_pending = false;
        let it = &mut self.objects[object];
        it.sizes.retain(|(_, applied)| applied & bit != 0);
        it.sizes = it.sizes.iter().map(|(size, applied)| (*size, applied & !bit)).collect();
        if it.sizes.is_empty() && !it.is_loose {
            return Err(format!("{}: {kind:?} was acknowledged, and cannot have been done", it.id));
        }
        Ok(())
    }

    /// Records that the operation has failed without a change.
    pub fn failed(&mut self, object: usize, id: u32) {
        let op = self.op(object, id);
        (op.is_void, op.is_pending) = (true, false);
        let bit = op.bit;
        let it = &mut self.objects[object];
        it.sizes.retain(|(_, applied)| applied & bit == 0);
        if it.sizes.is_empty() {
            it.is_loose = true;
        }
    }

    /// Stops checking the size until everything is idle.
    pub fn loosen(&mut self, object: usize) {
        self.objects[object].is_loose = true;
    }

    pub fn is_loose(&self, object: usize) -> bool {
        self.objects[object].is_loose
    }

    pub fn sizes_now(&self, object: usize) -> BTreeSet<Size> {
        self.objects[object].sizes.iter().map(|(size, _)| *size).collect()
    }

    /// Returns the number of changes that may or may not have been made.
    pub fn unknown(&self, object: usize) -> usize {
        self.objects[object].ops.iter().filter(|op| op.is_pending).count()
    }

    /// Records that nothing is in flight: unknown outcomes have become final.
    pub fn at_rest(&mut self) {
        let now = self.tick();
        for object in 0..self.objects.len() {
            for at in 0..self.objects[object].ops.len() {
                let op = &self.objects[object].ops[at];
                if matches!(op.kind, Kind::Copy(_)) && op.values.is_none() && !op.is_void {
                    let values = (0..self.cells).map(|cell| self.values(op, cell, now)).collect();
                    self.objects[object].ops[at].values = Some(Rc::new(values));
                }
            }
        }
        for it in &mut self.objects {
            for op in it.ops.iter_mut().filter(|op| !op.is_void) {
                op.answered = op.answered.min(now);
                op.ended = op.ended.min(now);
                op.is_pending = false;
            }
            it.sizes = it.sizes.iter().map(|(size, _)| (*size, 0)).collect();
        }
    }

    /// Records the content of an idle object, and forgets its history.
    pub fn rebase(&mut self, object: usize, content: Option<&[u8]>) -> Result<(), Problem> {
        let cells = content.map(|bytes| cells_of(bytes, 0)).transpose()?.unwrap_or_default();
        let now = self.tick();
        let size = content.map(|_| cells.len() as u32);
        let it = &mut self.objects[object];
        let len = self.cells as usize;
        it.stable = cells.clone();
        it.stable.resize(len, 0);
        it.sizes = BTreeSet::from([(size, 0)]);
        it.is_loose = false;
        it.found.clear();
        // One operation represents all earlier ones, as a copy would.
        let values: Vec<BTreeSet<u32>> = it.stable.iter().map(|value| BTreeSet::from([*value])).collect();
        let mut op = it.ops[0].clone();
        (op.asked, op.answered, op.ended, op.stored) = (now, now, now, now);
        (op.kind, op.values, op.writer, op.id) = (Kind::Copy(usize::MAX), Some(Rc::new(values)), ANOTHER, 0);
        it.ops = vec![op];
        Ok(())
    }
}

impl Object {
    /// Adds the sizes that pending changes make possible, also to all reads in flight.
    fn grow(&mut self) {
        let pending: Vec<(u64, Kind)> = self
            .ops
            .iter()
            .filter(|op| op.is_pending && !op.is_void)
            .map(|op| (op.bit, op.kind.clone()))
            .collect();
        let mut todo: Vec<(Size, u64)> = self.sizes.iter().copied().collect();
        while let Some((size, applied)) = todo.pop() {
            for (bit, kind) in &pending {
                if applied & bit == 0 && !(kind.needs_present() && size.is_none()) {
                    let next = (kind.size(size), applied | bit);
                    if self.sizes.insert(next) {
                        todo.push(next);
                    }
                }
            }
        }
        let sizes: Vec<Size> = self.sizes.iter().map(|(size, _)| *size).collect();
        self.looks.values_mut().for_each(|seen| seen.extend(&sizes));
    }
}

impl Op {
    /// Returns the time at which the operation had ended from the view of a newer one.
    fn end_for(&self, newer: &Op, in_store: bool) -> u64 {
        let own = if in_store { self.ended } else { self.answered };
        if self.writer == newer.writer || self.asked == 0 { own } else { own.max(self.stored) }
    }

    fn describe(&self) -> String {
        let time = |at: u64| if at == NEVER { "-".into() } else { at.to_string() };
        format!(
            "#{} {:?} by {} asked {} answered {} stored {}{}{}",
            self.id,
            self.kind,
            self.writer,
            self.asked,
            time(self.answered),
            time(self.stored),
            if self.is_void { " (failed)" } else { "" },
            if self.may_be_lost { " (fenced)" } else { "" },
        )
    }
}
