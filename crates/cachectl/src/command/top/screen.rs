//! Draws the screen.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};
use serde_json::Value;

use crate::admin::Admin;
use crate::command::top::model::Model;
use crate::command::top::view::{
    Documents, NONE, Page, Table, age, figures, header, is_ready, percent, rate, tables,
};
use crate::command::top::{FAILED_DELAY_MAX, parse};
use crate::output::Failure;

/// The minimum width for figures and tables in two columns.
const WIDE: u16 = 110;
/// The minimum height for charts.
const TALL: u16 = 22;

/// The state of the connection to the server.
#[derive(Default)]
pub(super) struct Link {
    /// The time since the last response, and the reason why no response has arrived since then.
    pub(super) away: Option<(Option<Duration>, String)>,
    pub(super) is_paused: bool,
}

/// Everything that the screen shows.
pub(super) struct Screen {
    pub(super) url: String,
    pub(super) model: Model,
    pub(super) documents: Documents,
    pub(super) link: Link,
    pub(super) page: Page,
    /// The first row of the tables that is shown; for the log, counted from its end.
    pub(super) scroll: u16,
    pub(super) colors: bool,
}

/// The kind of a string, which decides its style.
#[derive(Clone, Copy)]
enum Kind {
    Quiet,
    Strong,
    Good,
    Warn,
    Bad,
}

impl Screen {
    fn style(&self, kind: Kind) -> Style {
        let (color, modifier) = match kind {
            Kind::Quiet => (Color::Reset, Modifier::DIM),
            Kind::Strong => (Color::Reset, Modifier::BOLD),
            Kind::Good => (Color::Green, Modifier::empty()),
            Kind::Warn => (Color::Yellow, Modifier::BOLD),
            Kind::Bad => (Color::Red, Modifier::BOLD),
        };
        let style = Style::new().add_modifier(modifier);
        if self.colors { style.fg(color) } else { style }
    }

