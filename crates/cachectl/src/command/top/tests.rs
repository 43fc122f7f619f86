//! The screen on a terminal in memory, and the figures of the example document.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use serde_json::{Value, json};

use super::model::Model;
use super::screen::{Link, Screen};
use super::screen::{colors_wanted, press, retry_delay, take};
use super::view::{Documents, Page};
use super::{FAILED_DELAY_MAX, once_text, parse};
use crate::output::Failure;

fn example() -> Value {
    serde_json::from_str(include_str!("example.json")).expect("the example is JSON")
}

/// Returns a status some time after the example, with `rise` more gets, all of which are hits.
fn later(secs: u64, rise: u64) -> Value {
    let mut document = example();
    let add = |value: &mut Value, by: u64| *value = json!(value.as_u64().expect("a number") + by);
    add(&mut document["now_unix_ms"], secs * 1000);
    add(&mut document["items"]["gets"], rise);
    add(&mut document["items"]["get_hits"], rise);
    document
}

fn screen() -> Screen {
    Screen {
        url: "http://127.0.0.1:9150".into(),
        model: Model::default(),
        documents: Documents::default(),
        link: Link::default(),
        page: Page::Overview,
        scroll: 0,
        colors: true,
    }
}

fn shown(document: Value) -> Screen {
    let mut screen = screen();
    take(&mut screen, Ok((document, Documents::default())), None);
    assert!(screen.link.away.is_none(), "{:?}", screen.link.away);
    screen
}

/// Draws on a terminal of this size. Returns the lines, the colours used, and the maximum scroll.
fn drawn(screen: &Screen, width: u16, height: u16) -> (Vec<String>, Vec<Color>, u16) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let mut last = 0;
    terminal.draw(|frame| last = screen.draw(frame)).expect("drawn");
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let cells = (0..width).map(|x| buffer.cell((x, y)).expect("inside").symbol().to_owned());
        cells.collect::<String>().trim_end().to_owned()
    };
    let colors = buffer.content().iter().map(|cell| cell.fg).collect();
    ((0..height).map(line).collect(), colors, last)
}

fn text(screen: &Screen, width: u16, height: u16) -> String {
    drawn(screen, width, height).0.join("\n")
}

/// Asserts that a string contains these parts, whatever the number of spaces between words.
fn has(text: &str, parts: &[&str]) {
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(squeezed(text).contains(&squeezed(part)), "{part} is not in:\n{text}");
    }
}

#[test]
fn figures_are_those_of_the_document() {
    // 288 hits of 310 gets in the history; 930 000 of 1 000 000 since the start.
    let mut model = Model::default();
    model.take(parse(example()).expect("a status"));
    let text = once_text(&model);
    has(
        &text,
        &[
            "cached 0.1.0  ✓ ready  node1  pid 4242  up 1 h 0 min",
            "Hit ratio, 1 h   92.9 %",
            "now 97.8 %, since start 93.0 %",
            // The last step of the history: 90 gets and 7 sets in 10 seconds.
            "gets 9.00/s, sets 0.70/s, objects 3.00/s",
            "Gets, p99        9.50 µs",
            "57.3 MiB",
            "89.6 % of 64.0 MiB, 412 k items",
            "4.00 MiB      of 128 MiB, oldest 2.30 s, limit 30.0 s",
            "of 1,024, 0 refused",
            "connections  16.0 KiB  64.0 MiB",
            "objects   256 MiB  32.0 MiB  4.00 MiB  810 µs",
            "12 moves since start",
            "vm         back       1,100   134 MiB  4.00 MiB  2.30 s",
            "write        950       2  2.90 ms  9.90 ms  30.0 ms",
            "set         2,500  4.10 µs  6.60 µs  12.0 µs  66.0 µs",
            // 170 hits of 200 reads in the history; 9 000 of 10 000 since the start.
            "S3 hits, 1 h     85.0 %        now –, since start 90.0 %",
            "media         95.6 %    –  8,600     400   2,900   200 MiB",
        ],
    );
}

