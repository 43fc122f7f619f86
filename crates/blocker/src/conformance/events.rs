//! Deadlines, events and flushes: deadlines are kept, subscribers are notified, every scope can be
//! flushed.

use std::time::Duration;

use super::conditions::{changes, source_of};
use super::context::{Check, Cx, Stop, ensure};
use crate::executor::block_on_for;
use crate::{
    ClaimRequest, CopyRequest, DeleteRequest, Epoch, Error, Event, FlushRequest, Hints, InfoRequest,
    InvalidateRequest, ListRequest, OrderDomain, ReadRequest, Scope, Subscription, TruncateRequest,
    WriteFullRequest, WriteRequest,
};

pub(super) fn a_deadline_in_the_past_changes_nothing(cx: &Cx<'_>) -> Check {
    let object = cx.object("late");
    let before = cx.write(&object, 0, b"before")?;
    let now = cx.clock.now();
    let is_late = |error: &Error| matches!(error, Error::DeadlinePassed);
    cx.refused(WriteRequest::new(object.clone(), 0, b"after!").deadline(now), is_late)?;
    cx.refused(WriteFullRequest::new(object.clone(), b"after!").deadline(now), is_late)?;
    cx.refused(TruncateRequest::new(object.clone(), 1).deadline(now), is_late)?;
    cx.refused(CopyRequest::new(object.clone(), cx.object("copy")).deadline(now), is_late)?;
    cx.refused(DeleteRequest::new(object.clone()).deadline(now), is_late)?;
    let read = ReadRequest::new(object.clone(), 0, 6).deadline(now);
    cx.fails("late read", |b| b.read(read.clone()), is_late)?;
    let info = InfoRequest::new(object.clone()).deadline(now);
    cx.fails("late info", |b| b.info(info.clone()), is_late)?;
    let list = ListRequest::new(cx.namespace()).deadline(now);
    cx.fails("late list", |b| b.list(list.clone()), is_late)?;
    let flush = FlushRequest::new(Scope::Object(object.clone())).deadline(now);
    let flush_late = |error: &Error| matches!(error, Error::DeadlinePassed | Error::NotStored(_));
    cx.fails("late flush", |b| b.flush(flush.clone()), flush_late)?;
    cx.expect(&object, b"before")?;
    cx.is_missing(&cx.object("copy"))?;
    ensure!(cx.info(&object)?.version == before.version, "a late change gave a new version");
    Ok(())
}

pub(super) fn a_deadline_far_away_changes_nothing(cx: &Cx<'_>) -> Check {
    let object = cx.object("in-time");
    cx.write(&source_of(&object), 0, b"source")?;
    let later = cx.clock.now() + Duration::from_secs(3600);
    cx.done(WriteRequest::new(object.clone(), 0, b"in time").deadline(later))?;
    let hints = Hints::NO_CACHE.and(Hints::SEQUENTIAL).and(Hints::from_bits(1 << 31));
    let read = ReadRequest::new(object.clone(), 0, 7).deadline(later).hints(hints);
    let reply = cx.ok("read", |b| b.read(read.clone()))?;
    ensure!(reply.data == *b"in time".as_slice(), "hints changed the bytes that are read");
    for (_, change) in changes(cx).into_iter().filter(|(what, _)| *what != "delete") {
        cx.done(change(object.clone()))?;
    }
    Ok(())
}

fn receives(cx: &Cx<'_>, subscriber: &mut Subscription, is: impl Fn(&Event) -> bool, what: &str) -> Check {
    loop {
        let lost = || Stop::Fail(format!("no event for {what} within {:?}", cx.options.timeout));
        match block_on_for(subscriber.recv(), cx.options.timeout).ok_or_else(lost)? {
            Some(event) if is(&event) => return Ok(()),
            Some(_) => {}
            None => return Err(lost()),
        }
    }
}

pub(super) fn subscribers_receive_invalidations(cx: &Cx<'_>) -> Check {
    let object = cx.object("changed");
    cx.write(&object, 0, b"bytes")?;
    let mut subscribers = [cx.backend().subscribe(), cx.backend().subscribe()];
    for scope in [Scope::Object(object.clone()), Scope::Namespace(cx.namespace())] {
        let request = InvalidateRequest::new(scope.clone());
        cx.ok("invalidate", |b| b.invalidate(request.clone()))?;
        for subscriber in &mut subscribers {
            let is_it =
                |event: &Event| matches!(event, Event::Changed(s) if *s == scope) || *event == Event::Missed;
            receives(cx, subscriber, is_it, "an invalidation")?;
        }
    }
    // Dirty data stay, even if they are invalidated.
    cx.expect(&object, b"bytes")
}

pub(super) fn subscribers_receive_claims(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    let scope = Scope::Object(cx.object("claimed"));
    let mut subscriber = cx.backend().subscribe();
    // A store that remembers an earlier run may already have a claim, so the epoch is raised step
    // by step.
    let mut epoch = 1;
    loop {
        let request = ClaimRequest::new(scope.clone(), Epoch(epoch), super::fencing::WRITER);
        match cx.wait("claim", |b| b.claim(request.clone()))? {
            Ok(_) if subscriber.try_next().is_none() && epoch < 3 => epoch += 1,
            Ok(_) => break,
            Err(Error::Fenced { epoch: found }) => epoch = found.0 + 1,
            Err(error) => return Err(Stop::Fail(format!("claim failed: {error}"))),
        }
    }
    let mut subscriber = cx.backend().subscribe();
    super::fencing::claim(cx, scope.clone(), epoch + 1)?;
    let is_it = |event: &Event| matches!(event, Event::Fenced(s, e) if *s == scope && e.0 == epoch + 1);
    receives(cx, &mut subscriber, is_it, "a claim")
}

pub(super) fn flush_of_every_scope_answers_stored(cx: &Cx<'_>) -> Check {
    let object = cx.object("flushed");
    let domain = OrderDomain(1);
    cx.flush(Scope::Namespace(cx.other_namespace()))?;
    cx.flush(Scope::Object(object.clone()))?;
    for scope in [
        Scope::Object(object.clone()),
        Scope::Domain(cx.namespace(), domain),
        Scope::Namespace(cx.namespace()),
        Scope::All,
    ] {
        cx.done(WriteRequest::new(object.clone(), 0, b"data").domain(domain))?;
        cx.flush(scope)?;
        cx.expect(&object, b"data")?;
    }
    Ok(())
}
