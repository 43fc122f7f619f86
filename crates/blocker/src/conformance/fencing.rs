//! Fencing: a deposed or late writer is always refused.

use super::conditions::{changes, source_of};
use super::context::{Check, Cx, ensure};
use crate::admission::EPOCH_STEP_MAX;
use crate::{
    ChangeReply, ChangeTerms, ClaimRequest, CopyRequest, DeleteRequest, Epoch, Error, ListRequest, ObjectId,
    OrderDomain, Scope, Stamp, WriteRequest, WriterId,
};

/// The writer of the suite's own claims, the same in every run.
pub(super) const WRITER: WriterId = WriterId(0x5eed);
/// A second writer.
const OTHER_WRITER: WriterId = WriterId(0x07e4);

fn stamped(cx: &Cx<'_>, object: &ObjectId, stamp: Stamp, data: &'static [u8]) -> Check<ChangeReply> {
    cx.done(WriteRequest::new(object.clone(), 0, data).stamp(stamp))
}

pub(super) fn claim(cx: &Cx<'_>, scope: Scope, epoch: u64) -> Check {
    let reply = cx.ok("claim", |b| b.claim(ClaimRequest::new(scope.clone(), Epoch(epoch), WRITER)))?;
    ensure!(reply.epoch == Epoch(epoch), "a claim of {epoch} gave {}", reply.epoch);
    Ok(())
}

fn refused(cx: &Cx<'_>, object: &ObjectId, change: ChangeTerms, wanted: &Error) -> Check {
    cx.refused(WriteRequest::new(object.clone(), 0, b"late").terms(change), |error| error == wanted)
}

fn with(stamp: Option<Stamp>) -> ChangeTerms {
    ChangeTerms { stamp, ..ChangeTerms::default() }
}

pub(super) fn stamps_rise_or_are_refused(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    let object = cx.object("stamps");
    stamped(cx, &object, Stamp::new(1, 5), b"first")?;
    stamped(cx, &object, Stamp::new(1, 6), b"again")?;
    let carried = Error::Superseded { stamp: Stamp::new(1, 6) };
    refused(cx, &object, with(Some(Stamp::new(1, 6))), &carried)?;
    refused(cx, &object, with(Some(Stamp::new(1, 0))), &carried)?;
    cx.expect(&object, b"again")?;
    // Sequences restart with a new epoch.
    stamped(cx, &object, Stamp::new(2, 0), b"epoch")?;
    cx.expect(&object, b"epoch")
}

pub(super) fn the_stamp_is_shown_and_kept(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    let object = cx.object("shown");
    cx.write(&object, 0, b"plain")?;
    ensure!(cx.info(&object)?.stamp.is_none(), "an unstamped object shows a stamp");
    stamped(cx, &object, Stamp::new(0, 3), b"zero")?;
    // An epoch of 0 orders changes, but excludes no writer.
    cx.write(&object, 0, b"plain")?;
    ensure!(cx.info(&object)?.stamp == Some(Stamp::new(0, 3)), "an unstamped change moved the stamp");
    stamped(cx, &object, Stamp::new(4, 1), b"four")?;
    ensure!(cx.info(&object)?.stamp == Some(Stamp::new(4, 1)), "info does not show the last stamp");
    Ok(())
}

pub(super) fn older_epochs_are_refused_by_every_operation(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    for (what, change) in changes(cx) {
        let object = cx.object(what);
        cx.write(&source_of(&object), 0, b"source")?;
        stamped(cx, &object, Stamp::new(7, 1), b"current")?;
        let before = cx.info(&object)?;
        let fenced = Error::Fenced { epoch: Epoch(7) };
        for stamp in [None, Some(Stamp::new(6, 99))] {
            cx.refused(change(object.clone()).terms(with(stamp)), |error| *error == fenced)?;
        }
        let superseded = Error::Superseded { stamp: Stamp::new(7, 1) };
        let replayed = with(Some(Stamp::new(7, 1)));
        cx.refused(change(object.clone()).terms(replayed), |error| *error == superseded)?;
        cx.expect(&object, b"current")?;
        ensure!(cx.info(&object)?.version == before.version, "a refused {what} gave a new version");
        cx.done(change(object.clone()).terms(with(Some(Stamp::new(7, 2)))))?;
    }
    Ok(())
}

