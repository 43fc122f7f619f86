//! The effect of the responses on the map.

use super::lent::lend;
use super::*;

impl Environment {
    /// Handles the responses that have arrived.
    pub(super) fn collect(&mut self) {
        let mut at = 0;
        while at < self.flights.len() {
            if !self.flights[at].handle.is_done() {
                at += 1;
                continue;
            }
            let flight = self.flights.swap_remove(at);
            let answer = flight.handle.take().expect("done");
            let reported = answer.as_ref().err().map_or("done".to_owned(), ToString::to_string);
            trace!(self, "#{}: {reported}", flight.number);
            self.finish_flight(flight, Some(answer));
            self.validate();
        }
    }

    /// Drops a waiting request.
    pub(super) fn cancel_one(&mut self) {
        if std::env::var("NO_CANCEL").is_ok() {
            return;
        }
        if self.flights.is_empty() {
            return;
        }
        let at = self.rng.index(self.flights.len());
        let mut flight = self.flights.swap_remove(at);
        trace!(self, "#{} is dropped", flight.number);
        let handle = std::mem::replace(&mut flight.handle, self.sim.spawn(std::future::pending()));
        let answer = self.sim.cancel(handle);
        let placeholder =
            std::mem::replace(&mut flight.handle, self.sim.spawn(async { Err(Error::Missing) }));
        self.sim.cancel(placeholder);
        self.finish_flight(flight, answer);
        self.validate();
    }

    pub(super) fn finish_flight(&mut self, flight: Flight, answer: Option<Result<Answer>>) {
        let Flight { asked, has_deadline, number, .. } = flight;
        if let Some(Err(error)) = &answer {
            let is_excused = match error {
                // The cache was reattached in the meantime.
                Error::Retryable(_) if matches!(asked, Asked::Switch { detaches: true, .. }) => true,
                Error::Retryable(_) => self.is_noisy || has_deadline,
                Error::DeadlinePassed => has_deadline,
                // A quota may have been in force when the request began.
                Error::OutOfSpace(_) => self.has_had_quota,
                Error::OutcomeUnknown(_) | Error::NotStored(_) => self.is_noisy || has_deadline,
                Error::Missing | Error::Exists | Error::Mismatch { .. } | Error::ConditionFailed { .. } => {
                    true
                }
                Error::Denied(_) => matches!(asked, Asked::Change { is_refused: true, .. }),
                _ => false,
            };
            assert!(is_excused, "#{number} {asked:?}: {error}");
        }
        match asked {
            Asked::Change { target, act, change, is_stale, is_refused } => {
                assert!(
                    !is_refused || !matches!(answer, Some(Ok(_))),
                    "#{number}: a change to what is read-only"
                );
                let label = format!("#{number} {act:?} of {}", self.objects[target].id);
                self.changed(&label, target, &act, change, is_stale, answer);
            }
            Asked::Read { object, offset, len, tainted } => {
                self.objects[object].readers -= 1;
                if let Some(answer) = answer {
                    self.was_read(number, object, offset, len, tainted, answer);
                }
            }
            Asked::Info { object } => {
                self.objects[object].readers -= 1;
                if let Some(answer) = answer {
                    self.informed(number, object, answer);
                }
            }
            Asked::List { namespace, marks } => {
                if let Some(Ok(Answer::List(page))) = answer {
                    self.listed(number, namespace, &marks, &page);
                }
            }
            Asked::Flush { scope, marks } => {
                if let Some(Ok(Answer::Flush)) = answer {
                    self.flushed(&scope, &marks);
                }
            }
            Asked::Mode { namespace, mode, changes } => {
                let is_last = self.modes[namespace].1 == changes;
                if let (true, Some(Ok(_)), Some(cache)) = (is_last, &answer, &self.cache) {
                    let name = Some(&self.namespaces[namespace]);
                    let all = cache.namespaces();
                    let of = all.iter().find(|of| of.namespace.as_ref() == name).expect("configured");
                    // Detaching and attaching change the effective mode, too.
                    let is_changing = of.is_mode_changing && self.switches.unwrap_or(0) == 0;
                    assert_eq!((of.write_mode, is_changing), (mode, false), "#{number}");
                    assert!(mode == WriteMode::Back || of.dirty_bytes == 0, "#{number}: {of:?}");
                }
            }
            Asked::Switch { detaches, switches } => {
                let is_last = self.switches == Some(switches);
                if let (true, Some(Ok(_)), Some(cache)) = (is_last, &answer, &self.cache) {
                    let (state, counters) = (cache.attach_status().state, cache.counters());
                    let wanted = if detaches { AttachState::Detached } else { AttachState::Attached };
                    assert_eq!(state, wanted, "#{number}");
                    let held = counters.dirty_bytes + counters.clean_bytes + counters.zero_bytes;
                    assert!(!detaches || held == 0, "#{number}: {counters:?}");
                }
            }
            Asked::Invalidate => {
                if let Some(Ok(_)) = answer {
                    self.must_invalidate = false;
                }
            }
        }
    }

