//! S3 requests with exactly specified bytes, signed with version 4, and their responses. The
//! requests include some that no client library would send.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::s3::endpoint::User;

/// The time limit for a response. It is generous, because the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(240);

/// An unsigned request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The method.
    pub method: &'static str,
    /// The path as sent.
    pub path: String,
    /// The query as sent and signed, with its parameters in order; may be empty.
    pub query: String,
    /// Signed headers, with names in lower case.
    pub signed: Vec<(String, String)>,
    /// Lines of unsigned headers.
    pub unsigned: Vec<(String, String)>,
    /// The signed body hash; empty for the real hash.
    pub payload: String,
    /// The body as sent, including its framing.
    pub body: Vec<u8>,
    /// Whether the request is sent without a signature.
    pub is_anonymous: bool,
    /// Whether the connection is not reused after the request, because the end of the request is
    /// ambiguous.
    pub is_last: bool,
}

/// A response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(each, _)| each == name).map(|(_, value)| value.as_str())
    }

    /// Returns the content of each XML element with this name.
    pub fn elements(&self, name: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.body);
        let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
        let parts = text.split(&begin).skip(1);
        parts.filter_map(|part| part.split(&end).next().map(str::to_owned)).collect()
    }
}

/// Returns the lower-case hexadecimal digits of bytes.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("keys of any length are right");
    mac.chain_update(text.as_bytes()).finalize().into_bytes().to_vec()
}

/// Returns the current time as `YYYYMMDDTHHMMSSZ`.
fn stamp() -> String {
    let secs = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
    // Days since 0000-03-01, in eras of 400 years.
    let (days, rest) = (secs / 86_400 + 719_468, secs % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Returns a path in the encoding used for signatures: decoded, and encoded again.
fn canonical(path: &str) -> String {
    let bytes = path.as_bytes();
    let (mut at, mut text) = (0, String::new());
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        let decoded =
            digits.filter(|_| bytes[at] == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let byte = decoded.unwrap_or(bytes[at]);
        at += if decoded.is_some() { 3 } else { 1 };
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) => text.push(char::from(byte)),
            byte => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

impl Request {
    /// Returns the request's bytes for a host, signed by a user.
    pub fn bytes(&self, host: &str, user: &User) -> Vec<u8> {
        let stamp = stamp();
        let payload =
            if self.payload.is_empty() { hex(&Sha256::digest(&self.body)) } else { self.payload.clone() };
        let mut headers = self.signed.clone();
        headers.push(("host".into(), host.into()));
        if !self.is_anonymous {
            headers.push(("x-amz-date".into(), stamp.clone()));
            headers.push(("x-amz-content-sha256".into(), payload.clone()));
        }
        headers.sort();
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let lines: String =
            headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let Request { method, path, query, .. } = self;
        let canonical = format!("{method}\n{}\n{query}\n{lines}\n{names}\n{payload}", canonical(path));
        let scope = format!("{}/us-east-1/s3/aws4_request", &stamp[..8]);
        let text =
            format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hex(&Sha256::digest(canonical.as_bytes())));
        let key = format!("AWS4{}", user.secret_key).into_bytes();
        let key = scope.split('/').fold(key, |key, part| hmac(&key, part));
        let separator = if query.is_empty() { "" } else { "?" };
        let mut sent = format!("{method} {path}{separator}{query} HTTP/1.1\r\n");
        for (name, value) in headers.iter().chain(&self.unsigned) {
            sent += &format!("{name}: {value}\r\n");
        }
        if !self.is_anonymous {
            let (access_key, signature) = (&user.access_key, hex(&hmac(&key, &text)));
            sent += &format!(
                "authorization: AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}\r\n"
            );
        }
        sent += "\r\n";
        [sent.as_bytes(), &self.body].concat()
    }
}

/// A connection to a server. It is reopened after the server has closed it.
#[derive(Debug)]
pub struct Connection {
    host: String,
    socket: Option<BufReader<TcpStream>>,
}

impl Connection {
    /// Returns a connection to a URL without a path.
    pub fn to(url: &str) -> Self {
        Self { host: url.trim_start_matches("http://").to_owned(), socket: None }
    }

    /// Sends a request and returns the response.
    ///
    /// # Errors
    /// Fails if the response is missing or invalid.
    pub fn ask(&mut self, request: &Request, user: &User) -> io::Result<Answer> {
        let bytes = request.bytes(&self.host, user);
        let was_kept = self.socket.is_some();
        let answer = match self.try_ask(&bytes, request.method == "HEAD") {
            // The server has closed the connection in the meantime.
            Err(_) if was_kept => self.try_ask(&bytes, request.method == "HEAD"),
            answer => answer,
        };
        if request.is_last {
            self.socket = None;
        }
        answer
    }

    fn try_ask(&mut self, bytes: &[u8], is_head: bool) -> io::Result<Answer> {
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => {
                let socket = TcpStream::connect(&self.host)?;
                socket.set_nodelay(true)?;
                socket.set_read_timeout(Some(DEADLINE))?;
                socket.set_write_timeout(Some(DEADLINE))?;
                BufReader::new(socket)
            }
        };
        // The response may arrive before the whole request has been sent.
        let sent = socket.get_mut().write_all(bytes);
        let answer = read(&mut socket, is_head)?;
        let is_over = answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        self.socket = Some(socket).filter(|_| !is_over && sent.is_ok());
        Ok(answer)
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Reads a line.
pub(crate) fn line(socket: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    match socket.read_line(&mut line)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end_matches(['\r', '\n']).to_owned()),
    }
}

/// Reads the headers of a message, with names converted to lower case, and the empty line after
/// them.
pub(crate) fn read_headers(socket: &mut impl BufRead) -> io::Result<Vec<(String, String)>> {
    let mut headers = Vec::new();
    loop {
        let text = line(socket)?;
        if text.is_empty() {
            return Ok(headers);
        }
        let (name, value) = text.split_once(':').ok_or_else(|| wrong(&text))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

fn read(socket: &mut impl BufRead, is_head: bool) -> io::Result<Answer> {
    loop {
        let first = line(socket)?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status: u16 = status.ok_or_else(|| wrong(&first))?;
        let mut answer = Answer { status, headers: read_headers(socket)?, body: Vec::new() };
        if (100..200).contains(&status) {
            continue;
        }
        if is_head || status == 204 || status == 304 {
            return Ok(answer);
        }
        if answer.header("transfer-encoding").is_some() {
            loop {
                let text = line(socket)?;
                let len = usize::from_str_radix(text.split(';').next().unwrap_or_default(), 16);
                let mut chunk = vec![0; len.map_err(|_| wrong(&text))? + 2];
                socket.read_exact(&mut chunk)?;
                if chunk.len() == 2 {
                    return Ok(answer);
                }
                answer.body.extend_from_slice(&chunk[..chunk.len() - 2]);
            }
        }
        let len =
            answer.header("content-length").unwrap_or("0").parse().map_err(|_| wrong("content-length"))?;
        answer.body = vec![0; len];
        socket.read_exact(&mut answer.body)?;
        return Ok(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_signed_in_one_encoding() {
        assert_eq!(canonical("/b/a+b%20%2f%c3%bc~%"), "/b/a%2Bb%20/%C3%BC~%25");
    }
}
