//! Damage to the file backend's own data about objects: the store tolerates or refuses it, the
//! check finds it, and it never makes older data valid. Objects' bytes have no checksum and are
//! left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::simulated::SimulatedDisk;
use super::testing::{ROOT, new_disk, object_in, open};
use crate::executor::block_on;
use crate::file::FileStore;
use crate::file::check::{CheckReport, check_on};
use crate::file::slot::{HEADER_BYTES, SLOT_BYTES};
use crate::file::twice::Superblock;
use crate::{
    Blocker, BlockerExt, ChangeTerms, ClaimRequest, DeleteRequest, Durability, Epoch, Error, InfoRequest,
    ListRequest, ObjectId, ReadRequest, Scope, Stamp, Version, WriteFullRequest, WriteRequest, WriterId,
};

fn object(name: &str) -> ObjectId {
    object_in("n", name)
}

fn path_of(name: &str) -> PathBuf {
    Path::new(ROOT).join("objects/n.ns").join(format!("{name}.obj"))
}

fn write(store: &FileStore, name: &str, data: Vec<u8>, stamp: Option<Stamp>) {
    let change = ChangeTerms { stamp, durability: Durability::Stored, ..ChangeTerms::default() };
    block_on(store.write(WriteRequest::new(object(name), 0, data).terms(change))).unwrap();
}

/// Returns a small, closed store: a packed object that was changed, a large one, a deleted one, and
/// a claim.
fn built() -> SimulatedDisk {
    let disk = new_disk();
    let store = open(&disk).unwrap();
    write(&store, "small", vec![1; 100], Some(Stamp::new(3, 1)));
    write(&store, "small", vec![2; 100], Some(Stamp::new(3, 2)));
    write(&store, "large", vec![3; 5_000], None);
    write(&store, "gone", vec![4; 100], Some(Stamp::new(2, 1)));
    let delete = DeleteRequest::new(object("gone")).stamp(Stamp::new(2, 5)).durability(Durability::Stored);
    block_on(store.delete(delete)).unwrap();
    for epoch in [8, 9] {
        let scope = Scope::Object(object("claimed"));
        block_on(store.claim(ClaimRequest::new(scope, Epoch(epoch), WriterId(5)))).unwrap();
    }
    store.close().unwrap();
    disk
}

type Versions = BTreeMap<&'static str, Version>;

/// Checks that all objects are as they were built. Returns the versions.
#[track_caller]
fn is_whole(store: &FileStore, what: &str) -> Versions {
    let mut versions = Versions::new();
    for (name, content, stamp) in
        [("small", vec![2; 100], Some(Stamp::new(3, 2))), ("large", vec![3; 5_000], None)]
    {
        let info = block_on(store.info(InfoRequest::new(object(name))));
        let info = info.unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        assert_eq!(info.stamp, stamp, "{what}: the stamp of {name} went back");
        let read = block_on(store.read(ReadRequest::new(object(name), 0, 10_000))).unwrap();
        assert_eq!(read.data.to_vec(), content, "{what}: {name}");
        versions.insert(name, info.version);
    }
    let late = WriteRequest::new(object("gone"), 0, b"late").stamp(Stamp::new(2, 4));
    let superseded = Error::Superseded { stamp: Stamp::new(2, 5) };
    assert_eq!(block_on(store.write(late)).unwrap_err(), superseded, "{what}");
    let late = WriteRequest::new(object("claimed"), 0, b"late").stamp(Stamp::new(8, 1));
    assert_eq!(block_on(store.write(late)).unwrap_err(), Error::Fenced { epoch: Epoch(9) }, "{what}");
    let listed = block_on(store.list(ListRequest::new(object("x").namespace))).unwrap();
    assert_eq!(listed.entries.len(), 2, "{what}");
    versions
}

fn checked(disk: &SimulatedDisk, repair: bool) -> (CheckReport, String) {
    let mut findings = String::new();
    let report = check_on(disk, Path::new(ROOT), repair, &mut |finding| {
        findings += &format!("{}: {} ({})\n", finding.path.display(), finding.what, finding.remedy);
    });
    (report.unwrap(), findings)
}

