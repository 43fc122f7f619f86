//! The cost of operations in requests and bytes, and the servers that are refused.

use std::sync::Arc;

use blocker::{
    Blocker, BlockerExt, DeleteRequest, Error, ManualClock, ReadRequest, Run, Scope, SystemClock,
    WriteFullRequest, WriteRequest, WriteRunsRequest,
};
use blocker_s3::S3Store;
use blocker_s3::object_store::ObjectStore;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};

use crate::support::{Met, Quirk, Server, config, drive, interleave, object, open, read};

const BUCKET: usize = 4096;

fn count(met: &[Met], kind: &str) -> usize {
    met.iter().filter(|met| met.kind == kind).count()
}

/// The cost of a cache's flush of 16 dirty ranges of 4 KiB, anywhere in 4 MiB. Each flush is two
/// puts with at most 1.3 times the dirty bytes plus 8 KiB, unless it rewrites the object; the
/// average over many flushes also stays within that.
#[test]
fn a_flush_of_scattered_ranges_is_two_puts() {
    let (server, clock) = (Server::new(1), ManualClock::new());
    let store = open(&server, &clock);
    let mut rng = SmallRng::seed_from_u64(7);
    let mut model = vec![1_u8; 4 << 20];
    drive(&clock, store.write_full(WriteFullRequest::new(object("disk"), model.clone()))).unwrap();
    server.met();
    let limit = 16 * BUCKET * 13 / 10 + 8192;
    let (mut plain, mut plain_bytes, mut most, mut anew, mut all_bytes) = (0, 0, 0, 0, 0);
    const FLUSHES: usize = 160;
    for flush in 0..FLUSHES {
        let mut places = sample(&mut rng, model.len() / BUCKET, 16).into_vec();
        places.sort_unstable();
        let runs = places.iter().map(|place| {
            let at = place * BUCKET;
            let bytes: Vec<u8> = (0..BUCKET).map(|_| rng.random()).collect();
            model[at..at + BUCKET].copy_from_slice(&bytes);
            Run::data(at as u64, bytes)
        });
        let request = WriteRunsRequest::new(object("disk"), runs.collect());
        drive(&clock, store.write_runs(request)).unwrap();
        let met = server.met();
        let sent: usize = met.iter().map(|met| met.sent_bytes).sum();
        assert_eq!(count(&met, "put"), 2 + usize::from(count(&met, "get") > 0), "flush {flush}");
        all_bytes += sent;
        if count(&met, "get") == 0 {
            assert!(sent <= limit, "flush {flush} sends {sent} bytes");
            (plain, plain_bytes, most) = (plain + 1, plain_bytes + sent, most.max(sent));
        } else {
            anew += 1;
        }
    }
    println!(
        "{plain} flushes of 2 puts, {} bytes on average, {most} at most; {anew} wrote the object anew; {} bytes on average of all",
        plain_bytes / plain,
        all_bytes / FLUSHES
    );
    assert!(anew * 40 <= FLUSHES, "{anew} of {FLUSHES} wrote the object anew");
    assert!(all_bytes / FLUSHES <= 3 * 16 * BUCKET, "{} bytes on average", all_bytes / FLUSHES);
    assert_eq!(read(&store, &clock, &object("disk")).unwrap(), model);
    assert!(server.keys("d/").len() <= 97, "old blobs are removed");
}

/// Callers that change the same object concurrently wait for each other, and none repeats the work
/// of another.
#[test]
fn callers_of_one_store_do_not_make_each_other_repeat() {
    const CALLERS: u8 = 6;
    const ROUNDS: u8 = 5;
    for seed in 0..20 {
        let (server, clock) = (Server::new(seed), ManualClock::new());
        let store = open(&server, &clock);
        server.met();
        server.disturb(0, 3);
        let caller = |number: u8| {
            let store = &store;
            let task = async move {
                for round in 0..ROUNDS {
                    let data = vec![number * ROUNDS + round; 40_000];
                    store.write(WriteRequest::new(object("shared"), 0, data)).await.unwrap();
                }
            };
            Box::pin(task) as std::pin::Pin<Box<dyn Future<Output = ()>>>
        };
        interleave(&clock, seed, (0..CALLERS).map(caller).collect());
        let puts = count(&server.met(), "put");
        // First a deletion marker, then a blob and a head for each change.
        assert_eq!(puts, 1 + 2 * usize::from(CALLERS * ROUNDS), "seed {seed}");
    }
}

#[test]
fn small_objects_are_one_put_and_one_get() {
    let (server, clock) = (Server::new(1), ManualClock::new());
    let store = open(&server, &clock);
    let write = |at, len: usize| {
        drive(&clock, store.write(WriteRequest::new(object("small"), at, vec![1; len]))).unwrap();
    };
    write(0, 4096);
    server.met();
    write(8192, 4096);
    let met = server.met();
    assert_eq!((count(&met, "put"), met.len()), (1, 1), "{met:?}");
    let other = open(&server, &clock);
    server.met();
    assert_eq!(read(&other, &clock, &object("small")).unwrap().len(), 12_288);
    let met = server.met();
    assert_eq!((count(&met, "get"), met.len()), (1, 1), "{met:?}");
    assert_eq!(server.keys("d/").len(), 0);
    // The object becomes too large to be stored in its head.
    write(100_000, 10);
    assert_eq!(server.keys("d/").len(), 1);
    assert_eq!(read(&other, &clock, &object("small")).unwrap()[8191..8193], [0, 1]);
}

