//! The journal's disk fills up under load, fails, or disappears, on real file systems. Service
//! continues; data acknowledged as journaled or stored survive a crash; metrics, log and readiness
//! report the problem; and the journal resumes without a restart once its disk works again.
//!
//! A journal's segments are zeroed in advance, so a full disk does not affect it, unless the file
//! system allocates new blocks for each write, as copy-on-write file systems and thin volumes do.
//! Here, holes are punched into unused segments, and the rest of the file system is filled.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, Durability, ReadRequest, WriteRequest};
use cached_tests::ending::SetOnDrop;
use cached_tests::http;
use cached_tests::kill9;
use cached_tests::kill9::load::{self, Habits, Round};
use cached_tests::kill9::model::{Faults, Model};
use cached_tests::kill9::process::Place;
use cached_tests::outside::skip;
use cached_tests::program::{Flavour, Program};
use cached_tests::site::{Daemon, Running, Site, metric, wait_for};
use cached_tests::small_disk::SmallDisk;
use synapse::SynapseBlocker;

const SEGMENTS: u64 = 10;
const WRITERS: usize = 3;

/// Frees the blocks of all segments without a header.
fn punch_holes(journal: &Path) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(journal).expect("the journal").map(|entry| entry.expect("an entry")) {
        if !entry.file_name().to_string_lossy().starts_with("segment-") {
            continue;
        }
        let mut file = OpenOptions::new().read(true).write(true).open(entry.path()).expect("a segment");
        let mut headers = [0; 8192];
        file.read_exact(&mut headers).expect("two headers");
        if headers.iter().all(|byte| *byte == 0) {
            let len = file.metadata().expect("its length").len() as libc::off_t;
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: the descriptor is open; the call touches no memory of ours.
            let punched = unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, len) };
            assert_eq!(punched, 0, "{}", std::io::Error::last_os_error());
            count += 1;
        }
    }
    count
}