#[test]
fn every_flipped_bit_is_borne_and_found() {
    let contents = built().contents();
    let versions = is_whole(&open(&built()).unwrap(), "undamaged");
    let mut flips = 0;
    for (path, content) in &contents {
        let is_object = path.extension().is_some_and(|extension| extension == "obj");
        let len = if is_object { HEADER_BYTES as usize } else { content.len() };
        for at in 0..len {
            // The rest of a header's sectors is unused.
            let matters = !is_object || at % 512 < SLOT_BYTES;
            if !matters && at % 31 != 0 {
                continue;
            }
            flips += 1;
            let what = format!("bit {} of byte {at} of {}", at % 8, path.display());
            let disk = built();
            let mut damaged = content.clone();
            damaged[at] ^= 1 << (at % 8);
            disk.tamper(path, Some(damaged));
            let (report, findings) = checked(&disk, false);
            assert_eq!(report.damaged > 0, matters, "{what}: {findings}");
            let store = open(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = is_whole(&store, &what);
            // After damage to the superblock every version is new; otherwise versions do not
            // change.
            let is_superblock = path.ends_with("superblock");
            assert_eq!(found == versions, !is_superblock, "{what}");
            drop(store);
            // After a repair a check finds nothing.
            let (report, _) = checked(&disk, true);
            assert!(report.damaged == 0 || matters);
            let (report, findings) = checked(&disk, false);
            assert_eq!(report.damaged, 0, "{what}: {findings}");
            is_whole(&open(&disk).unwrap(), &what);
        }
    }
    assert!(flips > 500, "only {flips} flips");
}

#[test]
fn a_header_damaged_twice_is_refused_until_the_file_is_set_aside() {
    for name in ["small", "large", "gone"] {
        let disk = built();
        let mut content = disk.contents()[&path_of(name)].clone();
        content[10] ^= 1;
        content[512 + 20] ^= 1;
        disk.tamper(&path_of(name), Some(content.clone()));
        let store = open(&disk).unwrap();
        let kind = |result: Result<(), Error>| result.map_err(|error| error.kind());
        let stamp = Stamp::new(9, 9);
        let id = || object(name);
        for result in [
            block_on(store.info(InfoRequest::new(id()))).map(drop),
            block_on(store.read(ReadRequest::new(id(), 0, 1))).map(drop),
            block_on(store.write(WriteRequest::new(id(), 0, b"x").stamp(stamp))).map(drop),
            block_on(store.write_full(WriteFullRequest::new(id(), b"x").stamp(stamp))).map(drop),
            block_on(store.delete(DeleteRequest::new(id()).stamp(stamp))).map(drop),
            block_on(store.list(ListRequest::new(id().namespace))).map(drop),
        ] {
            assert_eq!(kind(result), Err("corrupt"), "{name}");
        }
        let other = if name == "small" { "large" } else { "small" };
        block_on(store.read(ReadRequest::new(object(other), 0, 1))).unwrap();
        store.close().unwrap();
        drop(store);
        let (report, findings) = checked(&disk, false);
        assert_eq!(report.damaged, 1, "{findings}");
        assert!(disk.contents().contains_key(&path_of(name)), "a check changes nothing");
        checked(&disk, true);
        let aside = Path::new(ROOT).join(format!("damaged/0-{name}.obj"));
        assert_eq!(disk.contents().get(&aside), Some(&content));
        assert_eq!(checked(&disk, false).0.damaged, 0);
        let store = open(&disk).unwrap();
        assert_eq!(block_on(store.info(InfoRequest::new(id()))).unwrap_err(), Error::Missing);
        write(&store, name, b"anew".to_vec(), Some(stamp));
    }
}

#[test]
fn a_superblock_lost_twice_is_made_again() {
    for content in [None, Some(b"nonsense".to_vec()), Some(Vec::new())] {
        let disk = built();
        let before = is_whole(&open(&disk).unwrap(), "before");
        for name in ["superblock", "superblock.copy"] {
            disk.tamper(&Path::new(ROOT).join(name), content.clone());
        }
        let refused = open(&disk).map(drop).unwrap_err();
        assert_eq!(refused.kind(), "corrupt");
        assert!(refused.to_string().contains("cachectl fsck /store --repair"), "{refused}");
        assert_eq!(checked(&disk, true).0.damaged, 2);
        let store = open(&disk).unwrap();
        let versions = is_whole(&store, "after the repair");
        assert!(versions.iter().all(|(name, version)| before[name] < *version));
    }
}

#[test]
fn claims_are_missed() {
    let claims = Path::new(ROOT).join("claims");
    let copy = Path::new(ROOT).join("claims.copy");
    for gone in [&claims, &copy] {
        let disk = built();
        disk.tamper(gone, None);
        assert_eq!(checked(&disk, false).0.damaged, 1);
        is_whole(&open(&disk).unwrap(), "one file of claims is missing");
        assert_eq!(checked(&disk, false).0.damaged, 0, "the start has written it again");
    }
    let disk = built();
    disk.tamper(&claims, None);
    disk.tamper(&copy, None);
    let refused = open(&disk).map(drop).unwrap_err();
    assert_eq!(refused.kind(), "corrupt");
    assert!(refused.to_string().contains("claims"), "{refused}");
    let (report, findings) = checked(&disk, true);
    assert_eq!(report.damaged, 2, "{findings}");
    assert!(findings.contains("Every writer must claim again"), "{findings}");
    // No earlier writer is admitted, whatever stamps it has stored: the namespace's highest is 3:2.
    let store = open(&disk).unwrap();
    let late = WriteRequest::new(object("new"), 0, b"late").stamp(Stamp::new(3, 9));
    assert_eq!(block_on(store.write(late)).unwrap_err(), Error::Fenced { epoch: Epoch(4) });
    let claim = |epoch| {
        let scope = Scope::Namespace(object("x").namespace);
        block_on(store.claim(ClaimRequest::new(scope, Epoch(epoch), WriterId(5)))).map(drop)
    };
    for epoch in [3, 4] {
        assert_eq!(claim(epoch), Err(Error::Fenced { epoch: Epoch(4) }));
    }
    claim(5).unwrap();
    write(&store, "claimed", b"x".to_vec(), Some(Stamp::new(5, 1)));
}

#[test]
fn rebuilt_claims_are_above_the_highest_stamp_wherever_that_is() {
    let disk = new_disk();
    let store = open(&disk).unwrap();
    // The damaged object is the first or the last of its namespace, in whichever order the two are
    // read.
    for (namespace, highest) in [("m", "a"), ("n", "z")] {
        for name in ["a", "k", "z"] {
            let epoch = if name == highest { 9 } else { 2 };
            let stamp = Some(Stamp::new(epoch, 1));
            let terms = ChangeTerms { stamp, durability: Durability::Stored, ..ChangeTerms::default() };
            let write = WriteRequest::new(object_in(namespace, name), 0, b"x");
            block_on(store.write(write.terms(terms))).unwrap();
        }
    }
    store.close().unwrap();
    for name in ["claims", "claims.copy"] {
        disk.tamper(&Path::new(ROOT).join(name), None);
    }
    checked(&disk, true);
    let store = open(&disk).unwrap();
    for namespace in ["m", "n"] {
        let ask = ClaimRequest::ask(Scope::Namespace(object_in(namespace, "a").namespace));
        assert_eq!(block_on(store.claim(ask)).unwrap_err(), Error::Fenced { epoch: Epoch(10) });
    }
}

#[test]
fn what_a_second_repair_sets_aside_replaces_nothing() {
    let disk = built();
    let path = path_of("large");
    let damaged = [6, 7].map(|byte| {
        let store = open(&disk).unwrap();
        write(&store, "large", vec![byte; 5_000], None);
        store.close().unwrap();
        let mut damaged = disk.contents()[&path].clone();
        for copy in [0, 512] {
            damaged[copy + 10] ^= 1;
        }
        disk.tamper(&path, Some(damaged.clone()));
        checked(&disk, true);
        damaged
    });
    let now = disk.contents();
    for (number, damaged) in damaged.iter().enumerate() {
        assert_eq!(now[&Path::new(ROOT).join(format!("damaged/{number}-large.obj"))], *damaged);
    }
}

/// The second copy may be of an earlier time, when all was in order.
#[test]
fn a_repair_from_the_second_superblock_makes_no_orderly_end_of_it() {
    let disk = built();
    let path = Path::new(ROOT).join("superblock");
    assert!(Superblock::decode(&disk.contents()[&path]).unwrap().clean);
    disk.tamper(&path, None);
    checked(&disk, true);
    assert!(!Superblock::decode(&disk.contents()[&path]).unwrap().clean);
}

#[test]
fn a_repair_keeps_what_it_replaces_and_reports_what_is_done() {
    let disk = built();
    let damage = |path: &Path, at: usize| {
        let before = disk.contents()[path].clone();
        let mut damaged = before.clone();
        damaged[at] ^= 1;
        disk.tamper(path, Some(damaged.clone()));
        (path.to_path_buf(), before, damaged)
    };
    let in_root = |name: &str| Path::new(ROOT).join(name);
    let damaged = [
        (damage(&in_root("superblock"), 9), "0-superblock"),
        (damage(&in_root("claims"), 9), "0-claims"),
        (damage(&in_root("claims.copy"), 9), "0-claims.copy"),
        (damage(&path_of("small"), 10), "0-small.obj.header"),
    ];
    let mut reported = Vec::new();
    let report = check_on(&disk, Path::new(ROOT), true, &mut |finding| {
        // The store has been repaired by now.
        let now = disk.contents();
        let ((path, before, was), kept) =
            damaged.iter().find(|((path, ..), _)| *path == finding.path).expect("one of the four");
        assert_ne!(now[path], *was, "{finding:?}");
        if path.ends_with("superblock") {
            assert_eq!(now[path], now[&in_root("superblock.copy")]);
        } else if *path == path_of("small") {
            assert_eq!(now[path][HEADER_BYTES as usize..], before[HEADER_BYTES as usize..]);
        }
        let kept = in_root("damaged").join(kept);
        assert!(finding.remedy.contains(&kept.display().to_string()), "{finding:?}");
        let len = now[&kept].len();
        assert_eq!(now[&kept], was[..len]);
        assert!(len == was.len() || len == HEADER_BYTES as usize);
        reported.push(path.clone());
    });
    assert_eq!((report.unwrap().damaged, reported.len()), (4, 4));
    assert_eq!(checked(&disk, false).0.damaged, 0);
}

/// Contents for a file of an object of `built`, and whether a header states the expected content.
fn tampered(disk: &SimulatedDisk) -> Vec<(&'static str, Vec<u8>)> {
    let contents = disk.contents();
    let of = |name: &str| contents[&path_of(name)].clone();
    let with = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut content = of(name);
        change(&mut content);
        content
    };
    vec![
        ("small", with("small", &|content| content.truncate(1_100))),
        ("small", with("small", &|content| content.push(0))),
        ("large", with("large", &|content| content.truncate(4_096))),
        ("large", with("large", &|content| content.truncate(1_024))),
        ("large", with("large", &|content| content.resize(20_000, 0))),
        ("small", of("large")),
        ("large", of("small")),
        ("small", of("gone")),
        ("gone", of("small")),
    ]
}

