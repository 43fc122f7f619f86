//! The possible contents of each object after a crash.
//!
//! One client at a time changes an object, so its changes have an order: the object holds the
//! content after some number of them. At least the changes that were acknowledged as *journaled* or
//! *stored*, or covered by such a flush, must have survived. If a change has survived, all changes
//! of any object that were acknowledged before it began must have survived, too.

use std::collections::HashMap;

/// The content of an object; `None` if the object does not exist.
pub type Content = Option<Vec<u8>>;

/// One change of an object.
#[derive(Clone, Debug)]
pub struct Change {
    pub what: String,
    /// The time of the request.
    pub asked: u64,
    /// The time of the acknowledgement, if there was one.
    pub acknowledged: Option<u64>,
    pub after: Content,
}

/// The model of one object.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub base: Content,
    pub changes: Vec<Change>,
    /// The number of changes that must survive.
    pub floor: usize,
    /// Whether the object has been read since the last crash.
    pub is_seen: bool,
    /// The first crash since which the object has not been read.
    crash: usize,
}

impl History {
    pub fn current(&self) -> &Content {
        self.changes.last().map_or(&self.base, |change| &change.after)
    }

    pub fn after(&self, changes: usize) -> &Content {
        changes.checked_sub(1).map_or(&self.base, |last| &self.changes[last].after)
    }
}

impl History {
    /// Returns whether an interrupted flush may have left this content: each byte comes from one of
    /// the states that may survive, and the size is one of theirs. While the journal is in trouble,
    /// changes are not logged, and a flush of several requests may be visible before its end, as
    /// without a journal.
    fn is_mixed(&self, found: &Content) -> bool {
        let states: Vec<&Content> =
            (self.floor..=self.changes.len()).map(|count| self.after(count)).collect();
        let Some(bytes) = found else { return states.iter().any(|state| state.is_none()) };
        let byte_of =
            |state: &Content, at: usize| state.as_ref().and_then(|bytes| bytes.get(at).copied()).unwrap_or(0);
        // If an object was truncated without a record and then rewritten from the log, its size may
        // be in between.
        let ends = || states.iter().map(|state| state.as_ref().map_or(0, Vec::len));
        let has_end = ends().min() <= Some(bytes.len()) && Some(bytes.len()) <= ends().max();
        has_end
            && bytes
                .iter()
                .enumerate()
                .all(|(at, byte)| states.iter().any(|state| byte_of(state, at) == *byte))
    }
}

/// The content of an object that was found after a crash.
#[derive(Clone, Debug)]
struct Survived {
    history: History,
    /// The minimum and maximum number of changes that lead to the content found.
    fewest: usize,
    most: usize,
}

/// The model of all objects.
#[derive(Default)]
pub struct Model {
    pub objects: Vec<History>,
    /// The contents found after each crash.
    crashes: Vec<HashMap<usize, Survived>>,
    /// The content of each version of an object.
    versions: HashMap<(usize, u64), Content>,
    /// Whether only a suffix of the changes of objects with the same key can be lost.
    pub is_prefix: bool,
    /// Whether each object holds the content after one of its changes.
    pub is_exact: bool,
}

fn text(content: &Content) -> String {
    match content {
        None => "absent".into(),
        Some(bytes) => {
            let mut runs: Vec<(u8, usize)> = Vec::new();
            for byte in bytes {
                match runs.last_mut() {
                    Some((last, count)) if last == byte => *count += 1,
                    _ => runs.push((*byte, 1)),
                }
            }
            let shown: Vec<String> =
                runs.iter().take(40).map(|(byte, count)| format!("{byte}x{count}")).collect();
            format!("{} bytes: {}", bytes.len(), shown.join(" "))
        }
    }
}

impl Model {
    pub fn new(objects: usize) -> Self {
        let seen = History { is_seen: true, ..History::default() };
        Self { objects: vec![seen; objects], is_prefix: true, is_exact: true, ..Self::default() }
    }