#[test]
fn a_full_disk_under_load_loses_nothing_and_the_journal_comes_back() {
    const TEST: &str = "a_full_disk_under_load_loses_nothing_and_the_journal_comes_back";
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let directory = kill9::directory(Path::new(env!("CARGO_TARGET_TMPDIR")), "journal-disk");
    let Some(mount) = SmallDisk::mount(&directory.join("disk"), SEGMENTS + 3) else {
        return skip(TEST, "a tmpfs cannot be mounted here");
    };
    let place = Place::new(&directory, &Program::under_test().path);
    let journal = mount.path().join("journal");
    place.configure(&format!(
        "[objects]\nwrite = \"back\"\nwriter = \"cache\"\nmemory_bytes_max = \"16 MiB\"\n\
         dirty_bytes_max = \"2 MiB\"\nobject_bytes_max = \"64 KiB\"\ndirty_age_ms_max = 100\n\
         namespaces = [{{ name = \"plain\", write = \"back\", journal = false }}]\n\
         [objects.journal]\ncreate = true\ndirectory = \"{}\"\nsegment_bytes = \"1 MiB\"\nlimit_bytes = \"{SEGMENTS} MiB\"\n\
         direct = false\njournaled_bytes_max = \"256 KiB\"\n\
         [objects.backend]\nkind = \"file\"\ncreate = true\npath = \"{}\"",
        journal.display(),
        place.path("store").display(),
    ));
    let mut process = place.spawn();
    place.wait(&mut process).unwrap_or_else(|problem| panic!("{problem}"));
    let client = Arc::new(place.connect().expect("a connection"));
    let namespaces = load::namespaces();
    let models = (0..WRITERS).map(|writer| Model::new(writer, 4, &namespaces[0], &namespaces));
    let mut models: Vec<_> = models.collect();

    // The first change begins a segment; all other segments exist by then.
    let first = blocker::ObjectId::new(namespaces[0].clone(), blocker::Name::new("first").expect("a name"));
    let request = WriteRequest::new(first, 0, b"first").durability(Durability::Journaled);
    assert_eq!(block_on(client.write(request)).expect("a write").durability, Durability::Journaled);
    let segments = || metric(&*client, "cached_journal_free_segments") + 1;
    wait_for("the journal's last segment", || segments() == SEGMENTS);
    assert_eq!(punch_holes(&journal), SEGMENTS as usize - 1);
    mount.fill();

    let round = Round::default();
    let habits = Habits { journaled_bytes_max: 256 << 10, is_through: false, order_domains: 2 };
    let acknowledged = || round.acknowledged.load(Ordering::Relaxed);
    let more = |count| {
        let before = acknowledged();
        move |now: u64| now >= before + count
    };
    let state = || metric(&*client, "cached_journal_state");
    let seen: Vec<_> = std::thread::scope(|scope| {
        let _end = SetOnDrop(&round.is_over);
        let writers: Vec<_> = (models.iter_mut().enumerate())
            .map(|(writer, model)| {
                let (client, round) = (Arc::clone(&client), &round);
                scope.spawn(move || load::run(model, &*client, round, habits, writer as u64))
            })
            .collect();
        let is_running = || assert!(!writers.iter().any(|it| it.is_finished()), "a writer has ended");
        wait_for("the journal's trouble", || {
            is_running();
            state() != 0
        });
        let goes_on = more(200);
        wait_for("acknowledgements in trouble", || {
            is_running();
            goes_on(acknowledged())
        });
        assert!(metric(&*client, "cached_journal_failures_total") > 0);
        mount.make_room();
        wait_for("the journal's return", || {
            is_running();
            state() == 0
        });
        let goes_on = more(200);
        wait_for("acknowledgements after the trouble", || {
            is_running();
            goes_on(acknowledged())
        });
        round.is_ending.store(true, Ordering::SeqCst);
        process.kill();
        writers.into_iter().map(|writer| writer.join().expect("no writer panics")).collect()
    });
    let wrong: Vec<_> = seen.iter().flat_map(|seen| &seen.wrong).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(seen.iter().any(|seen| seen.journaled > 0), "{seen:?}");
    let log = std::fs::read_to_string(place.path("log")).expect("the log");
    assert!(log.contains("the journal has failed"), "{log}");

    let mut process = place.spawn();
    place.wait(&mut process).unwrap_or_else(|problem| panic!("{problem}"));
    let client = place.connect().expect("a connection");
    let (mut faults, mut lines) = (Faults::default(), Vec::new());
    for model in &mut models {
        faults.add(model.check(&client, &mut |line| lines.push(line)).expect("reading back"));
    }
    println!("{} acknowledgements, {faults:?}", acknowledged());
    assert_eq!(faults, Faults::default(), "{lines:?}");
    drop((process, mount));
    let _ = std::fs::remove_dir_all(&directory);
}

// The runs use `synapsed` and `cached`, with another disk and without a disk.

/// An age limit that causes no flush during the test.
const NEVER_MS: u64 = 86_400_000;

fn object(number: usize) -> blocker::ObjectId {
    let name = blocker::Name::new(format!("object.{number}")).expect("a name");
    blocker::ObjectId::new(blocker::Namespace::new("vm").expect("a namespace"), name)
}

fn content(number: usize) -> Vec<u8> {
    (0..30_000).map(|index| (number * 17 + index) as u8).collect()
}

/// A server whose journal's disk is removed and restored, with the data written to it.
struct Trial<'a> {
    site: &'a Site,
    running: Running,
    client: SynapseBlocker,
    written: usize,
}

impl<'a> Trial<'a> {
    /// Starts the server, and stores one change in the journal.
    fn start(site: &'a Site) -> Self {
        site.configure(NEVER_MS, "", "", "[admin]\nlisten = [\"127.0.0.1:0\"]\n");
        let running = site.start();
        let mut trial = Self { site, running, client: site.connect(), written: 0 };
        assert_eq!(trial.write(), Durability::Journaled);
        trial.becomes_ready();
        trial
    }

    /// Writes another object as journaled, and returns it.
    fn write(&mut self) -> Durability {
        let request = WriteRequest::new(object(self.written), 0, content(self.written));
        let reply = block_on(self.client.write(request.durability(Durability::Journaled)));
        let durability = reply.unwrap_or_else(|error| panic!("{error}:\n{}", self.running.log())).durability;
        assert!(durability >= Durability::Journaled);
        self.written += 1;
        durability
    }

