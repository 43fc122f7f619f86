//! Unreadable files, other kinds of files in their place, a full disk, and a read-only store: the
//! store reports no damage if there is none, and changes nothing unnecessarily.

use std::path::{Path, PathBuf};

use super::simulated::SimulatedDisk;
use super::testing::{ROOT, new_disk, object_in, open};
use crate::executor::block_on;
use crate::file::check::{CheckReport, FindingKind, check_on};
use crate::file::directory::open_regular;
use crate::file::disk::Kind;
use crate::file::{Access, FileConfig, FileStore};
use crate::{
    Blocker, BlockerExt, ChangeTerms, ClaimRequest, CopyRequest, DeleteRequest, Durability, Epoch, Error,
    FlushRequest, InfoRequest, InvalidateRequest, ListRequest, ObjectId, ReadRequest, Result, Scope, Stamp,
    SystemClock, WriteFullRequest, WriteRequest, WriterId,
};
use rustix::fs::OFlags;

/// EACCES, EROFS, EIO, EMFILE, ENFILE, ENOSPC, ESTALE, ELOOP.
const CODES: [i32; 8] = [13, 30, 5, 24, 23, 28, 116, 40];

fn object(name: &str) -> ObjectId {
    object_in("n", name)
}

fn in_root(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

fn write(store: &FileStore, name: &str, data: Vec<u8>, stamp: Option<Stamp>) -> Result<()> {
    let change = ChangeTerms { stamp, durability: Durability::Stored, ..ChangeTerms::default() };
    block_on(store.write(WriteRequest::new(object(name), 0, data).terms(change))).map(drop)
}

/// Returns a closed store with two objects, a remembered deletion, and a claim.
fn built() -> SimulatedDisk {
    let disk = new_disk();
    let store = open(&disk).unwrap();
    write(&store, "a", vec![1; 100], Some(Stamp::new(3, 1))).unwrap();
    write(&store, "b", vec![2; 9_000], None).unwrap();
    write(&store, "gone", vec![3; 100], Some(Stamp::new(3, 1))).unwrap();
    block_on(store.delete(DeleteRequest::new(object("gone")).stamp(Stamp::new(3, 2)))).unwrap();
    let scope = Scope::Object(object("claimed"));
    block_on(store.claim(ClaimRequest::new(scope, Epoch(8), WriterId(5)))).unwrap();
    store.close().unwrap();
    disk
}

fn open_for(disk: &SimulatedDisk, access: Access) -> Result<FileStore> {
    let config = FileConfig { threads: 0, access, ..FileConfig::default() };
    let disk = std::sync::Arc::new(disk.clone());
    FileStore::over(Path::new(ROOT), config, std::sync::Arc::new(SystemClock), disk, None)
}

#[track_caller]
fn is_whole(store: &FileStore, what: &str) {
    for (name, content) in [("a", vec![1; 100]), ("b", vec![2; 9_000])] {
        let read = block_on(store.read(ReadRequest::new(object(name), 0, 10_000)));
        let read = read.unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        assert_eq!(read.data.to_vec(), content, "{what}: {name}");
    }
    let query = ClaimRequest::ask(Scope::Object(object("claimed")));
    assert_eq!(block_on(store.claim(query)).unwrap_err(), Error::Fenced { epoch: Epoch(8) }, "{what}");
}

/// Runs a check with repair. Returns the result and its findings.
fn repaired(disk: &SimulatedDisk) -> (Result<CheckReport>, String) {
    let mut findings = String::new();
    let report = check_on(disk, Path::new(ROOT), true, &mut |finding| {
        let path = finding.path.display();
        findings += &format!("{:?} {path}: {} ({})\n", finding.kind, finding.what, finding.remedy);
    });
    (report, findings)
}

#[test]
fn what_the_system_does_not_let_be_read_is_not_damage_and_nothing_is_repaired() {
    let files: Vec<_> = built().contents().into_keys().collect();
    let dirs = [in_root("objects"), in_root("objects/n.ns"), in_root("tmp"), PathBuf::from(ROOT)];
    for (path, is_file) in files.iter().map(|path| (path, true)).chain(dirs.iter().map(|dir| (dir, false))) {
        for (code, when_read) in CODES.into_iter().flat_map(|code| [(code, false), (code, is_file)]) {
            let what = format!("{} fails with {code} when read {when_read}", path.display());
            let disk = built();
            // This is additional damage that needs a repair.
            let other =
                in_root(if path.ends_with("claims.copy") { "superblock.copy" } else { "claims.copy" });
            disk.tamper(&other, Some(b"nonsense".to_vec()));
            let refuse =
                |code| if when_read { disk.refuse_reads(path, code) } else { disk.refuse(path, code) };
            refuse(Some(code));
            let (before, steps) = (disk.contents(), disk.steps());
            let (report, findings) = repaired(&disk);
            let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(report.unread, 1, "{what}: {findings}");
            let error = std::io::Error::from_raw_os_error(code).to_string();
            assert!(findings.contains(&format!("{}: {error}", path.display())), "{what}: {findings}");
            assert!(!findings.contains("Damage"), "{what}: {findings}");
            assert_eq!((disk.steps(), disk.contents() == before), (steps, true), "{what}");
            // Once the file can be read, the start repairs the rest.
            refuse(None);
            let (report, findings) = repaired(&disk);
            let report = report.unwrap();
            assert_eq!((report.unread, report.damaged), (0, 1), "{what}: {findings}");
            is_whole(&open(&disk).unwrap(), &what);
        }
    }
}

#[test]
fn a_store_opens_from_the_copy_that_can_be_read_and_says_why_if_none_can() {
    for name in ["superblock", "claims"] {
        let copies = [in_root(name), in_root(&format!("{name}.copy"))];
        for code in CODES {
            let what = format!("{name}, {code}");
            for copy in &copies {
                let disk = built();
                disk.refuse_reads(copy, Some(code));
                is_whole(&open(&disk).unwrap(), &what);
            }
            // The other copy is absent, damaged, or unreadable as well.
            for other in [None, Some(b"nonsense".to_vec())] {
                let disk = built();
                disk.tamper(&copies[1], other);
                disk.refuse_reads(&copies[0], Some(code));
                let before = disk.contents();
                let error = open(&disk).map(drop).unwrap_err();
                let text = error.to_string();
                assert_ne!(error.kind(), "corrupt", "{what}: {text}");
                assert!(text.contains(&copies[0].display().to_string()) && !text.contains("fsck"), "{text}");
                assert!(disk.contents() == before, "{what}");
            }
        }
    }
}

#[test]
fn what_is_not_a_regular_file_is_refused_and_set_aside() {
    let kinds = [Kind::Dir, Kind::Other("a FIFO"), Kind::Other("a symbolic link"), Kind::Other("a socket")];
    for path in built().contents().into_keys() {
        for kind in kinds {
            let what = format!("{kind} as {}", path.display());
            let disk = built();
            disk.put_foreign(&path, kind);
            let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let is_object = path.extension().is_some_and(|extension| extension == "obj");
            let store = open(&disk);
            if is_object {
                let store = store.unwrap();
                let corrupt = |answer: Result<()>| {
                    let error = answer.expect_err(&what);
                    assert_eq!(error.kind(), "corrupt", "{what}");
                    assert!(error.to_string().contains(&kind.to_string()), "{what}: {error}");
                };
                corrupt(block_on(store.info(InfoRequest::new(object(&stem)))).map(drop));
                corrupt(block_on(store.read(ReadRequest::new(object(&stem), 0, 9))).map(drop));
                corrupt(block_on(store.list(ListRequest::new(object("x").namespace))).map(drop));
                corrupt(write(&store, &stem, vec![1], Some(Stamp::new(9, 9))));
                drop(store);
                let (report, findings) = repaired(&disk);
                assert_eq!(report.unwrap().damaged, 1, "{what}: {findings}");
                let store = open(&disk).unwrap();
                write(&store, &stem, vec![1], Some(Stamp::new(9, 9))).unwrap();
                continue;
            }
            // The other copy suffices.
            is_whole(&store.unwrap(), &what);
            let disk = built();
            disk.put_foreign(&path, kind);
            let (report, findings) = repaired(&disk);
            assert_eq!(report.unwrap().damaged, 1, "{what}: {findings}");
            let (report, findings) = repaired(&disk);
            assert_eq!(report.unwrap().damaged, 0, "{what}: {findings}");
            is_whole(&open(&disk).unwrap(), &what);
        }
    }
}

#[test]
fn a_store_that_is_opened_for_reading_is_not_changed() {
    let crashed = built();
    let store = open(&crashed).unwrap();
    write(&store, "c", vec![4; 10], None).unwrap();
    crashed.restart();
    let with_one_copy = built();
    with_one_copy.tamper(&in_root("claims"), None);
    with_one_copy.tamper(&in_root("superblock.copy"), Some(b"nonsense".to_vec()));
    for (what, disk) in [("in order", built()), ("crashed", crashed), ("one copy", with_one_copy)] {
        let (before, steps) = (disk.contents(), disk.steps());
        let store = open_for(&disk, Access::Read).unwrap();
        is_whole(&store, what);
        let listed = block_on(store.list(ListRequest::new(object("x").namespace))).unwrap();
        assert!(listed.entries.len() >= 2, "{what}");
        block_on(store.flush(FlushRequest::new(Scope::All))).unwrap();
        let denied = |answer: Result<()>| assert_eq!(answer.unwrap_err().kind(), "denied", "{what}");
        denied(write(&store, "a", vec![9], Some(Stamp::new(9, 9))));
        denied(write(&store, "new", vec![9], None));
        denied(block_on(store.write(WriteRequest::new(object("b"), 0, b"x"))).map(drop));
        denied(block_on(store.write_full(WriteFullRequest::new(object("b"), b"x"))).map(drop));
        denied(block_on(store.copy(CopyRequest::new(object("a"), object("b")))).map(drop));
        denied(block_on(store.delete(DeleteRequest::new(object("b")))).map(drop));
        denied(block_on(store.invalidate(InvalidateRequest::new(Scope::All))).map(drop));
        let claim = ClaimRequest::new(Scope::All, Epoch(9), WriterId(5));
        denied(block_on(store.claim(claim)).map(drop));
        store.close().unwrap();
        assert_eq!((disk.steps(), disk.contents() == before), (steps, true), "{what}");
    }
}

#[test]
fn a_store_is_made_on_request_only() {
    for access in [Access::Read, Access::Write] {
        let disk = new_disk();
        let error = open_for(&disk, access).map(drop).unwrap_err();
        assert_eq!(error.kind(), "denied");
        assert!(error.to_string().contains(&format!("`cachectl init {ROOT}`")), "{error}");
        assert_eq!(disk.steps(), 0);
    }
    // The remains of an interrupted first start are not a store yet.
    let disk = new_disk();
    disk.media.lock().cut_at = Some(4);
    assert!(open_for(&disk, Access::Create).is_err());
    disk.restart();
    assert!(open_for(&disk, Access::Write).is_err());
    open_for(&disk, Access::Create).unwrap();
    open_for(&disk, Access::Write).unwrap();
}

#[test]
fn a_full_disk_opens_so_that_objects_can_be_deleted() {
    let crashed = built();
    drop(open(&crashed).unwrap());
    crashed.restart();
    // The claim was interrupted between the writes to the two files.
    let in_between = built();
    let old = in_between.contents()[&in_root("claims")].clone();
    let store = open(&in_between).unwrap();
    block_on(store.claim(ClaimRequest::new(Scope::All, Epoch(7), WriterId(5)))).unwrap();
    store.close().unwrap();
    in_between.tamper(&in_root("claims.copy"), Some(old));
    for (what, disk) in [("in order", built()), ("crashed", crashed), ("in between", in_between)] {
        disk.media.lock().is_full = true;
        let store = open(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
        is_whole(&store, what);
        let full = write(&store, "new", vec![5; 5_000], Some(Stamp::new(9, 1))).unwrap_err();
        assert_eq!(full.kind(), "out_of_space", "{what}");
        let delete = DeleteRequest::new(object("a")).stamp(Stamp::new(9, 2)).durability(Durability::Stored);
        block_on(store.delete(delete)).unwrap_or_else(|error| panic!("{what}: {error}"));
        store.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        // The next start accepts the repaired store, and assigns versions that were never used.
        let store = open(&disk).unwrap();
        assert_eq!(
            block_on(store.info(InfoRequest::new(object("a")))).unwrap_err(),
            Error::Missing,
            "{what}"
        );
        drop(store);
        disk.media.lock().is_full = false;
        disk.power_cycle(1);
        let store = open(&disk).unwrap();
        assert_eq!(
            block_on(store.info(InfoRequest::new(object("a")))).unwrap_err(),
            Error::Missing,
            "{what}"
        );
        let mut notes = 0;
        let report = check_on(&disk, Path::new(ROOT), false, &mut |finding| {
            notes += usize::from(finding.kind != FindingKind::Damage);
        });
        assert_eq!(report.unwrap().damaged, 0, "{what}");
    }
}

/// Content is written over the old content only if it fits into one sector: longer content could be
/// torn.
#[test]
fn claims_of_more_than_a_sector_are_not_written_over_on_a_full_disk() {
    let disk = built();
    let store = open(&disk).unwrap();
    let claim = |number: u64, epoch: u64| {
        let scope = Scope::Object(object(&format!("object-{number:02}")));
        block_on(store.claim(ClaimRequest::new(scope, Epoch(epoch), WriterId(5))))
    };
    for number in 0..20 {
        claim(number, 1).unwrap();
    }
    let before = disk.contents()[&in_root("claims")].clone();
    assert!(before.len() > 512);
    disk.media.lock().is_full = true;
    claim(0, 2).unwrap_err();
    assert_eq!(disk.contents()[&in_root("claims")], before);
}

#[test]
fn no_link_is_followed_and_no_directory_is_taken_for_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("file"), b"x").unwrap();
    std::os::unix::fs::symlink("file", path("link")).unwrap();
    std::fs::create_dir(path("directory")).unwrap();
    open_regular(&path("file"), OFlags::RDONLY).unwrap();
    for name in ["link", "directory"] {
        let refused = open_regular(&path(name), OFlags::RDONLY).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput, "{name}");
    }
}
