//! Starts of `cached` and of `synapsed` with an unusable journal: each is refused with status 78,
//! or 71 if the journal is in use or missing, and one line that names the file, the byte offset if
//! applicable, the reason and the remedy; and after the remedy the start succeeds. The start waits
//! for a failing disk.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, ClaimRequest, Durability, Epoch, Error, FlushRequest, Name, Namespace, ObjectId,
    ReadRequest, Scope, Stamp, WriteRequest, WriterId,
};
use cached_tests::kill9::directory;
use cached_tests::outside::skip;
use cached_tests::program::{Flavour, Program};
use cached_tests::site::{Daemon, Site, metric, wait_for};
use cached_tests::small_disk::SmallDisk;
use synapse::SynapseBlocker;

/// The exit statuses for an invalid configuration, and for a resource that is in use or may appear
/// later.
const CONFIGURATION: i32 = 78;
const REFUSED: i32 = 71;
/// An age at which nothing is stored within the test.
const NEVER_MS: u64 = 86_400_000;
const OBJECTS: usize = 4;
const SEGMENT: &str = "segment-000000";

/// Runs a test for both programs, each in its own directory.
fn for_both(name: &str, test: impl Fn(&Site)) {
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    for daemon in Daemon::ALL {
        let place = directory(Path::new(env!("CARGO_TARGET_TMPDIR")), &format!("{name}-{}", daemon.name()));
        let site = Site::new(daemon, &place);
        site.configure(NEVER_MS, "", "", "");
        test(&site);
        let _ = std::fs::remove_dir_all(place);
    }
}

fn namespace() -> Namespace {
    Namespace::new("vm").expect("a namespace")
}

fn object(number: usize) -> ObjectId {
    ObjectId::new(namespace(), Name::new(format!("object.{number}")).expect("a name"))
}

fn content(number: usize) -> Vec<u8> {
    (0..5000).map(|index| (number * 31 + index) as u8).collect()
}

fn write(client: &SynapseBlocker, number: usize, durability: Durability) {
    let request = WriteRequest::new(object(number), 0, content(number)).durability(durability);
    let reply = block_on(client.write(request)).unwrap_or_else(|error| panic!("object {number}: {error}"));
    assert_eq!(reply.durability, durability);
}

/// Returns whether an object has its content; panics if it has any other content.
fn is_there(client: &SynapseBlocker, number: usize) -> bool {
    match block_on(client.read(ReadRequest::new(object(number), 0, 1 << 16))) {
        Ok(reply) => {
            assert!(reply.data.to_vec() == content(number), "object {number} has other bytes");
            true
        }
        Err(Error::Missing) => false,
        Err(error) => panic!("object {number}: {error}"),
    }
}

/// Leaves a journal with records that the store lacks, each in its own batch, as kill -9 does.
fn crash(site: &Site) {
    let mut running = site.start();
    let client = site.connect();
    for number in 0..OBJECTS {
        write(&client, number, Durability::Journaled);
    }
    running.kill();
}

/// Copies a journal's files.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

/// Flips a bit of a file.
fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("a byte");
    file.write_all_at(&[byte[0] ^ 4], offset).expect("a byte");
}

/// Asserts that a start is refused with one line that names file and key, and contains all of these
/// strings.
#[track_caller]
fn assert_refused(site: &Site, contains: &[&str]) {
    assert_refused_with(CONFIGURATION, site, contains);
}

#[track_caller]
fn assert_refused_with(wanted: i32, site: &Site, contains: &[&str]) {
    let (status, line) = site.refused();
    println!("{line}");
    assert_eq!(status, wanted, "{line}");
    assert!(line.contains("config.toml: objects.journal.directory: "), "{line}");
    for each in contains {
        assert!(line.contains(each), "{each} is missing: {line}");
    }
}

/// Asserts that `cachectl journal COMMAND` ends with a status, and returns its output.
#[track_caller]
fn journal(site: &Site, command: &str, more: &[&str], status: i32) -> String {
    let directory = site.journal.to_str().expect("a path");
    let (found, text) = site.cachectl(&[&["journal", command, directory], more].concat());
    assert_eq!(found, status, "{command}: {text}");
    text
}

