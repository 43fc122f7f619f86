//! Loss of power: stored data are intact, unstored data are old or new, and the order holds.
//!
//! Each case makes some changes, has the harness cut the power (which loses, tears and reorders
//! whatever the store is allowed to), and checks the result. Outcomes are random, so run many
//! seeds.

use std::collections::HashMap;

use super::context::{Check, Cx, ensure, same_bytes};
use crate::{
    CopyRequest, DeleteRequest, DiscardRequest, Durability, Epoch, Error, OrderDomain, ReadRequest, Run,
    Scope, Stamp, TruncateRequest, Version, WriteFullRequest, WriteRequest, WriteRunsRequest,
};

const SECTOR: usize = 512;

pub(super) fn what_is_stored_survives(cx: &Cx<'_>) -> Check {
    let (one, full, copied) = (cx.object("one"), cx.object("full"), cx.object("copied"));
    let data = cx.bytes(20_000);
    cx.write_stored(&one, 0, &data)?;
    cx.write_stored(&one, 30_000, b"end")?;
    cx.done(WriteFullRequest::new(full.clone(), data.clone()).durability(Durability::Stored))?;
    cx.done(CopyRequest::new(full.clone(), copied.clone()).durability(Durability::Stored))?;
    let long = cx.object([b'l'; 255]);
    cx.write_stored(&long, 5, b"long")?;
    cx.power_cycle()?;
    let mut wanted = data.to_vec();
    wanted.resize(30_000, 0);
    wanted.extend_from_slice(b"end");
    cx.expect(&one, &wanted)?;
    cx.expect(&full, &data)?;
    cx.expect(&copied, &data)?;
    cx.expect(&long, b"\0\0\0\0\0long")
}

pub(super) fn a_flush_stores_what_was_acknowledged(cx: &Cx<'_>) -> Check {
    let object = cx.object("flushed");
    for round in 0..4 {
        let data = cx.bytes(10_000);
        cx.write(&object, 0, &data)?;
        cx.done(TruncateRequest::new(object.clone(), 9_000))?;
        cx.done(DiscardRequest::new(object.clone(), 4096, 512))?;
        cx.flush(Scope::Object(object.clone()))?;
        cx.power_cycle()?;
        let mut wanted = data[..9_000].to_vec();
        wanted[4096..4608].fill(0);
        cx.expect(&object, &wanted)?;
        if round == 1 {
            cx.delete(&object)?;
            cx.flush(Scope::Object(object.clone()))?;
            cx.power_cycle()?;
            cx.is_missing(&object)?;
        }
    }
    Ok(())
}

pub(super) fn flushes_of_wider_scopes_store_it_too(cx: &Cx<'_>) -> Check {
    let domain = OrderDomain(3);
    let scopes = [Scope::Domain(cx.namespace(), domain), Scope::Namespace(cx.namespace()), Scope::All];
    for (round, scope) in scopes.into_iter().enumerate() {
        let objects: Vec<_> = (0..5).map(|n| cx.object(format!("{round}-{n}"))).collect();
        let data = cx.bytes(5_000);
        for object in &objects {
            cx.done(WriteRequest::new(object.clone(), 0, data.clone()).domain(domain))?;
        }
        cx.flush(scope)?;
        cx.power_cycle()?;
        for object in &objects {
            cx.expect(object, &data)?;
        }
    }
    Ok(())
}

pub(super) fn sectors_are_old_or_new(cx: &Cx<'_>) -> Check {
    let object = cx.object("sectors");
    for round in 0..4 * cx.options.effort {
        let old = cx.bytes(16_384);
        cx.write_stored(&object, 0, &old)?;
        let mut possible: Vec<Vec<u8>> = vec![old.to_vec()];
        for _ in 0..3 {
            let mut new = possible.last().expect("one at least").clone();
            let (at, data) = (cx.below(24) as usize * SECTOR, cx.bytes(8 * SECTOR));
            new[at..at + data.len()].copy_from_slice(&data);
            cx.write(&object, at as u64, &data)?;
            possible.push(new);
        }
        cx.power_cycle()?;
        let found = cx.read(&object)?;
        ensure!(found.len() == 16_384, "round {round}: {} bytes are left", found.len());
        let unit = (cx.caps.crash_atomic_bytes as usize).clamp(1, 4096);
        for at in (0..found.len()).step_by(unit) {
            let range = at..at + unit;
            let known = possible.iter().any(|each| each[range.clone()] == found[range.clone()]);
            ensure!(known, "round {round}: the unit at {at} is neither old nor new");
        }
    }
    Ok(())
}

