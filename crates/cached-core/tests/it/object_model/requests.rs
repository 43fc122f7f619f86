//! The requests of the clients.

use super::*;

impl Environment {
    /// Returns a typical range of a disk or a file.
    pub(super) fn range(&mut self) -> (u64, u64) {
        let rng = &mut self.rng;
        let (align, len_max) =
            *rng.pick(&[(4096, 8 * 4096), (512, 4096), (1, 600), (1, 30_000), (4096, SIZE_MAX)]);
        let len = rng.below(len_max + 1) / align * align;
        let offset = rng.below(SIZE_MAX - len + 1) / align * align;
        (offset, len)
    }

    /// Returns a range for a read (0) or a write (1), which may continue where the object's last
    /// one ended.
    pub(super) fn next_range(&mut self, object: usize, kind: usize) -> (u64, u64) {
        let (mut offset, len) = self.range();
        let end = self.ends[object][kind];
        if self.rng.permille(400) && end + len <= SIZE_MAX {
            offset = end;
        }
        self.ends[object][kind] = offset + len;
        (offset, len)
    }

    pub(super) fn begin(&mut self) {
        if self.must_invalidate {
            return self.begin_invalidate(Scope::All);
        }
        match self.rng.weighted(&[50, 30, 6, 4, 8, 3]) {
            0 => self.begin_change(),
            1 => self.begin_read(),
            2 => self.begin_info(),
            3 => self.begin_list(),
            4 => self.begin_flush(),
            _ => {
                let scope = self.scope();
                self.begin_invalidate(scope);
            }
        }
    }

    pub(super) fn scope(&mut self) -> Scope {
        let object = self.rng.index(OBJECTS);
        let id = self.objects[object].id.clone();
        match self.rng.below(4) {
            0 => Scope::All,
            1 => Scope::Namespace(id.namespace),
            2 => Scope::Domain(id.namespace, OrderDomain(self.rng.below(3))),
            _ => Scope::Object(id),
        }
    }

    pub(super) fn deadline(&mut self) -> Option<Timestamp> {
        let delay = *self.rng.pick(&[0, 1, 20, 200]);
        let is_set = self.rng.permille(100);
        is_set.then(|| self.sim.clock.now() + Duration::from_millis(delay))
    }