    fn readiness(&self) -> (u16, String) {
        let log = self.running.log();
        let address = log.lines().find_map(|line| line.split("admin on http://").nth(1));
        http::get(address.unwrap_or_else(|| panic!("no admin listener:\n{log}")).trim(), "/readyz")
    }

    /// Waits until the server is ready. It is not while a disk is slow to answer.
    fn becomes_ready(&self) {
        wait_for("readiness", || self.readiness() == (200, "ok\n".into()));
    }

    fn state(&self) -> u64 {
        metric(&self.client, "cached_journal_state")
    }

    /// Checks that changes requested as *journaled* are *stored*, because the journal's disk is
    /// unavailable.
    fn is_in_trouble(&mut self) {
        assert_eq!(self.write(), Durability::Stored, "nothing is journaled on a disk that is away");
        assert!(self.state() != 0);
        assert!(metric(&self.client, "cached_journal_failures_total") > 0);
        let (status, reasons) = self.readiness();
        assert_eq!(status, 503);
        assert!(reasons.contains("the journal has failed"), "{reasons}");
        let log = self.running.log();
        assert!(log.contains("the journal has failed"), "{log}");
        for _ in 0..20 {
            assert_eq!(self.write(), Durability::Stored);
        }
    }

    /// Checks that the journal works again after the return of the disk, without a restart.
    fn is_well_again(&mut self) {
        wait_for("the journal's return", || self.state() == 0);
        self.becomes_ready();
        assert!(metric(&self.client, "cached_journal_restarts_total") > 0);
        let before = metric(&self.client, "cached_journal_restarts_total");
        // The data exceed a segment, so that other segment files are used as well.
        for _ in 0..60 {
            assert_eq!(self.write(), Durability::Journaled);
        }
        assert_eq!(metric(&self.client, "cached_journal_restarts_total"), before, "one restart is enough");
    }

    /// Kills the server, and checks that all written data are present after the next start.
    fn nothing_is_lost(mut self) {
        self.running.kill();
        let running = self.site.start();
        let client = self.site.connect();
        let is_there =
            |number: &usize| match block_on(client.read(ReadRequest::new(object(*number), 0, 1 << 16))) {
                Ok(reply) => reply.data.to_vec() == content(*number),
                Err(error) => panic!("object {number}: {error}"),
            };
        let lost: Vec<_> = (0..self.written).filter(|number| !is_there(number)).collect();
        assert!(lost.is_empty(), "{lost:?} of {}", self.written);
        drop(client);
        running.end();
    }
}

/// Runs a test for both programs concurrently, each in its own directory.
fn for_both(name: &str, test: impl Fn(&Site) + Sync) {
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let in_its_place = |daemon: Daemon| {
        let name = format!("{name}-{}", daemon.name());
        let place = kill9::directory(Path::new(env!("CARGO_TARGET_TMPDIR")), &name);
        test(&Site::new(daemon, &place));
        let _ = std::fs::remove_dir_all(place);
    };
    // The programs run concurrently, because each waits for a disk most of the time.
    std::thread::scope(|scope| {
        for daemon in Daemon::ALL {
            scope.spawn(move || in_its_place(daemon));
        }
    });
}

/// After a directory was moved, its open files can still be written and synced, but no start would
/// find them.
#[test]
fn a_journal_whose_directory_is_moved_away_comes_back_with_it() {
    for_both("journal-moved", |site| {
        let mut trial = Trial::start(site);
        let away = site.path("away");
        std::fs::rename(&site.journal, &away).expect("a move");
        trial.is_in_trouble();
        // A directory that is not a journal's stays unchanged.
        std::fs::create_dir(&site.journal).expect("a directory");
        let failures = metric(&trial.client, "cached_journal_failures_total");
        wait_for("another attempt", || metric(&trial.client, "cached_journal_failures_total") > failures);
        assert_eq!(std::fs::read_dir(&site.journal).expect("a directory").count(), 0);
        std::fs::remove_dir(&site.journal).expect("a directory");
        std::fs::rename(&away, &site.journal).expect("a move");
        trial.is_well_again();
        trial.nothing_is_lost();
    });
}