/// Follows the advice of the refusal: saves the readable records, discards the journal, and starts
/// the program. Returns the saved objects.
#[track_caller]
fn export_and_discard(site: &Site, export_status: i32) -> Vec<usize> {
    let saved = export(site, export_status);
    // Without `--yes`, the command states the loss and changes nothing.
    let kept = site.journal.join(SEGMENT);
    journal(site, "discard", &[], 2);
    assert!(kept.exists());
    journal(site, "discard", &["--yes"], 0);
    let running = site.start();
    let client = site.connect();
    write(&client, 100, Durability::Journaled);
    assert!(is_there(&client, 100));
    drop(client);
    running.end();
    saved
}

/// Saves the readable records of a journal, and returns the saved objects.
#[track_caller]
fn export(site: &Site, status: i32) -> Vec<usize> {
    let saved = site.path("saved");
    let _ = std::fs::remove_dir_all(&saved);
    journal(site, "export", &[saved.to_str().expect("a path")], status);
    let backend = format!("file:{}", saved.display());
    let is_saved = |number: &usize| {
        let file = site.path("object");
        let name = format!("object.{number}");
        let arguments =
            ["--backend", &backend, "--namespace", "vm", "get", &name, file.to_str().expect("a path")];
        let (status, _) = site.cachectl(&arguments);
        let is_saved = status == 0;
        assert!(
            !is_saved || std::fs::read(&file).expect("the object") == content(*number),
            "object {number}"
        );
        is_saved
    };
    (0..OBJECTS).filter(is_saved).collect()
}

#[test]
fn a_damaged_journal_is_refused_and_can_be_exported_and_discarded() {
    for_both("journal-damaged", |site| {
        crash(site);
        let pristine = site.path("pristine");
        copy(&site.journal, &pristine);
        let text = journal(site, "inspect", &[], 0);
        assert!(text.contains("the next start replays it"), "{text}");

        let at_block =
            |block: u64, byte: u64| move |journal: &Path| flip(&journal.join(SEGMENT), block * 4096 + byte);
        let remove = |name: &'static str| {
            move |journal: &Path| {
                std::fs::remove_file(journal.join(name)).expect("a file");
            }
        };
        type Damage<'a> = Box<dyn Fn(&Path) + 'a>;
        let cases: [(Damage<'_>, &[&str], &[usize]); 7] = [
            (
                Box::new(|journal| flip(&journal.join("journal"), 13)),
                &["journal at byte 0", "checksum"],
                &[0, 1, 2, 3],
            ),
            (
                Box::new(|journal| flip(&journal.join("journal"), 2)),
                &["journal at byte 0", "first bytes"],
                &[0, 1, 2, 3],
            ),
            (Box::new(remove("journal")), &["journal at byte 0", "is missing"], &[0, 1, 2, 3]),
            // The journal has two blocks of headers, then the claim, then a batch of three blocks
            // for each object.
            (Box::new(at_block(0, 20)), &["segment-000000 at byte 0", "damaged"], &[0, 1, 2, 3]),
            (Box::new(at_block(3, 30)), &["segment-000000 at byte 12288", "written after"], &[1, 2, 3]),
            (Box::new(at_block(6, 70)), &["segment-000000 at byte 24576", "written after"], &[0, 2, 3]),
            (
                Box::new(|journal| {
                    let file = OpenOptions::new().write(true).open(journal.join(SEGMENT)).expect("a segment");
                    file.set_len(9 * 4096).expect("a length");
                }),
                &["segment-000000 at byte 36864", "has 36864 bytes"],
                &[0, 1],
            ),
        ];
        for (damage, line, saved) in cases {
            copy(&pristine, &site.journal);
            let _ = std::fs::remove_dir_all(&site.store);
            damage(&site.journal);
            assert_refused(site, &[site.journal.to_str().expect("a path")]);
            assert_refused(site, &[line, &["cachectl journal verify", "export", "discard"]].concat());
            let verified = journal(site, "verify", &[], 1);
            assert!(verified.contains(line[0]), "{verified}");
            assert_eq!(export_and_discard(site, 1), saved, "{line:?}");
        }

        // Without damage, everything is replayed.
        copy(&pristine, &site.journal);
        let _ = std::fs::remove_dir_all(&site.store);
        let running = site.start();
        let client = site.connect();
        assert!((0..OBJECTS).all(|number| is_there(&client, number)));
        let found = metric(&client, "cached_journal_replay_records");
        assert!(found >= OBJECTS as u64, "{found}");
        wait_for("the end of the recovery", || metric(&client, "cached_journal_replayed_records") == found);
        drop(client);
        running.end();
    });
}

