//! Volumes and S3 in the console: what the documents say about them, the changes that holders of
//! the token may make, and that no other site can make these changes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;

use cached_tests::browser::{Browser, Viewport};
use cached_tests::daemon::{Daemon, TOKEN, wait_for};
use cached_tests::http;
use cached_tests::nbd::Disk;
use cached_tests::s3::endpoint::{Kind, User};
use cached_tests::s3::files;
use cached_tests::s3::wire::{Connection, Request};
use serde_json::{Value, json};

use crate::console::{PALE_TEXTS, UNUSABLE, open};

const MIB: u64 = 1 << 20;

/// A server with volumes and an S3 sidecar, and its clients.
struct Storage {
    daemon: Daemon,
    /// A connection to the volume `disk`, which has two snapshots. The volume `idle` has neither
    /// connections nor snapshots.
    disk: Disk,
    /// The address of the sidecar.
    s3: String,
}

impl Storage {
    fn start() -> Storage {
        let endpoint = files::start(false);
        let daemon = Daemon::start("cached", |place| {
            format!(
                "[memcached]\nthreads = 1\n[objects]\nwrite = \"back\"\nwriter = \"cache\"\nmemory_bytes_max = \"16 MiB\"\n\
                 dirty_bytes_max = \"4 MiB\"\nobject_bytes_max = \"64 KiB\"\ndirty_age_ms_max = 86400000\n\
                 [objects.backend]\nkind = \"file\"\ncreate = true\npath = \"{place}/store\"\n[volumes]\n\
                 owner = \"here\"\n[nbd]\nlisten = [\"unix:{place}/nbd\"]\n[s3]\nlisten = [\"127.0.0.1:0\"]\n\
                 upstream = \"{endpoint}\"\nmemory_bytes_max = \"16 MiB\"\n"
            )
        });
        for name in ["disk", "idle"] {
            let (status, answer) =
                daemon.post("/volumes/create", &json!({ "name": name, "size_bytes": 8 * MIB }));
            assert_eq!(status, 200, "{answer}");
        }
        let mut disk = Disk::connect(&daemon.path("nbd"), "disk").expect("a connection");
        for (at, snapshot) in ["monday", "tuesday"].into_iter().enumerate() {
            disk.write(at as u64 * 65536, &[7; 65536]).expect("it is written");
            let body = json!({ "volumes": ["disk"], "snapshot": snapshot });
            assert_eq!(daemon.post("/volumes/snapshot", &body).0, 200);
        }
        let s3 = daemon.announced("S3 on ");
        Storage { daemon, disk, s3 }
    }

    /// Sends a request to the sidecar, with a body of this length, and returns the status.
    fn ask_s3(&self, method: &'static str, path: &str, len_bytes: usize) -> u16 {
        let request = Request {
            method,
            path: path.into(),
            unsigned: vec![("content-length".into(), len_bytes.to_string())],
            body: vec![7; len_bytes],
            is_anonymous: true,
            ..Request::default()
        };
        let user = User::new(Kind::Versitygw, "main", 1);
        Connection::to(&self.s3).ask(&request, &user).expect("an answer").status
    }

    /// Returns the names of the volume's snapshots.
    fn snapshots(&self) -> Vec<String> {
        let shown = self.daemon.json("/volumes/show?name=disk");
        let snapshots = shown["snapshots"].as_array().expect("a list");
        snapshots.iter().map(|of| of["name"].as_str().expect("a name").to_owned()).collect()
    }
}

