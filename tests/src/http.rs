//! A client of the admin listener, with a new connection for each request.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The time limit for a response. It is generous, because the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(120);

/// Sends a GET with these further header lines, each ended by CRLF; returns the status and the body.
///
/// # Panics
/// Panics if the listener cannot be reached, or its response is not valid HTTP.
pub fn get_with(address: &str, path: &str, headers: &str) -> (u16, String) {
    ask(address, &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n"))
}

/// Sends a POST with these further header lines, each ended by CRLF, and a body; returns the status
/// and the body of the response.
///
/// # Panics
/// Panics if [`get_with`] would panic.
pub fn post(address: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let length = body.len();
    ask(
        address,
        &format!(
            "POST {path} HTTP/1.0\r\nHost: {address}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        ),
    )
}

fn ask(address: &str, request: &str) -> (u16, String) {
    let answer = exchange(address, request);
    parse(answer.unwrap_or_else(|error| panic!("{address}: no answer in time: {error}")))
}

/// Sends a request, and returns the bytes of the response; none if the connection ends before it.
fn exchange(address: &str, request: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(request.as_bytes())?;
    // An HTTP/1.0 server sends the body without framing, and then closes the connection.
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Returns the status and the body.
fn parse(answer: Vec<u8>) -> (u16, String) {
    let answer = String::from_utf8(answer).expect("text");
    let status = answer.strip_prefix("HTTP/1.0 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no body: {answer:?}"));
    (status.unwrap_or_else(|| panic!("no status: {answer:?}")), body.to_owned())
}

/// Sends a GET; returns the status and the body.
///
/// # Panics
/// Panics if [`get_with`] would panic.
pub fn get(address: &str, path: &str) -> (u16, String) {
    get_with(address, path, "")
}

/// Sends a GET; returns the status and the body. Returns `None` without a response: while one process
/// takes over from another, the old one may close a connection whose request has not arrived.
///
/// # Panics
/// Panics if the response is not valid HTTP.
#[must_use]
pub fn try_get(address: &str, path: &str) -> Option<(u16, String)> {
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    let answer = exchange(address, &request).ok()?;
    (!answer.is_empty()).then(|| parse(answer))
}
