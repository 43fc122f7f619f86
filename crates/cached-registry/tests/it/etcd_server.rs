//! Debian's etcd on loopback ports, alone or as a cluster, with and without TLS.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use test_kit::outside::kill_with_thread;

/// The maximum time that etcd may take to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running etcd. Dropping it ends it.
pub(crate) struct Etcd {
    process: Child,
    pub(crate) url: String,
    /// The member's name and URL for other members, and the names and URLs of all members.
    name: String,
    peer: String,
    cluster: String,
    dir: tempfile::TempDir,
    uses_tls: bool,
}

/// Returns a port that nothing uses, below those of outgoing connections, and that this function has
/// not returned before.
pub(crate) fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap();
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok() && given.insert(*port);
    std::iter::repeat_with(|| rand::random_range(10_000..20_000)).find(is_free).unwrap()
}

impl Etcd {
    /// Starts a single etcd.
    pub(crate) fn start(uses_tls: bool) -> Self {
        Self::cluster(1, uses_tls).pop().unwrap()
    }

    /// Starts the members of a cluster.
    pub(crate) fn cluster(count: usize, uses_tls: bool) -> Vec<Self> {
        let peers: Vec<String> = (0..count).map(|_| format!("http://127.0.0.1:{}", free_port())).collect();
        let names: Vec<String> =
            peers.iter().enumerate().map(|(index, peer)| format!("m{index}={peer}")).collect();
        let cluster = names.join(",");
        let member = |(index, peer): (usize, String)| {
            let dir = tempfile::tempdir().unwrap();
            if uses_tls {
                let key = KeyPair::generate().unwrap();
                let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
                std::fs::write(dir.path().join("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
                std::fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
            }
            let scheme = if uses_tls { "https" } else { "http" };
            let (url, name) = (format!("{scheme}://127.0.0.1:{}", free_port()), format!("m{index}"));
            let process = spawn(dir.path(), &url, &name, &peer, &cluster, uses_tls);
            Self { process, url, name, peer, cluster: cluster.clone(), dir, uses_tls }
        };
        let members: Vec<Self> = peers.into_iter().enumerate().map(member).collect();
        members.iter().for_each(Self::wait);
        members
    }

    /// The certificate that a client must trust.
    pub(crate) fn ca_file(&self) -> String {
        self.dir.path().join("cert.pem").display().to_string()
    }

    /// Kills etcd.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts a killed etcd with the same data and address.
    pub(crate) fn restart(&mut self) {
        self.process =
            spawn(self.dir.path(), &self.url, &self.name, &self.peer, &self.cluster, self.uses_tls);
        self.wait();
    }

    /// Sends a request as `curl` does, and returns the response.
    pub(crate) fn post(&self, method: &str, request: &str, token: Option<&str>) -> serde_json::Value {
        let connector = cached_http::Route::new(PATIENCE);
        let tls = match self.uses_tls {
            true => cached_tls::client::with_authorities(Some(self.ca_file().as_ref())).unwrap(),
            false => cached_tls::client::no_authorities(),
        };
        let client =
            cached_http::Blocking::new(connector.with_tls(tls, true), "test/1", Some(PATIENCE)).unwrap();
        let mut builder = cached_http::http::Request::post(format!("{}/v3/{method}", self.url));
        if let Some(token) = token {
            builder = builder.header("authorization", token);
        }
        let answer = client.send(builder, request.to_owned().into(), 1 << 20).unwrap();
        assert!(answer.status().is_success(), "{method}: {answer:?}");
        serde_json::from_slice(answer.body()).unwrap()
    }

    fn wait(&self) {
        let address = self.url.rsplit('/').next().unwrap().to_owned();
        let end = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(&address).is_err() {
            assert!(
                Instant::now() < end,
                "etcd has not started; its log is in {}",
                self.dir.path().display()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(dir: &Path, url: &str, name: &str, peer: &str, cluster: &str, uses_tls: bool) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(dir.join("log")).unwrap();
    let mut command = Command::new("etcd");
    command.args(["--name", name, "--data-dir"]).arg(dir.join("data"));
    command.args(["--listen-client-urls", url, "--advertise-client-urls", url]);
    command.args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]);
    command.args(["--initial-cluster", cluster]);
    // etcd's shortest lease is one and a half times its election timeout. Members that wait for each
    // other on a busy machine need more time.
    let (heartbeat, election) = if cluster.contains(',') { ("100", "1000") } else { ("20", "200") };
    command.args(["--heartbeat-interval", heartbeat, "--election-timeout", election]);
    if uses_tls {
        command.arg("--cert-file").arg(dir.join("cert.pem"));
        command.arg("--key-file").arg(dir.join("key.pem"));
    }
    // A process group of its own, so that an interrupt from the terminal does not end it first.
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
    kill_with_thread(&mut command);
    command.spawn().unwrap()
}