    pub(super) fn changed(
        &mut self,
        label: &str,
        target: usize,
        act: &Act,
        change: ChangeTerms,
        is_stale: bool,
        answer: Option<Result<Answer>>,
    ) {
        let mut is_of_uncertain = false;
        let sources = match act {
            Act::CopyFrom(source) => {
                if *source != target {
                    self.objects[*source].readers -= 1;
                }
                let source = &self.objects[*source];
                is_of_uncertain = source.is_uncertain;
                // A crash may have mixed the source's contents, and the mixture was copied.
                let more = if is_of_uncertain { source.history.as_slice() } else { &[] };
                source.candidates.iter().chain(more).cloned().collect()
            }
            _ => vec![None],
        };
        let tracked = &mut self.objects[target];
        tracked.is_uncertain |= is_of_uncertain;
        tracked.is_written = false;
        let effects = |states: &[Content]| -> Vec<Result<Content, &'static str>> {
            let each = states.iter().flat_map(|state| sources.iter().map(move |source| (state, source)));
            each.map(|(state, source)| effect(act, change.condition, state, source)).collect()
        };
        let before = tracked.candidates.clone();
        let outcomes = effects(&before);
        let mut after: Vec<Content> = Vec::new();
        for each in outcomes.iter().flatten() {
            if !after.contains(each) {
                after.push(each.clone());
            }
        }
        // A crash of the store may leave any of these contents, in addition to the possible ones.
        let may_be_lost = self.is_volatile && tracked.may_be_forwarded;
        if tracked.is_uncertain {
            let more: Vec<Content> = effects(&tracked.history).into_iter().flatten().collect();
            tracked.history.extend(more);
        }
        let is_done = match &answer {
            Some(Ok(_)) | Some(Err(Error::NotStored(_))) => true,
            None | Some(Err(Error::OutcomeUnknown(_))) => {
                if let Act::CopyFrom(source) = act {
                    // The store may have copied its own bytes, without the dirty data in the cache:
                    // see the note at `copy_objects`. The next read decides.
                    let past = self.objects[*source].past.clone();
                    let tracked = &mut self.objects[target];
                    tracked.is_uncertain = true;
                    tracked.history.extend(past.into_iter().chain(tracked.past.clone()));
                }
                let tracked = &mut self.objects[target];
                tracked.past.extend(after.clone());
                tracked.history.extend(after.clone());
                tracked.version = None;
                tracked.has_cancelled_change = true;
                tracked.add_candidates(after);
                return;
            }
            Some(Err(error)) => {
                let kind = error.kind();
                match error {
                    Error::ConditionFailed { .. } => {
                        let asked = matches!(change.condition, Condition::Version(_));
                        assert!(asked, "{label}: {error}");
                        // The store may have given the same bytes a version of its own.
                        tracked.version = None;
                    }
                    Error::Missing | Error::Exists | Error::Mismatch { .. } if !tracked.is_uncertain => {
                        let agrees = |state: &Content| {
                            sources
                                .iter()
                                .any(|source| effect(act, change.condition, state, source) == Err(kind))
                        };
                        tracked.candidates.retain(agrees);
                        assert!(!tracked.candidates.is_empty(), "{label}: {error}, against the map");
                    }
                    _ => {}
                }
                false
            }
        };
        if !is_done {
            return;
        }
        tracked.past.extend(after.clone());
        if tracked.is_uncertain {
            tracked.history.extend(after.clone());
            tracked.add_candidates(after);
            return;
        }
        assert!(!after.is_empty(), "{label} worked; by the map it fails: {outcomes:?}");
        if let (true, Condition::Version(version)) = (is_stale, change.condition) {
            // A change that modified no byte may be forgotten together with its version.
            let was = self.versions.get(&(target, version));
            let is_same = was.is_some_and(|was| before.iter().flatten().any(|bytes| bytes == was));
            assert!(is_same, "{label} worked with a version that stood for other bytes");
        }
        let before_version = tracked.version.take();
        tracked.old_versions.extend(before_version);
        match answer {
            Some(Ok(Answer::Change(reply))) => {
                assert!(reply.durability >= change.durability, "{label} gave {}", reply.durability);
                after.retain(|state| bytes_of(state).len() as u64 == reply.size_bytes);
                assert!(!after.is_empty(), "{label}: a size of {}", reply.size_bytes);
                tracked.candidates = after;
                tracked.version = Some(reply.version);
                tracked.history.extend(tracked.candidates.clone());
                if reply.durability == Durability::Stored {
                    tracked.reset_history();
                }
                self.note_version(label, target, reply.version);
            }
            Some(Ok(Answer::Gone(durability))) => {
                assert!(durability >= change.durability, "{label} gave {durability}");
                tracked.candidates = after;
                tracked.history.extend(tracked.candidates.clone());
                if durability == Durability::Stored {
                    tracked.reset_history();
                }
            }
            _ => {
                tracked.candidates = after;
                tracked.history.extend(tracked.candidates.clone());
            }
        }
        let tracked = &mut self.objects[target];
        if !may_be_lost {
            tracked.reset_history();
        }
    }

    /// Each version has a single content.
    pub(super) fn note_version(&mut self, label: &str, object: usize, version: Version) {
        let tracked = &self.objects[object];
        if let (true, Some(Some(bytes))) = (tracked.is_known(), tracked.candidates.first()) {
            let known = self.versions.entry((object, version)).or_insert_with(|| Rc::clone(bytes));
            let same = Rc::ptr_eq(known, bytes) || known == bytes;
            assert!(same, "{label}: version {version} has stood for other bytes");
            let is_old = tracked.old_versions.contains(&version);
            assert!(!is_old || same, "{label}: version {version} is back");
        }
    }

    pub(super) fn was_read(
        &mut self,
        number: u64,
        object: usize,
        offset: u64,
        len: u64,
        tainted: bool,
        answer: Result<Answer>,
    ) {
        let tracked = &mut self.objects[object];
        let label = format!("#{number} read of {len} at {offset} of {}", tracked.id);
        let reply = match answer {
            Ok(Answer::Read(reply)) => Some(reply),
            Err(Error::Missing) => None,
            Ok(_) => unreachable!("a read was asked"),
            Err(_) => return,
        };
        if tracked.is_uncertain != tainted {
            // The store crashed in the meantime, so any content is possible.
            return;
        }
        let found = reply.as_ref().map(|reply| reply.data.to_vec());
        if tainted {
            if self.must_invalidate || tracked.is_written || tracked.has_cancelled_change {
                return;
            }
            check_mix(&label, &tracked.history, found.as_deref());
            tracked.candidates = vec![found.map(Rc::new)];
            tracked.past.push(tracked.candidates[0].clone());
            tracked.is_uncertain = false;
            // The next crash may lose changes made after the store's restart.
            tracked.history.push(tracked.candidates[0].clone());
            return;
        }
        let expected = |state: &Content| {
            let bytes = state.as_ref()?;
            let from = (offset as usize).min(bytes.len());
            let to = (offset.saturating_add(len) as usize).min(bytes.len());
            Some(bytes[from..to].to_vec())
        };
        let size = reply.as_ref().map(|reply| reply.size_bytes as usize);
        let wanted = expected(&tracked.candidates[0]);
        let count = tracked.candidates.len();
        let agrees =
            |state: &Content| expected(state) == found && state.as_ref().map(|bytes| bytes.len()) == size;
        let is_known = tracked.candidates.iter().any(agrees);
        if !tracked.has_cancelled_change {
            tracked.candidates.retain(agrees);
        }
        if !is_known {
            let wanted_text = wanted.as_ref().map(|bytes| bytes.len());
            let found_text = found.as_ref().map(|bytes| bytes.len());
            println!(
                "{label}: {found_text:?} bytes, size {size:?}; {count} candidates, first {wanted_text:?} bytes"
            );
            test_kit::same(&found.unwrap_or_default(), &wanted.unwrap_or_default(), &label);
            panic!("{label}: existence or size is not the map's");
        }
        let Some(reply) = reply else { return };
        if let Some(bytes) = self.versions.get(&(object, reply.version)) {
            let same = expected(&Some(Rc::clone(bytes))).as_deref() == found.as_deref();
            assert!(same, "{label}: version {} has stood for other bytes", reply.version);
        }
        if !self.objects[object].is_written && !self.objects[object].has_cancelled_change {
            self.objects[object].version = Some(reply.version);
            self.note_version(&label, object, reply.version);
        }
        // Payloads must not change while they are held.
        let kept: usize = self.kept.iter().map(|kept| kept.wanted.len()).sum();
        let wanted = found.unwrap_or_default();
        if self.rng.permille(300) && kept + wanted.len() < PINNED_BYTES_MAX {
            let cache = self.cache.as_ref().filter(|cache| cache.lends() && self.rng.permille(500));
            let data = match cache.and_then(|cache| lend(cache, &reply.data)) {
                Some(lent) => KeptData::Lent(lent),
                None => KeptData::Held(reply.data),
            };
            self.kept.push(Kept { data, wanted });
        }
    }

    pub(super) fn informed(&mut self, number: u64, object: usize, answer: Result<Answer>) {
        let tracked = &mut self.objects[object];
        let label = format!("#{number} info of {}", tracked.id);
        let size = match answer {
            Ok(Answer::Info(info)) => Some(info),
            Err(Error::Missing) => None,
            _ => return,
        };
        if tracked.is_uncertain {
            return;
        }
        let found = size.as_ref().map(|info| info.size_bytes as usize);
        let before: Vec<_> = tracked.candidates.iter().map(|state| state.as_ref().map(|b| b.len())).collect();
        assert!(before.contains(&found), "{label}: size {found:?}, by the map {before:?}");
        if !tracked.has_cancelled_change {
            tracked.candidates.retain(|state| state.as_ref().map(|bytes| bytes.len()) == found);
        }
        if let Some(info) = size
            && !tracked.is_written
            && !tracked.has_cancelled_change
        {
            tracked.version = Some(info.version);
            self.note_version(&label, object, info.version);
        }
    }

    pub(super) fn listed(&mut self, number: u64, namespace: usize, marks: &[(u64, bool)], page: &ListReply) {
        assert!(!page.has_more, "#{number}: so few objects are one page");
        let names: Vec<&Name> = page.entries.iter().map(|entry| &entry.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "#{number}: {names:?} are not in order");
        let ours = |name: &Name| {
            let id = ObjectId::new(self.namespaces[namespace].clone(), name.clone());
            self.objects.iter().any(|object| object.id == id)
        };
        assert!(names.iter().all(|name| ours(name)), "#{number}: {names:?} were never made");
        for (tracked, (changes, was_written)) in self.objects.iter().zip(marks) {
            let is_here = tracked.id.namespace == self.namespaces[namespace];
            let is_steady = tracked.changes == *changes && !was_written && !tracked.is_uncertain;
            if !is_here || !is_steady {
                continue;
            }
            let entry = page.entries.iter().find(|entry| entry.name == tracked.id.name);
            let found = entry.map(|entry| entry.size_bytes as usize);
            let possible: Vec<_> =
                tracked.candidates.iter().map(|state| state.as_ref().map(|bytes| bytes.len())).collect();
            assert!(
                possible.contains(&found),
                "#{number}: {} is listed with {found:?}, by the map {possible:?}",
                tracked.id
            );
        }
    }

    pub(super) fn flushed(&mut self, scope: &Scope, marks: &[(u64, bool)]) {
        for (tracked, (changes, was_written)) in self.objects.iter_mut().zip(marks) {
            // The model does not track a change's domain, so a flush of a domain proves nothing
            // about objects.
            let is_covered = match scope {
                Scope::Domain(..) => false,
                scope => scope.covers(&tracked.id, None),
            };
            if is_covered && tracked.changes == *changes && !was_written && !tracked.is_uncertain {
                tracked.reset_history();
            }
        }
    }
}