pub(super) fn generations_are_kept_in_order(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.order_domains, "order domains")?;
    let domain = OrderDomain(9);
    let objects: Vec<_> = (0..6).map(|n| cx.object(format!("volume-{n}"))).collect();
    let mut generation = 0_u64;
    for _ in 0..4 * cx.options.effort {
        // Each generation writes its number everywhere, and only a flush separates two generations.
        let first = generation + 1;
        let last_flushed = first + cx.below(3);
        for number in first..=last_flushed + 1 {
            for object in &objects {
                let data = bytes::Bytes::from(number.to_le_bytes().repeat(64));
                cx.done(WriteRequest::new(object.clone(), 0, data).domain(domain))?;
            }
            if number <= last_flushed {
                cx.flush(Scope::Domain(cx.namespace(), domain))?;
            }
        }
        generation = last_flushed + 1;
        cx.power_cycle()?;
        for object in &objects {
            let bytes = cx.read(object)?;
            ensure!(bytes.len() == SECTOR, "{} bytes are left", bytes.len());
            let number = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            ensure!(bytes == number.to_le_bytes().repeat(64), "a sector is torn");
            let range = last_flushed..=generation;
            ensure!(range.contains(&number), "generation {number} is present, expected one of {range:?}");
        }
    }
    Ok(())
}

pub(super) fn a_full_write_is_all_or_nothing(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.write_full_atomic, "atomic write_full")?;
    let object = cx.object("full");
    let mut old = cx.bytes(9_000);
    cx.done(WriteFullRequest::new(object.clone(), old.clone()).durability(Durability::Stored))?;
    for _ in 0..4 * cx.options.effort {
        let new = cx.bytes(1 + cx.below(20_000) as usize);
        cx.done(WriteFullRequest::new(object.clone(), new.clone()))?;
        cx.power_cycle()?;
        let found = cx.read(&object)?;
        if found != *new {
            same_bytes(&found, &old)?;
        }
        old = found.into();
        cx.flush(Scope::Object(object.clone()))?;
    }
    Ok(())
}

pub(super) fn removals_that_are_stored_stay(cx: &Cx<'_>) -> Check {
    let (gone, cut, holed) = (cx.object("gone"), cx.object("cut"), cx.object("holed"));
    for object in [&gone, &cut, &holed] {
        cx.write_stored(object, 0, &[7; 10_000])?;
    }
    cx.done(DeleteRequest::new(gone.clone()).durability(Durability::Stored))?;
    cx.done(TruncateRequest::new(cut.clone(), 100).durability(Durability::Stored))?;
    cx.done(DiscardRequest::new(holed.clone(), 10, 9_000).durability(Durability::Stored))?;
    cx.power_cycle()?;
    cx.is_missing(&gone)?;
    cx.expect(&cut, &[7; 100])?;
    let found = cx.read(&holed)?;
    ensure!(found.len() == 10_000, "a discard changed the size");
    ensure!(found[10..9_010].iter().all(|byte| *byte == 0), "discarded bytes are back");
    ensure!(
        found[..10] == [7; 10] && found[9_010..] == [7; 990],
        "a discard removed bytes outside its range"
    );
    Ok(())
}

