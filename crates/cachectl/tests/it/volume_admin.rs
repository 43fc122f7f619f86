//! `cachectl volume` with an admin listener that gives prepared responses: its requests, its
//! output, and its exit status.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use serde_json::{Value, json};

/// A listener that responds to one request after the other, each on its own connection.
struct Listener {
    address: SocketAddr,
    asked: Receiver<(String, Value)>,
    thread: Option<JoinHandle<()>>,
    end: Sender<()>,
}

impl Listener {
    fn new(answers: &[(u16, Value)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ((tell, asked), (end, is_end)) = (channel(), channel::<()>());
        let answers: Vec<(u16, String)> =
            answers.iter().map(|(code, answer)| (*code, answer.to_string())).collect();
        let thread = std::thread::spawn(move || {
            let mut answers = answers.into_iter();
            loop {
                let (mut stream, _) = listener.accept().unwrap();
                if is_end.try_recv().is_ok() {
                    return;
                }
                let Some((code, answer)) = answers.next() else { return };
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                reader.read_line(&mut head).unwrap();
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    let line = line.trim_end().to_ascii_lowercase();
                    if let Some(value) = line.strip_prefix("content-length: ") {
                        length = value.parse().unwrap();
                    }
                    if line.is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let request = head.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
                tell.send((request, serde_json::from_slice(&body).unwrap_or_default())).unwrap();
                let head = format!(
                    "HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    answer.len()
                );
                stream.write_all((head + &answer).as_bytes()).unwrap();
            }
        });
        Self { address, asked, thread: Some(thread), end }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachectl"));
        command.args(["--admin", &self.address.to_string(), "volume"]).args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.end.send(());
        // The thread must notice the end, unless it has already ended.
        let _ = std::net::TcpStream::connect(self.address);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the listener");
    }
}

/// Runs a command with prepared responses. Returns its exit status, output, error output, and
/// requests.
fn run(arguments: &[&str], answers: &[(u16, Value)]) -> (Option<i32>, String, String, Vec<(String, Value)>) {
    let listener = Listener::new(answers);
    let output = listener.run(arguments);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr), listener.asked.try_iter().collect())
}

