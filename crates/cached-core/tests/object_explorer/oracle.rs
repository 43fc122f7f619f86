//! What may be read, and what must be stored: for each object a history of changes with the moments when they
//! were asked for, answered and stored, and a register for each cell.
//!
//! An object is taken for its content followed by zeros without end; every operation, whatever its size, sets
//! a cell or leaves it alone. A read of a cell may find what a change wrote, unless another change that was
//! asked for after the first had ended has itself ended before the read began. A change that was cancelled or
//! whose outcome is unknown has no end until everything is at rest. The same rule with *stored* for *ended*
//! holds for the store: its content is never older than what a flush has reported as stored. The size is
//! checked against all orders in which the changes may have been made.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use blocker::{ObjectId, Scope, Version};

/// The grain of what is written: half a sector, so that changes fill neither sectors nor buckets.
pub const CELL: u64 = 256;
pub const CELLS_PER_BUCKET: u32 = 16;
/// It has not happened.
pub const NEVER: u64 = u64::MAX;

pub type Problem = String;

/// What a change does.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Runs of cells: from, to, and whether data or zeros.
    Write(Vec<(u32, u32, bool)>),
    Discard(u32, u32),
    Truncate(u32),
    Full(u32),
    Delete,
    Copy(usize),
}

impl Kind {
    /// Whether it determines the content of the cell.
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

    /// Whether it fails without an object.
    pub fn needs_present(&self) -> bool {
        matches!(self, Self::Discard(..) | Self::Truncate(_) | Self::Delete)
    }
}

/// In cells; `None`: no object.
pub type Size = Option<u32>;

/// The party that makes a change: a cache, or another client of the store.
pub type Writer = usize;
pub const ANOTHER: Writer = 99;

#[derive(Clone, Debug)]
pub struct Op {
    /// Its number, which is the value that it writes.
    pub id: u32,
    pub writer: Writer,
    pub kind: Kind,
    pub domain: Option<u64>,
    pub asked: u64,
    /// When it was answered; for another client's change, when the cache was notified.
    pub answered: u64,
    /// When it was made in the store.
    pub ended: u64,
    pub stored: u64,
    /// Whether it has failed and changed nothing.
    pub is_void: bool,
    /// Whether it was acknowledged.
    pub is_acknowledged: bool,
    /// Whether another writer had taken over before it was stored.
    pub may_be_lost: bool,
    /// Whether its loss was reported and accepted.
    pub is_forgiven: bool,
    /// The moment from which on the store must not accept it.
    pub fenced: u64,
    /// The values that a copy found, by cell.
    values: Option<Rc<Vec<BTreeSet<u32>>>>,
    is_pending: bool,
    bit: u64,
}

/// A read or info of an object that is under way.
#[derive(Clone, Debug)]
pub struct Look {
    pub object: usize,
    pub asked: u64,
    key: u64,
}

struct Object {
    id: ObjectId,
    ops: Vec<Op>,
    /// The sizes that are possible now, each with the pending changes that it includes.
    sizes: BTreeSet<(Size, u64)>,
    /// The sizes that were possible at any time of a look.
    looks: BTreeMap<u64, BTreeSet<Size>>,
    /// When a value was first found: `(op, cell)`.
    found: HashMap<(u32, u32), u64>,
    versions: HashMap<Version, (u32, BTreeMap<u32, u32>)>,
    /// The store's stable content when it was last checked.
    stable: Vec<u32>,
    /// The size is not checked until everything is at rest.
    pub is_loose: bool,
}

pub struct Oracle {
    objects: Vec<Object>,
    now: u64,
    next_key: u64,
    next_id: u32,
    pub cells: u32,
    pub checks_versions: bool,
    /// Objects vanish in the store: their content is checked at rest only.
    pub is_lenient: bool,
}

/// The cells of some bytes.
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