/// A damaged last batch cannot be distinguished from one torn by a crash, unless a later batch
/// exists.
#[test]
fn every_flipped_bit_is_refused_or_loses_no_more_than_the_last_batch() {
    // Both programs scan a journal with the same code, so one program is enough.
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let place = directory(Path::new(env!("CARGO_TARGET_TMPDIR")), "journal-flipped");
    let site = Site::new(Daemon::Cached, &place);
    site.configure(NEVER_MS, "", "", "");
    crash(&site);
    let pristine = site.path("pristine");
    copy(&site.journal, &pristine);
    let (mut refused, mut started, mut late) = (0, 0, 0);
    // The damage is in each block of the log, near the block's beginning or at another offset.
    for place in 0..2 * (2 + 1 + 3 * OBJECTS as u64) {
        let block = place / 2;
        let offset = block * 4096 + if place % 2 == 0 { 30 } else { (block * 977) % 4096 };
        copy(&pristine, &site.journal);
        let _ = std::fs::remove_dir_all(&site.store);
        flip(&site.journal.join(SEGMENT), offset);
        let mut running = site.spawn();
        let mut status = None;
        wait_for("a start or its end", || {
            status = running.try_wait();
            status.is_some() || UnixStream::connect(site.path("socket")).is_ok()
        });
        if let Some(status) = status {
            assert_eq!(status.code(), Some(CONFIGURATION), "byte {offset}: {}", running.log());
            refused += 1;
            continue;
        }
        started += 1;
        let client = site.connect();
        for number in 0..OBJECTS {
            let is_last = number + 1 == OBJECTS;
            match block_on(client.read(ReadRequest::new(object(number), 0, 1 << 16))) {
                Ok(reply) => {
                    assert!(reply.data.to_vec() == content(number), "byte {offset}: {number} is torn");
                }
                Err(Error::Missing) => assert!(is_last, "byte {offset}: {number} is lost without a word"),
                // The damage is found when the payload is read: operations on this object fail.
                Err(Error::Corrupt(_)) => late += 1,
                Err(error) => panic!("byte {offset}: {number}: {error}"),
            }
        }
    }
    println!("{refused} starts refused, {started} not; {late} objects found damaged later");
    assert!(refused > 0 && late > 0);
    let _ = std::fs::remove_dir_all(place);
}

#[test]
fn a_journal_in_use_is_refused() {
    for_both("journal-locked", |site| {
        let mut running = site.start();
        let client = site.connect();
        write(&client, 0, Durability::Journaled);
        let other = Site { directory: site.path("other"), store: site.path("other/store"), ..site.clone() };
        std::fs::create_dir(&other.directory).expect("a directory");
        other.configure(NEVER_MS, "", "", "");
        assert_refused_with(
            REFUSED,
            &other,
            &[site.journal.to_str().expect("a path"), "another process has this journal open", "stop it"],
        );
        for command in ["inspect", "verify"] {
            let text = journal(site, command, &[], 2);
            assert!(text.contains("is in use"), "{text}");
        }
        journal(site, "discard", &["--yes"], 2);
        write(&client, 1, Durability::Journaled);
        running.kill();
        // The remedy is to end the other process.
        let running = site.start();
        let client = site.connect();
        assert!((0..2).all(|number| is_there(&client, number)));
        drop(client);
        running.end();
    });
}

