//! The interface for service managers and start scripts: PID file, daemon, signals, inherited
//! sockets, `sd_notify`, the port file, and listeners with a protocol of their own.

use cached_tests::conn::Conn;
use cached_tests::daemon::{DEADLINE, process_state, wait_for};
use cached_tests::frame::{Request, op};
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Address, Server, Start, free_port, own_address};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server started without the harness. Dropping this value kills it.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(&Program::under_test().path);
    command.args(args).args(["-u", "root"]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

fn connect(address: &Address) -> Conn {
    wait_for("a server", || Conn::open(address).ok())
}

fn at(port: u16) -> Address {
    Address::Tcp(SocketAddr::from(([127, 0, 0, 1], port)))
}

/// `-d -P`: the parent exits once the child serves, and the child removes its file when it exits.
#[test]
fn daemon_and_pid_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (file, socket) = (dir.path().join("pid"), dir.path().join("socket"));
    std::fs::write(&file, "999999999\n").expect("an old file");
    let paths = [file.to_str().expect("text"), socket.to_str().expect("text")];
    let status = command(&["-d", "-P", paths[0], "-s", paths[1]]).status().expect("it starts");
    assert!(status.success(), "{status}");
    let address = Address::Unix(socket.clone());
    assert!(!is_cached() || Conn::open(&address).is_ok(), "the parent has not waited");
    let mut conn = connect(&address);
    let pid: i32 = wait_for("the pid file", || {
        std::fs::read_to_string(&file).ok()?.trim().parse().ok().filter(|pid| *pid != 999_999_999)
    });
    conn.send(b"stats\r\n");
    assert_eq!(conn.read_line(), format!("STAT pid {pid}").into_bytes());
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).expect("its folder"), Path::new("/"));
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/fd/2")).expect("its errors"), Path::new("/dev/null"));
    // SAFETY: the PID in the file belongs to the daemon, which has just reported it.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    // Nobody may reap a daemon for a while.
    wait_for("its end", || matches!(process_state(pid), None | Some('Z' | 'X')).then_some(()));
    assert!(!file.exists(), "the pid file is left behind");
    assert!(!is_cached() || !socket.exists(), "the socket is left behind");
}

/// If a daemon cannot start, its parent prints the error line and exits with the same status.
#[test]
fn a_daemon_that_cannot_start_says_why() {
    if !is_cached() {
        return;
    }
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("cached.toml");
    let store = dir.path().join("store");
    let text = format!("[objects.backend]\nkind = \"file\"\npath = \"{}\"\n", store.display());
    std::fs::write(&file, text).expect("a configuration");
    // Only the child detects this error: the store's path is a file.
    std::fs::create_dir(&store).expect("a directory");
    std::fs::write(store.join("superblock"), "not a store").expect("a file");
    let config = format!("--config={}", file.display());
    for (args, words) in
        [(vec!["-l", &address], "in use"), (vec!["-l", "127.0.0.1", "-p", "-1", &config], "the object store")]
    {
        for verbose in [false, true] {
            let mut daemon = command(&args);
            let output = daemon.args(verbose.then_some("-v")).arg("-d").output().expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(71), "{said}");
            assert_eq!(said.lines().filter(|line| line.contains(words)).count(), 1, "{args:?}: {said}");
        }
    }
}

/// Without `-d` the file is written, and stays, as in memcached.
#[test]
fn pid_file_without_daemon() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("pid");
    let mut server = Server::start(&format!("-P {}", file.display()));
    let pid =
        wait_for("the pid file", || std::fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n')));
    assert_eq!(pid, format!("{}\n", server.pid()));
    server.signal(libc::SIGINT);
    assert!(server.wait_exit().success());
    assert!(file.exists());
}

#[test]
fn signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1] {
        let mut server = Server::start("");
        server.assert_serves("its start");
        server.signal(signal);
        assert!(server.wait_exit().success(), "signal {signal}");
        if signal == libc::SIGUSR1 {
            assert!(server.log().contains("Gracefully stopping"), "{}", server.log());
        }
    }
    let mut server = Server::start("");
    for _ in 0..5 {
        server.signal(libc::SIGHUP);
        server.signal(libc::SIGPIPE);
    }
    server.assert_serves("SIGHUP and SIGPIPE");
}