#[test]
fn live_rates_are_differences_over_ten_seconds() {
    let mut model = Model::default();
    for (secs, gets) in [(0, 0), (2, 200), (12, 2200), (14, 2600)] {
        model.take(parse(later(secs, gets)).expect("a status"));
    }
    // The rise is counted from second 2 to second 14: responses older than necessary have been
    // dropped.
    assert_eq!(model.rise(|at| at.at("/items/gets")), Some(200.0));
    has(&once_text(&model), &["gets 200/s", "now 100.0 %"]);
}

#[test]
fn a_restart_begins_anew() {
    let mut screen = shown(later(4, 400));
    screen.documents.hot = Some(Ok(json!({})));
    let mut restarted = example();
    restarted["instance"] = json!("another");
    take(&mut screen, Ok((restarted, Documents::default())), None);
    assert_eq!(screen.model.rise(|at| at.at("/items/gets")), None);
    assert!(screen.documents.hot.is_none());
}

#[test]
fn a_wide_screen_has_two_columns_and_charts() {
    let text = text(&shown(example()), 140, 40);
    has(
        &text,
        &[
            "✓ nothing at risk",
            "hit ratio, 30 s 97.8 %  90.0 % to 97.8 %",
            "gets, 30 s 9.00/s",
            "█",
            "1 overview",
        ],
    );
    let line = text.lines().find(|line| line.contains("Memory by owner")).expect("a title");
    assert!(line.contains("Listeners"), "{line}");
}

#[test]
fn a_narrow_screen_keeps_the_figures() {
    let (lines, _, last) = drawn(&shown(example()), 42, 16);
    let text = lines.join("\n");
    has(&text, &["Hit ratio, 1 h 92.9 %", "Connections    14", "Memory by owner", "q quit"]);
    assert!(!text.contains('█'), "no room for charts:\n{text}");
    assert!(last > 10, "what does not fit can be scrolled to");
    // Every size is drawn without a panic.
    for (width, height) in [(1, 1), (3, 2), (20, 5), (500, 200)] {
        for page in Page::ALL {
            let mut screen = shown(example());
            screen.page = page;
            let _ = drawn(&screen, width, height);
        }
    }
}

#[test]
fn a_table_scrolls_to_its_end_and_no_further() {
    let mut screen = shown(example());
    let (_, _, last) = drawn(&screen, 60, 20);
    screen.scroll = u16::MAX;
    let (lines, _, again) = drawn(&screen, 60, 20);
    assert_eq!(last, again);
    assert!(lines[18].contains("serving"), "the last line of the last table: {lines:?}");
}

#[test]
fn without_colours_everything_is_still_said() {
    let mut bad = example();
    bad["health"] = json!({ "ready": false, "reasons": ["the store has not answered for 12 s"] });
    bad["objects"]["lost_bytes"] = json!(4096);
    bad["objects"]["lost_objects"] = json!(1);
    bad["objects"]["attach_state"] = json!("detached");
    let mut screen = shown(bad);
    let (_, colors, _) = drawn(&screen, 100, 40);
    assert!(colors.contains(&Color::Red));
    screen.colors = false;
    let (lines, colors, _) = drawn(&screen, 100, 40);
    assert!(colors.iter().all(|color| *color == Color::Reset), "{colors:?}");
    has(
        &lines.join("\n"),
        &[
            "▲ not ready",
            "▲ acknowledged data are lost: 4.00 KiB of 1 objects",
            "▲ not ready: the store has not answered for 12 s",
            "the object cache is detached: requests go to the store",
        ],
    );
    assert!(colors_wanted(None) && colors_wanted(Some("".into())) && !colors_wanted(Some("1".into())));
}

