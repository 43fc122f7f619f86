//! An event of the log in its output formats: one line of text, or one JSON object.

use super::Level;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::fmt::{self, Write as _};
use tracing::field::{Field, Visit};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// The maximum length of the text of a message or field, in bytes; longer strings are truncated.
const TEXT_BYTES_MAX: usize = 4096;

/// One line of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The number of the line since the start, from 1; 0 for a line outside the log. The numbers of
    /// kept lines are ascending, with gaps.
    pub id: u64,
    /// The time in UTC, in the format of RFC 3339, to the microsecond.
    pub time: String,
    /// The time in milliseconds since 1970.
    pub unix_ms: u64,
    /// The severity.
    pub level: Level,
    /// The module that logged the line.
    pub target: &'static str,
    /// The message.
    pub message: String,
    /// The details.
    pub fields: Vec<(&'static str, Value)>,
    /// The number of lines from the same place in the code that were suppressed before this one.
    pub repeated: u64,
}

/// The value of an event's field.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Signed(i64),
    /// A whole number.
    Unsigned(u64),
    /// Another number.
    Float(f64),
    /// Everything else.
    Text(String),
}

impl Record {
    /// Returns a record with the current time.
    pub(super) fn new(level: Level, target: &'static str) -> Record {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let unix_ms = u64::try_from(since_1970.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
        let mut time = String::with_capacity(32);
        // If the clock is before 1970, the time stays empty.
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        Record {
            id: 0,
            time,
            unix_ms,
            level,
            target,
            message: String::new(),
            fields: Vec::new(),
            repeated: 0,
        }
    }

    /// Appends the record as a line of text.
    pub(super) fn write_text(&self, line: &mut String, is_colored: bool) {
        let (name, color) = match self.level {
            Level::Error => ("ERROR", "31"),
            Level::Warn => (" WARN", "33"),
            Level::Info => (" INFO", "32"),
            Level::Debug => ("DEBUG", "34"),
            Level::Trace => ("TRACE", "35"),
        };
        line.push_str(&self.time);
        // Writing to a String cannot fail.
        let _ = match is_colored {
            true => write!(line, " \x1b[{color}m{name}\x1b[0m "),
            false => write!(line, " {name} "),
        };
        self.write_message(line);
        line.push('\n');
    }

    /// Returns message and fields as text, without control characters.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write_message(&mut text);
        text
    }

    fn write_message(&self, line: &mut String) {
        push_escaped(line, &self.message, false);
        for (key, value) in &self.fields {
            let _ = write!(line, " {key}=");
            match value {
                Value::Bool(value) => drop(write!(line, "{value}")),
                Value::Signed(value) => drop(write!(line, "{value}")),
                Value::Unsigned(value) => drop(write!(line, "{value}")),
                Value::Float(value) => drop(write!(line, "{value}")),
                Value::Text(text) => {
                    push_escaped(line, text, text.is_empty() || text.contains([' ', '"', '=']));
                }
            }
        }
        if self.repeated > 0 {
            let _ = write!(line, " repeated={}", self.repeated);
        }
    }

    /// Appends the record as a line with a JSON object.
    pub(super) fn write_json(&self, line: &mut String) {
        // Every record can be serialized: keys are strings, and the maps are not cyclic.
        line.push_str(&serde_json::to_string(self).unwrap_or_default());
        line.push('\n');
    }

    /// Returns the number of bytes of the record's strings.
    pub(super) fn text_bytes(&self) -> usize {
        let fields = self.fields.iter().map(|(_, value)| match value {
            Value::Text(text) => text.len(),
            _ => 8,
        });
        self.message.len() + fields.sum::<usize>()
    }
}