/// The server listens on the service manager's sockets, and not on the command line's addresses.
#[test]
fn inherited_sockets_replace_the_addresses() {
    if !is_cached() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let unix_path = dir.path().join("handed-over");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let unix = UnixListener::bind(&unix_path).expect("a socket");
    let address = Address::Tcp(tcp.local_addr().expect("an address"));
    // High numbers, so that neither collides with 3 and 4. SAFETY: these are duplicates of our own
    // descriptors, closed with the process.
    let (first, second) = unsafe {
        (libc::fcntl(tcp.as_raw_fd(), libc::F_DUPFD, 100), libc::fcntl(unix.as_raw_fd(), libc::F_DUPFD, 100))
    };
    assert!(first > 0 && second > 0);
    let unused = own_address();
    let mut command = command(&["-l", &unused.to_string()]);
    command.env("LISTEN_FDS", "2").env_remove("NOTIFY_SOCKET").stderr(Stdio::null());
    // The variable contains the process's own PID, which is known only after the fork, so a shell
    // sets it.
    let program = command.get_program().to_owned();
    let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let mut shell = Command::new("sh");
    shell.args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\""]).arg(program).args(args).env("LISTEN_FDS", "2");
    // SAFETY: dup2 is async-signal-safe, and both descriptors are open.
    unsafe {
        shell.pre_exec(move || {
            if libc::dup2(first, 3) < 0 || libc::dup2(second, 4) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let mut started = Started(shell.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts"));
    connect(&address).ask(b"mn\r\n", b"MN\r\n");
    let mut conn = connect(&Address::Unix(unix_path.clone()));
    conn.ask(b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    assert!(Conn::open(&Address::Tcp(unused)).is_err(), "the command line's address is listened on as well");
    // SAFETY: the process is our child and has not been waited for.
    unsafe { libc::kill(started.0.id() as i32, libc::SIGTERM) };
    assert!(started.0.wait().expect("its end").success());
    assert!(unix_path.exists(), "the socket's file is the service manager's");
}

#[test]
fn the_service_manager_is_notified() {
    if !is_cached() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let address = own_address();
    let child = command(&["-l", &address.to_string()]).env("NOTIFY_SOCKET", &path).spawn();
    let mut started = Started(child.expect("it starts"));
    let hear = || {
        let mut bytes = [0; 1024];
        let count = manager.recv(&mut bytes).expect("a note");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let note = hear();
    assert!(note.starts_with("READY=1\n"), "{note}");
    assert!(note.contains(&format!("MAINPID={}", started.0.id())), "{note}");
    // After READY=1 a client can connect at the first attempt.
    Conn::open(&Address::Tcp(address)).expect("a connection").ask(b"mn\r\n", b"MN\r\n");
    // SAFETY: the process is our child and has not been waited for.
    unsafe { libc::kill(started.0.id() as i32, libc::SIGTERM) };
    assert_eq!(hear(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=5000000\nSTATUS=Ending");
    assert!(started.0.wait().expect("its end").success());
}

/// Test programs request any free port, and read its number from the file.
#[test]
fn the_port_is_written_to_a_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("ports");
    let child = command(&["-l", "127.0.0.1", "-p", "-1"]).env("MEMCACHED_PORT_FILENAME", &file).spawn();
    let _started = Started(child.expect("it starts"));
    let text =
        wait_for("the file", || std::fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n')));
    let port = text.trim().strip_prefix("TCP INET: ").unwrap_or_else(|| panic!("{text}"));
    connect(&at(port.parse().expect("a port"))).ask(b"mn\r\n", b"MN\r\n");
}

#[test]
fn listeners_with_a_protocol_of_their_own() {
    // memcached drops an `-l` whose text is part of an earlier one, including the one for which the
    // test waits.
    if !is_cached() {
        return;
    }
    let (text, binary) = (own_address(), own_address());
    let list = format!("-l proto[ascii]:{text},proto[binary]:tag[x]:{binary}");
    let server = Server::start(&list);
    let noop = Request::new(op("NOOP").unwrap()).bytes();
    let mut conn = connect(&Address::Tcp(text));
    conn.ask(b"mn\r\n", b"MN\r\n");
    conn = connect(&Address::Tcp(binary));
    conn.send(&noop);
    assert_eq!(conn.read_exact(24)[..2], [0x81, 0x0a]);
    conn = connect(&Address::Tcp(binary));
    conn.send(b"get a\r\nget a\r\nget a\r\nget a\r\n");
    conn.expect_closed("text to a binary listener");
    conn = connect(&Address::Tcp(text));
    // This file has no line feed at its end.
    conn.send(&Request::new(op("VERSION").unwrap()).bytes());
    conn.send(b"\r\n");
    assert!(conn.read_line().starts_with(b"ERROR"), "binary to a text listener");
    // The listener without a protocol still accepts both.
    server.connect().ask(b"mn\r\n", b"MN\r\n");
}

#[test]
fn ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        println!("this machine has no IPv6");
        return;
    }
    let port = free_port().port();
    let _server = Server::start(&format!("-l [::1]:{port}"));
    connect(&Address::Tcp(format!("[::1]:{port}").parse().expect("an address"))).ask(b"mn\r\n", b"MN\r\n");
}

/// The socket belongs to the user to which the server changes, so that this user's clients may use
/// it.
#[test]
fn privileges_are_dropped() {
    // SAFETY: the call has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("not root: nothing to drop");
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("socket");
    std::os::unix::fs::chown(dir.path(), Some(65_534), None).expect("a folder for nobody");
    let mut child = Command::new(&Program::under_test().path);
    child.args(["-u", "nobody", "-s"]).arg(&path).stdin(Stdio::null()).stdout(Stdio::null());
    let started = Started(child.spawn().expect("it starts"));
    connect(&Address::Unix(path.clone())).ask(b"mn\r\n", b"MN\r\n");
    let status = std::fs::read_to_string(format!("/proc/{}/status", started.0.id())).expect("its status");
    let line = |name: &str| status.lines().find(|line| line.starts_with(name)).expect("a line").to_owned();
    assert_eq!(line("Uid:").split_whitespace().nth(1), Some("65534"));
    assert!(!is_cached() || line("Groups:").split_whitespace().count() == 1, "{}", line("Groups:"));
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&path).expect("the socket"));
    assert_eq!(owner, 65_534);
    let (status, text) = Start::new().args("-u no-such-user-here").run_to_exit_as_given();
    assert_eq!(status.code(), Some(67), "{text}");
    assert!(text.contains("can't find the user no-such-user-here to switch to"), "{text}");
}
