//! `impl Blocker for SynapseBlocker`: what the client can refuse is refused here, the rest goes to the
//! server.

use std::sync::Arc;

use blocker::admission::runs_end;
use blocker::*;

use super::SynapseBlocker;
use super::call::Call;
use crate::codec::{Answer, Request, is_unmatchable_prefix};

macro_rules! send {
    ($self:ident, $request:expr, $answer:ident) => {{
        Reply::pending(Call::new(Arc::clone(&$self.core), $request, |answer| match answer {
            Answer::$answer(reply) => Some(reply),
            _ => None,
        }))
    }};
}
pub(super) use send;

impl SynapseBlocker {
    fn check_deadline(&self, call: &blocker::Call) -> Result<()> {
        match call.deadline {
            Some(deadline) if self.core.config.clock.now() >= deadline => Err(Error::DeadlinePassed),
            _ => Ok(()),
        }
    }

    fn check_bytes(&self, bytes: u64, limit_bytes: u64) -> Result<()> {
        if bytes > limit_bytes { Err(Error::TooLarge { limit_bytes }) } else { Ok(()) }
    }

    fn check_payload(&self, call: &blocker::Call, payload: &Segments) -> Result<()> {
        self.check_deadline(call)?;
        self.check_bytes(payload.len_bytes() as u64, self.capabilities().request_bytes_max)
    }
}

/// Returns early if `$result` is an error.
macro_rules! check {
    ($result:expr) => {
        if let Err(error) = $result {
            return Reply::err(error);
        }
    };
}

impl Blocker for SynapseBlocker {
    fn capabilities(&self) -> Capabilities {
        *self.core.shared.capabilities.read()
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        check!(self.check_deadline(&request.call));
        check!(self.check_bytes(request.len_bytes, self.capabilities().request_bytes_max));
        send!(self, Request::Read(request), Read)
    }

    fn write(&self, request: WriteRequest) -> Reply<ChangeReply> {
        check!(self.check_payload(&request.call, &request.data));
        send!(self, Request::Write(request), Change)
    }

    fn write_zeroes(&self, request: WriteZeroesRequest) -> Reply<ChangeReply> {
        check!(self.check_deadline(&request.call));
        send!(self, Request::WriteZeroes(request), Change)
    }

    fn write_runs(&self, request: WriteRunsRequest) -> Reply<ChangeReply> {
        check!(self.check_deadline(&request.call));
        check!(runs_end(&request.runs, &self.capabilities()));
        send!(self, Request::WriteRuns(request), Change)
    }

    fn discard(&self, request: DiscardRequest) -> Reply<ChangeReply> {
        check!(self.check_deadline(&request.call));
        send!(self, Request::Discard(request), Change)
    }

    fn compare_and_write(&self, request: CompareAndWriteRequest) -> Reply<ChangeReply> {
        check!(self.check_payload(&request.call, &request.data));
        let compare_bytes_max = self.capabilities().compare_bytes_max;
        if compare_bytes_max > 0 {
            check!(self.check_bytes(request.expected.len_bytes() as u64, compare_bytes_max));
        }
        send!(self, Request::CompareAndWrite(request), Change)
    }

    fn write_full(&self, request: WriteFullRequest) -> Reply<ChangeReply> {
        check!(self.check_payload(&request.call, &request.data));
        send!(self, Request::WriteFull(request), Change)
    }

    fn truncate(&self, request: TruncateRequest) -> Reply<ChangeReply> {
        check!(self.check_deadline(&request.call));
        send!(self, Request::Truncate(request), Change)
    }

    fn delete(&self, request: DeleteRequest) -> Reply<DeleteReply> {
        check!(self.check_deadline(&request.call));
        send!(self, Request::Delete(request), Delete)
    }

    fn copy(&self, request: CopyRequest) -> Reply<ChangeReply> {
        check!(self.check_deadline(&request.call));
        send!(self, Request::Copy(request), Change)
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        check!(self.check_deadline(&request.call));
        send!(self, Request::Info(request), Info)
    }

    fn list(&self, mut request: ListRequest) -> Reply<ListReply> {
        check!(self.check_deadline(&request.call));
        if is_unmatchable_prefix(&request.prefix) {
            return Reply::ok(ListReply::new(Vec::new(), false));
        }
        request.entries_max = request.entries_max.clamp(1, self.capabilities().list_entries_max);
        send!(self, Request::List(request), List)
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        check!(self.check_deadline(&request.call));
        check!(self.core.shared.unflushed.check(&request.scope));
        let (shared, scope) = (Arc::clone(&self.core.shared), request.scope.clone());
        let begun = shared.unflushed.begin_flush();
        let call = Call::new(Arc::clone(&self.core), Request::Flush(request), |answer| match answer {
            Answer::Flush(reply) => Some(reply),
            _ => None,
        });
        Reply::pending(async move {
            let reply = call.await?;
            // What is only cached does not survive the server's crash.
            if reply.durability > Durability::Cached {
                shared.unflushed.flushed(&scope, begun)?;
            }
            Ok(reply)
        })
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        check!(self.check_deadline(&request.call));
        send!(self, Request::Claim(request), Claim)
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        check!(self.check_deadline(&request.call));
        send!(self, Request::Invalidate(request), Invalidate)
    }

    /// Returns the control plane of the server.
    fn control(&self) -> &dyn Control {
        self
    }

    /// Events of the time without a connection are missed; [`Event::Missed`] reports that.
    fn subscribe(&self) -> Subscription {
        self.core.shared.events.subscribe()
    }
}