#[test]
fn the_documents_have_the_volumes_and_the_buckets() {
    let mut storage = Storage::start();
    storage.disk.read(0, 8192).expect("it is read");
    assert_eq!(storage.ask_s3("PUT", "/media", 0), 200);
    assert_eq!(storage.ask_s3("PUT", "/media/k", 4096), 200);
    for (path, status) in [("/media/k", 200), ("/media/k", 200), ("/media/k", 200), ("/guessed/k", 404)] {
        assert_eq!(storage.ask_s3("GET", path, 0), status, "{path}");
    }
    let Storage { daemon, .. } = &storage;
    let status = daemon.json("/status.json");
    assert_eq!(
        status["volumes"]["volumes"],
        json!([{
            "volume": "disk", "connections": 1, "reads": 1, "writes": 2, "flushes": 0,
            "read_bytes": 8192, "written_bytes": 131_072,
        }])
    );
    let s3 = &status["s3"];
    assert_eq!(
        (&s3["state"], &s3["away_ms"], &s3["objects"], &s3["hits"], &s3["misses"], &s3["passed"]),
        (&json!("serving"), &json!(0), &json!(1), &json!(2), &json!(1), &json!(3)),
        "{s3}"
    );
    assert_eq!(
        (&s3["memory_bytes"], s3["endpoint_bytes"].as_u64() >= Some(4096), &s3["buckets_other"]),
        (&json!(8192), true, &json!(0)),
        "{s3}"
    );
    assert_eq!(
        s3["buckets"],
        json!([
            { "bucket": "media", "hits": 2, "misses": 1, "others": 2, "cached_bytes": 4096 },
            { "bucket": "/others", "hits": 0, "misses": 0, "others": 1, "cached_bytes": 0 },
        ])
    );
    let series =
        |series: &str| daemon.metric(&format!("cached_s3_sidecar_bucket_requests_total{{{series}}}"));
    assert_eq!(series("bucket=\"media\",result=\"hit\""), Some(2.0));
    let find = |list: &str, key: &str, value: &str| {
        let rows = status[list].as_array().expect("a list");
        rows.iter().find(|row| row[key] == value).unwrap_or_else(|| panic!("no {value}: {status}")).clone()
    };
    assert_eq!(find("listeners", "protocol", "s3")["listener"], storage.s3.as_str());
    let memory = find("memory", "owner", "s3");
    assert!(memory["used_bytes"].as_u64() > Some(4096) && memory["limit_bytes"].as_u64() > Some(16 * MIB));
    // `cachectl top` shows the same in a terminal.
    let (code, top) = daemon.cachectl(&["top", "--once"]);
    assert!(code == 0 && top.contains("Buckets") && top.contains("media"), "{top}");
}

#[test]
fn changes_need_the_token_and_are_refused_to_other_sites() {
    let storage = Storage::start();
    let address = &storage.daemon.admin;
    let (token, own) =
        (format!("Authorization: Bearer {TOKEN}\r\n"), format!("Origin: http://{address}\r\n"));
    let changes = [
        ("/volumes/snapshot", json!({ "volumes": ["disk"], "snapshot": "evil" })),
        ("/volumes/clone", json!({ "source": "disk", "name": "evil" })),
        ("/volumes/detach", json!({ "name": "idle" })),
        ("/volumes/flush", json!({ "name": "disk" })),
        ("/namespaces/flush", json!({ "namespace": "x" })),
    ];
    for (path, body) in &changes {
        let post = |headers: &str| http::post(address, path, headers, &body.to_string());
        // A form on a page of another site sends neither the token nor a preflight request.
        for (headers, status) in [
            (String::new(), 401),
            ("Content-Type: text/plain\r\n".into(), 401),
            (format!("Cookie: token={TOKEN}\r\n"), 401),
            ("Authorization: Bearer 0123456789abcdef0124\r\n".into(), 401),
            ("Origin: http://evil.example\r\n".into(), 403),
            (format!("{token}Origin: http://evil.example\r\n"), 403),
            (format!("{token}Origin: null\r\n"), 403),
            (format!("{token}Sec-Fetch-Site: cross-site\r\n"), 403),
            (format!("{token}{own}Sec-Fetch-Site: same-site\r\n"), 403),
        ] {
            assert_eq!(post(&headers).0, status, "{path}: {headers}");
        }
        assert_eq!(http::post(address, &format!("{path}?token={TOKEN}"), "", &body.to_string()).0, 401);
        // The response to a preflight request does not permit the browser to continue.
        let mut socket = TcpStream::connect(address).expect("a connection");
        let request = format!(
            "OPTIONS {path} HTTP/1.0\r\nHost: {address}\r\nOrigin: http://evil.example\r\n\
             Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).expect("the request is sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        let answer = answer.to_ascii_lowercase();
        assert!(answer.starts_with("http/1.0 405") && !answer.contains("access-control"), "{answer}");
        assert!(answer.contains("cross-origin-resource-policy: same-origin"), "{answer}");
    }
    assert_eq!(storage.snapshots(), ["monday", "tuesday"]);
    assert_eq!(http::get_with(address, "/volumes/show?name=evil", &token).0, 404);
    // Requests that a page of another site makes a browser send for images or scripts are refused
    // without a token, too.
    assert_eq!(http::get(address, "/volumes").0, 200);
    assert_eq!(http::get_with(address, "/volumes", "Sec-Fetch-Site: cross-site\r\n").0, 403);
    // The console itself sends this.
    for headers in [format!("{token}{own}Sec-Fetch-Site: same-origin\r\n"), format!("{token}{own}"), token] {
        let (path, body) = &changes[3];
        let (status, answer) = http::post(address, path, &headers, &body.to_string());
        assert_eq!(status, 200, "{headers}: {answer}");
    }
}

/// Starts a site with an empty page, which ends with the process, and returns its URL.
fn other_site() -> String {
    const PAGE: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 35\r\nConnection: close\r\n\r\n\
        <!doctype html><title>other</title>";
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("its address"));
    thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            // A browser may close a connection that it does not use.
            let _ = socket.read(&mut [0; 4096]).and_then(|_| socket.write_all(PAGE));
        }
    });
    url
}

