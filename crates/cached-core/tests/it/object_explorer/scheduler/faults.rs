//! Failures, events, other clients and writers, and callers that cancel.

use super::*;

impl Environment {
    /// Causes a failure, an event, a claim by another writer, or a cancellation by a caller.
    pub(super) fn trouble(&mut self) -> Result<(), String> {
        if self.is_calm {
            return Ok(());
        }
        let it = &self.profile;
        let rates = [
            it.retryable,
            it.unknown,
            it.failed_sync,
            it.cancels,
            it.another,
            it.claims,
            it.rumours,
            it.mode_changes,
        ];
        self.troubles += 1;
        match self.rng.weighted(&rates) {
            0 => {
                if let Some(number) = self.pick(Stage::Queued) {
                    self.refuse(number);
                }
            }
            1 => {
                let stage = if self.rng.permille(500) { Stage::Queued } else { Stage::Done };
                let picked = self.pick(stage);
                if let Some(number) = picked.filter(|number| self.store.request(*number).is_change) {
                    trace!(self, "    {}: {} answered as unknown", number, self.store.request(number).text);
                    self.store.answer_unknown(number, "answer lost by the test");
                }
            }
            2 => {
                if let Some(number) = self.pick(Stage::Queued)
                    && self.store.fail_sync(number)
                {
                    trace!(self, "    {number}: fails to sync");
                    self.may_lose = true;
                    (0..self.ids.len()).for_each(|object| self.oracle.may_lose(object));
                    self.look_at_store()?;
                }
            }
            3 => {
                if !self.flights.is_empty() {
                    let at = self.rng.index(self.flights.len());
                    self.cancel(at)?;
                }
            }
            4 => self.by_another(),
            5 => self.claim_by_another(),
            6 => {
                let event = match self.rng.below(3) {
                    0 => Event::Missed,
                    1 => Event::Changed(Scope::All),
                    _ => Event::Changed(Scope::Object(self.rng.pick(&self.ids).clone())),
                };
                trace!(self, "  event: {event:?}");
                self.store.publish(&event);
            }
            _ => self.change_mode(),
        }
        Ok(())
    }

    /// Changes the write mode of a namespace.
    pub(super) fn change_mode(&mut self) {
        let namespace = self.rng.pick(&self.ids).namespace.clone();
        let mode = *self.rng.pick(&[WriteMode::Back, WriteMode::Through, WriteMode::Around]);
        trace!(self, "  {namespace} is written {mode}");
        self.caches.iter().for_each(|cache| cache.set_namespace(&namespace, &mode.into()).expect("room"));
    }

    /// Makes the store refuse a request temporarily.
    pub(super) fn refuse(&mut self, number: u64) {
        let request = self.store.request(number);
        let error = match (request.name, self.rng.below(3)) {
            ("flush", _) => Error::NotStored("refused by the test".into()),
            (_, 0) if request.is_change && request.claim.is_none() => {
                Error::OutOfSpace("refused by the test".into())
            }
            _ => Error::Retryable("refused by the test".into()),
        };
        trace!(self, "    {}: {} {} fails: {}", number, named(&request.object), request.text, error);
        self.store.answer(number, Some(error));
    }

    pub(super) fn publish_one(&mut self) {
        let at = self.rng.index(self.unpublished.len());
        let id = self.unpublished.swap_remove(at);
        let event = Event::Changed(Scope::Object(id));
        trace!(self, "  event: {event:?}");
        self.store.publish(&event);
    }

    /// Makes another client change whole sectors of an object in the store.
    pub(super) fn by_another(&mut self) {
        let object = self.rng.index(self.ids.len());
        let id = self.ids[object].clone();
        let Some(content) = self.store.current(&id) else { return };
        self.unpublished.push(id.clone());
        if self.profile.another_deletes {
            trace!(self, "  another deletes {id}");
            self.oracle.by_another(object, 0, Kind::Delete);
            self.oracle.loosen(object);
            let deleted = self.store.by_another(|memory| memory.delete(DeleteRequest::new(id.clone())));
            assert!(deleted.is_ready());
            return self.store.sync_one(&id);
        }
        let sectors = content.len() as u64 / (2 * CELL);
        if sectors == 0 {
            return;
        }
        let from = self.rng.below(sectors);
        let to = self.rng.within(from + 1, sectors.min(from + 6));
        let (from, to) = (2 * from as u32, 2 * to as u32);
        let value = self.oracle.fresh_value();
        trace!(self, "  another writes #{value} to {from}..{to} of {id}");
        self.oracle.by_another(object, value, Kind::Write(vec![(from, to, true)]));
        let request = WriteRequest::new(id.clone(), u64::from(from) * CELL, bytes_of(value, to - from));
        let written = self.store.by_another(|memory| memory.write(request));
        assert!(written.is_ready());
        self.store.sync_one(&id);
    }

    /// Makes another writer claim a scope.
    pub(super) fn claim_by_another(&mut self) {
        let id = self.rng.pick(&self.ids).clone();
        let domain = OrderDomain(self.rng.below(2));
        let scope = match self.rng.below(4) {
            0 => Scope::Object(id),
            1 if self.profile.domains > 0 => Scope::Domain(id.namespace, domain),
            2 if self.profile.domains > 0 => Scope::Domain(id.namespace, domain),
            _ => Scope::Namespace(id.namespace),
        };
        let scope = match (self.profile.writer, scope) {
            (Writer::Cache, Scope::Object(id)) => Scope::Namespace(id.namespace),
            (_, scope) => scope,
        };
        let in_force = self.store.by_another(|memory| {
            match blocker::executor::block_on(memory.claim(super::super::claims::ask(scope.clone()))) {
                Ok(reply) => reply.epoch,
                Err(Error::Fenced { epoch }) => epoch,
                Err(error) => panic!("{error}"),
            }
        });
        let epoch = Epoch(in_force.0 + 1);
        trace!(self, "  another takes over {scope:?} with {epoch}");
        let claim = super::super::claims::claim(scope.clone(), epoch);
        let claimed = self.store.by_another(|memory| blocker::executor::block_on(memory.claim(claim)));
        claimed.expect("above the epoch in force");
        self.oracle.fenced(0, &scope);
        self.fences.push((0, scope));
        self.may_lose = true;
    }
}
