//! Conditions and versions: check and change are one step, and no version is used twice.

use std::collections::HashMap;

use super::context::{Check, Cx, ensure};
use crate::{
    ChangeRequest, CompareAndWriteRequest, Condition, CopyRequest, DeleteRequest, DiscardRequest, Durability,
    Error, ObjectId, ReadRequest, Run, Segments, TruncateRequest, Version, WriteFullRequest, WriteRequest,
    WriteRunsRequest, WriteZeroesRequest,
};

/// Returns every operation that changes an existing object.
pub(super) fn changes(cx: &Cx<'_>) -> Vec<(&'static str, ChangeOf)> {
    let mut all: Vec<(&'static str, ChangeOf)> = vec![
        ("write", |o| WriteRequest::new(o, 1, b"new").into()),
        ("write_zeroes", |o| WriteZeroesRequest::new(o, 1, 3).into()),
        ("discard", |o| DiscardRequest::new(o, 1, 3).into()),
        ("write_full", |o| WriteFullRequest::new(o, b"whole").into()),
        ("truncate", |o| TruncateRequest::new(o, 2).into()),
        ("copy", |o| CopyRequest::new(source_of(&o), o).into()),
        ("delete", |o| DeleteRequest::new(o).into()),
    ];
    if cx.caps.runs_max > 1 {
        all.push(("write_runs", |o| {
            WriteRunsRequest::new(o, vec![Run::data(1, b"new"), Run::zeroes(6, 2)]).into()
        }));
    }
    if cx.caps.compare_bytes_max > 0 {
        all.push(("compare_and_write", |o| {
            CompareAndWriteRequest::new(o, 0, Segments::new(), b"cas").into()
        }));
    }
    all
}

/// Returns a change of an object.
type ChangeOf = fn(ObjectId) -> ChangeRequest;

/// Returns the source of the copy in [`changes`]; a case that uses it creates the object first.
pub(super) fn source_of(object: &ObjectId) -> ObjectId {
    let name = crate::name::Name::new("source").expect("a proper name");
    ObjectId::new(object.namespace.clone(), name)
}

pub(super) fn every_change_gives_a_new_version(cx: &Cx<'_>) -> Check {
    let object = cx.object("versions");
    cx.write(&source_of(&object), 0, b"source")?;
    let mut seen = vec![cx.write(&object, 0, b"0123456789")?.version];
    for (what, change) in changes(cx).into_iter().filter(|(what, _)| *what != "delete") {
        let reply = cx.done(change(object.clone()))?;
        ensure!(!seen.contains(&reply.version), "{what} gave a version used before");
        let info = cx.info(&object)?;
        ensure!(info.version == reply.version, "info after {what} shows another version than its reply");
        ensure!(info.size_bytes == reply.size_bytes, "info after {what} shows another size than its reply");
        seen.push(reply.version);
    }
    Ok(())
}

pub(super) fn a_version_is_never_used_twice(cx: &Cx<'_>) -> Check {
    let object = cx.object("reborn");
    let mut seen: HashMap<Version, u32> = HashMap::new();
    for round in 0..10_u32 {
        let version = cx.write(&object, 0, &round.to_le_bytes())?.version;
        let before = seen.insert(version, round);
        ensure!(before.is_none(), "version {version} of round {before:?} is back in round {round}");
        cx.delete(&object)?;
    }
    Ok(())
}