#[test]
fn a_server_away_keeps_its_last_figures_marked_as_old() {
    let failure = || Failure::admin("URL", None, "connection refused");
    let mut screen = screen();
    take(&mut screen, Err(failure()), None);
    has(
        &text(&screen, 80, 24),
        &["http://127.0.0.1:9150", "✕ no response yet; trying again: URL: connection refused"],
    );
    let mut screen = shown(example());
    take(&mut screen, Err(failure()), Some(Duration::from_secs(61)));
    has(
        &text(&screen, 80, 24),
        &["✕ no response for 1 min 1 s; the figures are outdated", "Hit ratio, 1 h 92.9 %"],
    );
    take(&mut screen, Ok((later(2, 0), Documents::default())), None);
    has(&text(&screen, 80, 24), &["✓ nothing at risk"]);
    // A response that is not a status is a failure, too.
    take(&mut screen, Ok((json!(["no", "status"]), Documents::default())), None);
    has(&text(&screen, 80, 24), &["the response is not a status"]);
    let delays: Vec<_> = [1, 2, 3, 4, 100].map(|failed| retry_delay(failed).as_millis()).into();
    assert_eq!(delays, [500, 1000, 2000, 4000, FAILED_DELAY_MAX.as_millis()]);
}

#[test]
fn synapsed_has_no_items() {
    let mut document = example();
    document["program"] = json!("synapsed");
    for name in ["items", "latency", "workers", "journal"] {
        document.as_object_mut().expect("an object").remove(name);
    }
    let columns = document["history"]["columns"].as_object_mut().expect("columns");
    columns.retain(|name, _| name.starts_with("object") || name.starts_with("s"));
    let text = text(&shown(document), 120, 40);
    // 6 hits of 7 reads in the history; 90 000 of 94 000 since the start.
    has(
        &text,
        &[
            "synapsed 0.1.0",
            "Reads hit, 1 h 85.7 %",
            "since start 95.7 %",
            "objects 3.00/s",
            "object requests, 30 s",
        ],
    );
    assert!(!text.contains("Item memory") && !text.contains("Evictions"), "{text}");
    // This server has no optional parts.
    let text = once_text(&shown(json!({ "program": "synapsed", "instance": "1" })).model);
    has(&text, &["synapsed", "Requests         –"]);
}

#[test]
fn hostile_names_reach_the_terminal_written_out() {
    let mut screen = shown(example());
    screen.page = Page::Keys;
    let key = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{202e}evil";
    let long = "k".repeat(300);
    let hot = json!({
        "keys": [{ "key": key, "share": 0.5, "per_sec": 3.0 }, { "key": long, "share": 0.1, "per_sec": 1.0 }, { "key": 7 }],
        "prefixes": "none", "misses": { "evicted": 3, "never_seen": 1, "sampled\u{1b}": null },
    });
    screen.documents = Documents {
        hot: Some(Ok(hot)),
        mrc: Some(Err("404 Not Found; this server has no such page".into())),
        ..Documents::default()
    };
    let text = text(&screen, 160, 50);
    has(
        &text,
        &["\\x1b]0;owned\\x07\\x1b[2J\\u{202e}evil  50.0 %", "404 Not Found", "evicted     3  75.0 %"],
    );
    assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{text:?}");
    assert!(text.contains(&format!("{}…", "k".repeat(60))) && !text.contains(&"k".repeat(61)));
}

#[test]
fn volumes_are_shown_with_their_clients() {
    let mut screen = shown(example());
    screen.page = Page::Volumes;
    has(&text(&screen, 120, 40), &["Volumes", "Not known yet."]);
    let volume = |name: &str, more: Value| {
        let mut of = json!({ "name": name, "size_bytes": 1_u64 << 40, "snapshot_count": 2, "connections": 0, "usage": null, "owner": null });
        of.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        of
    };
    let disk = json!({ "connections": 2, "owner": "node1", "usage": { "referenced_bytes": 8 << 20 } });
    let volumes = json!({
        "volumes": [volume("disk", disk), volume("\u{1b}[2Jidle", json!({}))],
        "damaged": [{ "name": "bad", "error": "its head is missing" }], "volumes_other": 7,
    });
    let mut status = later(10, 0);
    status["volumes"]["volumes"][0]["reads"] = json!(7500);
    let documents = Documents { volumes: Some(Ok(volumes)), ..Documents::default() };
    take(&mut screen, Ok((status, documents)), None);
    has(
        &text(&screen, 120, 40),
        &[
            "volume         size       used  snapshots  clients   reads  writes  owner",
            "disk       1.00 TiB   8.00 MiB          2        2  50.0/s     0/s  node1",
            "\\x1b[2Jidle  1.00 TiB   –                2        0       –       –  –",
            "and 7 more volumes",
            "Damaged volumes",
            "bad     its head is missing",
        ],
    );
}