    pub(super) fn launch<T: Unpin + 'static>(
        &mut self,
        reply: Reply<T>,
        has_deadline: bool,
        asked: Asked,
        answer: impl FnOnce(T) -> Answer + 'static,
    ) {
        self.operations += 1;
        let number = self.operations;
        trace!(self, "#{number} {asked:?}");
        let handle = self.sim.spawn(async move { reply.await.map(answer) });
        self.flights.push(Flight { handle, asked, has_deadline, number });
    }

    pub(super) fn free_object(&mut self) -> Option<usize> {
        let object = self.rng.index(OBJECTS);
        let tracked = &self.objects[object];
        let is_free = !tracked.is_written && !tracked.has_cancelled_change && tracked.readers == 0;
        // Unknown contents are read first.
        (is_free && tracked.candidates.len() < CANDIDATES_MAX && !tracked.is_uncertain).then_some(object)
    }

    pub(super) fn begin_change(&mut self) {
        let Some(target) = self.free_object() else { return };
        if self.objects[target].history.len() > HISTORY_MAX && self.is_volatile {
            let scope = Scope::Object(self.objects[target].id.clone());
            return self.launch_flush(scope);
        }
        let (offset, len) = self.next_range(target, 1);
        let tag = 100 + self.operations;
        let has_runs = self.cache().capabilities().runs_max > 0;
        let act = match self.rng.weighted(&[50, 8, 8, 8, 6, 6, 6, 8, if has_runs { 10 } else { 0 }]) {
            0 => Act::Write { offset, len, tag },
            1 => Act::Zeroes { offset, len },
            2 => Act::Discard { offset, len },
            3 => Act::Truncate { size: offset },
            4 => Act::Full { len, tag },
            5 => Act::Delete,
            6 => {
                let len = len.min(4096);
                let now = &self.objects[target].candidates[0];
                let here = bytes_of(now).get(offset as usize..).unwrap_or(&[]);
                let mut expected = here[..here.len().min(len as usize)].to_vec();
                if self.rng.permille(200) {
                    expected.push(1);
                }
                expected.truncate(4096);
                Act::CompareAndWrite { offset, expected: Rc::new(expected), len, tag }
            }
            8 => {
                let mut cuts: Vec<u64> = (0..2 * (1 + self.rng.index(3))).map(|_| self.range().0).collect();
                cuts.sort_unstable();
                let runs = cuts.chunks(2).filter(|cut| cut[0] < cut[1]);
                let runs: Vec<_> =
                    runs.map(|cut| (cut[0], cut[1] - cut[0], self.rng.permille(750))).collect();
                if runs.is_empty() {
                    return;
                }
                Act::Runs { runs: Rc::new(runs), tag }
            }
            _ => {
                let source = self.rng.index(OBJECTS);
                let from = &self.objects[source];
                if from.is_written
                    || from.has_cancelled_change
                    || from.is_uncertain
                    || from.candidates.len() >= CANDIDATES_MAX
                {
                    return;
                }
                Act::CopyFrom(source)
            }
        };
        let mut change = ChangeTerms::default();
        if self.rng.permille(120) {
            change.durability = Durability::Stored;
        }
        if self.rng.permille(500) {
            change.domain = Some(OrderDomain(self.rng.below(3)));
        }
        let mut is_stale = false;
        let tracked = &self.objects[target];
        match self.rng.below(20) {
            0 => change.condition = Condition::Absent,
            1 => change.condition = Condition::Present,
            2 | 3 if tracked.is_known() && tracked.version.is_some() => {
                change.condition = Condition::Version(tracked.version.unwrap());
            }
            4 if !tracked.old_versions.is_empty() => {
                let old = *self.rng.pick(&tracked.old_versions);
                change.condition = Condition::Version(old);
                is_stale = true;
            }
            _ => {}
        }
        let tracked = &mut self.objects[target];
        tracked.is_written = true;
        tracked.changes += 1;
        let id = tracked.id.clone();
        if let Act::CopyFrom(source) = act
            && source != target
        {
            self.objects[source].readers += 1;
        }
        let deadline = self.deadline();
        let cache = self.cache();
        let space = self.namespaces.iter().position(|name| *name == id.namespace).expect("one of ours");
        let is_refused = self.modes[space].0 == WriteMode::ReadOnly;
        let asked = Asked::Change { target, act: act.clone(), change, is_stale, is_refused };
        // The requests are built in the same way.
        macro_rules! send {
            ($method:ident, $request:expr, $answer:expr) => {{
                let mut request = $request.terms(change);
                request.call.deadline = deadline;
                let reply = cache.$method(request);
                self.launch(reply, deadline.is_some(), asked, $answer)
            }};
        }
        match act {
            Act::Write { offset, len, tag } => {
                let data = payload(&mut self.rng, pattern(tag, offset, len as usize));
                send!(write, WriteRequest::new(id, offset, data), Answer::Change);
            }
            Act::Zeroes { offset, len } => {
                send!(write_zeroes, WriteZeroesRequest::new(id, offset, len), Answer::Change);
            }
            Act::Runs { runs, tag } => {
                let runs = runs.iter().map(|(offset, len, is_data)| match is_data {
                    true => Run::data(*offset, payload(&mut self.rng, pattern(tag, *offset, *len as usize))),
                    false => Run::zeroes(*offset, *len),
                });
                send!(write_runs, WriteRunsRequest::new(id, runs.collect()), Answer::Change);
            }
            Act::Discard { offset, len } => {
                send!(discard, DiscardRequest::new(id, offset, len), Answer::Change);
            }
            Act::Truncate { size } => send!(truncate, TruncateRequest::new(id, size), Answer::Change),
            Act::Full { len, tag } => {
                let data = payload(&mut self.rng, pattern(tag, 0, len as usize));
                send!(write_full, WriteFullRequest::new(id, data), Answer::Change);
            }
            Act::Delete => {
                send!(delete, DeleteRequest::new(id), |reply: ChangeReply| Answer::Gone(reply.durability));
            }
            Act::CompareAndWrite { offset, expected, len, tag } => {
                let data = pattern(tag, offset, len as usize);
                let request = CompareAndWriteRequest::new(id, offset, expected.to_vec(), data);
                send!(compare_and_write, request, Answer::Change);
            }
            Act::CopyFrom(source) => {
                let from = self.objects[source].id.clone();
                send!(copy, CopyRequest::new(from, id), Answer::Change);
            }
        }
    }

    pub(super) fn begin_read(&mut self) {
        let object = self.rng.index(OBJECTS);
        if self.objects[object].is_written {
            return;
        }
        let (mut offset, mut len) = self.next_range(object, 0);
        let tainted = self.objects[object].is_uncertain;
        if self.objects[object].candidates.len() > 1 || tainted || self.rng.permille(100) {
            (offset, len) = (0, SIZE_MAX + 10);
        }
        self.objects[object].readers += 1;
        let mut request = ReadRequest::new(self.objects[object].id.clone(), offset, len);
        request.call.deadline = self.deadline();
        if self.rng.permille(100) {
            request = request.hints(*self.rng.pick(&[Hints::NO_CACHE, Hints::SEQUENTIAL, Hints::RANDOM]));
        }
        let has_deadline = request.call.deadline.is_some();
        let reply = self.cache().read(request);
        self.launch(reply, has_deadline, Asked::Read { object, offset, len, tainted }, Answer::Read);
    }

    pub(super) fn begin_info(&mut self) {
        let object = self.rng.index(OBJECTS);
        if self.objects[object].is_written || self.objects[object].is_uncertain {
            return;
        }
        self.objects[object].readers += 1;
        let reply = self.cache().info(InfoRequest::new(self.objects[object].id.clone()));
        self.launch(reply, false, Asked::Info { object }, Answer::Info);
    }

    pub(super) fn marks(&self) -> Vec<(u64, bool)> {
        self.objects.iter().map(|object| (object.changes, object.is_written)).collect()
    }

    pub(super) fn begin_list(&mut self) {
        let namespace = self.rng.index(3);
        let request = ListRequest::new(self.namespaces[namespace].clone());
        let reply = self.cache().list(request);
        let marks = self.marks();
        self.launch(reply, false, Asked::List { namespace, marks }, Answer::List);
    }

    pub(super) fn begin_flush(&mut self) {
        let scope = self.scope();
        self.launch_flush(scope);
    }

    pub(super) fn launch_flush(&mut self, scope: Scope) {
        let mut request = FlushRequest::new(scope.clone());
        request.call.deadline = self.deadline();
        let has_deadline = request.call.deadline.is_some();
        let reply = self.cache().flush(request);
        let marks = self.marks();
        self.launch(reply, has_deadline, Asked::Flush { scope, marks }, |_| Answer::Flush);
    }

    pub(super) fn begin_invalidate(&mut self, scope: Scope) {
        let reply = self.cache().invalidate(InvalidateRequest::new(scope));
        self.launch(reply, false, Asked::Invalidate, |_| Answer::Invalidated);
    }
}