pub(super) fn a_claim_refuses_older_epochs_in_its_scope_only(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    let (one, other) = (cx.object("one"), cx.object("other"));
    // The epochs of a real store outlive the run, so the test starts from the epoch in force.
    claim(cx, Scope::Object(one.clone()), 10)?;
    let fenced = Error::Fenced { epoch: Epoch(10) };
    refused(cx, &one, with(None), &fenced)?;
    refused(cx, &one, with(Some(Stamp::new(9, 1))), &fenced)?;
    cx.is_missing(&one)?;
    stamped(cx, &one, Stamp::new(10, 1), b"mine")?;
    cx.write(&other, 0, b"free")?;

    claim(cx, Scope::Namespace(cx.namespace()), 20)?;
    let fenced = Error::Fenced { epoch: Epoch(20) };
    refused(cx, &other, with(None), &fenced)?;
    refused(cx, &one, with(Some(Stamp::new(10, 2))), &fenced)?;
    stamped(cx, &one, Stamp::new(20, 0), b"newer")?;
    let elsewhere = ObjectId::new(cx.other_namespace(), one.name.clone());
    cx.write(&elsewhere, 0, b"free")?;
    // Reading needs no epoch.
    cx.expect(&one, b"newer")?;
    cx.expect(&other, b"free")
}

pub(super) fn a_claim_of_a_domain_binds_its_changes(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    let object = cx.object("volume");
    let domain = OrderDomain(7);
    claim(cx, Scope::Domain(cx.namespace(), domain), 5)?;
    let fenced = Error::Fenced { epoch: Epoch(5) };
    let inside = ChangeTerms { domain: Some(domain), ..with(Some(Stamp::new(4, 1))) };
    refused(cx, &object, inside, &fenced)?;
    let outside = ChangeTerms { domain: Some(OrderDomain(8)), ..with(Some(Stamp::new(4, 1))) };
    cx.done(WriteRequest::new(object.clone(), 0, b"other domain").terms(outside))?;
    let inside = ChangeTerms { domain: Some(domain), ..with(Some(Stamp::new(5, 1))) };
    cx.done(WriteRequest::new(object.clone(), 0, b"own").terms(inside)).map(drop)
}

pub(super) fn claims_never_fall(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    let scope = Scope::Object(cx.object("claimed"));
    claim(cx, scope.clone(), 8)?;
    claim(cx, scope.clone(), 8)?;
    let fenced = Error::Fenced { epoch: Epoch(8) };
    let lower = ClaimRequest::new(scope.clone(), Epoch(7), WRITER);
    cx.fails("lower claim", |b| b.claim(lower.clone()), |error| *error == fenced)?;
    refused(cx, &cx.object("claimed"), with(Some(Stamp::new(7, 1))), &fenced)?;
    claim(cx, scope, 9)
}

pub(super) fn an_epoch_in_force_is_refused_to_another_writer(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    let object = cx.object("contested");
    let whole = Scope::Namespace(cx.namespace());
    let (one, domain) = (Scope::Object(object.clone()), Scope::Domain(cx.namespace(), OrderDomain(3)));
    let refuses = |scope: &Scope, epoch, writer| {
        let fenced = Error::Fenced { epoch: Epoch(epoch) };
        let request = ClaimRequest::new(scope.clone(), Epoch(epoch), writer);
        cx.fails("claiming as another writer", |b| b.claim(request.clone()), |error| *error == fenced)
    };
    for (epoch, scope) in [(10, &one), (20, &domain), (30, &whole)] {
        claim(cx, scope.clone(), epoch)?;
        refuses(scope, epoch, OTHER_WRITER)?;
        // The same claim is repeated, as after a lost reply.
        claim(cx, scope.clone(), epoch)?;
    }
    // A wider claim binds narrower scopes, and a narrower one excludes others from the wider scope.
    refuses(&one, 30, OTHER_WRITER)?;
    refuses(&domain, 30, OTHER_WRITER)?;
    claim(cx, one.clone(), 30)?;
    claim(cx, one.clone(), 40)?;
    refuses(&whole, 40, OTHER_WRITER)?;
    refuses(&one, 40, OTHER_WRITER)?;
    stamped(cx, &object, Stamp::new(40, 1), b"held")?;
    let next = ClaimRequest::new(whole.clone(), Epoch(41), OTHER_WRITER);
    cx.ok("claiming the next epoch", |b| b.claim(next.clone()))?;
    refuses(&whole, 41, WRITER)?;
    refused(cx, &object, with(Some(Stamp::new(40, 2))), &Error::Fenced { epoch: Epoch(41) })?;
    cx.expect(&object, b"held")
}