/// Clicks a button within an element, once the button exists.
fn click(browser: &mut Browser, within: &str, text: &str) {
    let find = format!(
        "[...document.querySelectorAll({})].find((one) => one.innerText.trim() === {})",
        json!(format!("{within} button")),
        json!(text)
    );
    browser.wait_for(&find);
    browser.evaluate(&format!("{find}.click()"));
}

/// Waits until the line above the figures contains a text.
fn wait_for_notice(browser: &mut Browser, text: &str) {
    browser.wait_for(&format!("document.querySelector('#notice').innerText.includes({})", json!(text)));
}

/// Asserts that the page can be read and used in its window.
fn assert_usable(browser: &mut Browser, name: &str) {
    assert_eq!(browser.evaluate(PALE_TEXTS), json!([]), "{name}");
    assert_eq!(browser.evaluate(UNUSABLE), json!([]), "{name}");
    let wide = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
    assert_eq!(wide, json!(0), "{name}: wider than the window");
}

#[test]
#[ignore = "long: browsers, in Chromium"]
fn changes_are_made_once_they_are_confirmed() {
    let test = "changes_are_made_once_they_are_confirmed";
    let Some(mut browser) = Browser::start(test) else { return };
    let mut storage = Storage::start();
    let mut unwritten = MIB;
    let url = format!("http://{}/", storage.daemon.admin);
    let pictures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/console-screenshots");
    let wide = Viewport { width: 1280, height: 800, ..Viewport::LAPTOP };
    let narrow = Viewport { width: 400, height: 800, ..Viewport::PHONE };
    for (name, viewport) in [("wide", wide), ("narrow", narrow.dark())] {
        open(&mut browser, &url, viewport);
        browser.evaluate("sessionStorage.clear()");
        open(&mut browser, &url, viewport);
        // Everybody who may read sees the volume, but no controls for changes.
        click(&mut browser, "[aria-labelledby=volumes-title]", "disk");
        browser.wait_for("document.querySelector('.details table')");
        let details = browser.text(".details");
        for part in ["tuesday", "monday", "1 client here", "need the admin token"] {
            assert!(details.contains(part), "{part} is not in: {details}");
        }
        assert!(!details.contains("Snapshot …"), "{details}");
        assert!(!browser.text("[aria-labelledby=namespaces-title]").contains("Flush"));
        click(&mut browser, ".details", "Enter it");
        browser.wait_for("document.activeElement?.id === 'token'");
        browser.write(TOKEN);
        browser.press("Enter");

        // A change that the operator does not confirm is not made.
        click(&mut browser, ".details", "Snapshot …");
        browser.wait_for("document.activeElement?.id === 'field-snapshot'");
        assert_usable(&mut browser, name);
        browser.screenshot(viewport, &pictures.join(format!("change-{name}.png")));
        let snapshot = format!("by-{name}");
        browser.write(&snapshot);
        browser.press("Escape");
        browser.wait_for("!document.querySelector('dialog').open");
        assert!(!storage.snapshots().contains(&snapshot));
        click(&mut browser, ".details", "Snapshot …");
        browser.wait_for("document.activeElement?.id === 'field-snapshot'");
        browser.write(&snapshot);
        browser.press("Enter");
        wait_for_notice(&mut browser, &format!("The snapshot {snapshot} of disk exists."));
        assert!(storage.snapshots().contains(&snapshot));
        browser.wait_for(&format!("document.querySelector('.details').innerText.includes('{snapshot}')"));

        // The reason of a refusal is shown, and the dialog stays.
        click(&mut browser, ".details", "Detach …");
        browser.wait_for("document.activeElement?.innerText === 'Cancel'");
        click(&mut browser, "dialog", "Detach");
        browser.wait_for("document.querySelector('dialog .bad').innerText.includes('1 NBD connection uses')");
        assert_usable(&mut browser, name);
        click(&mut browser, "dialog", "Cancel");
        browser.wait_for("!document.querySelector('dialog').open");

        click(&mut browser, ".details", "Clone …");
        browser.wait_for("document.activeElement?.id === 'field-name'");
        browser.write(&format!("copy-{name}"));
        browser.evaluate("document.querySelector('#field-snapshot').value = 'monday'");
        click(&mut browser, "dialog", "Create clone");
        wait_for_notice(&mut browser, &format!("The volume copy-{name} exists."));
        let copy = storage.daemon.json(&format!("/volumes/show?name=copy-{name}"));
        assert_eq!(copy["origin"], json!({ "volume": "disk", "snapshot": "monday" }));
        click(&mut browser, "[aria-labelledby=volumes-title]", &format!("copy-{name}"));
        browser.wait_for("document.querySelector('.details').innerText.includes('disk at monday')");
        click(&mut browser, ".details", "Detach …");
        click(&mut browser, "dialog", "Detach");
        wait_for_notice(&mut browser, &format!("copy-{name} is detached."));

        // The volume's namespace is listed first, because it has the most dirty data.
        for within in [".details", "[aria-labelledby=namespaces-title]"] {
            if within == ".details" {
                click(&mut browser, "[aria-labelledby=volumes-title]", "disk");
                browser.wait_for("document.querySelector('.details h3').innerText === 'disk'");
            }
            // A write to a place that no snapshot contains creates a new object.
            unwritten += 65536;
            storage.disk.write(unwritten, &[8; 65536]).expect("it is written");
            let status = storage.daemon.json("/status.json");
            assert!(status["objects"]["dirty_bytes"].as_u64() >= Some(65536), "{status}");
            let stamp = status["now_unix_ms"].clone();
            browser.wait_for(&format!("document.documentElement.dataset.drawn > {stamp}"));
            click(&mut browser, within, "Flush …");
            click(&mut browser, "dialog", "Flush");
            wait_for_notice(&mut browser, "stored.");
            assert_eq!(storage.daemon.json("/status.json")["objects"]["dirty_bytes"], 0, "{within}");
            click(&mut browser, "#notice", "Dismiss");
        }
        browser.screenshot(viewport, &pictures.join(format!("volumes-{name}.png")));
        let kept = browser.evaluate(&format!(
            "[document.cookie, location.href.includes('{TOKEN}'), JSON.stringify(localStorage).includes('{TOKEN}'), \
              performance.getEntriesByType('resource').some((one) => one.name.includes('{TOKEN}'))]"
        ));
        assert_eq!(kept, json!(["", false, false, false]));
    }
}