    fn span(&self, kind: Kind, text: impl Into<String>) -> Span<'static> {
        Span::styled(text.into(), self.style(kind))
    }

    /// Draws everything. Returns the maximum useful value of `scroll`.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) -> u16 {
        let area = frame.area();
        let mut top = self.top_lines(area.width);
        let figures = self.figure_lines(area.width);
        let charts = if area.height >= TALL && self.model.now().is_some() { 4 } else { 0 };
        // The tables get at least a third of the screen.
        top.extend(figures);
        top.truncate((area.height.saturating_sub(charts) / 3 * 2).max(1).into());
        let rows = [
            Constraint::Length(top.len().try_into().unwrap_or(u16::MAX)),
            Constraint::Length(charts),
            Constraint::Min(0),
            Constraint::Length(1),
        ];
        let [head, middle, body, foot] = Layout::vertical(rows).areas(area);
        frame.render_widget(Paragraph::new(top), head);
        if charts > 0 {
            self.draw_charts(frame, middle);
        }
        let last = self.draw_tables(frame, body);
        frame.render_widget(Paragraph::new(self.foot_line()), foot);
        last
    }

    fn top_lines(&self, width: u16) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        match self.model.now() {
            Some(now) => {
                let state = if is_ready(now) { Kind::Strong } else { Kind::Bad };
                lines.push(Line::from(self.span(state, header(now))));
            }
            None => lines.push(Line::from(self.span(Kind::Strong, self.url.clone()))),
        }
        if let Some((since, reason)) = &self.link.away {
            let since = since.map_or_else(
                || "no response yet".to_owned(),
                |since| format!("no response for {}; the figures are outdated", age(since.as_secs_f64())),
            );
            let text = format!("✕ {since}; trying again: {reason}");
            lines
                .extend(wrapped(&text, width).into_iter().map(|line| Line::from(self.span(Kind::Bad, line))));
        } else {
            let risks = self.model.risks();
            if risks.is_empty() && self.model.now().is_some() {
                lines.push(Line::from(self.span(Kind::Good, "✓ nothing at risk")));
            }
            for risk in risks {
                let (kind, sign) = if risk.is_bad { (Kind::Bad, "▲") } else { (Kind::Warn, "●") };
                lines.push(Line::from(self.span(kind, format!("{sign} {}", risk.text))));
            }
        }
        lines
    }

    fn figure_lines(&self, width: u16) -> Vec<Line<'static>> {
        let figures = figures(&self.model);
        let columns = if width >= WIDE { 2 } else { 1 };
        let room = usize::from(width) / columns;
        let (names, values) = (15, 13);
        let cell = |figure: &super::view::Figure| {
            let detail = cut(&figure.detail, room.saturating_sub(names + values + 2));
            vec![
                self.span(Kind::Quiet, pad(figure.name, names)),
                self.span(Kind::Strong, pad(&figure.value, values)),
                Span::raw(pad(&detail, room.saturating_sub(names + values))),
            ]
        };
        let half = figures.len().div_ceil(columns);
        let row = |at: usize| {
            let places = (0..columns).filter_map(|column| figures.get(at + column * half));
            Line::from(places.flat_map(cell).collect::<Vec<_>>())
        };
        (0..half).map(row).collect()
    }

    fn draw_charts(&self, frame: &mut Frame<'_>, area: Rect) {
        let halves = [Constraint::Ratio(1, 2), Constraint::Ratio(1, 2)];
        let [left, right] = Layout::horizontal(halves).spacing(2).areas(area);
        let ratios = self.model.hit_ratios();
        let step_secs = self.model.step_secs().unwrap_or(0.0);
        let column = ["gets", "synapse_requests"].into_iter().find_map(|name| self.model.column(name));
        let rates: Vec<_> = column
            .unwrap_or_default()
            .iter()
            .map(|value| value.filter(|_| step_secs > 0.0).map(|value| value / step_secs))
            .collect();
        let span = age(ratios.len().max(rates.len()) as f64 * step_secs);
        self.draw_chart(frame, left, &format!("hit ratio, {span}"), &ratios, Some(1.0), percent);
        let name = if self.model.column("gets").is_some() { "gets" } else { "object requests" };
        self.draw_chart(frame, right, &format!("{name}, {span}"), &rates, None, rate);
    }

    fn draw_chart(
        &self,
        frame: &mut Frame<'_>,
        area: Rect,
        title: &str,
        values: &[Option<f64>],
        top: Option<f64>,
        write: fn(Option<f64>) -> String,
    ) {
        let [name, chart] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        let known = || values.iter().flatten().copied();
        let (low, high) = (known().reduce(f64::min), known().reduce(f64::max));
        let now = values.last().copied().flatten();
        let range =
            if low.is_some() { format!("{} to {}", write(low), write(high)) } else { NONE.to_owned() };
        let title = Line::from(vec![
            self.span(Kind::Quiet, format!("{title} ")),
            self.span(Kind::Strong, write(now)),
            self.span(Kind::Quiet, format!("  {range}")),
        ]);
        frame.render_widget(Paragraph::new(title), name);
        // The chart has as many steps as columns; several steps of a long history share a column.
        let width = usize::from(chart.width.max(1));
        let group = values.len().div_ceil(width).max(1);
        let mean = |steps: &[Option<f64>]| {
            let known: Vec<_> = steps.iter().flatten().collect();
            let sum: f64 = known.iter().copied().sum();
            (!known.is_empty()).then(|| sum / known.len() as f64)
        };
        let top = top.or(high).filter(|top| *top > 0.0).unwrap_or(1.0);
        let bars: Vec<Option<u64>> = values
            .chunks(group)
            .map(mean)
            .map(|value| value.map(|value| (value / top * 1000.0) as u64))
            .collect();
        let style = if self.colors { Style::new().fg(Color::Cyan) } else { Style::new() };
        frame.render_widget(Sparkline::default().data(bars).max(1000).style(style), chart);
    }

    /// Draws the tables. Returns the maximum useful value of `scroll`.
    fn draw_tables(&self, frame: &mut Frame<'_>, area: Rect) -> u16 {
        let tables = tables(self.page, &self.model, &self.documents);
        let is_wide = area.width >= WIDE && matches!(self.page, Page::Overview | Page::Keys);
        let columns = if is_wide { 2 } else { 1 };
        let areas =
            Layout::horizontal(vec![Constraint::Ratio(1, columns); columns as usize]).spacing(2).split(area);
        let mut texts = vec![Vec::new(); areas.len()];
        for table in &tables {
            // The text is added to the column that is shorter so far.
            let shortest = (0..texts.len()).min_by_key(|column| texts[*column].len()).unwrap_or(0);
            texts[shortest].push(Line::default());
            let room = usize::from(areas[shortest].width);
            texts[shortest].extend(lines(table, room).into_iter().map(|(is_head, text)| {
                if is_head { Line::from(self.span(Kind::Strong, text)) } else { Line::raw(text) }
            }));
        }
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        let last = u16::try_from(longest.saturating_sub(area.height.into())).unwrap_or(u16::MAX);
        // The log starts at its end.
        let scroll = self.scroll.min(last);
        let first = if self.page == Page::Log { last - scroll } else { scroll };
        for (text, area) in texts.into_iter().zip(areas.iter()) {
            frame.render_widget(Paragraph::new(text).scroll((first, 0)), *area);
        }
        last
    }

    fn foot_line(&self) -> Line<'static> {
        let mut spans = vec![self.span(Kind::Quiet, "q quit  ")];
        for (number, page) in Page::ALL.into_iter().enumerate() {
            let text = format!("{} {}", number + 1, page.name());
            let style = if page == self.page {
                Style::new().add_modifier(Modifier::REVERSED)
            } else {
                self.style(Kind::Quiet)
            };
            spans.push(Span::styled(text, style));
            spans.push(Span::raw("  "));
        }
        if self.link.is_paused {
            spans.push(self.span(Kind::Warn, "PAUSED  "));
        }
        spans.push(self.span(Kind::Quiet, "↑↓  p pause"));
        Line::from(spans)
    }
}