pub(super) fn an_epoch_rises_by_limited_steps(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    let object = cx.object("stepped");
    let scope = Scope::Object(object.clone());
    let invalid = |error: &Error| matches!(error, Error::Invalid(_));
    for epoch in [u64::MAX, EPOCH_STEP_MAX + 1] {
        let far = ClaimRequest::new(scope.clone(), Epoch(epoch), WRITER);
        cx.fails("claiming an epoch beyond the allowed step", |b| b.claim(far.clone()), invalid)?;
        cx.refused(WriteRequest::new(object.clone(), 0, b"far").stamp(Stamp::new(epoch, 1)), invalid)?;
    }
    cx.is_missing(&object)?;
    claim(cx, scope, EPOCH_STEP_MAX)?;
    stamped(cx, &object, Stamp::new(2 * EPOCH_STEP_MAX, 1), b"far enough")?;
    cx.expect(&object, b"far enough")
}

pub(super) fn a_claim_of_everything_binds_everything(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    cx.skip_unless(cx.options.exclusive, "exclusive use by the suite")?;
    claim(cx, Scope::All, 1)?;
    let fenced = Error::Fenced { epoch: Epoch(1) };
    refused(cx, &cx.object("any"), with(None), &fenced)?;
    refused(cx, &ObjectId::new(cx.other_namespace(), cx.object("any").name), with(None), &fenced)
}

pub(super) fn a_deleted_object_is_not_brought_back_by_a_late_change(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing && cx.caps.tombstones, "memory of deletions")?;
    let object = cx.object("dead");
    stamped(cx, &object, Stamp::new(3, 1), b"alive")?;
    cx.done(DeleteRequest::new(object.clone()).stamp(Stamp::new(3, 3)))?;
    let buried = Error::Superseded { stamp: Stamp::new(3, 3) };
    refused(cx, &object, with(Some(Stamp::new(3, 2))), &buried)?;
    refused(cx, &object, with(None), &Error::Fenced { epoch: Epoch(3) })?;
    cx.is_missing(&object)?;
    ensure!(cx.names(&ListRequest::new(cx.namespace()))?.is_empty(), "a remembered deletion is listed");
    stamped(cx, &object, Stamp::new(3, 4), b"reborn")?;
    cx.expect(&object, b"reborn")?;
    cx.done(DeleteRequest::new(object.clone()).stamp(Stamp::new(3, 5)))?;
    // The claim replaces the remembered deletion.
    claim(cx, Scope::Object(object.clone()), 4)?;
    refused(cx, &object, with(Some(Stamp::new(3, 9))), &Error::Fenced { epoch: Epoch(4) })?;
    cx.is_missing(&object)
}

pub(super) fn copies_do_not_take_the_stamp_along(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    let (from, to) = (cx.object("from"), cx.object("to"));
    stamped(cx, &from, Stamp::new(5, 5), b"stamped")?;
    cx.done(CopyRequest::new(from.clone(), to.clone()))?;
    ensure!(cx.info(&to)?.stamp.is_none(), "a copy carries its source's stamp");
    cx.write(&to, 0, b"free!!!")?;
    cx.done(CopyRequest::new(from.clone(), to.clone()).stamp(Stamp::new(2, 1)))?;
    ensure!(cx.info(&to)?.stamp == Some(Stamp::new(2, 1)), "a stamped copy does not carry its own stamp");
    Ok(())
}
