//! The clients' operations, and the effect of the responses on the oracle.

use blocker::*;

use super::oracle::{CELL, CELLS_PER_BUCKET, Kind, Look, bytes_of, cells_of};
use super::profiles::Ask;
use super::scheduler::{Environment, trace};
use test_kit::rng::Rng;
use test_kit::sim::Handle;

pub enum Answer {
    Change(Result<(Durability, Option<u64>)>),
    Read(Result<ReadReply>),
    Info(Result<Info>),
    Done(Result<()>),
}

/// An operation in flight.
pub struct Flight {
    pub what: String,
    cache: usize,
    asked: u64,
    asks: Asked,
    handle: Handle<Answer>,
}

enum Asked {
    Change {
        object: usize,
        id: u32,
        kind: Kind,
        look: Look,
        compared: Option<(u32, Vec<u32>)>,
        source: Option<Look>,
    },
    Read {
        look: Look,
        first: u32,
        len: u32,
    },
    Info {
        look: Look,
    },
    Flush {
        scope: Scope,
    },
    Invalidate {
        scope: Scope,
    },
}

/// The random properties of a change.
struct Drawn {
    kind: Kind,
    compared: Option<(u32, Vec<u32>)>,
    change: ChangeTerms,
}

impl Environment {
    /// Starts the next operation of a client.
    pub fn ask(&mut self) {
        let number = self.asked;
        self.asked += 1;
        if self.is_left_out(number) {
            return;
        }
        // Each operation has its own random sequence, so that other operations can be left out.
        let mut rng = Rng::new(self.seed.rotate_left(20) ^ (number + 1));
        let cache = rng.index(self.caches.len());
        let object = rng.index(self.ids.len());
        let weights: Vec<u64> = self.profile.asks.iter().map(|(_, weight)| *weight).collect();
        let ask = self.profile.asks[rng.weighted(&weights)].0;
        let id = self.ids[object].clone();
        let scope = match ask {
            Ask::FlushObject => Some(Scope::Object(id.clone())),
            Ask::FlushDomain => Some(Scope::Domain(id.namespace.clone(), OrderDomain(rng.below(2)))),
            Ask::FlushNamespace => Some(Scope::Namespace(id.namespace.clone())),
            Ask::FlushAll => Some(Scope::All),
            Ask::Invalidate if rng.permille(500) => Some(Scope::Object(id.clone())),
            Ask::Invalidate => Some(Scope::All),
            _ => None,
        };
        if let Some(scope) = scope {
            return if ask == Ask::Invalidate {
                self.invalidate(cache, scope, number);
            } else {
                self.flush(cache, scope, number);
            };
        }
        let cells = self.oracle.cells;
        match ask {
            Ask::Read => {
                let first = if rng.permille(600) { rng.below(u64::from(cells)) as u32 } else { 0 };
                let len = match rng.below(3) {
                    0 => cells - first,
                    1 => rng.within(1, 2) as u32,
                    _ => rng.within(1, u64::from(cells)) as u32,
                };
                self.read(cache, object, first, len, number);
            }
            Ask::Info => self.info(cache, object, number),
            ask => self.change(cache, object, ask, &mut rng, number),
        }
    }

    pub fn read(&mut self, cache: usize, object: usize, first: u32, len: u32, number: u64) {
        let look = self.oracle.look(object);
        let id = self.ids[object].clone();
        let limit = (self.caches[cache].capabilities().request_bytes_max / CELL).min(u64::from(u32::MAX));
        let len = len.min(limit as u32);
        let what = format!("{number}: read {first}..{} of {id}", first + len);
        let request = ReadRequest::new(id, u64::from(first) * CELL, u64::from(len) * CELL);
        let reply = self.caches[cache].read(request);
        self.launch(what, cache, Asked::Read { look, first, len }, reply, Answer::Read);
    }

    fn info(&mut self, cache: usize, object: usize, number: u64) {
        let look = self.oracle.look(object);
        let id = self.ids[object].clone();
        let what = format!("{number}: info of {id}");
        let reply = self.caches[cache].info(InfoRequest::new(id));
        self.launch(what, cache, Asked::Info { look }, reply, Answer::Info);
    }

