//! The values that a read may find.

use super::*;

impl Oracle {
    /// Returns the values that an operation may have written to a cell.
    pub(super) fn values(&self, op: &Op, cell: u32, until: u64) -> BTreeSet<u32> {
        self.values_within(op, cell, until, 0)
    }

    pub(super) fn values_within(&self, op: &Op, cell: u32, until: u64, depth: u32) -> BTreeSet<u32> {
        match (&op.kind, &op.values) {
            (Kind::Copy(_), Some(values)) => values[cell as usize].clone(),
            // The copies form a cycle, and all are in flight: any value is possible.
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

    /// Returns the values that a read between `from` and `until` may return.
    pub(super) fn values_at(&self, object: usize, cell: u32, from: u64, until: u64) -> BTreeSet<u32> {
        let allowed = self.allowed(object, cell, from, until);
        allowed.into_iter().flat_map(|op| self.values(op, cell, until)).collect()
    }

    pub(super) fn allowed(&self, object: usize, cell: u32, from: u64, until: u64) -> Vec<&Op> {
        let it = &self.objects[object];
        let here = |op: &&Op| !op.is_void && op.asked < until && op.kind.covers(cell);
        let ops: Vec<&Op> = it.ops.iter().filter(here).collect();
        let over = |op: &Op| {
            if op.may_be_lost && op.stored == NEVER {
                return false;
            }
            let found = it.found.get(&(op.id, cell)).copied().unwrap_or(NEVER);
            // A change that was cancelled or whose outcome is unknown may not have happened, unless
            // it has been found.
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

    /// Returns the sizes that were possible since an observation began.
    pub(super) fn seen(&mut self, look: &Look) -> BTreeSet<Size> {
        self.objects[look.object].looks.remove(&look.key).unwrap_or_default()
    }

    /// Ends a read whose result cannot be checked.
    pub fn blind(&mut self, look: &Look) {
        self.seen(look);
    }

    /// Ends a read whose response says nothing about the object.
    pub fn pass(&mut self, look: &Look) -> Result<(), Problem> {
        self.blind(look);
        Ok(())
    }

    /// Checks that an observation may have found no object.
    pub fn missing(&mut self, look: &Look) -> Result<(), Problem> {
        let loose = self.is_loose(look.object);
        let seen = self.seen(look);
        if loose || seen.contains(&None) {
            return Ok(());
        }
        let id = &self.objects[look.object].id;
        Err(format!("{id}: missing, where it is of one of the sizes {seen:?}"))
    }

    /// Checks that an observation may have found an object, with this size if known.
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

    /// Checks that a read may have returned these cells.
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

    /// Checks that the object may have had these cells at some time during the read.
    pub fn can_be(&self, look: &Look, first: u32, cells: &[u32]) -> Result<(), Problem> {
        let found = (first..).zip(cells);
        found.into_iter().try_for_each(|(cell, value)| {
            self.check(look.object, cell, *value, look.asked, self.now + 1, "compared as equal")
        })
    }

    /// Checks that the object may have had other or fewer cells than these.
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

    pub(super) fn check(
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
}
