//! Cancellation at every await: polls a reply a number of times, drops it, and checks the state.

use std::time::Duration;

use bytes::Bytes;

use super::context::{Check, Cx, ensure};
use crate::executor::poll_times;
use crate::{
    BlockerExt, CopyRequest, DiscardRequest, Error, FlushRequest, InfoRequest, InvalidateRequest,
    ListRequest, ReadRequest, Scope, WriteFullRequest, WriteRequest, WriteZeroesRequest,
};

/// The maximum number of polls after which a reply is dropped.
const POLLS_MAX: usize = 6;
/// The maximum time to wait for a wake-up between two polls.
const WAKE: Duration = Duration::from_millis(20);

pub(super) fn a_cancelled_change_is_all_or_nothing(cx: &Cx<'_>) -> Check {
    let (old, new) = (vec![1_u8; 4096], Bytes::from(vec![2_u8; 4096]));
    for polls in 0..POLLS_MAX {
        for round in 0..cx.options.effort {
            let object = cx.object(format!("cut-{polls}-{round}"));
            cx.write(&object, 0, &old)?;
            let request = WriteRequest::new(object.clone(), 0, new.clone());
            let finished = poll_times(cx.backend().write(request), polls, WAKE).is_some_and(|r| r.is_ok());
            let found = cx.read(&object)?;
            ensure!(
                found == *new || (found == old && !finished),
                "after {polls} polls, the change is half done"
            );

            // A cancelled creation creates the whole object or nothing.
            let created = cx.object(format!("new-{polls}-{round}"));
            let request = WriteFullRequest::new(created.clone(), new.clone());
            poll_times(cx.backend().write_full(request), polls, WAKE);
            let read = ReadRequest::new(created.clone(), 0, 4096);
            match cx.wait("read", |b| b.read(read.clone()))? {
                Ok(reply) => ensure!(reply.data == *new, "a cancelled creation left half an object"),
                Err(error) => ensure!(error == Error::Missing, "after a cancelled creation: {error}"),
            }
        }
    }
    Ok(())
}

pub(super) fn a_cancelled_call_blocks_no_other(cx: &Cx<'_>) -> Check {
    for polls in 0..POLLS_MAX {
        let object = cx.object(format!("free-{polls}"));
        let backend = cx.backend();
        cx.write(&object, 0, &[1; 8192])?;
        let scope = Scope::Namespace(cx.namespace());
        let id = || object.clone();
        poll_times(backend.read(ReadRequest::new(id(), 0, 4096)), polls, WAKE);
        poll_times(backend.write_zeroes(WriteZeroesRequest::new(id(), 0, 512)), polls, WAKE);
        poll_times(backend.discard(DiscardRequest::new(id(), 512, 512)), polls, WAKE);
        poll_times(backend.flush(FlushRequest::new(scope.clone())), polls, WAKE);
        poll_times(backend.info(InfoRequest::new(id())), polls, WAKE);
        poll_times(backend.list(ListRequest::new(cx.namespace())), polls, WAKE);
        poll_times(backend.copy(CopyRequest::new(id(), cx.object("copied"))), polls, WAKE);
        poll_times(backend.invalidate(InvalidateRequest::new(scope.clone())), polls, WAKE);
        // The object's other bucket is still accessible: it can be read, written and flushed.
        cx.write(&object, 4096, &[2; 4096])?;
        let found = cx.read(&object)?;
        ensure!(found[4096..] == [2; 4096], "a write after cancelled calls is missing");
        ensure!(found[1024..4096] == [1; 3072], "cancelled calls changed bytes outside of their ranges");
        cx.flush(scope)?;
        cx.delete(&object)?;
        cx.is_missing(&object)?;
    }
    Ok(())
}