#[test]
fn a_deleted_object_leaves_no_blob() {
    let (server, clock) = (Server::new(1), ManualClock::new());
    let store = open(&server, &clock);
    let full = WriteFullRequest::new(object("large"), vec![1; 100_000]);
    drive(&clock, store.write_full(full)).unwrap();
    assert_eq!(server.keys("d/").len(), 1);
    drive(&clock, store.delete(DeleteRequest::new(object("large")))).unwrap();
    assert_eq!(server.keys("d/").len(), 0);
    let gone = drive(&clock, store.read(ReadRequest::new(object("large"), 0, 1)));
    assert_eq!(gone.map(drop), Err(Error::Missing));
}

/// A reader has an old head, whose blobs have been removed by the time it requests them.
#[test]
fn a_reader_that_misses_a_blob_looks_again() {
    let (server, clock) = (Server::new(1), ManualClock::new());
    let (writer, reader) = (open(&server, &clock), open(&server, &clock));
    let full = |byte| WriteFullRequest::new(object("large"), vec![byte; 100_000]);
    drive(&clock, writer.write_full(full(1))).unwrap();
    // The requests yield to each other, so that with some seed the read meets each state of the
    // change.
    for seed in 0..60 {
        server.disturb(0, 4);
        let request = ReadRequest::new(object("large"), 0, 100_000);
        let read = async {
            let found = reader.read(request).await.unwrap().data.to_vec();
            assert_eq!(found.len(), 100_000);
            assert!(found.iter().all(|byte| *byte == found[0]), "a mixture");
        };
        let write = async {
            writer.write_full(full(seed as u8)).await.unwrap();
        };
        crate::support::interleave(&clock, seed, vec![Box::pin(read), Box::pin(write)]);
    }
    server.heal();
    // A blob that is permanently gone is reported as damage, without endless retries.
    let blob = server.keys("d/").remove(0);
    use blocker_s3::object_store::ObjectStoreExt;
    blocker::executor::block_on(server.inner.delete(&blob.as_str().into())).unwrap();
    let lost = drive(&clock, reader.read(ReadRequest::new(object("large"), 0, 1)));
    assert_eq!(lost.unwrap_err().kind(), "corrupt");
}

fn opened(quirk: Quirk) -> Result<S3Store, Error> {
    let server = Server::new(1).quirk(quirk);
    S3Store::open_over(&config(), server as Arc<dyn ObjectStore>, Arc::new(SystemClock))
}

#[test]
fn a_server_that_does_not_keep_what_is_needed_is_refused_in_one_line() {
    for (quirk, part) in [
        (Quirk::IgnoresIfNoneMatch, "ignores If-None-Match: * in a put"),
        (Quirk::IgnoresIfMatch, "ignores If-Match in a put"),
        (Quirk::RefusesIfMatch, "refuses If-Match with the ETag that it has returned"),
        (Quirk::NamesNoEtag, "returns no ETag"),
        (Quirk::IgnoresRanges, "sends more bytes than were requested"),
        (Quirk::ListsNothing, "does not list an object that it has stored"),
    ] {
        let error = opened(quirk).map(drop).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), "unsupported", "{text}");
        assert!(text.contains(part) && !text.contains('\n'), "{text}");
    }
}

#[test]
fn etags_are_handed_back_as_the_server_compares_them() {
    let store = opened(Quirk::BareEtags).unwrap();
    let clock = ManualClock::new();
    for byte in [1, 2] {
        drive(&clock, store.write(WriteRequest::new(object("a"), 0, vec![byte; 10]))).unwrap();
    }
    assert_eq!(read(&store, &clock, &object("a")).unwrap(), [2; 10]);
}

/// A proxy may have dropped the header. The head is stored, and names the change's blob.
#[test]
fn a_change_whose_response_has_no_etag_is_made() {
    let (server, clock) = (Server::new(1), ManualClock::new());
    let store = open(&server, &clock);
    let full = |byte| WriteFullRequest::new(object("a"), vec![byte; 100_000]);
    drive(&clock, store.write_full(full(1))).unwrap();
    let server = server.quirk(Quirk::NamesNoEtag);
    drive(&clock, store.write_full(full(2))).unwrap();
    server.quirk(Quirk::None);
    assert_eq!(read(&store, &clock, &object("a")).unwrap(), vec![2; 100_000]);
}

#[test]
fn the_probe_leaves_nothing() {
    let (server, clock) = (Server::new(1), ManualClock::new());
    let store = open(&server, &clock);
    assert_eq!(server.keys(""), ["s/layout"]);
    drive(&clock, store.flush(blocker::FlushRequest::new(Scope::All))).unwrap();
    // A store cannot be opened on a server that does not answer.
    server.fail_at(0, crate::support::Fault::DeadBefore);
    let server: Arc<dyn ObjectStore> = server;
    let error = S3Store::open_over(&config(), server, Arc::new(SystemClock)).map(drop).unwrap_err();
    assert_eq!(error.kind(), "retryable", "{error}");
}
