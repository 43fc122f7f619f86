//! A headless Chromium, driven by the DevTools protocol over two pipes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::outside::{find_program, skip};

/// The time limit for one response of the browser, and for a page to fulfil a condition. It is
/// generous, because the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(180);

/// The size of a window, and the user's preferences that are visible to the page.
#[derive(Clone, Copy, Debug)]
pub struct Viewport {
    /// The width in CSS pixels.
    pub width: u32,
    /// The height in CSS pixels.
    pub height: u32,
    /// Whether the device is a phone, with touch and two device pixels per CSS pixel.
    pub is_phone: bool,
    /// Whether the page sees `prefers-color-scheme: dark`.
    pub is_dark: bool,
}

impl Viewport {
    /// A laptop's window.
    pub const LAPTOP: Viewport = Viewport { width: 1366, height: 768, is_phone: false, is_dark: false };
    /// A phone's window.
    pub const PHONE: Viewport = Viewport { width: 390, height: 844, is_phone: true, is_dark: false };

    /// Returns the same window in the dark scheme.
    #[must_use]
    pub fn dark(self) -> Viewport {
        Viewport { is_dark: true, ..self }
    }
}

/// A browser with one page. Dropping this value ends the browser.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: File,
    messages: Receiver<Value>,
    session: String,
    last_id: u64,
    /// Reports of the page: exceptions, console lines, failed requests.
    reports: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts the browser. Returns `None`, with a message, if it is not installed.
    ///
    /// # Panics
    /// Panics if the browser does not start. With `CACHED_REQUIRE_ALL=1`, also if it is not
    /// installed.
    pub fn start(test: &str) -> Option<Browser> {
        let Some(program) = find_program("chromium") else {
            skip(test, "chromium is not installed");
            return None;
        };
        let profile = tempfile::tempdir().expect("a temporary directory");
        let (commands_from, commands_to) = pipe();
        let (answers_from, answers_to) = pipe();
        let mut command = Command::new(program);
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
            ])
            .args([
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--lang=en",
            ])
            .arg("--remote-debugging-pipe")
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let (commands, answers) = (commands_from.as_raw_fd(), answers_to.as_raw_fd());
        // SAFETY: these calls are async-signal-safe and do not access this process's memory; the
        // descriptors are open until the child has been started. The copies above 9 prevent the
        // first dup2 from closing the second one's source.
        unsafe {
            command.pre_exec(move || {
                let failed =
                    |result| if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) };
                failed(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
                let commands = failed(libc::fcntl(commands, libc::F_DUPFD_CLOEXEC, 10))?;
                let answers = failed(libc::fcntl(answers, libc::F_DUPFD_CLOEXEC, 10))?;
                failed(libc::dup2(commands, 3))?;
                failed(libc::dup2(answers, 4))?;
                Ok(())
            });
        }
        let child = command.spawn().expect("chromium starts");
        drop((commands_from, answers_to));
        let (message_to, messages) = channel();
        let mut answers = BufReader::new(File::from(answers_from));
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while answers.read_until(0, &mut line).is_ok_and(|read| read > 0) {
                let message = serde_json::from_slice(line.strip_suffix(&[0]).unwrap_or(&line));
                if message_to.send(message.expect("the browser writes JSON")).is_err() {
                    break;
                }
                line.clear();
            }
        });
        let to = File::from(commands_to);
        let mut browser = Browser {
            child,
            to,
            messages,
            session: String::new(),
            last_id: 0,
            reports: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            browser.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Runtime.enable", "Log.enable", "Page.enable", "Network.enable"] {
            browser.call(domain, json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the DevTools protocol and returns its result.
    ///
    /// # Panics
    /// Panics if the call fails, or takes too long.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.try_call(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Calls a method as [`call`](Self::call) does. The error is the browser's.
    fn try_call(&mut self, method: &str, parameters: Value) -> Result<Value, Value> {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser reads");
        let deadline = Instant::now() + DEADLINE;
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            let message = self.messages.recv_timeout(wait);
            let message =
                message.unwrap_or_else(|error| panic!("{method}: no answer of the browser: {error}"));
            if message["id"] == self.last_id {
                return match &message["error"] {
                    Value::Null => Ok(message["result"].clone()),
                    error => Err(error.clone()),
                };
            }
            self.note(&message);
        }
    }

    /// Records an event if it is a report of the page.
    fn note(&mut self, message: &Value) {
        let parameters = &message["params"];
        let report = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => parameters["exceptionDetails"].to_string(),
            Some("Runtime.consoleAPICalled") => {
                format!("console.{}: {}", parameters["type"], parameters["args"])
            }
            Some("Log.entryAdded") => {
                let entry = &parameters["entry"];
                format!("{}: {} {}", entry["level"], entry["text"], entry["url"])
            }
            Some("Page.javascriptDialogOpening") => format!("a dialog: {}", parameters["message"]),
            _ => return,
        };
        self.reports.push(report);
    }

    /// Opens a page in a window and waits until it is loaded.
    pub fn open(&mut self, url: &str, viewport: Viewport) {
        self.resize(viewport, viewport.height);
        let scheme = if viewport.is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        let opened = self.call("Page.navigate", json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{url}: {}", opened["errorText"]);
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    fn resize(&mut self, viewport: Viewport, height: u32) {
        let factor = if viewport.is_phone { 2 } else { 1 };
        let metrics = json!({
            "width": viewport.width, "height": height, "deviceScaleFactor": factor, "mobile": viewport.is_phone,
        });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Runs a script in the page and returns its value. If the value is a promise, waits for it.
    ///
    /// # Panics
    /// Panics if the script throws.
    pub fn evaluate(&mut self, script: &str) -> Value {
        self.try_evaluate(script).unwrap_or_else(|error| panic!("Runtime.evaluate: {error}"))
    }

    fn try_evaluate(&mut self, script: &str) -> Result<Value, Value> {
        let parameters = json!({
            "expression": script, "returnByValue": true, "awaitPromise": true, "userGesture": true,
        });
        let result = self.try_call("Runtime.evaluate", parameters)?;
        assert!(result["exceptionDetails"].is_null(), "{script}: {}", result["exceptionDetails"]);
        Ok(result["result"]["value"].clone())
    }

    /// Returns the page's visible text, with white space reduced to single spaces.
    pub fn text(&mut self, selector: &str) -> String {
        let script = format!("document.querySelector({})?.innerText ?? ''", json!(selector));
        let text = self.evaluate(&script);
        text.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Waits until a condition, a JavaScript expression, is fulfilled.
    ///
    /// # Panics
    /// Panics if the condition is not fulfilled in time, with the page's text.
    pub fn wait_for(&mut self, condition: &str) {
        let deadline = Instant::now() + DEADLINE;
        let script = format!("Boolean({condition})");
        loop {
            match self.try_evaluate(&script) {
                Ok(Value::Bool(true)) => return,
                Ok(_) => {}
                // The requested page is gone, so the next page gets the same request.
                Err(error) if error["message"] == "Inspected target navigated or closed" => {}
                Err(error) => panic!("Runtime.evaluate: {error}"),
            }
            if Instant::now() > deadline {
                let (text, reports) = (self.text("body"), &self.reports);
                panic!("not in time: {condition}\nthe page shows: {text}\nit reports: {reports:#?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses a key, as a user does: `Enter`, `Tab`, `ArrowLeft` and so on.
    pub fn press(&mut self, key: &str) {
        let text = if key == "Enter" { "\r" } else { "" };
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowRight" => 39,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Types text into the focused element.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Writes a picture of the whole page as PNG.
    pub fn screenshot(&mut self, viewport: Viewport, to: &Path) {
        let height = self.evaluate("document.documentElement.scrollHeight").as_u64().expect("a height");
        self.resize(viewport, u32::try_from(height).expect("a height"));
        // After two frames, everything that depends on the size has been drawn.
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
        self.screenshot_of_window(to);
        self.resize(viewport, viewport.height);
    }

    /// Writes a picture of the window's visible part as PNG.
    pub fn screenshot_of_window(&mut self, to: &Path) {
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let data = decode_base64(picture["data"].as_str().expect("a picture"));
        std::fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
        std::fs::write(to, data).expect("a picture is written");
    }

    /// Returns the page's reports since the last call: exceptions, console lines, failed requests,
    /// dialogs.
    pub fn take_reports(&mut self) -> Vec<String> {
        // A response arrives after all earlier events.
        self.evaluate("0");
        std::mem::take(&mut self.reports)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The child ends when its pipes are closed; its other processes are killed.
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: the array has space for two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0, "a pipe: {}", std::io::Error::last_os_error());
    // SAFETY: both descriptors were just opened and have no other owner.
    unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) }
}

fn decode_base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
