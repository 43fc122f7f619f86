//! Failures of the store, and the end of a run.

use super::*;

impl Environment {
    pub(super) fn trouble(&mut self) {
        if !self.is_noisy {
            return;
        }
        match self.rng.below(4) {
            0 if self.crashed.is_none() => {
                self.is_stalled = !self.is_stalled;
                trace!(self, "stalled: {}", self.is_stalled);
                if self.is_stalled { self.faulty.stall() } else { self.faulty.resume() }
            }
            1 if self.crashed.is_none() && !self.is_stalled => {
                trace!(self, "the store crashes");
                self.faulty.crash();
                self.crashed = Some(self.store.calls() + 1);
            }
            2 | 3 => self.restart(),
            _ => {}
        }
    }

    /// Restarts the store, once no earlier call waits for it.
    pub(super) fn restart(&mut self) {
        let Some(number) = self.crashed else { return };
        if self.store.has_older_than(number) {
            return;
        }
        trace!(self, "the store is up again");
        self.faulty.restart().unwrap();
        self.crashed = None;
        if self.is_volatile {
            for tracked in self.objects.iter_mut().filter(|tracked| tracked.may_be_forwarded) {
                tracked.is_uncertain = true;
                tracked.version = None;
            }
            self.must_invalidate = true;
        }
    }

    pub(super) fn release(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let at = self.rng.index(self.kept.len());
        let kept = self.kept.swap_remove(at);
        let (found, what) = match kept.data {
            KeptData::Held(data) => (data.to_vec(), "a payload that was kept"),
            KeptData::Lent(lent) => (lent.read(), "a payload that was lent"),
        };
        test_kit::same(&found, &kept.wanted, what);
    }

    /// Asserts that no work is in flight in the cache or the store: cancelled requests have ended.
    pub(super) fn forget_cancelled(&mut self) {
        if self.sim.is_idle() && !self.store.has_older_than(u64::MAX) {
            self.objects.iter_mut().for_each(|tracked| tracked.has_cancelled_change = false);
        }
    }

    pub(super) fn step(&mut self) {
        let haunted = self.objects.iter().filter(|tracked| tracked.has_cancelled_change).count();
        if haunted > 0 {
            self.forget_cancelled();
        }
        match self.rng.weighted(&[30, 100, 8, 4, 3, 1, 3, 4, if self.switches.is_some() { 3 } else { 0 }]) {
            0 if self.flights.len() < 6 && haunted < 4 => self.begin(),
            0 | 1 => {
                for _ in 0..self.rng.within(1, 6) {
                    self.sim.step();
                }
            }
            2 => {
                self.sim.skip();
            }
            3 => {
                if self.rng.permille(400) {
                    self.cancel_one();
                }
            }
            4 => {
                if self.rng.permille(300) {
                    self.trouble();
                }
            }
            5 if self.rng.permille(500) => self.set_one(),
            5 => self.change_limits(),
            6 => self.release(),
            7 => self.change_mode(),
            _ => self.switch(),
        }
        self.collect();
        if self.crashed.is_some() && self.rng.permille(50) {
            self.restart();
        }
        let is_full = self.flights.len() >= 6 || haunted >= 4;
        if self.sim.is_idle() && is_full && !self.sim.skip() {
            // All requests wait, and only the test can restart the store.
            self.end_failures();
        }
    }

    /// Changes the dirty limits and the shares of the running cache.
    fn change_limits(&mut self) {
        let Some(cache) = &self.cache else { return };
        let mut after = self.config.clone();
        draw_limits(&mut self.rng, &mut after);
        draw_flow(&mut self.rng, &mut after);
        trace!(self, "limits {} of {:?}", after.dirty_bytes_max, after.namespaces);
        cache.live_settings().change(&after).unwrap_or_else(|error| panic!("{error}"));
        self.config = after;
        self.policy_changes += 1;
        self.has_had_quota |= self
            .config
            .namespaces
            .iter()
            .any(|each| each.settings.number(NamespaceKey::QuotaBytesMax).is_some());
        self.validate();
    }