fn width(text: &str) -> usize {
    Span::raw(text).width()
}

fn pad(text: &str, to: usize) -> String {
    format!("{text}{}", " ".repeat(to.saturating_sub(width(text))))
}

/// Returns as much of a string as fits.
fn cut(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut kept = String::new();
    for letter in text.chars() {
        kept.push(letter);
        if width(&kept) + 1 > room {
            kept.pop();
            break;
        }
    }
    if room > 0 {
        kept.push('…');
    }
    kept
}

/// Splits a string between words into lines of at most `room` columns.
fn wrapped(text: &str, room: u16) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if width(line) + 1 + width(word) <= usize::from(room) {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Returns a table as lines of at most `room` columns, each with whether it is a heading.
pub(super) fn lines(table: &Table, room: usize) -> Vec<(bool, String)> {
    let mut lines = vec![(true, table.title.to_owned())];
    let is_right = |column: usize| table.columns[column].starts_with('>');
    if !table.rows.is_empty() {
        let heads: Vec<String> =
            table.columns.iter().map(|title| title.trim_start_matches('>').to_owned()).collect();
        let all = || std::iter::once(&heads).chain(&table.rows);
        let widths: Vec<usize> =
            (0..heads.len()).map(|column| all().map(|row| width(&row[column])).max().unwrap_or(0)).collect();
        for row in all() {
            let cell = |(column, text): (usize, &String)| {
                let fill = " ".repeat(widths[column].saturating_sub(width(text)));
                if is_right(column) { format!("{fill}{text}") } else { format!("{text}{fill}") }
            };
            let line = row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ");
            lines.push((false, cut(&format!("  {}", line.trim_end()), room)));
        }
    }
    if !table.note.is_empty() {
        lines.extend(
            wrapped(&table.note, room.saturating_sub(2).try_into().unwrap_or(u16::MAX))
                .into_iter()
                .map(|line| (false, format!("  {line}"))),
        );
    }
    lines
}

/// The maximum wait for a key before the screen is drawn again.
const TICK: Duration = Duration::from_millis(250);

/// The documents that the thread has fetched.
type Answer = Result<(Value, Documents), Failure>;

/// A request to the thread.
enum Order {
    /// Show this page: fetch its documents immediately.
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
    // One response waits for the screen; with the next one, the thread blocks.
    let (answers_to, answers) = sync_channel(1);
    let (orders, orders_from) = channel();
    // The thread ends when it sends its next response, because nobody receives it.
    std::thread::Builder::new()
        .name("ask".into())
        .spawn(move || ask(&admin, every, &answers_to, &orders_from))
        .map_err(Failure::io("a thread"))?;
    let mut terminal = ratatui::try_init().map_err(Failure::io("the terminal"))?;
    let done = run(&mut terminal, &mut screen, &answers, &orders);
    ratatui::restore();
    done.map_err(Failure::io("the terminal"))
}

/// Returns whether to use colours, according to the value of NO_COLOR (no-color.org).
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
        // The thread has ended only if it has panicked; the screen then shows the server as
        // unreachable.
        if screen.page != before.0 {
            let _ = orders.send(Order::Page(screen.page));
        }
        if screen.link.is_paused != before.1 {
            let _ = orders.send(Order::Pause(screen.link.is_paused));
        }
    }
}