    /// Records that a change has been acknowledged, or may have been made.
    pub fn changed(&mut self, object: usize, change: Change, is_durable: bool) {
        let history = &mut self.objects[object];
        history.changes.push(change);
        if is_durable {
            history.floor = history.changes.len();
        }
    }

    /// Records the version that was reported for an object's present content.
    pub fn version(&mut self, object: usize, version: u64, content: &Content) -> Result<(), String> {
        match self.versions.insert((object, version), content.clone()) {
            Some(before) if before != *content => Err(format!(
                "version: object {object} has version {version} with {}, which it had with {}",
                text(content),
                text(&before)
            )),
            _ => Ok(()),
        }
    }

    /// Records that the changes covered by a flush must survive.
    pub fn flushed(&mut self, counts: &[(usize, usize)]) {
        for (object, count) in counts {
            let history = &mut self.objects[*object];
            history.floor = history.floor.max((*count).min(history.changes.len()));
        }
    }

    /// Records that the process has ended.
    pub fn crashed(&mut self) {
        self.crashes.push(HashMap::new());
        let crash = self.crashes.len() - 1;
        for history in self.objects.iter_mut().filter(|history| history.is_seen) {
            (history.is_seen, history.crash) = (false, crash);
        }
    }

    /// Records the content of an object that was read.
    pub fn found(&mut self, object: usize, found: &Content) -> Result<(), String> {
        let history = &mut self.objects[object];
        if history.is_seen {
            if history.current() != found {
                let (expected, found) = (text(history.current()), text(found));
                return Err(format!("read: object {object} is {found}, and should be {expected}"));
            }
            return Ok(());
        }
        let fits = |count: &usize| history.after(*count) == found;
        let counts: Vec<usize> = (0..=history.changes.len()).filter(fits).collect();
        let (Some(fewest), Some(most)) = (counts.first().copied(), counts.last().copied()) else {
            if !self.is_exact && history.is_mixed(found) {
                let base = found.clone();
                *history = History { base, is_seen: true, ..History::default() };
                return Ok(());
            }
            let last: Vec<String> = history
                .changes
                .iter()
                .rev()
                .take(6)
                .map(|it| {
                    format!(
                        "{} (asked {}, acknowledged {:?}): {}",
                        it.what,
                        it.asked,
                        it.acknowledged,
                        text(&it.after)
                    )
                })
                .collect();
            return Err(format!(
                "torn: object {object} is {}, which none of its {} changes left; base {}; the last ones:\n{}",
                text(found),
                history.changes.len(),
                text(&history.base),
                last.join("\n")
            ));
        };
        if most < history.floor {
            return Err(format!(
                "lost: object {object} is {}: as after change {most}, but {} were acknowledged as durable; the first lost: {:?}",
                text(found),
                history.floor,
                history.changes[most].what,
            ));
        }
        let base = found.clone();
        let seen = History { base, is_seen: true, ..History::default() };
        let history = std::mem::replace(history, seen);
        let crash = history.crash;
        let Some(all) = self.crashes.get_mut(crash) else { return Ok(()) };
        all.insert(object, Survived { history, fewest, most });
        self.check_prefix(crash, object)
    }

    /// Compares the surviving changes of one object with those of the others.
    fn check_prefix(&self, crash: usize, object: usize) -> Result<(), String> {
        if !self.is_prefix {
            return Ok(());
        }
        let all = &self.crashes[crash];
        let this = &all[&object];
        for (other, that) in all {
            for ((of, survivor), (lost_of, loser)) in
                [((object, this), (*other, that)), ((*other, that), (object, this))]
            {
                let Some(last) = survivor.fewest.checked_sub(1) else { continue };
                let last = &survivor.history.changes[last];
                let Some(lost) = loser.history.changes.get(loser.most) else { continue };
                if lost.acknowledged.is_some_and(|at| at < last.asked) {
                    return Err(format!(
                        "order: {:?} of object {of} (asked for at {}) is there, and {:?} of object {lost_of} (acknowledged before, at {:?}) is lost",
                        last.what, last.asked, lost.what, lost.acknowledged
                    ));
                }
            }
        }
        Ok(())
    }
}
