//! The real program is shut down and restarted while a client is connected.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use blocker::executor::block_on;
use blocker::*;
use synapse::{Address, ClientConfig, SynapseBlocker};
use test_kit::memory_directory;

struct Daemon(Child);

impl Daemon {
    /// Starts a write-back cache over `store`, with its socket in `dir`.
    fn start(dir: &Path, store: &str) -> Self {
        let config = dir.join("synapsed.toml");
        let text = format!(
            "backend = {{ kind = \"file\", create = true, path = \"{}\" }}\n[synapse]\nlisten = [\"unix:{}\"]\n[objects]\nmemory_bytes_max = \"4 MiB\"\nwrite = \"back\"\n\
             writer = \"cache\"\ndirty_age_ms_max = 86400000\n",
            dir.join(store).display(),
            dir.join("sock").display()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_synapsed"));
        let mut child = command.arg("--config").arg(config).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains(" at "), "it did not start: {line}");
        Self(child)
    }

    fn end(mut self, signal: &str) {
        // The shell's own command, because a machine may lack the program.
        let kill = format!("kill {signal} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        assert_eq!(self.0.wait().unwrap().success(), signal == "-TERM");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Unless the test has failed, it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn client(dir: &Path) -> SynapseBlocker {
    let mut config = ClientConfig::new(Address::Unix(dir.join("sock")));
    (config.connect_timeout, config.peer_timeout) = (Duration::from_secs(60), Duration::from_secs(60));
    // The daemon may be away for as long as several starts take.
    config.reconnect_timeout = Duration::from_secs(300);
    SynapseBlocker::connect_on_thread(config).unwrap()
}

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Namespace::new("vm").unwrap(), Name::new(name).unwrap())
}

fn write(client: &SynapseBlocker, name: &'static str) {
    let reply = block_on(client.write(WriteRequest::new(object(name), 0, vec![7; 5000]))).unwrap();
    assert_eq!(reply.durability, Durability::Cached);
}

fn flush(client: &SynapseBlocker, scope: Scope) -> Result<FlushReply> {
    block_on(client.flush(FlushRequest::new(scope)))
}

#[test]
fn a_client_takes_a_planned_restart_for_no_loss_and_a_kill_for_one() {
    // A daemon has five seconds to record in its store that it has ended in order.
    let dir = memory_directory();
    let daemon = Daemon::start(dir.path(), "store");
    let client = client(dir.path());
    write(&client, "planned");
    daemon.end("-TERM");
    let daemon = Daemon::start(dir.path(), "store");
    flush(&client, Scope::All).unwrap();
    let found = block_on(client.read(ReadRequest::new(object("planned"), 0, 9000))).unwrap();
    assert!(found.data.to_vec() == vec![7; 5000]);
    write(&client, "killed");
    daemon.end("-KILL");
    let daemon = Daemon::start(dir.path(), "store");
    flush(&client, Scope::Object(object("planned"))).unwrap();
    let lost = flush(&client, Scope::Object(object("killed"))).unwrap_err();
    assert!(matches!(lost, Error::WritesLost(_)), "{lost}");
    daemon.end("-TERM");
}

#[test]
fn a_client_is_not_served_by_a_node_over_another_directory() {
    let dir = memory_directory();
    let daemon = Daemon::start(dir.path(), "store");
    let client = client(dir.path());
    write(&client, "disk");
    daemon.end("-TERM");
    let daemon = Daemon::start(dir.path(), "another");
    let mut request = FlushRequest::new(Scope::All);
    request.call.deadline = Some(SystemClock.now() + Duration::from_secs(2));
    let error = block_on(client.flush(request)).unwrap_err();
    assert!(matches!(error, Error::NotStored(_) | Error::DeadlinePassed | Error::Retryable(_)), "{error}");
    daemon.end("-TERM");
    let daemon = Daemon::start(dir.path(), "store");
    flush(&client, Scope::All).unwrap();
    let found = block_on(client.read(ReadRequest::new(object("disk"), 0, 9000))).unwrap();
    assert!(found.data.to_vec() == vec![7; 5000]);
    daemon.end("-TERM");
}