    /// Sets one key for a namespace by a command.
    fn set_one(&mut self) {
        let Some(cache) = &self.cache else { return };
        let keys: Vec<_> = NamespaceKey::ALL.into_iter().filter(|key| has_no_sum(*key)).collect();
        let key = *self.rng.pick(&keys);
        let values: &[u64] = match key {
            NamespaceKey::QuotaBytesMax => &[0, 64 * KIB, 300 * KIB, 100_000 * KIB],
            NamespaceKey::DirtyAgeMsMax => &[0, 50, 20_000],
            NamespaceKey::StoreRequestsPerSecondMax => &[5, 100, 5000],
            NamespaceKey::StoreBytesPerSecondMax => &[64 * KIB, 1024 * KIB],
            NamespaceKey::StoreRequestsPerSecondMin => &[5],
            NamespaceKey::StoreWeight => &[1, 2, 100],
            NamespaceKey::StoreBurstMs => &[0, 100, 2000],
            _ => &[0, 4 * KIB, 20 * KIB, 200 * KIB],
        };
        let value = self.rng.permille(700).then(|| *self.rng.pick(values));
        let name = self.rng.pick(&self.namespaces).clone();
        trace!(self, "{name}: {key} is {value:?}");
        cache
            .set_namespace(&name, &NamespaceSettings::default().with(key, value))
            .unwrap_or_else(|error| panic!("{error}"));
        let in_force = cache.namespace_settings(&name).values;
        assert!(in_force.contains(&(key, (value, SettingSource::Command))), "{key}: {in_force:?}");
        self.has_had_quota |= key == NamespaceKey::QuotaBytesMax;
        self.policy_changes += 1;
        self.validate();
    }

    /// Changes the write mode of a namespace, and sometimes waits until no data of the previous
    /// mode are left.
    fn change_mode(&mut self) {
        if self.flights.len() >= 6 || self.cache.is_none() {
            return;
        }
        let namespace = self.rng.index(self.namespaces.len());
        let all = [WriteMode::Back, WriteMode::Through, WriteMode::Around, WriteMode::ReadOnly];
        let mode = all[self.rng.weighted(&[8, 5, 3, 1])];
        let name = self.namespaces[namespace].clone();
        let deadline = self.deadline();
        let (own, changes) = &mut self.modes[namespace];
        (*own, *changes) = (mode, *changes + 1);
        self.policy_changes += 1;
        let changes = *changes;
        if mode != WriteMode::Back {
            let of_it = self.objects.iter_mut().filter(|tracked| tracked.id.namespace == name);
            of_it.for_each(|tracked| tracked.may_be_forwarded = true);
        }
        let changed = Reply::pending(self.cache().change_namespace(&name, &mode.into(), deadline));
        let asked = Asked::Mode { namespace, mode, changes };
        self.launch(changed, deadline.is_some(), asked, |()| Answer::ModeChanged);
        self.validate();
    }

    /// Detaches or attaches the cache, and sometimes waits for the end of the transition.
    fn switch(&mut self) {
        if self.flights.len() >= 6 || self.cache.is_none() {
            return;
        }
        let is_attached = self.cache().attach_status().state == AttachState::Attached;
        // Sometimes the cache is in the requested state already.
        let detaches = if self.rng.permille(100) { !is_attached } else { is_attached };
        let deadline = self.deadline();
        let Some(switches) = &mut self.switches else { return };
        *switches += 1;
        let switches = *switches;
        self.policy_changes += 1;
        self.objects.iter_mut().for_each(|tracked| tracked.may_be_forwarded = true);
        let cache = self.cache();
        let switched = match detaches {
            true => Reply::pending(cache.detach_cache(deadline)),
            false => Reply::pending(cache.attach_cache(deadline)),
        };
        // If two commands overlap, either may come last, so the response says nothing about the
        // final state.
        let overlaps = self.flights.iter().any(|flight| matches!(flight.asked, Asked::Switch { .. }));
        let asked = Asked::Switch { detaches, switches: if overlaps { 0 } else { switches } };
        self.launch(switched, deadline.is_some(), asked, |()| Answer::Switched);
        self.validate();
    }