pub(super) fn claims_and_stamps_survive(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    let (stamped, claimed, dead) = (cx.object("stamped"), cx.object("claimed"), cx.object("dead"));
    let write =
        |stamp| WriteRequest::new(stamped.clone(), 0, b"data").stamp(stamp).durability(Durability::Stored);
    cx.done(write(Stamp::new(3, 5)))?;
    super::fencing::claim(cx, Scope::Object(claimed.clone()), 9)?;
    cx.done(WriteRequest::new(dead.clone(), 0, b"alive").stamp(Stamp::new(2, 1)))?;
    cx.done(DeleteRequest::new(dead.clone()).stamp(Stamp::new(2, 5)).durability(Durability::Stored))?;
    cx.power_cycle()?;
    let stamp = cx.info(&stamped)?.stamp;
    ensure!(stamp == Some(Stamp::new(3, 5)), "the stored stamp is now {stamp:?}");
    let superseded = Error::Superseded { stamp: Stamp::new(3, 5) };
    cx.refused(write(Stamp::new(3, 5)), |error| *error == superseded)?;
    let fenced = Error::Fenced { epoch: Epoch(9) };
    let late = WriteRequest::new(claimed.clone(), 0, b"late").stamp(Stamp::new(8, 1));
    cx.refused(late, |error| *error == fenced)?;
    if cx.caps.tombstones {
        let buried = Error::Superseded { stamp: Stamp::new(2, 5) };
        let late = WriteRequest::new(dead.clone(), 0, b"late").stamp(Stamp::new(2, 4));
        cx.refused(late, |error| *error == buried)?;
    }
    cx.is_missing(&dead)
}

pub(super) fn runs_are_stored_with_their_stamp(cx: &Cx<'_>) -> Check {
    cx.skip_unless(cx.caps.runs_max > 2, "write_runs")?;
    cx.skip_unless(cx.caps.fencing, "fencing")?;
    let object = cx.object("runs");
    let places = [0_u64, 5_000, 12_288];
    let mut number = 0_u64;
    for round in 0..4 * cx.options.effort {
        let (stored, last) = (number + 1, number + 3);
        while number < last {
            number += 1;
            let run = |at: &u64| Run::data(*at, bytes::Bytes::from(number.to_le_bytes().to_vec()));
            let mut request = WriteRunsRequest::new(object.clone(), places.iter().map(run).collect());
            request = request.stamp(Stamp::new(1, number));
            if number == stored {
                request = request.durability(Durability::Stored);
            }
            cx.done(request)?;
        }
        cx.power_cycle()?;
        let found = cx.info(&object)?.stamp.map_or(0, |stamp| stamp.sequence);
        ensure!((stored..=last).contains(&found), "round {round}: stamp {found}, where {stored} was stored");
        let bytes = cx.read(&object)?;
        for at in places {
            let at = at as usize;
            let written = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
            ensure!(written >= found, "round {round}: a run of change {written} under stamp {found}");
        }
        number = found;
    }
    Ok(())
}

pub(super) fn versions_are_not_reused_after_a_crash(cx: &Cx<'_>) -> Check {
    let object = cx.object("versions");
    let mut seen: HashMap<Version, Vec<u8>> = HashMap::new();
    for round in 0..6 * cx.options.effort {
        for _ in 0..=cx.below(4) {
            let data = cx.bytes(600);
            if cx.below(3) == 0 {
                cx.flush(Scope::Object(object.clone()))?;
            }
            let version = cx.write(&object, 0, &data)?.version;
            let before = seen.insert(version, data.to_vec());
            ensure!(before.is_none(), "round {round}: version {version} denotes two different contents");
        }
        cx.power_cycle()?;
        let read = ReadRequest::new(object.clone(), 0, 600);
        match cx.wait("read", |b| b.read(read.clone()))? {
            Err(Error::Missing) => {}
            Err(error) => ensure!(false, "after a crash: {error}"),
            Ok(reply) => {
                let found = reply.data.to_vec();
                let known = seen.entry(reply.version).or_insert_with(|| found.clone());
                ensure!(*known == found, "round {round}: a version denotes other bytes after a crash");
            }
        }
    }
    Ok(())
}