#[test]
fn a_file_that_was_cut_or_put_into_another_place_is_refused_and_set_aside() {
    for (round, (name, content)) in tampered(&built()).into_iter().enumerate() {
        let disk = built();
        disk.tamper(&path_of(name), Some(content));
        let what = format!("round {round}, {name}");
        let store = open(&disk).unwrap();
        let info = block_on(store.info(InfoRequest::new(object(name))));
        assert_eq!(info.map(drop).map_err(|error| error.kind()), Err("corrupt"), "{what}");
        let listed = block_on(store.list(ListRequest::new(object("x").namespace)));
        assert_eq!(listed.map(drop).map_err(|error| error.kind()), Err("corrupt"), "{what}");
        store.close().unwrap();
        drop(store);
        let (report, findings) = checked(&disk, true);
        assert_eq!(report.damaged, 1, "{what}: {findings}");
        assert!(
            disk.contents().contains_key(&Path::new(ROOT).join(format!("damaged/0-{name}.obj"))),
            "{what}"
        );
        assert_eq!(checked(&disk, false).0.damaged, 0, "{what}");
    }
}

#[test]
fn after_a_crash_no_file_has_to_have_the_size_that_its_header_states() {
    let disk = built();
    let store = open(&disk).unwrap();
    let grow = |name: &str, data: Vec<u8>| block_on(store.write(WriteRequest::new(object(name), 100, data)));
    grow("large", vec![5; 9_000]).unwrap();
    block_on(store.write(WriteRequest::new(object("new"), 0, vec![5; 100]))).unwrap();
    grow("new", vec![5; 200]).unwrap();
    disk.restart();
    let (report, findings) = checked(&disk, false);
    assert_eq!(report.damaged, 0, "{findings}");
    let sizes = |store: &FileStore| {
        ["small", "large", "new"]
            .map(|name| block_on(store.info(InfoRequest::new(object(name)))).unwrap().size_bytes)
    };
    let store = open(&disk).unwrap();
    assert_eq!(sizes(&store), [100, 9_100, 300]);
    // After an orderly close all sizes are known again.
    store.close().unwrap();
    let store = open(&disk).unwrap();
    assert_eq!(sizes(&store), [100, 9_100, 300]);
    block_on(store.write(WriteRequest::new(object("new"), 300, b"x"))).unwrap();
    store.close().unwrap();
    let mut content = disk.contents()[&path_of("new")].clone();
    content.pop();
    disk.tamper(&path_of("new"), Some(content));
    assert_eq!(checked(&disk, false).0.damaged, 1);
}