#[test]
fn a_directory_of_other_files_is_refused_and_left_alone() {
    for_both("journal-foreign", |site| {
        std::fs::create_dir(&site.journal).expect("a directory");
        let foreign = site.journal.join("photo.jpg");
        std::fs::write(&foreign, b"mine").expect("a file");
        assert_refused(site, &[site.journal.to_str().expect("a path"), "photo.jpg", "directory of its own"]);
        let (_, line) = site.refused();
        assert!(!line.contains("discard"), "it is not the journal's to discard: {line}");
        journal(site, "discard", &["--yes"], 2);
        assert_eq!(std::fs::read(&foreign).expect("the file"), b"mine");
        assert_eq!(
            std::fs::read_dir(&site.journal).expect("a directory").count(),
            2,
            "the file, and the lock"
        );
        std::fs::remove_file(foreign).expect("the file");
        site.start().end();
        // In the directory of a journal, these files do no harm.
        std::fs::write(site.journal.join("notes"), b"mine").expect("a file");
        site.start().end();
        assert_eq!(std::fs::read(site.journal.join("notes")).expect("the file"), b"mine");
    });
}

#[test]
fn a_segment_of_another_journal_is_refused() {
    for_both("journal-mixed", |site| {
        crash(site);
        let other = Site { journal: site.path("other"), store: site.path("other-store"), ..site.clone() };
        other.configure(NEVER_MS, "", "", "");
        crash(&other);
        std::fs::copy(other.journal.join(SEGMENT), site.journal.join("segment-000001")).expect("a copy");
        site.configure(NEVER_MS, "", "", "");
        assert_refused(site, &["segment-000001 at byte 0", "another journal"]);
        let text = journal(site, "verify", &[], 1);
        assert!(text.contains("segment-000001"), "{text}");
        assert_eq!(export_and_discard(site, 1), [0, 1, 2, 3]);
    });
}

#[test]
fn a_journal_that_was_overtaken_is_kept_aside_and_what_it_holds_can_be_saved() {
    for_both("journal-overtaken", |site| {
        crash(site);
        // Another writer takes the namespace over, through a server without a cache.
        let between =
            Site { directory: site.path("between"), ..Site::new(Daemon::Synapsed, &site.directory) };
        std::fs::create_dir(&between.directory).expect("a directory");
        let socket = between.path("socket");
        let text = format!(
            "backend = {{ kind = \"file\", create = true, path = \"{}\" }}\n[synapse]\nlisten = [\"unix:{}\"]\nthreads = 1\n",
            site.store.display(),
            socket.display()
        );
        std::fs::write(between.path("config.toml"), text).expect("a configuration");
        let running = between.start();
        let client = between.connect();
        let claim = ClaimRequest::new(Scope::Namespace(namespace()), Epoch(1 << 50), WriterId(77));
        block_on(client.claim(claim)).expect("a claim");
        let newer = WriteRequest::new(object(0), 0, b"newer".to_vec());
        block_on(client.write(newer.stamp(Stamp::new(1 << 50, 1)))).expect("a write");
        block_on(client.flush(FlushRequest::new(Scope::All))).expect("a flush");
        drop(client);
        running.end();

        let mut epoch = 1_u64 << 50;
        // For one of the programs the claims are lost as well: a repair rebuilds equivalent ones
        // from the stamps.
        if site.daemon == Daemon::Cached {
            for name in ["claims", "claims.copy"] {
                std::fs::write(site.store.join(name), b"nonsense").expect("a file");
            }
            let store = site.store.to_str().expect("a path");
            let (status, text) = site.cachectl(&["fsck", store, "--repair"]);
            assert!(status == 1 && text.contains("Every writer must claim again"), "{text}");
            epoch += 1;
        }
        let mut running = site.start();
        let client = site.connect();
        let read = block_on(client.read(ReadRequest::new(object(0), 0, 100))).expect("a read");
        assert_eq!(read.data.to_vec(), b"newer");
        let log = running.log();
        let lines: Vec<_> = log.lines().filter(|line| line.contains("cachectl journal export")).collect();
        assert_eq!(lines.len(), 1, "{log}");
        for part in ["vm (the journal's epoch is ", &format!("epoch {epoch} is in force"), "overtaken-1"] {
            assert!(lines[0].contains(part), "{part} is missing: {}", lines[0]);
        }
        // The cache is the writer from its next change on, with a journal that contains only this
        // change.
        write(&client, 101, Durability::Journaled);
        running.kill();
        let running = site.start();
        let client = site.connect();
        assert!(is_there(&client, 101) && !is_there(&client, 1));
        drop(client);
        running.end();
        let kept = Site { journal: site.journal.join("overtaken-1"), ..site.clone() };
        let text = journal(&kept, "inspect", &[], 0);
        assert!(text.contains("vm: "), "{text}");
        assert_eq!(export(&kept, 0), [0, 1, 2, 3]);
        // No record of the journal has reached the store.
        let running = between.start();
        let client = between.connect();
        let read = block_on(client.read(ReadRequest::new(object(0), 0, 100))).expect("a read");
        assert_eq!(read.data.to_vec(), b"newer");
        assert!(!is_there(&client, 1));
        drop(client);
        running.end();
    });
}