/// Shows a response; the last successful one was `since` ago.
pub(super) fn take(screen: &mut Screen, answer: Answer, since: Option<Duration>) {
    let parsed = answer.and_then(|(status, documents)| Ok((parse(status)?, documents)));
    match parsed {
        Ok((status, documents)) => {
            if screen.model.take(status) {
                screen.documents = Documents::default();
            }
            let new = documents;
            let Documents { hot, mrc, slow, log, volumes } = &mut screen.documents;
            for (place, new) in
                [(hot, new.hot), (mrc, new.mrc), (slow, new.slow), (log, new.log), (volumes, new.volumes)]
            {
                if new.is_some() {
                    *place = new;
                }
            }
            screen.link.away = None;
        }
        Err(failure) => screen.link.away = Some((since, failure.to_string())),
    }
}

/// Handles a key. Returns whether to continue.
pub(super) fn press(screen: &mut Screen, key: KeyEvent) -> bool {
    let is_log = screen.page == Page::Log;
    let down: i16 = if is_log { -1 } else { 1 };
    let rows = match key.code {
        KeyCode::Up | KeyCode::Char('k') => -down,
        KeyCode::Down | KeyCode::Char('j') => down,
        KeyCode::PageUp => -10 * down,
        KeyCode::PageDown | KeyCode::Char(' ') => 10 * down,
        _ => 0,
    };
    screen.scroll = screen.scroll.saturating_add_signed(rows);
    let page = |screen: &Screen, by: usize| {
        let at = Page::ALL.iter().position(|page| *page == screen.page).unwrap_or(0);
        Page::ALL[(at + by) % Page::ALL.len()]
    };
    let chosen = match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('p') => {
            screen.link.is_paused = !screen.link.is_paused;
            return true;
        }
        KeyCode::Char(digit @ '1'..='6') => Page::ALL[digit as usize - '1' as usize],
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

/// Requests the documents repeatedly, until the screen is gone.
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

/// Returns the wait after `failed` failures in a row: half a second, doubled with each failure.
pub(super) fn retry_delay(failed: u32) -> Duration {
    let doubled = 1_u32 << failed.saturating_sub(1).min(10);
    (Duration::from_millis(500) * doubled).min(FAILED_DELAY_MAX)
}

/// Fetches the documents that a page shows in addition to the status.
fn documents(admin: &Admin, page: Page) -> Documents {
    let get = |path| Some(admin.get(path).map_err(|failure| failure.to_string()));
    match page {
        Page::Overview | Page::S3 => Documents::default(),
        Page::Volumes => Documents { volumes: get("/volumes?limit=50"), ..Documents::default() },
        Page::Keys => Documents { hot: get("/hot.json"), mrc: get("/mrc.json"), ..Documents::default() },
        Page::Requests => Documents { slow: get("/slow.json"), ..Documents::default() },
        Page::Log => Documents { log: get("/log.json"), ..Documents::default() },
    }
}
