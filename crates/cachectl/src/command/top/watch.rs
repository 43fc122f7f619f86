//! The screen of `top`: a thread asks the server, this one draws and takes keys.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;

use super::screen::{Link, Screen};
use super::view::{Documents, Page};
use super::{FAILED_DELAY_MAX, parse};
use crate::admin::Admin;
use crate::exit::Failure;

/// How long keys wait at most before the screen is drawn again.
const TICK: Duration = Duration::from_millis(250);

/// What the thread has asked for.
type Answer = Result<(Value, Documents), Failure>;

/// What the thread is to do.
enum Order {
    /// Show this page: ask for its documents, at once.
    Page(Page),
    Pause(bool),
}

/// Shows the screen until a key ends it.
pub(super) fn watch(admin: Admin, every: Duration) -> Result<(), Failure> {
    let mut screen = Screen {
        url: admin.url().to_owned(),
        model: super::model::Model::default(),
        documents: Documents::default(),
        link: Link::default(),
        page: Page::Overview,
        scroll: 0,
        colors: colors_wanted(std::env::var_os("NO_COLOR")),
    };
    // One answer waits for the screen; the thread waits with the next one.
    let (answers_to, answers) = sync_channel(1);
    let (orders, orders_from) = channel();
    // It ends with its next answer, because no one takes it.
    std::thread::Builder::new()
        .name("ask".into())
        .spawn(move || ask(&admin, every, &answers_to, &orders_from))
        .map_err(Failure::io("a thread"))?;
    let mut terminal = ratatui::try_init().map_err(Failure::io("the terminal"))?;
    let done = run(&mut terminal, &mut screen, &answers, &orders);
    ratatui::restore();
    done.map_err(Failure::io("the terminal"))
}

/// Returns whether colours are used, by the value of NO_COLOR (no-color.org).
pub(super) fn colors_wanted(no_color: Option<std::ffi::OsString>) -> bool {
    no_color.is_none_or(|value| value.is_empty())
}

fn run(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    answers: &Receiver<Answer>,
    orders: &Sender<Order>,
) -> std::io::Result<()> {
    let mut answered: Option<Instant> = None;
    loop {
        while let Ok(answer) = answers.try_recv() {
            if answer.is_ok() {
                answered = Some(Instant::now());
            }
            take(screen, answer, answered.map(|at| at.elapsed()));
        }
        if let Some((since, _)) = &mut screen.link.away {
            *since = answered.map(|at| at.elapsed());
        }
        let mut last = 0;
        terminal.draw(|frame| last = screen.draw(frame))?;
        screen.scroll = screen.scroll.min(last);
        if !crossterm::event::poll(TICK)? {
            continue;
        }
        let Event::Key(key) = crossterm::event::read()? else { continue };
        let before = (screen.page, screen.link.is_paused);
        if key.kind == KeyEventKind::Press && !press(screen, key) {
            return Ok(());
        }
        // The thread has ended only if it has panicked; then the screen shows the server as away.
        if screen.page != before.0 {
            let _ = orders.send(Order::Page(screen.page));
        }
        if screen.link.is_paused != before.1 {
            let _ = orders.send(Order::Pause(screen.link.is_paused));
        }
    }
}

/// Takes an answer into what is shown; the last good one is `since` ago.
pub(super) fn take(screen: &mut Screen, answer: Answer, since: Option<Duration>) {
    let parsed = answer.and_then(|(status, documents)| Ok((parse(status)?, documents)));
    match parsed {
        Ok((status, documents)) => {
            if screen.model.take(status) {
                screen.documents = Documents::default();
            }
            let new = documents;
            let Documents { hot, mrc, slow, log } = &mut screen.documents;
            for (place, new) in [(hot, new.hot), (mrc, new.mrc), (slow, new.slow), (log, new.log)] {
                if new.is_some() {
                    *place = new;
                }
            }
            screen.link.away = None;
        }
        Err(failure) => screen.link.away = Some((since, failure.to_string())),
    }
}

/// Acts on a key. Returns whether to go on.
pub(super) fn press(screen: &mut Screen, key: KeyEvent) -> bool {
    let is_log = screen.page == Page::Log;
    let (up, down) = if is_log { (1, -1) } else { (-1, 1) };
    let mut turn = |by: i32| screen.scroll = screen.scroll.saturating_add_signed(by.try_into().unwrap_or(0));
    let page = |screen: &Screen, by: usize| {
        let at = Page::ALL.iter().position(|page| *page == screen.page).unwrap_or(0);
        Page::ALL[(at + by) % Page::ALL.len()]
    };
    let chosen = match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Up | KeyCode::Char('k') => {
            return {
                turn(up);
                true
            };
        }
        KeyCode::Down | KeyCode::Char('j') => {
            return {
                turn(down);
                true
            };
        }
        KeyCode::PageUp => {
            return {
                turn(up * 10);
                true
            };
        }
        KeyCode::PageDown | KeyCode::Char(' ') => {
            return {
                turn(down * 10);
                true
            };
        }
        KeyCode::Char('p') => {
            screen.link.is_paused = !screen.link.is_paused;
            return true;
        }
        KeyCode::Char(digit @ '1'..='4') => Page::ALL[digit as usize - '1' as usize],
        KeyCode::Tab | KeyCode::Right => page(screen, 1),
        KeyCode::BackTab | KeyCode::Left => page(screen, Page::ALL.len() - 1),
        _ => return true,
    };
    if chosen != screen.page {
        screen.page = chosen;
        screen.scroll = 0;
    }
    true
}

/// Asks again and again, until the screen is gone.
fn ask(admin: &Admin, every: Duration, answers: &SyncSender<Answer>, orders: &Receiver<Order>) {
    let mut page = Page::Overview;
    let mut is_paused = false;
    let mut failed = 0_u32;
    loop {
        if !is_paused {
            let answer = admin.get("/status.json").map(|status| (status, documents(admin, page)));
            failed = if answer.is_ok() { 0 } else { failed.saturating_add(1) };
            if answers.send(answer).is_err() {
                return;
            }
        }
        let wait = if failed == 0 { every } else { retry_delay(failed).min(every.max(FAILED_DELAY_MAX)) };
        match orders.recv_timeout(wait) {
            Ok(Order::Page(chosen)) => page = chosen,
            Ok(Order::Pause(paused)) => is_paused = paused,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Returns how long to wait after `failed` failures in a row: half a second, doubled each time.
pub(super) fn retry_delay(failed: u32) -> Duration {
    let doubled = 1_u32 << failed.saturating_sub(1).min(10);
    (Duration::from_millis(500) * doubled).min(FAILED_DELAY_MAX)
}

/// Asks for what a page shows beside the status.
fn documents(admin: &Admin, page: Page) -> Documents {
    let get = |path| Some(admin.get(path).map_err(|failure| failure.to_string()));
    match page {
        Page::Overview => Documents::default(),
        Page::Keys => Documents { hot: get("/hot.json"), mrc: get("/mrc.json"), ..Documents::default() },
        Page::Requests => Documents { slow: get("/slow.json"), ..Documents::default() },
        Page::Log => Documents { log: get("/log.json"), ..Documents::default() },
    }
}