#[test]
fn buckets_and_the_state_of_their_endpoint_are_shown() {
    let mut screen = shown(example());
    screen.page = Page::S3;
    let mut status = later(10, 0);
    status["s3"]["state"] = json!("away");
    status["s3"]["away_ms"] = json!(65_000);
    status["s3"]["buckets"][0]["hits"] = json!(8630);
    status["s3"]["buckets"][0]["misses"] = json!(410);
    take(&mut screen, Ok((status, Documents::default())), None);
    has(
        &text(&screen, 120, 50),
        &[
            "▲ the S3 endpoint has not been reachable for 1 min 5 s",
            "body bytes from memory  4.00 GiB of 5.00 GiB",
            "▲ s3.example.com:443: away for 1 min 5 s",
            "media  95.5 %  75.0 %  8,630  410  2,900  200 MiB",
            "(all others)  40.0 %  –  400  600  100  0 B",
            "and 3 more buckets",
        ],
    );
    let mut status = example();
    status.as_object_mut().expect("an object").remove("s3");
    let mut screen = shown(status);
    screen.page = Page::S3;
    has(&text(&screen, 80, 30), &["This server has no [s3]."]);
}

#[test]
fn the_log_begins_at_its_end() {
    let mut screen = shown(example());
    screen.page = Page::Log;
    let line = |n: u64| json!({ "id": n, "unix_ms": n * 1000, "level": "warn", "message": format!("line {n}.\u{1b}") });
    screen.documents.log = Some(Ok(json!({ "lines": (0..100).map(line).collect::<Vec<_>>() })));
    has(&text(&screen, 80, 30), &["00:01:39 warn line 99.\\x1b"]);
    screen.scroll = 5;
    let text = text(&screen, 80, 30);
    assert!(text.contains("line 94.") && !text.contains("line 95."), "{text}");
}

#[test]
fn keys_choose_pages_and_end() {
    let mut screen = screen();
    let key = |screen: &mut Screen, code| press(screen, KeyEvent::new(code, KeyModifiers::NONE));
    assert!(key(&mut screen, KeyCode::Char('2')) && screen.page == Page::Keys);
    assert!(key(&mut screen, KeyCode::Tab) && screen.page == Page::Requests);
    assert!(key(&mut screen, KeyCode::BackTab) && screen.page == Page::Keys);
    assert!(key(&mut screen, KeyCode::Down) && key(&mut screen, KeyCode::PageDown) && screen.scroll == 11);
    assert!(key(&mut screen, KeyCode::Up) && screen.scroll == 10);
    assert!(key(&mut screen, KeyCode::Char('4')) && screen.page == Page::Log && screen.scroll == 0);
    assert!(key(&mut screen, KeyCode::Down) && screen.scroll == 0);
    assert!(key(&mut screen, KeyCode::Up) && screen.scroll == 1, "away from the end of the log");
    assert!(key(&mut screen, KeyCode::Char('5')) && screen.page == Page::Volumes);
    assert!(key(&mut screen, KeyCode::Char('6')) && screen.page == Page::S3);
    assert!(key(&mut screen, KeyCode::Tab) && screen.page == Page::Overview);
    assert!(key(&mut screen, KeyCode::Char('p')) && screen.link.is_paused);
    has(&text(&screen, 80, 20), &["PAUSED"]);
    assert!(key(&mut screen, KeyCode::Char('x')));
    assert!(!key(&mut screen, KeyCode::Char('q')) && !key(&mut screen, KeyCode::Esc));
    assert!(!press(&mut screen, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
}
