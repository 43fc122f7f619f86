//! The wire script language: bytes to send and bytes to expect, in small named cases.
//!
//! ```text
//! # A comment.
//! case set and gets            a new case, on a server without items and a fresh connection
//! args -I 2m                   more server arguments for this case
//! shapes whole fragmented      only these ways of sending (default: whole fragmented pipelined)
//! not tls udp password ring    not through these (`Wire`), on which the case differs or means nothing
//! later drop-in                waits for a part that `cached` does not have; memcached plays it
//! differs stray-crlf           names the entry of DIFFERENCES.md behind `<cached` and `<memcached` lines
//! > set k 5 0 2                send this and \r\n
//! >> hi\r\n                    send exactly this
//! < STORED                     expect this and \r\n
//! << \x00                      expect exactly this
//! <memcached x                 expect this and \r\n of memcached only; <cached for our server only
//! b> SET key=k flags=5 exp=0 value=hi        send a binary frame
//! b< SET cas=*                               expect a binary frame
//! connect                      continue with a fresh connection
//! closed                       expect the server to close
//! nofence                      do not check at the end that the connection is still in step
//! ```
//!
//! In text: `\r \n \t \0 \xNN \\ \{ \}` are escapes, `{x*250}` repeats, `{name}` stands for a captured
//! number. In expected text also `{number}`, `{word}`, `{any}` (the rest of the line), `{lines}` (lines up to
//! the next expected text), `{~100}` (a number of at most 100 and not much less, for times to live),
//! `{=name}` and `{:name}` (a number or word to be captured).
//!
//! Fields of a frame: `key= value= ext=<hex> cas= opaque=<hex>`, `flags= exp=` and `delta= initial= exp=` for
//! extras, `number=` for an eight-byte value, `status=<hex>` (with memcached's error text unless `value=` is
//! given), and `magic= keylen= extlen= bodylen= datatype= vbucket=` to send malformed frames. `cas=*` expects
//! any but 0, `cas==name` captures it.

use crate::bytes::{from_hex, unescape};
use crate::frame::{CasField, OPAQUE, Request, Response, error_text, op};
use crate::pattern::{Captures, Pattern, Piece};
use crate::play::{Shape, Wire};
use crate::program::Flavour;

/// One named case of a script.
#[derive(Clone, Debug)]
pub struct Case {
    /// File and name, for messages.
    pub name: String,
    /// Additional arguments of the server.
    pub args: String,
    /// The ways in which the case is sent.
    pub shapes: Vec<Shape>,
    /// The difference from memcached that the case shows.
    pub differs: Option<String>,
    /// The unimplemented part of `cached` for which the case waits.
    pub later: Option<String>,
    /// The transports through which the case is not played.
    pub not: Vec<Wire>,
    /// Whether to check at the end that requests and replies are in step.
    pub fence: bool,
    /// The steps.
    pub steps: Vec<Step>,
}

impl Case {
    /// Returns whether the first request of the case is binary.
    pub fn is_binary(&self) -> bool {
        match self.steps.first() {
            Some(Step::Send(template)) => template.bytes(&Captures::default()).first() == Some(&0x80),
            first => matches!(first, Some(Step::SendFrame(_))),
        }
    }
}

/// One line of a case.
#[derive(Clone, Debug)]
pub enum Step {
    /// Send these bytes.
    Send(Template),
    /// Send a binary frame.
    SendFrame(Fields),
    /// Expect these bytes; if a flavour is given, only from this flavour.
    Expect(Template, Option<Flavour>),
    /// Expect a binary frame.
    ExpectFrame(Fields),
    /// Expect the server to close the connection.
    Closed,
    /// Open a new connection.
    Connect,
}

/// Bytes with placeholders, which are captured numbers and wildcards.
#[derive(Clone, Debug, Default)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Piece(Piece),
    Captured(String),
}

/// Operation and fields of a binary frame.
#[derive(Clone, Debug)]
pub struct Fields {
    op: u8,
    fields: Vec<(String, Template)>,
}

/// Reads all cases of a script.
///
/// # Errors
/// Returns a message that names file and line.
pub fn parse(file: &str, text: &str) -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let at = |problem: String| format!("{file}:{}: {problem}", number + 1);
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if line.trim().is_empty() || word.starts_with('#') {
            continue;
        }
        if word == "case" {
            cases.push(Case {
                name: format!("{file}: {rest}"),
                args: String::new(),
                shapes: vec![Shape::Whole, Shape::Fragmented, Shape::Pipelined],
                differs: None,
                later: None,
                not: Vec::new(),
                fence: true,
                steps: Vec::new(),
            });
            continue;
        }
        let case = cases.last_mut().ok_or_else(|| at("a line before the first case".to_owned()))?;
        parse_line(case, word, rest).map_err(at)?;
    }
    Ok(cases)
}