#[test]
#[ignore = "long: browsers, in Chromium"]
fn a_page_of_another_site_changes_nothing() {
    let Some(mut browser) = Browser::start("a_page_of_another_site_changes_nothing") else { return };
    let storage = Storage::start();
    let address = storage.daemon.admin.clone();
    let refused = || {
        let count = storage.daemon.metric("cached_admin_requests_unauthorized_total");
        count.expect("the metric")
    };
    browser.open(&other_site(), Viewport::LAPTOP);
    let body = json!({ "volumes": ["disk"], "snapshot": "evil" }).to_string();
    let outcomes = browser.evaluate(&format!(
        "(() => {{
            const [url, body] = ['http://{address}/volumes/snapshot', {body}];
            const headers = {{ Authorization: 'Bearer {TOKEN}' }};
            const all = [
                fetch(url, {{ method: 'POST', body, credentials: 'include' }}),
                fetch(url, {{ method: 'POST', body, mode: 'no-cors' }}),
                fetch(url, {{ method: 'POST', body, headers }}),
                fetch('http://{address}/status.json'),
                fetch('http://{address}/volumes', {{ mode: 'no-cors' }}),
            ];
            return Promise.all(all.map((one) => one.then((answer) => answer.type, (error) => error.name)));
        }})()",
        body = json!(body)
    ));
    assert_eq!(outcomes, json!(["TypeError", "TypeError", "TypeError", "TypeError", "TypeError"]));
    assert_eq!(refused(), 4.0, "all but the preflight request were refused");
    // The form has one field, which makes a body of JSON.
    browser.evaluate(&format!(
        "(() => {{
            const form = document.createElement('form');
            form.action = 'http://{address}/volumes/snapshot';
            Object.assign(form, {{ method: 'post', enctype: 'text/plain' }});
            const field = document.createElement('input');
            field.name = '{{\"volumes\": [\"disk\"], \"snapshot\": \"evil';
            field.value = '\"}}';
            form.append(field);
            document.body.append(form);
            form.submit();
        }})()"
    ));
    browser.wait_for("document.body?.innerText.includes('for a page of another site')");
    assert_eq!(storage.snapshots(), ["monday", "tuesday"]);
    // Links from other sites lead to the console, and to the documents that everybody may read
    // here.
    for (path, text) in [("", "Nothing at risk"), ("status.json", "\"s3\"")] {
        browser.open(&other_site(), Viewport::LAPTOP);
        browser.evaluate(&format!("location.href = 'http://{address}/{path}'"));
        browser.wait_for(&format!("document.body?.innerText.includes({})", json!(text)));
    }
    let status: Value = storage.daemon.json("/status.json");
    wait_for("no more refusals", || (refused() == 5.0).then_some(()));
    assert_eq!(status["health"]["ready"], true);
}
