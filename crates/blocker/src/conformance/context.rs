//! The context of a case: the backend, the case's own names, and shorthands for calls that must
//! succeed or must fail with a particular error.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::{Harness, Options};
use crate::executor::block_on_for;
use crate::rng::Rng;
use crate::{
    Blocker, BlockerExt, Capabilities, ChangeReply, ChangeRequest, Clock, DeleteRequest, Durability, Error,
    FlushRequest, Info, InfoRequest, ListRequest, Name, Namespace, ObjectId, ReadReply, ReadRequest, Reply,
    Scope, Stamp, WriteRequest,
};

/// The reason for which a case ends early.
pub(super) enum Stop {
    Skip(String),
    Fail(String),
}

pub(super) type Check<T = ()> = Result<T, Stop>;

/// Ends the case with a failure unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::conformance::context::Stop::Fail(format!($($text)+)));
        }
    };
}
pub(super) use ensure;

pub(super) struct Cx<'a> {
    harness: &'a dyn Harness,
    backend: RefCell<Arc<dyn Blocker>>,
    pub(super) caps: Capabilities,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: &'a Options,
    namespace: Namespace,
    rng: RefCell<Rng>,
}

impl<'a> Cx<'a> {
    pub(super) fn new(harness: &'a dyn Harness, options: &'a Options, index: usize) -> Self {
        let backend = harness.backend();
        let namespace = format!("{}-{}-{index}", options.namespace_prefix, options.seed);
        Self {
            harness,
            caps: backend.capabilities(),
            backend: RefCell::new(backend),
            clock: harness.clock(),
            options,
            namespace: Namespace::new(namespace).expect("a prefix of reasonable length"),
            rng: RefCell::new(Rng::new(options.seed ^ (index as u64) << 32)),
        }
    }

    // ---- the backend and its objects

    pub(super) fn backend(&self) -> Arc<dyn Blocker> {
        Arc::clone(&self.backend.borrow())
    }

    /// Cuts the power and continues with the restarted backend.
    pub(super) fn power_cycle(&self) -> Check {
        // A store can be open only once, so no handle to the old store may remain.
        let placeholder: Arc<dyn Blocker> = Arc::new(crate::memory::Memory::default());
        drop(self.backend.replace(placeholder));
        let backend = self.harness.power_cycle();
        let backend = backend.ok_or_else(|| Stop::Skip("this harness cannot cut the power".into()))?;
        *self.backend.borrow_mut() = backend;
        Ok(())
    }

    pub(super) fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    /// Returns a second namespace, next to the first.
    pub(super) fn other_namespace(&self) -> Namespace {
        let mut name = self.namespace.as_bytes().to_vec();
        name.push(b'b');
        Namespace::new(name).expect("one byte more")
    }

    pub(super) fn object(&self, name: impl AsRef<[u8]>) -> ObjectId {
        ObjectId::new(self.namespace(), Name::copy_from(name.as_ref()).expect("a case uses proper names"))
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.rng.borrow_mut().below(bound)
    }

    pub(super) fn bytes(&self, len: usize) -> Bytes {
        self.rng.borrow_mut().bytes(len).into()
    }

    pub(super) fn skip_unless(&self, has: bool, what: &str) -> Check {
        if has { Ok(()) } else { Err(Stop::Skip(format!("the backend has no {what}"))) }
    }

    /// Removes objects left by the case or an earlier run, whatever their epoch.
    pub(super) fn clean(&self) -> Check {
        for namespace in [self.namespace(), self.other_namespace()] {
            let mut first_before = None;
            loop {
                let page = self.ok("list", |b| b.list(ListRequest::new(namespace.clone())))?;
                let first = page.entries.first().map(|entry| entry.name.clone());
                ensure!(first.is_none() || first != first_before, "{first:?} is listed after its deletion");
                first_before = first;
                for entry in &page.entries {
                    let object = ObjectId::new(namespace.clone(), entry.name.clone());
                    self.remove(object)?;
                }
                if !page.has_more {
                    break;
                }
            }
        }
        Ok(())
    }

    fn remove(&self, object: ObjectId) -> Check {
        let mut request = DeleteRequest::new(object);
        for _ in 0..5 {
            match self.wait("delete", |b| b.delete(request.clone()))? {
                Ok(_) | Err(Error::Missing) => return Ok(()),
                Err(Error::Fenced { epoch }) if self.caps.fencing => {
                    request = request.stamp(Stamp::new(epoch.0, u64::MAX));
                }
                Err(Error::Superseded { stamp }) => {
                    request = request.stamp(Stamp::new(stamp.epoch.0 + 1, u64::MAX));
                }
                Err(error) => return Err(Stop::Fail(format!("cleaning up: {error}"))),
            }
        }
        Err(Stop::Fail("an object cannot be deleted with any stamp".into()))
    }

    // ---- calls