fn parse_line(case: &mut Case, word: &str, rest: &str) -> Result<(), String> {
    let line = |text: &str| Template::parse(&format!("{text}\\r\\n"));
    let step = match word {
        "args" => {
            case.args = rest.to_owned();
            return Ok(());
        }
        "shapes" => {
            case.shapes = rest.split_whitespace().map(Shape::named).collect::<Result<_, _>>()?;
            return Ok(());
        }
        "differs" => {
            case.differs = Some(rest.to_owned());
            return Ok(());
        }
        "later" => {
            case.later = Some(rest.to_owned());
            return Ok(());
        }
        "not" => {
            case.not = rest.split_whitespace().map(Wire::named).collect::<Result<_, _>>()?;
            return Ok(());
        }
        "nofence" => {
            case.fence = false;
            return Ok(());
        }
        ">" => Step::Send(line(rest)?),
        ">>" => Step::Send(Template::parse(rest)?),
        "<" => Step::Expect(line(rest)?, None),
        "<<" => Step::Expect(Template::parse(rest)?, None),
        "<cached" => Step::Expect(line(rest)?, Some(Flavour::Cached)),
        "<memcached" => Step::Expect(line(rest)?, Some(Flavour::Memcached)),
        "b>" => Step::SendFrame(Fields::parse(rest)?),
        "b<" => Step::ExpectFrame(Fields::parse(rest)?),
        "connect" => Step::Connect,
        "closed" => Step::Closed,
        other => return Err(format!("unknown word {other}")),
    };
    case.steps.push(step);
    Ok(())
}

impl Template {
    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            if first == '\\' {
                let end = rest.char_indices().nth(2).map_or(rest.len(), |(end, _)| end);
                literal.push_str(&rest[..end]);
                rest = &rest[end..];
            } else if first == '{' {
                let end = rest.find('}').ok_or_else(|| format!("no }} in {text}"))?;
                push_literal(&mut parts, &mut literal)?;
                parts.push(hole(&rest[1..end])?);
                rest = &rest[end + 1..];
            } else {
                literal.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
        push_literal(&mut parts, &mut literal)?;
        Ok(Self(parts))
    }

    /// Returns whether all required captured numbers are known.
    pub fn is_ready(&self, captures: &Captures) -> bool {
        self.0.iter().all(|part| match part {
            Part::Captured(name) => captures.contains_key(name),
            Part::Piece(_) => true,
        })
    }

    /// Returns the pattern with captured numbers filled in. Adjacent literals are merged.
    pub fn pattern(&self, captures: &Captures) -> Pattern {
        let mut pieces: Vec<Piece> = Vec::new();
        for part in &self.0 {
            let piece = match part {
                Part::Piece(piece) => piece.clone(),
                Part::Captured(name) => {
                    let value = captures.get(name).unwrap_or_else(|| panic!("{{{name}}} was never captured"));
                    Piece::Literal(value.clone().into_bytes())
                }
            };
            match (pieces.last_mut(), piece) {
                (Some(Piece::Literal(before)), Piece::Literal(more)) => before.extend(more),
                (_, piece) => pieces.push(piece),
            }
        }
        Pattern(pieces)
    }

    /// Returns the bytes with captured numbers filled in.
    ///
    /// # Panics
    /// Panics if the template contains a wildcard.
    pub fn bytes(&self, captures: &Captures) -> Vec<u8> {
        match self.pattern(captures).0.as_slice() {
            [] => Vec::new(),
            [Piece::Literal(bytes)] => bytes.clone(),
            other => panic!("a wildcard cannot be sent: {other:?}"),
        }
    }
}

fn push_literal(parts: &mut Vec<Part>, literal: &mut String) -> Result<(), String> {
    if !literal.is_empty() {
        parts.push(Part::Piece(Piece::Literal(unescape(literal)?)));
        literal.clear();
    }
    Ok(())
}

fn hole(text: &str) -> Result<Part, String> {
    if let Some((unit, times)) = text.rsplit_once('*') {
        let times: usize = times.parse().map_err(|_| format!("not a count: {times}"))?;
        return Ok(Part::Piece(Piece::Literal(unescape(unit)?.repeat(times))));
    }
    Ok(match text {
        "number" => Part::Piece(Piece::Digits(None)),
        "word" => Part::Piece(Piece::Word(None)),
        "any" => Part::Piece(Piece::Line),
        "lines" => Part::Piece(Piece::Lines),
        _ if text.starts_with('=') => Part::Piece(Piece::Digits(Some(text[1..].to_owned()))),
        _ if text.starts_with(':') => Part::Piece(Piece::Word(Some(text[1..].to_owned()))),
        _ if text.starts_with('~') => {
            let most = text[1..].parse().map_err(|_| format!("not a number: {text}"))?;
            Part::Piece(Piece::AtMost(most))
        }
        _ => Part::Captured(text.to_owned()),
    })
}

