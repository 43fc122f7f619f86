//! The possible contents of the store, and the possible losses in a power failure.

use super::*;

impl Oracle {
    /// Checks the store's current stable content.
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

    pub(super) fn check_stable(
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

    /// Records that a cache's flush has reported as stored everything in the scope that was
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

    /// Records that another writer has claimed the scope of `writer`, whose unstored changes must
    /// never be stored.
    pub fn fenced(&mut self, writer: Writer, scope: &Scope) {
        let now = self.tick();
        for it in &mut self.objects {
            for op in it.ops.iter_mut().filter(|op| op.writer == writer && op.stored == NEVER) {
                let domain = op.domain.map(blocker::OrderDomain);
                if scope.covers(&it.id, domain) {
                    op.fenced = op.fenced.min(now);
                }
                // If one change is refused, the changes pending with it are dropped as well.
                if scope.covers(&it.id, domain) || matches!(scope, Scope::Domain(..)) {
                    op.may_be_lost = true;
                    it.is_loose = true;
                }
            }
        }
    }

    /// Records that later changes are fenced as well.
    pub fn fence(&mut self, object: usize, id: u32) {
        let op = self.op(object, id);
        (op.fenced, op.may_be_lost) = (op.asked, true);
        self.objects[object].is_loose = true;
    }

    /// Records that a writer has claimed a scope itself: its changes may be stored again.
    pub fn unfenced(&mut self, writer: Writer, scope: &Scope) {
        for it in self.objects.iter_mut().filter(|it| scope.covers(&it.id, None)) {
            it.ops.iter_mut().filter(|op| op.writer == writer).for_each(|op| op.fenced = NEVER);
        }
    }

    /// Records that the writer may lose its unstored changes, and must report the loss.
    pub fn may_lose(&mut self, object: usize) {
        for op in self.objects[object].ops.iter_mut().filter(|op| op.stored == NEVER) {
            op.may_be_lost = true;
        }
        self.objects[object].is_loose = true;
    }

    /// Records that a client has accepted the losses.
    pub fn forgive(&mut self, scope: &Scope, before: u64) {
        for it in self.objects.iter_mut().filter(|it| scope.covers(&it.id, None)) {
            let lost = |op: &&mut Op| op.may_be_lost && op.stored == NEVER && op.asked < before;
            for op in it.ops.iter_mut().filter(lost) {
                op.is_forgiven = true;
            }
        }
    }

    /// Records that the cache has received the events about another client's changes.
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
        // The cache may learn of the other writer's change later.
        let it = &mut self.objects[object];
        it.sizes = it.sizes.iter().map(|(size, applied)| (*size, applied & !bit)).collect();
    }

    /// Returns the number of buckets whose acknowledged content a crash would lose now; an object
    /// that was only truncated or removed counts as one.
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
                // Zeros over truncated bytes change nothing.
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