/// The bytes of a run of cells with this value.
pub fn bytes_of(value: u32, cells: u32) -> Vec<u8> {
    value.to_le_bytes().repeat(cells as usize * CELL as usize / 4)
}

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

    /// Adds an object as it is before anything happens.
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

    // ---- changes

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
            // What it copies may change until it ends; sizes of copies are not followed.
            it.is_loose = true;
        }
        it.grow();
        id
    }

    /// The operation of this number.
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

    /// Records that it has failed and changed nothing.
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

    /// Stops checking the size until everything is at rest.
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

    /// Records that nothing is under way: unknown outcomes have become final.
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

    /// Takes the content of an object at rest as known: everything before is forgotten.
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
        // One operation stands for the whole past, as a copy would.
        let values: Vec<BTreeSet<u32>> = it.stable.iter().map(|value| BTreeSet::from([*value])).collect();
        let mut op = it.ops[0].clone();
        (op.asked, op.answered, op.ended, op.stored) = (now, now, now, now);
        (op.kind, op.values, op.writer, op.id) = (Kind::Copy(usize::MAX), Some(Rc::new(values)), ANOTHER, 0);
        it.ops = vec![op];
        Ok(())
    }

    // ---- reads

    /// Returns the values that an operation may have written to a cell.
    fn values(&self, op: &Op, cell: u32, until: u64) -> BTreeSet<u32> {
        self.values_within(op, cell, until, 0)
    }

    fn values_within(&self, op: &Op, cell: u32, until: u64, depth: u32) -> BTreeSet<u32> {
        match (&op.kind, &op.values) {
            (Kind::Copy(_), Some(values)) => values[cell as usize].clone(),
            // Copies in a circle, all under way: any value.
            (Kind::Copy(_), None) if depth > 2 => {
                let all = self.objects.iter().flat_map(|it| it.ops.iter().map(|op| op.id));
                all.chain([0]).collect()
            }
            (Kind::Copy(source), None) => {
                let allowed = self.allowed(*source, cell, op.asked, until);
                let each = allowed.into_iter().flat_map(|op| self.values_within(op, cell, until, depth + 1));
                each.collect()
            }
            (kind, _) => BTreeSet::from([kind.value(op.id, cell)]),
        }
    }

    /// Returns the values that a read from `from` to `until` may find.
    fn values_at(&self, object: usize, cell: u32, from: u64, until: u64) -> BTreeSet<u32> {
        let allowed = self.allowed(object, cell, from, until);
        allowed.into_iter().flat_map(|op| self.values(op, cell, until)).collect()
    }

    fn allowed(&self, object: usize, cell: u32, from: u64, until: u64) -> Vec<&Op> {
        let it = &self.objects[object];
        let here = |op: &&Op| !op.is_void && op.asked < until && op.kind.covers(cell);
        let ops: Vec<&Op> = it.ops.iter().filter(here).collect();
        let over = |op: &Op| {
            if op.may_be_lost && op.stored == NEVER {
                return false;
            }
            let found = it.found.get(&(op.id, cell)).copied().unwrap_or(NEVER);
            // A change that was cancelled or is unknown overwrites nothing for certain, unless it has been
            // found.
            let answered = if op.is_acknowledged { op.answered } else { NEVER };
            answered.min(found) < from
        };
        let ended: Vec<&Op> = ops.iter().copied().filter(|op| over(op)).collect();
        ops.into_iter()
            .filter(|op| !ended.iter().any(|newer| newer.asked > op.end_for(newer, false)))
            .collect()
    }

    pub fn look(&mut self, object: usize) -> Look {
        let asked = self.tick();
        self.next_key += 1;
        let sizes = self.sizes_now(object);
        self.objects[object].looks.insert(self.next_key, sizes);
        Look { object, asked, key: self.next_key }
    }

    /// Returns the sizes that were possible since a look was begun.
    fn seen(&mut self, look: &Look) -> BTreeSet<Size> {
        self.objects[look.object].looks.remove(&look.key).unwrap_or_default()
    }

    /// Ends a look that has found nothing to check.
    pub fn blind(&mut self, look: &Look) {
        self.seen(look);
    }

    /// Ends a look whose answer shows nothing.
    pub fn pass(&mut self, look: &Look) -> Result<(), Problem> {
        self.blind(look);
        Ok(())
    }

    /// Checks that a look may have found no object.
    pub fn missing(&mut self, look: &Look) -> Result<(), Problem> {
        let loose = self.is_loose(look.object);
        let seen = self.seen(look);
        if loose || seen.contains(&None) {
            return Ok(());
        }
        let id = &self.objects[look.object].id;
        Err(format!("{id}: missing, where it is of one of the sizes {seen:?}"))
    }

    /// Checks that a look may have found an object, of this size if it is known.
    pub fn present(&mut self, look: &Look, size: Option<u32>) -> Result<(), Problem> {
        let loose = self.is_loose(look.object);
        let seen = self.seen(look);
        let fits = |it: &Size| it.is_some() && size.is_none_or(|size| *it == Some(size));
        if loose || seen.iter().any(fits) {
            return Ok(());
        }
        let id = &self.objects[look.object].id;
        Err(format!("{id}: found with size {size:?}, where one of {seen:?} is possible"))
    }

    /// Checks that a read may have found these cells.
    pub fn read(
        &mut self,
        look: &Look,
        first: u32,
        cells: &[u32],
        version: Version,
        size: u32,
    ) -> Result<(), Problem> {
        let now = self.tick();
        for (cell, value) in (first..).zip(cells) {
            self.check(look.object, cell, *value, look.asked, now, "read")?;
        }
        let it = &mut self.objects[look.object];
        for (cell, value) in (first..).zip(cells).filter(|(_, value)| **value != 0) {
            let copied = it.ops.iter().any(|op| matches!(op.kind, Kind::Copy(_)) && op.asked < now);
            if !copied {
                let seen = it.found.entry((*value, cell)).or_insert(now);
                *seen = now.min(*seen);
            }
        }
        if !self.checks_versions {
            return Ok(());
        }
        let known = it.versions.entry(version).or_insert_with(|| (size, BTreeMap::new()));
        if known.0 != size {
            return Err(format!("{}: version {version} had size {}, now {size}", it.id, known.0));
        }
        for (cell, value) in (first..).zip(cells) {
            let before = *known.1.entry(cell).or_insert(*value);
            if before != *value {
                let id = &it.id;
                return Err(format!("{id}: version {version} had {before} in cell {cell}, now {value}"));
            }
        }
        Ok(())
    }

    /// Checks that these cells can have been there at some time of the look.
    pub fn can_be(&self, look: &Look, first: u32, cells: &[u32]) -> Result<(), Problem> {
        let found = (first..).zip(cells);
        found.into_iter().try_for_each(|(cell, value)| {
            self.check(look.object, cell, *value, look.asked, self.now + 1, "compared as equal")
        })
    }

    /// Checks that other cells than these, or fewer, can have been there.
    pub fn can_differ(&self, look: &Look, first: u32, cells: &[u32]) -> Result<(), Problem> {
        let sizes = self.objects[look.object].looks.get(&look.key);
        let end = first + cells.len() as u32;
        if sizes.is_none_or(|sizes| sizes.iter().any(|size| size.unwrap_or(0) < end)) {
            return Ok(());
        }
        for (cell, value) in (first..).zip(cells) {
            if self.values_at(look.object, cell, look.asked, self.now + 1) != BTreeSet::from([*value]) {
                return Ok(());
            }
        }
        Err(format!("{}: compared as different, from cell {first} on", self.objects[look.object].id))
    }

    /// Returns the most probable value.
    pub fn guess(&self, object: usize, cell: u32) -> u32 {
        self.values_at(object, cell, self.now, self.now + 1).last().copied().unwrap_or(0)
    }

    fn check(
        &self,
        object: usize,
        cell: u32,
        value: u32,
        from: u64,
        until: u64,
        what: &str,
    ) -> Result<(), Problem> {
        if self.is_lenient
            || self.allowed(object, cell, from, until).iter().any(|op| {
                op.values.is_none()
                    && !matches!(op.kind, Kind::Copy(_))
                    && op.kind.value(op.id, cell) == value
                    || self.values(op, cell, until).contains(&value)
            })
        {
            return Ok(());
        }
        let it = &self.objects[object];
        let allowed = self.allowed(object, cell, from, until);
        let allowed: Vec<String> = allowed.into_iter().map(Op::describe).collect();
        let found = it.ops.iter().rev().find(|op| self.values(op, cell, until).contains(&value));
        let found = found.map_or("nothing known".into(), Op::describe);
        Err(format!(
            "{}: {what} {value} in cell {cell} at {from}..{until}, of {found}; possible are {allowed:?}",
            it.id
        ))
    }

    // ---- the store

    /// Checks the store's present stable content.
    pub fn stable(&mut self, object: usize, content: Option<&[u8]>, all: bool) -> Result<(), Problem> {
        let now = self.tick();
        let mut cells = cells_of(content.unwrap_or_default(), 0)?;
        cells.resize(self.cells as usize, 0);
        let all = all && !self.is_lenient;
        for (cell, value) in (0..).zip(&cells) {
            let is_new = self.objects[object].stable[cell as usize] != *value;
            if all || is_new && !self.is_lenient {
                self.check_stable(object, cell, *value, is_new, now)?;
            }
        }
        self.objects[object].stable = cells;
        Ok(())
    }

    fn check_stable(
        &self,
        object: usize,
        cell: u32,
        value: u32,
        is_new: bool,
        now: u64,
    ) -> Result<(), Problem> {
        let it = &self.objects[object];
        let is_stored = |op: &Op| op.stored != NEVER && !op.is_void;
        let stored: Vec<&Op> = it.ops.iter().filter(|op| is_stored(op) && op.kind.covers(cell)).collect();
        let mut fenced = None;
        for op in it.ops.iter().filter(|op| !op.is_void && op.kind.covers(cell)) {
            if stored.iter().any(|newer| newer.asked > op.end_for(newer, true)) {
                continue;
            }
            if !self.values(op, cell, now).contains(&value) {
                continue;
            }
            if is_new && value != 0 && op.fenced < now {
                fenced = Some(op);
                continue;
            }
            return Ok(());
        }
        if let Some(op) = fenced {
            let what = op.describe();
            return Err(format!("{}: fenced, and stored all the same: {what} in cell {cell}", it.id));
        }
        let found = it.ops.iter().rev().find(|op| self.values(op, cell, now).contains(&value));
        let found = found.map_or("nothing known".into(), Op::describe);
        let newest = stored.iter().max_by_key(|op| op.asked).map(|op| op.describe());
        Err(format!(
            "{}: undone: the store has {value} in cell {cell}, of {found}, though stored is {newest:?}",
            it.id
        ))
    }

    /// Records that a flush of a cache has reported everything within the scope as stored that was
    /// acknowledged before `asked`.
    pub fn flushed(&mut self, writer: Writer, scope: &Scope, asked: u64) {
        let now = self.tick();
        for it in &mut self.objects {
            for op in it.ops.iter_mut().filter(|op| op.writer == writer && op.answered < asked) {
                let domain = op.domain.map(blocker::OrderDomain);
                if op.is_acknowledged && !op.is_void && !op.is_forgiven && scope.covers(&it.id, domain) {
                    op.stored = op.stored.min(now);
                }
            }
        }
    }

    /// Records that another writer has taken over the scope from `writer`: what it has not stored must never
    /// be stored.
    pub fn fenced(&mut self, writer: Writer, scope: &Scope) {
        let now = self.tick();
        for it in &mut self.objects {
            for op in it.ops.iter_mut().filter(|op| op.writer == writer && op.stored == NEVER) {
                let domain = op.domain.map(blocker::OrderDomain);
                if scope.covers(&it.id, domain) {
                    op.fenced = op.fenced.min(now);
                }
                // Where one change is refused, the changes pending with it are dropped as well.
                if scope.covers(&it.id, domain) || matches!(scope, Scope::Domain(..)) {
                    op.may_be_lost = true;
                    it.is_loose = true;
                }
            }
        }
    }

    /// Records that a change asked for from now on is fenced as well.
    pub fn fence(&mut self, object: usize, id: u32) {
        let op = self.op(object, id);
        (op.fenced, op.may_be_lost) = (op.asked, true);
        self.objects[object].is_loose = true;
    }

    /// Records that a writer has claimed a scope itself: what it has may be stored again.
    pub fn unfenced(&mut self, writer: Writer, scope: &Scope) {
        for it in self.objects.iter_mut().filter(|it| scope.covers(&it.id, None)) {
            it.ops.iter_mut().filter(|op| op.writer == writer).for_each(|op| op.fenced = NEVER);
        }
    }

    /// Records that the writer may lose what it has not stored, and must report that.
    pub fn may_lose(&mut self, object: usize) {
        for op in self.objects[object].ops.iter_mut().filter(|op| op.stored == NEVER) {
            op.may_be_lost = true;
        }
        self.objects[object].is_loose = true;
    }

    /// Records that a client has accepted what was lost.
    pub fn forgive(&mut self, scope: &Scope, before: u64) {
        for it in self.objects.iter_mut().filter(|it| scope.covers(&it.id, None)) {
            let lost = |op: &&mut Op| op.may_be_lost && op.stored == NEVER && op.asked < before;
            for op in it.ops.iter_mut().filter(lost) {
                op.is_forgiven = true;
            }
        }
    }

    /// Records that events about another client's changes have reached the cache.
    pub fn informed(&mut self, scope: &Scope, before: u64) {
        let now = self.tick();
        for it in self.objects.iter_mut().filter(|it| scope.covers(&it.id, None)) {
            let others = it.ops.iter_mut().filter(|op| op.writer == ANOTHER && op.asked < before);
            others.for_each(|op| op.answered = op.answered.min(now));
        }
    }

    /// Records that another client has changed an object in the store.
    pub fn by_another(&mut self, object: usize, id: u32, kind: Kind) {
        self.asked(ANOTHER, object, id, kind, None);
        let now = self.tick();
        let op = self.op(object, id);
        (op.ended, op.stored) = (now, now);
        (op.is_pending, op.is_acknowledged) = (false, true);
        let bit = op.bit;
        // The cache may learn of it later.
        let it = &mut self.objects[object];
        it.sizes = it.sizes.iter().map(|(size, applied)| (*size, applied & !bit)).collect();
    }

    /// Returns the number of buckets whose acknowledged content a crash would lose now; whatever is only cut
    /// off or removed of an object counts as one.
    pub fn buckets_at_stake(&self) -> u64 {
        let mut buckets = 0;
        for it in &self.objects {
            let (mut last, mut is_cut) = (None, false);
            for cell in 0..self.cells {
                if last == Some(cell / CELLS_PER_BUCKET) {
                    continue;
                }
                let value = it.stable[cell as usize];
                let certain =
                    |op: &&Op| op.is_acknowledged && !op.is_void && !op.may_be_lost && op.kind.covers(cell);
                let newest = it.ops.iter().filter(certain).max_by_key(|op| op.asked);
                let since = newest.map_or(0, |op| op.asked);
                let is_there = |op: &Op| {
                    !op.is_void
                        && op.kind.covers(cell)
                        && op.ended.max(if op.writer == ANOTHER { op.answered } else { 0 }) >= since
                        && self.values(op, cell, self.now).contains(&value)
                };
                if it.ops.iter().any(is_there) {
                    continue;
                }
                let holds = |op: &&Op| {
                    !op.is_void && op.kind.covers(cell) && self.values(op, cell, self.now).contains(&value)
                };
                let held_until = it.ops.iter().filter(holds).map(|op| op.ended).max().unwrap_or(0);
                let cuts = |op: &Op| match op.kind {
                    Kind::Truncate(_) | Kind::Delete => true,
                    Kind::Full(len) => cell >= len,
                    _ => false,
                };
                // Zeros over bytes that are cut off are nothing new.
                let is_zero = newest.is_none_or(|op| op.kind.value(op.id, cell) == 0);
                let mut unsaved = it.ops.iter().filter(certain).filter(|op| op.asked > held_until);
                if is_zero && unsaved.any(cuts) {
                    is_cut = true;
                } else {
                    last = Some(cell / CELLS_PER_BUCKET);
                    buckets += 1;
                }
            }
            buckets += u64::from(is_cut);
        }
        buckets
    }
}

impl Object {
    /// Adds the sizes that pending changes make possible, to all looks as well.
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
    /// Returns when it had ended, as seen from a newer operation.
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
