//! Objects that a sweep removes apart from blobs: the heads of deleted objects, if nothing depends
//! on them and the server supports conditions on removals.

use std::time::{Duration, Instant};

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, ClaimRequest, DeleteRequest, Epoch, Error, InfoRequest, Name, Namespace, ObjectId,
    ReadRequest, Scope, Stamp, WriteRequest, WriterId,
};
use blocker_s3::{S3Config, S3Store, Swept};

use crate::http::{DEADLINE, Double, Trouble};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// A server, and a file with credentials that the server ignores.
struct Place {
    server: Double,
    credentials: std::path::PathBuf,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.credentials);
    }
}

impl Place {
    fn new(test: &str) -> Self {
        let name = format!("s3-forgetting-{test}-{}", std::process::id());
        let credentials = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let text = "[default]\naws_access_key_id = any\naws_secret_access_key = any\n";
        std::fs::write(&credentials, text).unwrap();
        Self { server: Double::new(), credentials }
    }

    fn open(&self) -> S3Store {
        let text = format!("bucket,endpoint=http://{},allow_http=true", self.server.address);
        let mut config: S3Config = text.parse().unwrap();
        config.credentials_file = Some(self.credentials.clone());
        config.sweep_interval = Duration::ZERO;
        S3Store::open(&config).unwrap()
    }

    /// Waits until only `blobs` blobs are left, and then lets two hours pass. The store removes the
    /// blobs of a deleted object in the background; a sweep that found such a blob would renew the
    /// head.
    fn grow_old(&self, blobs: usize) {
        let deadline = Instant::now() + DEADLINE;
        while self.server.keys("d/").len() > blobs {
            assert!(Instant::now() < deadline, "{:?}", self.server.keys("d/"));
            std::thread::yield_now();
        }
        self.server.advance(7200);
    }

    fn sweep(&self, store: &S3Store) -> Swept {
        block_on(store.sweep(HOUR)).unwrap()
    }
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(Namespace::new("vm").unwrap(), Name::copy_from(name.as_bytes()).unwrap())
}

fn write(store: &S3Store, name: &str, stamp: Option<Stamp>) -> Result<(), Error> {
    let request = WriteRequest::new(object(name), 0, vec![7; 50_000]);
    block_on(store.write(match stamp {
        Some(stamp) => request.stamp(stamp),
        None => request,
    }))
    .map(drop)
}

fn delete(store: &S3Store, name: &str, stamp: Option<Stamp>) -> Result<(), Error> {
    let request = DeleteRequest::new(object(name));
    block_on(store.delete(match stamp {
        Some(stamp) => request.stamp(stamp),
        None => request,
    }))
    .map(drop)
}

fn claim(store: &S3Store, scope: Scope, epoch: u64) {
    block_on(store.claim(ClaimRequest::new(scope, Epoch(epoch), WriterId(1)))).unwrap();
}

fn is_there(store: &S3Store, name: &str) -> bool {
    match block_on(store.info(InfoRequest::new(object(name)))) {
        Ok(_) => true,
        Err(Error::Missing) => false,
        Err(error) => panic!("{error}"),
    }
}

/// As if the writer's host had been suspended: only the server's clock shows that time has passed.
#[test]
fn a_blob_that_was_swept_while_its_writer_stood_still_is_put_again() {
    let place = Place::new("suspended");
    let (store, other) = (place.open(), place.open());
    write(&store, "a", None).unwrap();
    place.server.trouble(|asked| match asked.method == "PUT" && asked.key.starts_with("h/") {
        true => Trouble::HeldBefore,
        false => Trouble::None,
    });
    std::thread::scope(|threads| {
        let writing = threads.spawn(|| write(&store, "a", None));
        place.server.wait_held(1);
        place.server.heal();
        place.server.advance(7200);
        assert_eq!(place.sweep(&other).removed, 1);
        place.server.release();
        writing.join().unwrap().unwrap();
    });
    let read = block_on(other.read(ReadRequest::new(object("a"), 0, 50_000))).unwrap();
    assert_eq!(read.data.to_vec(), [7; 50_000]);
}