#[test]
fn a_journal_that_is_removed_while_it_is_used_loses_nothing() {
    for_both("journal-removed", |site| {
        let mut trial = Trial::start(site);
        std::fs::remove_dir_all(&site.journal).expect("the journal");
        trial.is_in_trouble();
        trial.nothing_is_lost();
        // An orderly end does not change the journal either.
        let mut trial = Trial::start(site);
        std::fs::remove_dir_all(&site.journal).expect("the journal");
        trial.is_in_trouble();
        let written = trial.written;
        let Trial { running, client, .. } = trial;
        drop(client);
        running.end();
        let running = site.start();
        let client = site.connect();
        for number in 0..written {
            let read = block_on(client.read(ReadRequest::new(object(number), 0, 1 << 16)));
            assert!(read.expect("a read").data.to_vec() == content(number), "object {number}");
        }
        drop(client);
        running.end();
    });
}

fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A file system that is unmounted lazily continues to exist while its files are open, and can be
/// mounted again during that time.
#[test]
fn a_journal_that_is_unmounted_comes_back_when_it_is_mounted() {
    const TEST: &str = "a_journal_that_is_unmounted_comes_back_when_it_is_mounted";
    for_both("journal-unmounted", |site| {
        let (disk, mounted) = (site.path("disk"), site.path("mounted"));
        std::fs::create_dir(&disk).expect("a directory");
        std::fs::create_dir(&mounted).expect("a directory");
        let mount = || run("mount", &["--bind".as_ref(), disk.as_os_str(), mounted.as_os_str()]);
        if !mount() {
            return skip(TEST, "nothing can be mounted here");
        }
        let _unmount = Unmount(&mounted);
        let site = Site { journal: mounted.join("journal"), ..site.clone() };
        let mut trial = Trial::start(&site);
        assert!(run("umount", &["-l".as_ref(), mounted.as_os_str()]), "unmounted");
        trial.is_in_trouble();
        assert_eq!(std::fs::read_dir(&mounted).expect("a directory").count(), 0, "nothing is made below");
        assert!(mount());
        trial.is_well_again();
        trial.nothing_is_lost();
    });
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = run("umount", &["-l".as_ref(), self.0.as_os_str()]);
    }
}

/// A file system that was shut down fails every write until it is unmounted. When it returns, it is
/// another device with the same files.
#[test]
fn a_journal_on_a_disk_that_fails_comes_back_on_another_device() {
    const TEST: &str = "a_journal_on_a_disk_that_fails_comes_back_on_another_device";
    for_both("journal-failed", |site| {
        let (image, mounted) = (site.path("image"), site.path("mounted"));
        std::fs::create_dir(&mounted).expect("a directory");
        File::create(&image).and_then(|file| file.set_len(24 << 20)).expect("an image");
        if !run("mkfs.ext4", &["-q".as_ref(), image.as_os_str()]) {
            return skip(TEST, "there is no mkfs.ext4");
        }
        let mount = |image: &Path| {
            run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), mounted.as_os_str()])
        };
        if !mount(&image) {
            return skip(TEST, "no image can be mounted here");
        }
        let _unmount = Unmount(&mounted);
        let site = Site { journal: mounted.join("journal"), ..site.clone() };
        let mut trial = Trial::start(&site);
        wait_for("all segments", || metric(&trial.client, "cached_journal_free_segments") == 7);
        // The call is EXT4_IOC_SHUTDOWN in the variant that first writes the file system's own log.
        let root = File::open(&mounted).expect("the root");
        let how: u32 = 1;
        // SAFETY: the descriptor is open, and the number that is read is alive.
        let shut = unsafe { libc::ioctl(root.as_raw_fd(), 0x8004_587d, &raw const how) };
        assert_eq!(shut, 0, "{}", std::io::Error::last_os_error());
        drop(root);
        trial.is_in_trouble();
        let copy = site.path("copy");
        std::fs::copy(&image, &copy).expect("a copy");
        assert!(run("umount", &["-l".as_ref(), mounted.as_os_str()]), "unmounted");
        assert!(mount(&copy), "mounted again");
        trial.is_well_again();
        trial.nothing_is_lost();
    });
}