/// The disk of a directory may not be mounted. Therefore an empty directory becomes a new journal
/// only on request.
#[test]
fn a_journal_that_is_missing_is_made_on_request_only() {
    for_both("journal-missing", |site| {
        let site = Site { creates_journal: false, ..site.clone() };
        site.configure(NEVER_MS, "", "", "");
        let place = site.journal.to_str().expect("a path").to_owned();
        let way_out = format!("`cachectl journal init {place}`");
        let remedies = [way_out.as_str(), "create = true", "mount it"];
        assert_refused_with(REFUSED, &site, &remedies);
        assert!(!site.journal.exists(), "nothing is made");
        std::fs::create_dir(&site.journal).expect("a directory");
        assert_refused_with(REFUSED, &site, &remedies);
        journal(&site, "init", &[], 0);
        let again = journal(&site, "init", &[], 2);
        assert!(again.contains("already contains a journal"), "{again}");
        site.start().end();
        // An existing journal needs no request, and a discarded one still exists.
        crash(&site);
        journal(&site, "discard", &["--yes"], 0);
        let running = site.start();
        let client = site.connect();
        assert!((0..OBJECTS).all(|number| !is_there(&client, number)));
        drop(client);
        running.end();
    });
}

#[test]
fn a_journal_without_exclusive_claims_is_refused() {
    for_both("journal-callers", |site| {
        let path = site.path("config.toml");
        let text = std::fs::read_to_string(&path).expect("the configuration");
        std::fs::write(&path, text.replace("writer = \"cache\"", "writer = \"callers\""))
            .expect("a configuration");
        let (status, line) = site.refused();
        assert_eq!(status, CONFIGURATION, "{line}");
        assert!(line.contains("objects.writer") && line.contains("writer = \"cache\""), "{line}");
        assert!(!site.journal.exists(), "nothing is made");
    });
}

#[test]
fn a_directory_without_permission_is_refused() {
    // SAFETY: geteuid has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    for_both("journal-denied", |site| {
        // The process runs as the user nobody, because root has all permissions.
        let site = Site { uid: is_root.then_some(65_534), ..site.clone() };
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions");
        };
        open(&site.directory, 0o777);
        std::fs::create_dir(&site.journal).expect("a directory");
        open(&site.journal, 0o555);
        assert_refused(&site, &[site.journal.to_str().expect("a path"), "ermission denied", "user"]);
        open(&site.journal, 0o777);
        site.start().end();
    });
}

