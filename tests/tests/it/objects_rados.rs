//! The server with its objects on a real RADOS (`deploy/dev/ceph-dev`), used through its object
//! listener: stored data survive kill -9 and a new start, data that were only cached survive an
//! orderly end.

use std::path::{Path, PathBuf};

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, Durability, Error, FlushRequest, InfoRequest, Name, Namespace, ObjectId,
    ReadRequest, Scope, WriteRequest,
};
use cached_tests::ceph::Cluster;
use cached_tests::object_client;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::Server;
use synapse::{Address, SynapseBlocker};

fn cluster(test: &str) -> Option<Cluster> {
    Cluster::up(test, Path::new(env!("CARGO_TARGET_TMPDIR")))
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Starts a write-back cache over the cluster that flushes only on request.
    fn start(&self, cluster: &Cluster, writer: &str) -> Server {
        let text = format!(
            "[objects]\nwrite = \"back\"\nwriter = \"{writer}\"\ndirty_age_ms_max = 86400000\n\
             [objects.backend]\nkind = \"rados\"\npool = \"cached\"\nconf = \"{}\"\nroot = \"{writer}\"\n\
             [synapse]\nlisten = [\"unix:{}\"]\n",
            cluster.conf().display(),
            self.socket().display()
        );
        let path = self.dir.path().join("cached.toml");
        std::fs::write(&path, text).expect("a configuration");
        Server::start(&format!("--config={}", path.display()))
    }

    fn connect(&self) -> SynapseBlocker {
        SynapseBlocker::connect_on_thread(object_client::config(Address::Unix(self.socket())))
            .expect("a connection")
    }
}

fn object(number: usize) -> ObjectId {
    let name = Name::new(format!("object.{number}")).expect("a name");
    ObjectId::new(Namespace::new("vm").expect("a namespace"), name)
}

/// The number of an object's buckets. Every third bucket contains the object's number, so that a
/// flush has many runs.
const BUCKETS: usize = 60;

fn fill(client: &SynapseBlocker, number: usize) {
    for bucket in (0..BUCKETS).step_by(3) {
        let data = vec![number as u8 + 1; 4096];
        let request = WriteRequest::new(object(number), bucket as u64 * 4096, data);
        let reply =
            block_on(client.write(request)).unwrap_or_else(|error| panic!("object {number}: {error}"));
        assert_eq!(reply.durability, Durability::Cached);
    }
}

#[track_caller]
fn assert_there(client: &SynapseBlocker, number: usize) {
    let read = block_on(client.read(ReadRequest::new(object(number), 0, 1 << 20)));
    let data = read.unwrap_or_else(|error| panic!("object {number}: {error}")).data.to_vec();
    assert_eq!(data.len(), (BUCKETS - 2) * 4096, "object {number}");
    for (bucket, bytes) in data.chunks(4096).enumerate() {
        let wanted = if bucket % 3 == 0 { number as u8 + 1 } else { 0 };
        assert!(bytes.iter().all(|byte| *byte == wanted), "object {number}, bucket {bucket}");
    }
}

fn end(mut server: Server, signal: libc::c_int) -> std::process::ExitStatus {
    server.signal(signal);
    server.wait_exit()
}

#[test]
#[ignore = "long: ceph, beyond the contract"]
fn stored_data_survive_the_process() {
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let Some(cluster) = cluster("stored") else { return };
    for writer in ["callers", "cache"] {
        let place = Place { dir: tempfile::tempdir().expect("a temporary directory") };
        let server = place.start(&cluster, writer);
        let client = place.connect();
        (0..5).for_each(|number| fill(&client, number));
        block_on(client.flush(FlushRequest::new(Scope::All))).expect("a flush");
        let mut now = WriteRequest::new(object(5), 0, b"stored by itself");
        now.terms.durability = Durability::Stored;
        assert_eq!(block_on(client.write(now)).expect("a write").durability, Durability::Stored);
        fill(&client, 6);
        end(server, libc::SIGKILL);
        drop(client);

        // The new process, which is the only writer under its new epoch, has all stored data and
        // can continue.
        let server = place.start(&cluster, writer);
        let client = place.connect();
        (0..5).for_each(|number| assert_there(&client, number));
        let read = block_on(client.read(ReadRequest::new(object(5), 0, 100))).expect("a read");
        assert_eq!(read.data.to_vec(), b"stored by itself");
        let lost = block_on(client.info(InfoRequest::new(object(6))));
        assert!(matches!(lost, Err(Error::Missing)), "never flushed, and there: {lost:?}");
        fill(&client, 7);
        drop(client);
        let status = end(server, libc::SIGTERM);
        assert!(status.success(), "{status}");

        // This time the OSD is killed as well.
        let server = place.start(&cluster, writer);
        let client = place.connect();
        fill(&client, 8);
        block_on(client.flush(FlushRequest::new(Scope::All))).expect("a flush");
        end(server, libc::SIGKILL);
        drop(client);
        cluster.dev("osd", &["restart"]);
        let _server = place.start(&cluster, writer);
        let client = place.connect();
        [0, 4, 7, 8].into_iter().for_each(|number| assert_there(&client, number));
    }
}