#[test]
fn a_header_of_an_earlier_program_is_read_and_gets_the_rest_with_the_next_change() {
    let disk = built();
    for (path, mut content) in disk.contents() {
        if path.extension().is_some_and(|extension| extension == "obj") {
            for copy in [0, 512] {
                content[copy + 44..copy + 64].fill(0);
            }
            disk.tamper(&path, Some(content));
        }
    }
    assert_eq!(checked(&disk, false).0.damaged, 0);
    let before = disk.contents();
    let store = open(&disk).unwrap();
    is_whole(&store, "of an earlier program");
    store.close().unwrap();
    assert_eq!(disk.contents()[&path_of("small")], before[&path_of("small")], "reading changes nothing");
    let store = open(&disk).unwrap();
    write(&store, "small", vec![2; 100], Some(Stamp::new(3, 3)));
    store.close().unwrap();
    assert!(disk.contents()[&path_of("small")][44..64].iter().any(|byte| *byte != 0));
}

#[test]
fn a_superblock_of_an_earlier_time_is_found() {
    let disk = built();
    let old = disk.contents();
    let store = open(&disk).unwrap();
    write(&store, "large", vec![6; 10], None);
    store.close().unwrap();
    for name in ["superblock", "superblock.copy"] {
        let path = Path::new(ROOT).join(name);
        disk.tamper(&path, Some(old[&path].clone()));
    }
    let (report, findings) = checked(&disk, true);
    assert_eq!(report.damaged, 1, "{findings}");
    assert!(findings.contains("the file is outdated"), "{findings}");
    assert_eq!(checked(&disk, false).0.damaged, 0);
    open(&disk).unwrap();
}

#[test]
fn what_a_crash_leaves_behind_is_tidied_up_and_no_damage() {
    let disk = built();
    // A change interrupted before its rename, and a deletion interrupted before its data are freed.
    let store = open(&disk).unwrap();
    let steps = disk.steps();
    disk.media.lock().cut_at = Some(steps + 3);
    let _ = block_on(store.write_full(WriteFullRequest::new(object("large"), vec![9; 9_000]))).unwrap_err();
    disk.restart();
    let mut tombstone = disk.contents()[&path_of("gone")].clone();
    tombstone.extend([1; 5_000]);
    disk.tamper(&path_of("gone"), Some(tombstone));
    let (report, findings) = checked(&disk, false);
    assert_eq!((report.damaged, report.notes), (0, 2), "{findings}");
    checked(&disk, true);
    let (report, findings) = checked(&disk, false);
    assert_eq!((report.damaged, report.notes), (0, 0), "{findings}");
    is_whole(&open(&disk).unwrap(), "tidied up");
}

#[test]
fn an_empty_directory_is_no_store() {
    let nothing = check_on(&new_disk(), Path::new(ROOT), false, &mut |_| {});
    assert_eq!(nothing.unwrap_err().kind(), "denied");
}