#[test]
fn a_directory_that_cannot_be_made_is_refused() {
    for_both("journal-nowhere", |site| {
        let nowhere = Site { journal: site.path("no/such/directory"), ..site.clone() };
        nowhere.configure(NEVER_MS, "", "", "");
        assert_refused(
            &nowhere,
            &[nowhere.journal.to_str().expect("a path"), "No such file or directory", "parent"],
        );
        // A file is in the place of the directory.
        std::fs::write(&site.journal, b"file").expect("a file");
        site.configure(NEVER_MS, "", "", "");
        assert_refused(site, &[site.journal.to_str().expect("a path")]);
    });
}

#[test]
fn a_file_system_without_direct_writes_is_refused() {
    const TEST: &str = "a_file_system_without_direct_writes_is_refused";
    for_both("journal-direct", |site| {
        let Some(mount) = SmallDisk::mount_ramfs(&site.path("ram")) else {
            return skip(TEST, "a ramfs cannot be mounted here");
        };
        let site = Site { journal: mount.path().join("journal"), ..site.clone() };
        site.configure(NEVER_MS, "", "", "");
        assert_refused(&site, &[site.journal.to_str().expect("a path"), "O_DIRECT", "direct = false"]);
        // The remedy is applied to the directory that the refused start has left.
        site.configure(NEVER_MS, "", "direct = false", "");
        site.start().end();
    });
}

/// Frees the blocks of the segments after the log's end, so that later appends need space.
fn punch_holes(journal: &Path) {
    for entry in std::fs::read_dir(journal).expect("the journal") {
        let path = entry.expect("an entry").path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-")) {
            let bytes = std::fs::read(&path).expect("a segment");
            let end =
                bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last + 1).next_multiple_of(4096));
            let file = OpenOptions::new().write(true).open(&path).expect("a segment");
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let (at, len) = (end as libc::off_t, (bytes.len() - end) as libc::off_t);
            // SAFETY: the descriptor is open; the call touches no memory of ours.
            let punched = len == 0 || unsafe { libc::fallocate(file.as_raw_fd(), mode, at, len) } == 0;
            assert!(punched, "{}", std::io::Error::last_os_error());
        }
    }
}

/// The program waits for a disk that fails at the start, for a new journal as well as for one with
/// records to recover. The failure is neither a mistake in the configuration nor damage, and
/// nothing has to be discarded.
#[test]
fn a_disk_that_fails_is_waited_for() {
    const TEST: &str = "a_disk_that_fails_is_waited_for";
    for_both("journal-disk-fails", |site| {
        let Some(mount) = SmallDisk::mount(&site.path("disk"), 12) else {
            return skip(TEST, "a tmpfs cannot be mounted here");
        };
        let site = Site { journal: mount.path().join("journal"), ..site.clone() };
        site.configure(NEVER_MS, "", "direct = false", "");
        for is_new in [true, false] {
            if !is_new {
                crash(&site);
                punch_holes(&site.journal);
            }
            mount.fill();
            let mut running = site.spawn();
            wait_for("the start that waits", || {
                let ended = running.try_wait();
                assert!(ended.is_none(), "{ended:?}:\n{}", running.log());
                running.log().contains("waiting for the disk of the journal")
            });
            assert!(!running.log().contains("discard"), "{}", running.log());
            mount.make_room();
            wait_for("the listener", || UnixStream::connect(site.path("socket")).is_ok());
            let client = site.connect();
            assert!(is_new || (0..OBJECTS).all(|number| is_there(&client, number)));
            drop(client);
            running.end();
        }
    });
}

/// A signal ends the wait for a disk.
#[test]
fn the_wait_for_a_disk_ends_with_the_process() {
    const TEST: &str = "the_wait_for_a_disk_ends_with_the_process";
    for_both("journal-wait-ends", |site| {
        let Some(mount) = SmallDisk::mount(&site.path("disk"), 1) else {
            return skip(TEST, "a tmpfs cannot be mounted here");
        };
        let site = Site { journal: mount.path().join("journal"), ..site.clone() };
        site.configure(NEVER_MS, "", "direct = false", "");
        let running = site.spawn();
        wait_for("the start that waits", || running.log().contains("waiting for the disk of the journal"));
        running.end();
    });
}