pub(super) fn if_version_guards_every_operation(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.conditions, "conditions")?;
    for (what, change) in changes(cx) {
        let object = cx.object(what);
        cx.write(&source_of(&object), 0, b"source")?;
        let old = cx.write(&object, 0, b"old")?.version;
        let current = cx.write(&object, 0, b"current")?.version;
        let failed = Error::ConditionFailed { version: current };
        cx.refused(change(object.clone()).condition(Condition::Version(old)), |error| *error == failed)?;
        cx.expect(&object, b"current")?;
        ensure!(cx.info(&object)?.version == current, "a refused {what} gave a new version");
        cx.done(change(object.clone()).condition(Condition::Version(current)))?;
        let absent = cx.object("absent");
        cx.refused(change(absent.clone()).condition(Condition::Version(current)), |error| {
            *error == Error::Missing
        })?;
        cx.is_missing(&absent)?;
    }
    let (from, to) = (cx.object("from"), cx.object("to"));
    let old = cx.write(&from, 0, b"old")?.version;
    let current = cx.write(&from, 0, b"new")?.version;
    let copy = |version| CopyRequest::new(from.clone(), to.clone()).if_from_version(version);
    let failed = Error::ConditionFailed { version: current };
    cx.refused(copy(old), |error| *error == failed)?;
    cx.is_missing(&to)?;
    cx.done(copy(current))?;
    cx.expect(&to, b"new")
}

pub(super) fn absent_and_present_guard_creation(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.conditions, "conditions")?;
    cx.write(&source_of(&cx.object("x")), 0, b"source")?;
    for (what, change) in changes(cx) {
        let object = cx.object(what);
        if ["write", "write_zeroes", "write_runs", "write_full", "copy"].contains(&what) {
            cx.refused(change(object.clone()).condition(Condition::Present), |error| {
                *error == Error::Missing
            })?;
            cx.is_missing(&object)?;
            cx.done(change(object.clone()).condition(Condition::Absent))?;
        } else {
            cx.write(&object, 0, b"there")?;
        }
        let before = cx.read_reply(&object)?;
        cx.refused(change(object.clone()).condition(Condition::Absent), |error| *error == Error::Exists)?;
        let after = cx.read_reply(&object)?;
        ensure!(after.version == before.version, "a refused {what} changed the object");
        cx.done(change(object.clone()).condition(Condition::Present))?;
    }
    Ok(())
}

pub(super) fn a_failed_change_changes_nothing(cx: &Cx<'_>) -> Check {
    let object = cx.object("intact");
    let before = cx.write(&object, 0, b"intact")?;
    let limit = cx.caps.object_bytes_max;
    let too_large = |error: &Error| matches!(error, Error::TooLarge { .. });
    cx.refused(WriteRequest::new(object.clone(), limit, b"x"), too_large)?;
    cx.refused(TruncateRequest::new(object.clone(), limit + 1), too_large)?;
    cx.refused(WriteZeroesRequest::new(object.clone(), 0, limit + 1), too_large)?;
    let after = cx.read_reply(&object)?;
    ensure!(after.version == before.version, "a refused change gave a new version");
    cx.expect(&object, b"intact")
}

pub(super) fn reads_can_ask_for_a_version(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.conditions, "conditions")?;
    let object = cx.object("pinned");
    let old = cx.write(&object, 0, b"old")?.version;
    let current = cx.write(&object, 0, b"new")?.version;
    let read = |version| ReadRequest::new(object.clone(), 0, 10).if_version(version);
    let reply = cx.ok("read of this version", |b| b.read(read(current)))?;
    ensure!(reply.data.to_vec() == b"new", "a conditional read gives other bytes");
    let failed = Error::ConditionFailed { version: current };
    cx.fails("read of an older version", |b| b.read(read(old)), |error| *error == failed)
}

pub(super) fn replies_give_the_durability_asked_for(cx: &Cx<'_>) -> Check {
    let object = cx.object("durable");
    let strongest = cx.caps.durability_max;
    cx.write(&source_of(&object), 0, b"source")?;
    for wanted in [Durability::Cached, strongest] {
        for (what, change) in changes(cx) {
            cx.write(&object, 0, b"0123456789")?;
            let given = cx.done(change(object.clone()).durability(wanted))?.durability;
            ensure!(given >= wanted, "{what} gave {given} where {wanted} was wanted");
        }
    }
    Ok(())
}