    /// Ends all failures.
    pub(super) fn end_failures(&mut self) {
        if self.is_stalled {
            self.is_stalled = false;
            self.faulty.resume();
        }
        for _ in 0..1000 {
            self.restart();
            if self.crashed.is_none() {
                break;
            }
            self.sim.run_until_idle();
            self.sim.skip();
        }
        assert!(self.crashed.is_none(), "calls from before the crash are still under way");
    }

    /// Asserts that the store equals the map once everything is flushed and the cache is dropped.
    pub(super) fn finish(mut self) {
        self.end_failures();
        while !self.kept.is_empty() {
            self.release();
        }
        self.end_flights();
        self.sim.advance(Duration::from_secs(600));
        self.forget_cancelled();
        assert!(self.objects.iter().all(|tracked| !tracked.has_cancelled_change), "calls below never end");
        let is_uncertain = |env: &Self| env.objects.iter().any(|tracked| tracked.is_uncertain);
        let mut rounds = 0;
        while is_uncertain(&self) || self.must_invalidate {
            if self.must_invalidate {
                self.begin_invalidate(Scope::All);
            } else {
                self.read_uncertain();
            }
            self.end_flights();
            rounds += 1;
            assert!(rounds < 10_000, "the store never answers");
        }
        self.flush_all();
        self.validate();
        assert_eq!(self.cache().counters().dirty_bytes, 0, "all is flushed");
        drop(self.cache.take());
        self.sim.advance(Duration::from_secs(60));
        if let Some(running) = &self.running {
            assert!(running.is_done(), "the background has not ended with the cache");
        }
        assert!(!self.store.has_older_than(u64::MAX), "calls of a cache that is gone");
        if self.is_volatile {
            self.faulty.crash();
            self.faulty.restart().unwrap();
        }
        for tracked in &self.objects {
            let found = content(&*self.memory, &tracked.id);
            let is_known = tracked.candidates.iter().any(|state| state.as_deref() == found.as_ref());
            if !is_known {
                let wanted = bytes_of(&tracked.candidates[0]);
                let label = format!("{} as stored", tracked.id);
                println!("{label}: {:?} bytes", found.as_ref().map(Vec::len));
                test_kit::same(&found.unwrap_or_default(), wanted, &label);
                panic!("{label}: it is there or not, against the map");
            }
        }
    }

    pub(super) fn end_flights(&mut self) {
        let mut skips = 0;
        while !self.flights.is_empty() {
            while self.sim.step() {}
            self.collect();
            if self.flights.is_empty() {
                break;
            }
            let waiting: Vec<_> = self.flights.iter().map(|flight| &flight.asked).collect();
            assert!(
                self.sim.skip(),
                "a hang: no task is woken, no timer is set, and these wait: {waiting:?}"
            );
            skips += 1;
            assert!(skips < 200_000, "these never end: {waiting:?}");
        }
    }

    pub(super) fn read_uncertain(&mut self) {
        let tainted = self.objects.iter().position(|tracked| tracked.is_uncertain).expect("asked for");
        self.objects[tainted].readers += 1;
        let request = ReadRequest::new(self.objects[tainted].id.clone(), 0, SIZE_MAX + 10);
        let reply = self.cache().read(request);
        let asked = Asked::Read { object: tainted, offset: 0, len: SIZE_MAX + 10, tainted: true };
        self.launch(reply, false, asked, Answer::Read);
    }

    pub(super) fn flush_all(&mut self) {
        for _ in 0..1000 {
            let reply = self.cache().flush(FlushRequest::new(Scope::All));
            let handle = self.sim.spawn(reply);
            match self.sim.wait(handle) {
                Ok(_) => return,
                Err(error) => {
                    let is_excused = matches!(error, Error::NotStored(_) | Error::Retryable(_));
                    assert!(is_excused && self.is_noisy, "flush: {error}");
                }
            }
        }
        panic!("a store that works most of the time never takes the dirty data");
    }
}

/// Returns whether the values of all namespaces have no common limit.
fn has_no_sum(key: NamespaceKey) -> bool {
    !key.name().starts_with("memory_") && key != NamespaceKey::DirtyBytesMax
}