    /// Makes a call and waits for its result. Repeats the call while the result is `Retryable`.
    pub(super) fn wait<T: Unpin>(
        &self,
        what: &str,
        call: impl Fn(&dyn Blocker) -> Reply<T>,
    ) -> Check<Result<T, Error>> {
        let backend = self.backend();
        let start = Instant::now();
        loop {
            let lost = || Stop::Fail(format!("{what}: no answer within {:?}", self.options.timeout));
            match block_on_for(call(&*backend), self.options.timeout).ok_or_else(lost)? {
                Err(Error::Retryable(_)) if start.elapsed() < self.options.timeout => {
                    std::thread::yield_now();
                }
                answer => return Ok(answer),
            }
        }
    }

    /// Makes a call, and fails the case on an error.
    pub(super) fn ok<T: Unpin>(&self, what: &str, call: impl Fn(&dyn Blocker) -> Reply<T>) -> Check<T> {
        self.wait(what, call)?.map_err(|error| Stop::Fail(format!("{what} failed: {error}")))
    }

    /// Makes a call, and fails the case unless the call fails with this error.
    pub(super) fn fails<T: Unpin + Debug>(
        &self,
        what: &str,
        call: impl Fn(&dyn Blocker) -> Reply<T>,
        is: impl Fn(&Error) -> bool,
    ) -> Check {
        match self.wait(what, call)? {
            Err(error) if is(&error) => Ok(()),
            Err(error) => Err(Stop::Fail(format!("{what} failed in the wrong way: {error}"))),
            Ok(reply) => Err(Stop::Fail(format!("{what} worked, but must not: {reply:?}"))),
        }
    }

    /// Makes a change, and fails the case on an error.
    pub(super) fn done(&self, request: impl Into<ChangeRequest>) -> Check<ChangeReply> {
        let request = request.into();
        self.ok(request.change.name(), |b| b.change(request.clone()))
    }

    /// Makes a change, and fails the case unless the change fails with this error.
    pub(super) fn refused(&self, request: impl Into<ChangeRequest>, is: impl Fn(&Error) -> bool) -> Check {
        let request = request.into();
        self.fails(request.change.name(), |b| b.change(request.clone()), is)
    }

    // ---- shorthands

    pub(super) fn write(&self, object: &ObjectId, offset: u64, data: &[u8]) -> Check<ChangeReply> {
        self.done(WriteRequest::new(object.clone(), offset, Bytes::copy_from_slice(data)))
    }

    pub(super) fn write_stored(&self, object: &ObjectId, offset: u64, data: &[u8]) -> Check<ChangeReply> {
        let request = WriteRequest::new(object.clone(), offset, Bytes::copy_from_slice(data));
        self.done(request.durability(Durability::Stored))
    }

    pub(super) fn read(&self, object: &ObjectId) -> Check<Vec<u8>> {
        Ok(self.read_reply(object)?.data.to_vec())
    }

    pub(super) fn read_reply(&self, object: &ObjectId) -> Check<ReadReply> {
        let len_bytes = self.caps.request_bytes_max.min(8 << 20);
        self.ok("read", |b| b.read(ReadRequest::new(object.clone(), 0, len_bytes)))
    }

    pub(super) fn info(&self, object: &ObjectId) -> Check<Info> {
        self.ok("info", |b| b.info(InfoRequest::new(object.clone())))
    }

    pub(super) fn delete(&self, object: &ObjectId) -> Check {
        let reply = self.done(DeleteRequest::new(object.clone()))?;
        let answer = (reply.version, reply.size_bytes);
        ensure!(answer == (crate::Version(0), 0), "the reply to a delete has version and size {answer:?}");
        Ok(())
    }

    pub(super) fn flush(&self, scope: Scope) -> Check {
        let reply = self.ok("flush", |b| b.flush(FlushRequest::new(scope.clone())))?;
        ensure!(reply.durability == Durability::Stored, "a flush gave only {}", reply.durability);
        Ok(())
    }

    pub(super) fn expect(&self, object: &ObjectId, bytes: &[u8]) -> Check {
        same_bytes(&self.read(object)?, bytes)
    }

    pub(super) fn is_missing(&self, object: &ObjectId) -> Check {
        let is_missing = |error: &Error| *error == Error::Missing;
        let read = ReadRequest::new(object.clone(), 0, 1);
        self.fails("read of an absent object", |b| b.read(read.clone()), is_missing)?;
        self.fails("info of an absent object", |b| b.info(InfoRequest::new(object.clone())), is_missing)
    }

    pub(super) fn names(&self, request: &ListRequest) -> Check<Vec<Vec<u8>>> {
        let page = self.ok("list", |b| b.list(request.clone()))?;
        Ok(page.entries.iter().map(|entry| entry.name.as_bytes().to_vec()).collect())
    }
}

/// Compares bytes, and reports only the first difference instead of the whole contents.
pub(super) fn same_bytes(found: &[u8], wanted: &[u8]) -> Check {
    if let Some(at) = found.iter().zip(wanted).position(|(a, b)| a != b) {
        let text = format!("byte {at} is {:#04x}, expected {:#04x}", found[at], wanted[at]);
        return Err(Stop::Fail(text));
    }
    ensure!(found.len() == wanted.len(), "{} bytes were read, expected {}", found.len(), wanted.len());
    Ok(())
}