impl Fields {
    fn parse(text: &str) -> Result<Self, String> {
        let mut words = split_words(text).into_iter();
        let name = words.next().unwrap_or_default();
        let op = op(&name).ok_or_else(|| format!("no operation called {name}"))?;
        let fields = words
            .map(|word| match word.split_once('=') {
                Some((name, value)) => Ok((name.to_owned(), Template::parse(value)?)),
                None => Err(format!("{word} is not a field")),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { op, fields })
    }

    /// Returns whether all required captured numbers are known.
    pub fn is_ready(&self, captures: &Captures) -> bool {
        self.fields.iter().all(|(_, value)| value.is_ready(captures))
    }

    /// Returns the request's bytes.
    pub fn request(&self, captures: &Captures) -> Vec<u8> {
        let mut request = Request::new(self.op);
        for (name, value) in &self.fields {
            let bytes = value.bytes(captures);
            match name.as_str() {
                "key" => request.key = bytes,
                "value" => request.value = bytes,
                "number" => request.value = number(&bytes).to_be_bytes().to_vec(),
                "ext" => request.extras = from_hex(&text(&bytes)).expect("extras"),
                "flags" | "exp" => request.extras.extend((number(&bytes) as u32).to_be_bytes()),
                "delta" | "initial" => request.extras.extend(number(&bytes).to_be_bytes()),
                "cas" => request.cas = number(&bytes),
                "opaque" => request.opaque = Some(hex(&bytes) as u32),
                "magic" => request.magic = Some(hex(&bytes) as u8),
                "keylen" => request.keylen = Some(number(&bytes) as u16),
                "extlen" => request.extlen = Some(number(&bytes) as u8),
                "bodylen" => request.bodylen = Some(number(&bytes) as u32),
                "datatype" => request.datatype = number(&bytes) as u8,
                "vbucket" => request.vbucket = number(&bytes) as u16,
                other => panic!("no field {other} in a request"),
            }
        }
        request.bytes()
    }

    /// Returns the expected response.
    pub fn response(&self, captures: &Captures) -> Pattern {
        let mut response = Response::new(self.op);
        response.opaque = OPAQUE;
        for (name, value) in &self.fields {
            let bytes = value.bytes(captures);
            match name.as_str() {
                "key" => response.key = bytes,
                "value" => response.value = bytes,
                "number" => response.value = number(&bytes).to_be_bytes().to_vec(),
                "ext" => response.extras = from_hex(&text(&bytes)).expect("extras"),
                "flags" => response.extras = (number(&bytes) as u32).to_be_bytes().to_vec(),
                "status" => {
                    response.status = hex(&bytes) as u16;
                    response.value = error_text(response.status).to_vec();
                }
                "opaque" => response.opaque = hex(&bytes) as u32,
                "cas" => {
                    response.cas = match text(&bytes).as_str() {
                        "*" => CasField::Some(None),
                        other => match other.strip_prefix('=') {
                            Some(name) => CasField::Some(Some(name.to_owned())),
                            None => CasField::Is(number(&bytes)),
                        },
                    };
                }
                other => panic!("no field {other} in a response"),
            }
        }
        response.pattern()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(bytes: &[u8]) -> u64 {
    text(bytes).parse().unwrap_or_else(|_| panic!("not a number: {}", text(bytes)))
}

fn hex(bytes: &[u8]) -> u64 {
    u64::from_str_radix(&text(bytes), 16).unwrap_or_else(|_| panic!("not hexadecimal: {}", text(bytes)))
}

/// Returns the words between blanks; a blank after `\` or inside braces belongs to its word.
fn split_words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut escaped, mut depth) = (false, 0);
    for char in text.chars() {
        let last = words.last_mut().expect("at least one word");
        if char == ' ' && !escaped && depth == 0 {
            if !last.is_empty() {
                words.push(String::new());
            }
            continue;
        }
        match char {
            '{' if !escaped => depth += 1,
            '}' if !escaped => depth -= 1,
            _ => {}
        }
        escaped = char == '\\' && !escaped;
        last.push(char);
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read() {
        let text =
            "# x\ncase one\nargs -I 2m\n> set k 0 0 {x*3}\\{\n< VALUE {=cas} {number}\n>> {cas}\nclosed\n";
        let cases = parse("f", text).unwrap();
        assert_eq!(cases.len(), 1);
        assert_eq!(cases[0].args, "-I 2m");
        let none = Captures::default();
        let Step::Send(send) = &cases[0].steps[0] else { panic!() };
        assert_eq!(send.bytes(&none), b"set k 0 0 xxx{\r\n");
        let Step::Send(last) = &cases[0].steps[2] else { panic!() };
        assert!(!last.is_ready(&none));
        assert!(parse("f", "> early\n").is_err());
        assert!(parse("f", "case x\nwhat\n").is_err());
    }

    #[test]
    fn a_frame_is_read() {
        let cases =
            parse("f", "case b\nb> SET key=k flags=1 exp=2 value=a\\ b opaque=1\nb< GET status=1\n").unwrap();
        let Step::SendFrame(frame) = &cases[0].steps[0] else { panic!() };
        let bytes = frame.request(&Captures::default());
        assert_eq!(&bytes[..4], [0x80, 1, 0, 1]);
        assert_eq!(&bytes[24..], b"\0\0\0\x01\0\0\0\x02ka b");
    }
}