#[test]
fn old_ghosts_go_and_their_names_can_be_used_again() {
    let place = Place::new("names");
    let (store, other) = (place.open(), place.open());
    for name in ["a", "b", "c"] {
        write(&store, name, None).unwrap();
        assert!(is_there(&other, name));
    }
    delete(&store, "a", None).unwrap();
    delete(&store, "b", None).unwrap();
    assert!(!is_there(&other, "a") && !is_there(&other, "b"));
    assert_eq!(place.sweep(&store).forgotten, 0, "they are too young");
    place.grow_old(1);
    assert_eq!(place.sweep(&store).forgotten, 2);
    assert_eq!(place.server.keys("h/").len(), 1);
    assert_eq!(place.server.keys("p/").len(), 0, "the probe leaves nothing");
    assert!(!is_there(&store, "a") && is_there(&store, "c"));
    // Both stores use what they remember: one that the object was deleted, the other its former
    // head.
    write(&store, "a", None).unwrap();
    write(&other, "b", None).unwrap();
    for store in [&store, &other] {
        for name in ["a", "b", "c"] {
            let read = block_on(store.read(ReadRequest::new(object(name), 0, 1 << 20))).unwrap();
            assert_eq!(read.data.to_vec(), vec![7; 50_000], "{name}");
        }
    }
    place.grow_old(3);
    let swept = place.sweep(&store);
    assert_eq!((swept.blobs, swept.removed, swept.forgotten), (3, 0, 0));
}

#[test]
fn a_ghost_stays_while_its_stamp_or_fence_matters() {
    let place = Place::new("fences");
    let store = place.open();
    let namespace = || Scope::Namespace(object("x").namespace);
    claim(&store, namespace(), 5);
    write(&store, "stamped", Some(Stamp::new(5, 1))).unwrap();
    delete(&store, "stamped", Some(Stamp::new(5, 2))).unwrap();
    write(&store, "claimed", Some(Stamp::new(5, 3))).unwrap();
    claim(&store, Scope::Object(object("claimed")), 8);
    delete(&store, "claimed", Some(Stamp::new(8, 1))).unwrap();
    place.grow_old(0);
    assert_eq!(place.sweep(&store).forgotten, 0);
    // An older change by the same writer does not bring it back.
    assert!(write(&store, "stamped", Some(Stamp::new(5, 1))).is_err());
    assert!(!is_there(&store, "stamped"));
    claim(&store, namespace(), 6);
    place.grow_old(0);
    assert_eq!(place.sweep(&store).forgotten, 1, "the claim has fenced the writer of one of them");
    let error = write(&store, "stamped", Some(Stamp::new(5, 1))).unwrap_err();
    assert_eq!(error, Error::Fenced { epoch: Epoch(6) });
    let error = write(&store, "claimed", Some(Stamp::new(7, 1))).unwrap_err();
    assert_eq!(error, Error::Fenced { epoch: Epoch(8) });
}

#[test]
fn an_object_that_is_made_again_meanwhile_stays() {
    let place = Place::new("again");
    let (store, sweeper) = (place.open(), place.open());
    write(&store, "disk", None).unwrap();
    delete(&store, "disk", None).unwrap();
    place.grow_old(0);
    place.server.trouble(|asked| match asked.method == "DELETE" && asked.key.starts_with("h/") {
        true => Trouble::HeldBefore,
        false => Trouble::None,
    });
    std::thread::scope(|scope| {
        let swept = scope.spawn(|| place.sweep(&sweeper));
        place.server.wait_held(1);
        write(&store, "disk", None).unwrap();
        place.server.release();
        assert_eq!(swept.join().unwrap().forgotten, 0);
    });
    assert!(is_there(&store, "disk") && is_there(&sweeper, "disk"));
}

#[test]
fn where_conditions_of_removals_are_ignored_nothing_is_forgotten() {
    let place = Place::new("ignored");
    place.server.ignore_conditions_of_removals();
    let store = place.open();
    write(&store, "disk", None).unwrap();
    delete(&store, "disk", None).unwrap();
    place.grow_old(0);
    assert_eq!(place.sweep(&store).forgotten, 0);
    assert_eq!((place.server.keys("h/").len(), place.server.keys("p/").len()), (1, 0));
}