/// Asserts that a command sends exactly this request and prints this output.
#[track_caller]
fn asks(arguments: &[&str], request: &str, body: Value, answer: Value, shown: &str) {
    let (code, output, error, asked) = run(arguments, &[(200, answer)]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{arguments:?}");
    assert_eq!(asked, [(request.to_owned(), body)], "{arguments:?}");
    assert_eq!(output.trim_end(), shown, "{arguments:?}");
}

#[test]
fn each_command_is_one_request_of_the_contract() {
    let done = json!({});
    let null = Value::Null;
    let set = ["create", "disk", "20G", "write=back", "quota_bytes_max=40G"];
    let settings = json!({ "write": "back", "quota_bytes_max": 40_u64 << 30 });
    let body = json!({ "name": "disk", "size_bytes": 20_u64 << 30, "settings": settings });
    asks(&set, "POST /volumes/create", body, done.clone(), "disk is a volume of 20 GiB");
    let body = json!({ "source": "disk", "snapshot": "gold", "name": "vm1" });
    asks(
        &["clone", "disk@gold", "vm1"],
        "POST /volumes/clone",
        body,
        done.clone(),
        "vm1 is a clone of disk@gold",
    );
    let body = json!({ "source": "disk", "snapshot": null, "name": "vm1" });
    asks(&["clone", "disk", "vm1"], "POST /volumes/clone", body, done.clone(), "vm1 is a clone of disk");
    let body = json!({ "name": "disk", "size_bytes": 512 << 20, "shrink": true });
    asks(
        &["resize", "--yes", "disk", "512M"],
        "POST /volumes/resize",
        body,
        done.clone(),
        "disk has 512 MiB",
    );
    let body = json!({ "name": "disk", "settings": { "is_read_only": true } });
    asks(&["set", "disk", "is_read_only=true"], "POST /volumes/set", body, done.clone(), "disk is set");
    let body = json!({ "volumes": ["disk", "data", "log"], "snapshot": "monday" });
    let shown = "disk@monday, data@monday, log@monday are created at one instant";
    asks(&["snapshot", "disk@monday", "data", "log"], "POST /volumes/snapshot", body, done.clone(), shown);
    let body = json!({ "name": "disk", "snapshot": "monday" });
    let delete = ["delete-snapshot", "disk@monday", "--yes"];
    asks(&delete, "POST /volumes/delete-snapshot", body.clone(), done.clone(), "disk@monday is deleted");
    let shown = "disk is restored to disk@monday";
    asks(&["rollback", "disk@monday", "--yes"], "POST /volumes/rollback", body, done.clone(), shown);
    let body = json!({ "name": "disk" });
    let shown = "disk depends on no other volume";
    asks(&["flatten", "disk"], "POST /volumes/flatten", body.clone(), done.clone(), shown);
    asks(&["delete", "disk", "--yes"], "POST /volumes/delete", body.clone(), done.clone(), "disk is deleted");
    let damaged = json!({ "name": "disk", "damaged": true });
    let delete = ["delete", "disk", "--damaged", "--yes"];
    asks(&delete, "POST /volumes/delete", damaged, done.clone(), "disk is deleted");
    let shown = "disk is stored and detached: another host may attach it";
    asks(&["detach", "disk"], "POST /volumes/detach", body, done, shown);
    let (code, output, _, asked) = run(&["take-over", "disk", "--yes"], &[(200, json!({}))]);
    assert_eq!((code, output.as_str()), (Some(0), "disk is detached from its owner\n"));
    assert_eq!(asked, [("POST /volumes/take-over".to_owned(), json!({ "name": "disk" }))]);
    let report = json!({ "volumes": 2, "objects": 9, "problems": [] });
    let shown = "2 volumes, 9 objects: in order";
    asks(&["check", "--repair"], "POST /volumes/check", json!({ "repair": true }), report, shown);
    asks(&["list"], "GET /volumes", null.clone(), json!({ "volumes": [] }), "");
    let disk = json!({ "name": "my disk", "size_bytes": 4096 });
    let list = json!({ "volumes": [disk] });
    asks(&["list"], "GET /volumes", null.clone(), list.clone(), "my disk      4 KiB, not in use");
    asks(&["--json", "list"], "GET /volumes", null.clone(), list.clone(), &list.to_string());
    let (_, output, ..) = run(&["show", "my disk"], &[(200, disk)]);
    assert!(output.starts_with("my disk\n  size             4 KiB (4096 bytes)\n"), "{output}");
}

#[test]
fn names_are_encoded_and_differences_come_page_by_page() {
    let page = |offset: u64, more: bool| {
        let extents = [json!({ "offset": offset, "bytes": 4096, "kind": "data" })];
        (200, json!({ "extents": extents, "more": more }))
    };
    let (code, output, _, asked) =
        run(&["diff", "a&b@x y", "--from", "z"], &[page(0, true), page(1 << 30, false)]);
    assert_eq!((code, output.lines().count()), (Some(0), 2), "{output}");
    assert!(output.starts_with("               0           4096  data\n      1073741824 "), "{output}");
    let asked: Vec<&str> = asked.iter().map(|(request, _)| request.as_str()).collect();
    let query = "GET /volumes/diff?name=a%26b&from=z&to=x%20y";
    assert_eq!(asked, [format!("{query}&offset=0"), format!("{query}&offset=4096")]);
}

#[test]
fn what_would_lose_data_is_confirmed_first() {
    let disk = (200, json!({ "name": "disk", "size_bytes": 20_u64 << 30, "snapshots": [{}, {}] }));
    for (arguments, answers, wanted) in [
        (
            &["delete", "disk"][..],
            std::slice::from_ref(&disk),
            "its 20 GiB and its 2 snapshots would be lost; --yes",
        ),
        (
            &["resize", "disk", "15G"],
            std::slice::from_ref(&disk),
            "has 20 GiB, and the last 5 GiB would be lost; --yes",
        ),
        (
            &["take-over", "disk"],
            &[(200, json!({ "owner": "node2" }))],
            "its owner is node2; --yes confirms that it is gone",
        ),
        (&["rollback", "disk@monday"], &[], "data written since monday would be lost; --yes"),
        (
            &["delete-snapshot", "disk@monday"],
            &[],
            "disk@monday is unchanged: data that only it contains would be lost",
        ),
    ] {
        let (code, _, error, asked) = run(arguments, answers);
        assert_eq!((code, error.lines().count()), (Some(2), 1), "{error}");
        assert!(error.contains(wanted), "{error}");
        assert!(asked.iter().all(|(request, _)| request.starts_with("GET ")), "{asked:?}");
    }
    // Growing a volume needs no confirmation.
    let (code, output, _, asked) = run(&["resize", "disk", "21G"], &[disk, (200, json!({}))]);
    assert_eq!((code, output.as_str()), (Some(0), "disk has 21 GiB\n"));
    assert_eq!(asked[1].1["shrink"], false);
}

#[test]
fn a_refusal_is_one_line_and_an_exit_code() {
    let reason = "the volume is in use by \"a\u{1b}[2J\"\nsecond line";
    for (status, code, kind) in [
        (400, 2, "invalid"),
        (401, 4, "admin"),
        (404, 3, "missing"),
        (409, 4, "refused"),
        (500, 1, "admin"),
        (503, 5, "admin"),
        (507, 5, "out_of_space"),
    ] {
        let answer = [(status, json!({ "error": reason }))];
        let (found, _, error, _) = run(&["flatten", "disk"], &answer);
        assert_eq!(found, Some(code), "{status}: {error}");
        assert!(
            error.contains(": the volume is in use by \"a[2J\"; ") && error.lines().count() == 1,
            "{error:?}"
        );
        let (_, _, error, _) = run(&["--json", "flatten", "disk"], &answer);
        assert!(error.contains(&format!(r#""error":"{kind}""#)), "{status}: {error}");
    }
    // A server without volumes has no such page.
    let (code, _, error, _) = run(&["list"], &[(404, json!("there is nothing here; see /"))]);
    assert_eq!(code, Some(1));
    assert!(error.contains("this server has no such page"), "{error}");
    for wrong in [
        &["create", "disk", "20Q"][..],
        &["create", "disk@x", "20G"],
        &["snapshot", "disk"],
        &["snapshot", "disk@monday", "data@monday"],
        &["set", "disk"],
        &["set", "disk", "colour=1"],
        &["import", "disk", "file", "--existing", "--size", "1G"],
    ] {
        let (code, _, error, asked) = run(wrong, &[]);
        assert_eq!((code, asked.len()), (Some(2), 0), "{wrong:?}: {error}");
    }
}

#[test]
fn a_check_that_finds_something_fails() {
    let problem = |kind: &str| json!({ "kind": kind, "what": "volumes.0000001/d/1" });
    let report = |kind: &str, repaired: u64| json!({ "volumes": 1, "objects": 2, "problems": [problem(kind)], "repaired": repaired });
    for (found, code, text) in [
        (report("leftover", 0), 1, "leftover: volumes.0000001/d/1\n1 volumes, 2 objects: 1 problem\n"),
        (report("leftover", 1), 0, "in order, 1 leftover removed\n"),
        (report("missing", 0), 6, "missing: volumes.0000001/d/1\n"),
    ] {
        let (status, output, error, _) = run(&["check"], &[(200, found)]);
        assert_eq!(status, Some(code), "{error}");
        assert!(output.contains(text), "{output}");
    }
}

#[test]
fn what_takes_long_is_followed_to_its_end() {
    let begun = (202, json!({ "job": 7 }));
    let running = (200, json!({ "state": "running", "done": 1, "total": 3 }));
    let done = (200, json!({ "state": "done", "result": { "copied": 3 } }));
    let (code, output, error, asked) =
        run(&["--json", "flatten", "disk"], &[begun.clone(), running.clone(), done]);
    assert_eq!((code, output.trim_end()), (Some(0), r#"{"copied":3}"#), "{error}");
    let asked: Vec<&str> = asked.iter().map(|(request, _)| request.as_str()).collect();
    assert_eq!(asked, ["POST /volumes/flatten", "GET /volumes/job?id=7", "GET /volumes/job?id=7"]);
    let failed = (200, json!({ "state": "failed", "error": "no space: the store is full" }));
    let (code, _, error, _) = run(&["flatten", "disk"], &[begun.clone(), failed]);
    assert_eq!((code, error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.ends_with(": no space: the store is full\n"), "{error}");
    // The command is interrupted after the first status request: the server continues, and the
    // command prints the job's number.
    let listener = Listener::new(&[&[begun][..], &vec![running; 1000][..]].concat());
    let child = listener.command(&["flatten", "disk"]).stderr(Stdio::piped()).spawn().unwrap();
    listener.asked.recv().unwrap();
    listener.asked.recv().unwrap();
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{error}");
    assert!(error.contains("interrupted; the server continues: `cachectl volume job 7`"), "{error}");
}