    pub fn flush(&mut self, cache: usize, scope: Scope, number: u64) {
        let what = format!("{number}: flush {scope:?}");
        let reply = self.caches[cache].flush(FlushRequest::new(scope.clone()));
        self.oracle.tick();
        self.launch(what, cache, Asked::Flush { scope }, reply, |it| Answer::Done(it.map(drop)));
    }

    pub fn invalidate(&mut self, cache: usize, scope: Scope, number: u64) {
        let what = format!("{number}: invalidate {scope:?}");
        let now = self.oracle.tick();
        self.oracle.forgive(&scope, now);
        let reply = self.caches[cache].invalidate(InvalidateRequest::new(scope.clone()));
        self.launch(what, cache, Asked::Invalidate { scope }, reply, |it| Answer::Done(it.map(drop)));
    }

    fn launch<T: Unpin + 'static>(
        &mut self,
        what: String,
        cache: usize,
        asks: Asked,
        reply: Reply<T>,
        wrap: impl FnOnce(Result<T>) -> Answer + 'static,
    ) {
        let asked = self.oracle.tick();
        trace!(
            self,
            "{asked} {what}{}",
            if self.caches.len() > 1 { format!(" by {cache}") } else { String::new() }
        );
        let handle = self.sim.spawn(async move { wrap(reply.await) });
        self.flights.push(Flight { what, cache, asked, asks, handle });
    }

    fn draw(&mut self, object: usize, ask: Ask, rng: &mut Rng, limit: u32) -> Option<Drawn> {
        let cells = self.oracle.cells;
        let range = |rng: &mut Rng, grain: u32| {
            let from = rng.below(u64::from(cells / grain)) as u32;
            let most =
                (cells / grain - from).min((limit / grain).max(1)).min((3 * CELLS_PER_BUCKET / grain).max(1));
            let len = if rng.permille(400) {
                rng.within(1, u64::from(most.min(3)))
            } else {
                rng.within(1, u64::from(most))
            };
            (from * grain, (from + len as u32) * grain)
        };
        let mut compared = None;
        let kind = match ask {
            Ask::Aligned => {
                let (from, to) = range(rng, CELLS_PER_BUCKET);
                Kind::Write(vec![(from, to, true)])
            }
            Ask::Sectors => {
                let (from, to) = range(rng, 2);
                Kind::Write(vec![(from, to, true)])
            }
            Ask::Unaligned => {
                let (from, to) = range(rng, 1);
                Kind::Write(vec![(from, to, true)])
            }
            Ask::Zeroes => {
                let from = rng.below(u64::from(cells)) as u32;
                let to = rng.within(u64::from(from) + 1, u64::from(cells.min(from + limit))) as u32;
                Kind::Write(vec![(from, to, false)])
            }
            Ask::Runs => {
                // Each run waits for its own buckets, though runs may share one.
                if self.caches[0].capabilities().runs_max < 3 || self.free_buckets < 8 {
                    return None;
                }
                let mut runs = Vec::new();
                let mut at = 0;
                let mut left = limit.min(3 * CELLS_PER_BUCKET);
                for _ in 0..rng.within(1, 3) {
                    let from = at + rng.below(u64::from(cells) / 2) as u32;
                    if from >= cells || left == 0 {
                        break;
                    }
                    let to =
                        rng.within(u64::from(from) + 1, u64::from(cells.min(from + left.min(12)))) as u32;
                    runs.push((from, to, rng.permille(700)));
                    left -= to - from;
                    at = to;
                }
                if runs.is_empty() {
                    return None;
                }
                Kind::Write(runs)
            }
            Ask::Truncate => Kind::Truncate(rng.below(u64::from(cells) + 1) as u32),
            Ask::Discard => {
                let from = rng.below(u64::from(cells)) as u32;
                Kind::Discard(from, rng.within(u64::from(from) + 1, u64::from(cells)) as u32)
            }
            Ask::Full => Kind::Full(rng.below(u64::from(cells.min(limit)) + 1) as u32),
            Ask::Compare => {
                let (from, to) = range(rng, 1);
                if self.oracle.is_loose(object) {
                    return None;
                }
                let until = (from + 3).min(to).min(self.size_of_all(object));
                let found = (from..until.max(from)).map(|cell| self.oracle.guess(object, cell)).collect();
                compared = Some((from, found));
                Kind::Write(vec![(from, to, true)])
            }
            Ask::Copy => {
                let others: Vec<usize> = (0..self.ids.len())
                    .filter(|it| *it != object && self.ids[*it].namespace == self.ids[object].namespace)
                    .collect();
                if others.is_empty() {
                    return None;
                }
                Kind::Copy(*rng.pick(&others))
            }
            Ask::Delete => Kind::Delete,
            _ => return None,
        };
        let mut change = ChangeTerms::default();
        if rng.permille(self.profile.stored) {
            change.durability = Durability::Stored;
        }
        if rng.permille(self.profile.domains) {
            change.domain = Some(OrderDomain(rng.below(2)));
        }
        Some(Drawn { kind, compared, change })
    }

    /// Returns the smallest possible size.
    fn size_of_all(&self, object: usize) -> u32 {
        self.oracle.sizes_now(object).into_iter().map(|size| size.unwrap_or(0)).min().unwrap_or(0)
    }

    fn change(&mut self, cache: usize, object: usize, ask: Ask, rng: &mut Rng, number: u64) {
        let can = self.caches[cache].capabilities();
        let limit = (can.request_bytes_max / CELL).min(u64::from(self.oracle.cells)) as u32;
        let Some(Drawn { kind, compared, change }) = self.draw(object, ask, rng, limit) else { return };
        let look = self.oracle.look(object);
        let source = match &kind {
            Kind::Copy(source) => Some(self.oracle.look(*source)),
            _ => None,
        };
        let value = self.oracle.fresh_value();
        let domain = change.domain.map(|domain| domain.0);
        if matches!(kind, Kind::Full(_) | Kind::Delete | Kind::Copy(_)) {
            let now = self.oracle.tick();
            self.oracle.forgive(&Scope::Object(self.ids[object].clone()), now);
        }
        self.oracle.asked(cache, object, value, kind.clone(), domain);
        let id = self.ids[object].clone();
        let is_fenced = |scope: &Scope| scope.covers(&id, change.domain);
        if self.fences.iter().any(|(fenced, scope)| *fenced == cache && is_fenced(scope)) {
            self.oracle.fence(object, value);
        } else if self.fences.iter().any(|(fenced, scope)| {
            *fenced == cache && matches!(scope, Scope::Domain(namespace, _) if *namespace == id.namespace)
        }) {
            self.oracle.may_lose(object);
        }
        let cache_at = &self.caches[cache];
        let at = |cell: u32| u64::from(cell) * CELL;
        let bytes = |from: u32, to: u32| bytes_of(value, to - from);
        let reply = match (&kind, &compared) {
            (Kind::Write(runs), Some((first, expected))) => {
                let expected: Vec<u8> = expected.iter().flat_map(|value| bytes_of(*value, 1)).collect();
                let data = bytes(runs[0].0, runs[0].1);
                let request = CompareAndWriteRequest::new(id.clone(), at(*first), expected, data);
                cache_at.compare_and_write(request.terms(change))
            }
            (Kind::Write(runs), None) => match (runs.as_slice(), ask) {
                ([(from, to, true)], Ask::Aligned | Ask::Sectors | Ask::Unaligned) => {
                    let request = WriteRequest::new(id.clone(), at(*from), bytes(*from, *to));
                    cache_at.write(request.terms(change))
                }
                ([(from, to, false)], Ask::Zeroes) => {
                    let request = WriteZeroesRequest::new(id.clone(), at(*from), at(to - from));
                    cache_at.write_zeroes(request.terms(change))
                }
                (runs, _) => {
                    let run = |(from, to, is_data): &(u32, u32, bool)| match is_data {
                        true => Run::data(at(*from), bytes(*from, *to)),
                        false => Run::zeroes(at(*from), at(to - from)),
                    };
                    let request = WriteRunsRequest::new(id.clone(), runs.iter().map(run).collect());
                    cache_at.write_runs(request.terms(change))
                }
            },
            (Kind::Discard(from, to), _) => {
                cache_at.discard(DiscardRequest::new(id.clone(), at(*from), at(to - from)).terms(change))
            }
            (Kind::Truncate(size), _) => {
                cache_at.truncate(TruncateRequest::new(id.clone(), at(*size)).terms(change))
            }
            (Kind::Full(len), _) => {
                cache_at.write_full(WriteFullRequest::new(id.clone(), bytes(0, *len)).terms(change))
            }
            (Kind::Delete, _) => {
                let reply = cache_at.delete(DeleteRequest::new(id.clone()).terms(change));
                reply
                    .then(|reply| reply.map(|reply| ChangeReply::new(Version(0), u64::MAX, reply.durability)))
            }
            (Kind::Copy(source), _) => {
                let from = self.ids[*source].clone();
                cache_at.copy(CopyRequest::new(from, id.clone()).terms(change))
            }
        };
        let what = format!(
            "{number}: {ask:?} #{value} {kind:?} of {id}{}{}{}",
            if change.durability == Durability::Stored { ", stored" } else { "" },
            change.domain.map_or(String::new(), |domain| format!(", domain {}", domain.0)),
            compared.as_ref().map_or(String::new(), |(_, found)| format!(" if {found:?}")),
        );
        let asks = Asked::Change { object, id: value, kind, look, compared, source };
        self.launch(what, cache, asks, reply, |reply| {
            Answer::Change(
                reply.map(|it| (it.durability, Some(it.size_bytes).filter(|size| *size != u64::MAX))),
            )
        });
    }

    /// Cancels an operation by dropping it.
    pub fn cancel(&mut self, at: usize) -> Result<(), String> {
        let flight = self.flights.swap_remove(at);
        let Flight { what, cache, asked, asks, handle } = flight;
        match self.sim.cancel(handle) {
            Some(answer) => self.answered(&what, cache, asked, asks, answer),
            None => {
                trace!(self, "  given up: {what}");
                match asks {
                    Asked::Change { look, source, .. } => {
                        self.oracle.blind(&look);
                        source.iter().for_each(|look| self.oracle.blind(look));
                    }
                    Asked::Read { look, .. } | Asked::Info { look } => self.oracle.blind(&look),
                    _ => (),
                }
                Ok(())
            }
        }
    }

    /// Handles the responses that have arrived.
    pub fn collect(&mut self) -> Result<(), String> {
        let mut at = 0;
        while at < self.flights.len() {
            let Some(answer) = self.flights[at].handle.take() else {
                at += 1;
                continue;
            };
            let Flight { what, cache, asked, asks, .. } = self.flights.remove(at);
            self.answered(&what, cache, asked, asks, answer)?;
        }
        Ok(())
    }

    fn answered(
        &mut self,
        what: &str,
        cache: usize,
        asked: u64,
        asks: Asked,
        answer: Answer,
    ) -> Result<(), String> {
        let result = match (asks, answer) {
            (Asked::Change { object, id, kind, look, compared, source }, Answer::Change(result)) => {
                trace!(self, "  answered: {what}: {result:?}");
                source.iter().for_each(|look| self.oracle.blind(look));
                self.changed(object, id, &kind, &look, compared, result)
            }
            (Asked::Read { look, first, len }, Answer::Read(result)) => {
                self.has_read(what, &look, first, len, result)
            }
            (Asked::Info { look }, Answer::Info(result)) => {
                trace!(self, "  answered: {what}: {result:?}");
                match result {
                    _ if self.caches.len() > 1 => self.oracle.pass(&look),
                    Ok(info) => self.oracle.present(&look, Some((info.size_bytes / CELL) as u32)),
                    Err(Error::Missing) => self.oracle.missing(&look),
                    Err(error) => {
                        self.oracle.blind(&look);
                        self.excuse(&error)
                    }
                }
            }
            (Asked::Flush { scope }, Answer::Done(result)) => {
                trace!(self, "  answered: {what}: {result:?}");
                match result {
                    Ok(()) => self.flushed(cache, &scope, asked),
                    Err(error) => self.excuse(&error),
                }
            }
            (Asked::Invalidate { scope }, Answer::Done(result)) => {
                trace!(self, "  answered: {what}: {result:?}");
                match result {
                    Ok(()) => {
                        self.oracle.informed(&scope, asked);
                        Ok(())
                    }
                    Err(error) => self.excuse(&error),
                }
            }
            _ => unreachable!("an answer to something else"),
        };
        result.map_err(|why| format!("{why}\n  in {what}"))
    }

    fn flushed(&mut self, cache: usize, scope: &Scope, asked: u64) -> Result<(), String> {
        self.oracle.flushed(cache, scope, asked);
        for object in 0..self.ids.len() {
            let stable = self.store.stable(&self.ids[object]);
            self.oracle.stable(object, stable.as_deref(), true)?;
        }
        Ok(())
    }

    /// Returns an error that the faults of the run do not explain.
    fn excuse(&self, error: &Error) -> Result<(), String> {
        let is_excused = match error {
            Error::Retryable(_) | Error::NotStored(_) | Error::OutcomeUnknown(_) | Error::OutOfSpace(_) => {
                // A flush is retried if another client has removed the object since.
                let is_gone = self.profile.another_deletes && matches!(error, Error::NotStored(_));
                !self.is_faultless() || is_gone
            }
            Error::WritesLost(_) | Error::Fenced { .. } => self.may_lose,
            _ => false,
        };
        if is_excused { Ok(()) } else { Err(format!("error: {error}, where nothing has failed")) }
    }

    fn changed(
        &mut self,
        object: usize,
        id: u32,
        kind: &Kind,
        look: &Look,
        compared: Option<(u32, Vec<u32>)>,
        result: Result<(Durability, Option<u64>)>,
    ) -> Result<(), String> {
        let is_alone = self.caches.len() == 1;
        match result {
            Ok((durability, size)) => {
                if let (Some((first, cells)), true) = (&compared, is_alone) {
                    self.oracle.can_be(look, *first, cells)?;
                }
                let is_stored = durability == Durability::Stored;
                if is_alone {
                    self.oracle.acknowledged(object, id, is_stored)?;
                } else {
                    self.oracle.loosen(object);
                    let _ = self.oracle.acknowledged(object, id, is_stored);
                }
                if is_stored {
                    let stable = self.store.stable(&self.ids[object]);
                    self.oracle.stable(object, stable.as_deref(), true)?;
                }
                match size {
                    Some(size) if is_alone => self.oracle.present(look, Some((size / CELL) as u32)),
                    _ => self.oracle.pass(look),
                }
            }
            Err(Error::OutcomeUnknown(_) | Error::WritesLost(_)) if self.may_lose || !self.is_faultless() => {
                // The caller reads back, as the contract requires.
                self.store.deliver(&self.ids[object]);
                self.oracle.pass(look)
            }
            Err(error @ Error::NotStored(_)) => {
                self.oracle.blind(look);
                self.excuse(&error)?;
                self.oracle.acknowledged(object, id, false)
            }
            Err(Error::Missing) if kind.needs_present() || compared.is_some() => {
                self.oracle.failed(object, id);
                if is_alone { self.oracle.missing(look) } else { self.oracle.pass(look) }
            }
            Err(Error::Missing) if matches!(kind, Kind::Copy(_)) => {
                self.oracle.failed(object, id);
                self.oracle.pass(look)
            }
            Err(Error::Mismatch { .. }) if compared.is_some() => {
                self.oracle.failed(object, id);
                let (first, cells) = compared.expect("it compares");
                let differs = if is_alone && !self.oracle.is_loose(object) {
                    self.oracle.can_differ(look, first, &cells)
                } else {
                    Ok(())
                };
                self.oracle.blind(look);
                differs
            }
            Err(error @ Error::Superseded { .. }) => {
                self.oracle.blind(look);
                // If a response was lost, the version in the store may be the one that this change
                // produced.
                if self.is_faultless() {
                    Err(format!("error: {error}, where nothing has failed"))
                } else {
                    Ok(())
                }
            }
            Err(error) => {
                self.oracle.failed(object, id);
                self.oracle.blind(look);
                self.excuse(&error)
            }
        }
    }

    fn has_read(
        &mut self,
        what: &str,
        look: &Look,
        first: u32,
        len: u32,
        result: Result<ReadReply>,
    ) -> Result<(), String> {
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => {
                trace!(self, "  answered: {what}: {error}");
                return match error {
                    Error::Missing if self.caches.len() == 1 => self.oracle.missing(look),
                    Error::Missing => self.oracle.pass(look),
                    error => {
                        self.oracle.blind(look);
                        self.excuse(&error)
                    }
                };
            }
        };
        let cells = cells_of(&reply.data.to_vec(), first)?;
        trace!(
            self,
            "  answered: {what}: {} of {} cells {}",
            cells.len(),
            reply.size_bytes / CELL,
            in_short(&cells)
        );
        if self.caches.len() > 1 {
            return self.oracle.pass(look);
        }
        let size = (reply.size_bytes / CELL) as u32;
        let wanted = size.saturating_sub(first).min(len);
        if cells.len() as u32 != wanted {
            return Err(format!("a read of {} cells, of an object of {size}", cells.len()));
        }
        self.oracle.read(look, first, &cells, reply.version, size)?;
        self.oracle.present(look, Some(size))
    }

    // The following functions are for a cache that is otherwise idle.

    /// Flushes everything; returns false if a loss was reported.
    pub fn flush_to_rest(&mut self, scope: Scope) -> Result<bool, String> {
        for _ in 0..20 {
            let reply = self.caches[0].flush(FlushRequest::new(scope.clone()));
            let asked = self.oracle.tick();
            trace!(self, "flush {scope:?}");
            let handle = std::rc::Rc::new(self.sim.spawn(reply));
            let own = std::rc::Rc::clone(&handle);
            self.drain(move |_| own.is_done()).map_err(|why| format!("{why}, and a flush of {scope:?}"))?;
            let answer = handle.take().expect("it is done");
            trace!(self, "flushed: {answer:?}");
            match answer {
                Ok(_) => return self.flushed(0, &scope, asked).map(|()| true),
                Err(Error::WritesLost(_)) if self.may_lose => return Ok(false),
                Err(error) => self.excuse(&error)?,
            }
        }
        Err("endless: everything answers, and a flush never succeeds".into())
    }

    pub fn invalidate_at_rest(&mut self, scope: Scope) -> Result<(), String> {
        let now = self.oracle.tick();
        self.oracle.forgive(&scope, now);
        trace!(self, "invalidate {scope:?}");
        let reply = self.caches[0].invalidate(InvalidateRequest::new(scope));
        let handle = std::rc::Rc::new(self.sim.spawn(reply));
        let own = std::rc::Rc::clone(&handle);
        self.drain(move |_| own.is_done())?;
        handle.take().expect("it is done").map(drop).map_err(|error| format!("error: {error}"))
    }

    /// Asserts that the cache and the store agree on an object.
    pub fn compare_one(&mut self, object: usize) -> Result<(), String> {
        let id = self.ids[object].clone();
        let limit = self.caches[0].capabilities().request_bytes_max;
        let mut found: Option<Vec<u8>> = None;
        let mut size = u64::MAX;
        while (found.as_ref().map_or(0, Vec::len) as u64) < size {
            let from = found.as_ref().map_or(0, Vec::len) as u64;
            let reply = self.caches[0].read(ReadRequest::new(id.clone(), from, limit));
            let handle = std::rc::Rc::new(self.sim.spawn(reply));
            let own = std::rc::Rc::clone(&handle);
            self.drain(move |_| own.is_done()).map_err(|why| format!("{why}, and a read of {id}"))?;
            match handle.take().expect("it is done") {
                Ok(reply) => {
                    size = reply.size_bytes;
                    let part = reply.data.to_vec();
                    if part.is_empty() && from < size {
                        return Err(format!("differs: {id} ends at {from}, of {size}"));
                    }
                    found.get_or_insert_default().extend(part);
                }
                Err(Error::Missing) => break,
                Err(error) => return Err(format!("error: {error} for a read of {id} at rest")),
            }
        }
        let stored = self.store.current(&id);
        if found == stored {
            return Ok(());
        }
        let cells = |bytes: &Option<Vec<u8>>| {
            bytes.as_ref().map(|it| cells_of(it, 0)).transpose().map(|it| it.map(|it| in_short(&it)))
        };
        let (found, stored) = (cells(&found)?, cells(&stored)?);
        Err(format!("differs: {id} is {found:?} in the cache, and {stored:?} in the store"))
    }
}

/// Returns cells as runs of the same value.
pub fn in_short(cells: &[u32]) -> String {
    let mut text = String::from("[");
    let mut at = 0;
    while at < cells.len() {
        let len = cells[at..].iter().take_while(|value| **value == cells[at]).count();
        text += &format!("{}{}x{len}", if at > 0 { " " } else { "" }, cells[at]);
        at += len;
    }
    text + "]"
}