/// Writes `id`, `time`, `level`, `target`, `message`, the event's own fields, and `repeated` if it
/// is not 0. If a field of the event has one of these names, an underscore is appended to it.
impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const OWN: [&str; 6] = ["id", "time", "level", "target", "message", "repeated"];
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("time", &self.time)?;
        map.serialize_entry("level", &self.level)?;
        map.serialize_entry("target", self.target)?;
        map.serialize_entry("message", &self.message)?;
        for (key, value) in &self.fields {
            match OWN.contains(key) {
                true => map.serialize_entry(&format!("{key}_"), value)?,
                false => map.serialize_entry(key, value)?,
            }
        }
        if self.repeated > 0 {
            map.serialize_entry("repeated", &self.repeated)?;
        }
        map.end()
    }
}

/// Appends a string without its control characters. The string may come from a peer, and must not
/// end the line or send commands to a terminal. `is_quoted` adds quotes.
fn push_escaped(line: &mut String, text: &str, is_quoted: bool) {
    let quote = if is_quoted { "\"" } else { "" };
    line.push_str(quote);
    for letter in text.chars() {
        match letter {
            '"' if is_quoted => line.push_str("\\\""),
            '\\' if is_quoted => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            letter if letter.is_control() || is_invisible(letter) => line.extend(letter.escape_unicode()),
            letter => line.push(letter),
        }
    }
    line.push_str(quote);
}

/// Returns whether a character changes how the surrounding characters are displayed.
fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

impl Record {
    fn push(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::Text(text)) => self.message = text,
            (name, value) => self.fields.push((name, value)),
        }
    }
}

impl Visit for Record {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, Value::Float(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, Value::Signed(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, Value::Unsigned(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Value::Bool(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = Bounded::default();
        // This fails if the string is too long, which is then truncated.
        let _ = write!(text, "{value:?}");
        self.push(field, Value::Text(text.0));
    }
}

/// A string that is truncated at its maximum length.
#[derive(Default)]
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = TEXT_BYTES_MAX.saturating_sub(self.0.len());
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        let fits = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= room).last().unwrap_or(0);
        self.0.push_str(&text[..fits]);
        self.0.push('…');
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(message: &str, fields: Vec<(&'static str, Value)>) -> Record {
        Record { time: "T".into(), message: message.into(), fields, ..Record::new(Level::Warn, "here") }
    }

    #[test]
    fn a_record_is_one_line_whatever_is_in_it() {
        let text = |value: &str| Value::Text(value.into());
        let hostile = "a\nERROR forged\r\x1b[2J\u{202e}";
        let record =
            record(hostile, vec![("cause", text(hostile)), ("plain", text("1:2")), ("none", text(""))]);
        let mut line = String::new();
        record.write_text(&mut line, false);
        assert_eq!(
            line,
            "T  WARN a\\nERROR forged\\u{d}\\u{1b}[2J\\u{202e} cause=\"a\\nERROR forged\\u{d}\\u{1b}[2J\\u{202e}\" \
             plain=1:2 none=\"\"\n"
        );
        let mut line = String::new();
        record.write_json(&mut line);
        assert_eq!(line.find('\n'), Some(line.len() - 1), "{line}");
        let parsed: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(parsed["cause"], hostile);
    }

    #[test]
    fn no_field_hides_the_record_s_own() {
        let mut record = record("m", vec![("time", Value::Unsigned(7)), ("level", Value::Bool(true))]);
        record.repeated = 3;
        let parsed = serde_json::to_value(&record).expect("JSON");
        assert_eq!(
            parsed,
            serde_json::json!({"id": 0, "time": "T", "level": "warn", "target": "here", "message": "m",
                "time_": 7, "level_": true, "repeated": 3})
        );
    }

    #[test]
    fn long_texts_are_cut_between_letters() {
        let mut text = Bounded::default();
        assert!(write!(text, "{}", "é".repeat(TEXT_BYTES_MAX)).is_err());
        assert!(text.0.len() <= TEXT_BYTES_MAX + '…'.len_utf8() && text.0.ends_with("é…"));
        let mut text = Bounded::default();
        assert!(write!(text, "{}", "x".repeat(TEXT_BYTES_MAX)).is_ok());
        assert_eq!(text.0.len(), TEXT_BYTES_MAX);
    }
}
