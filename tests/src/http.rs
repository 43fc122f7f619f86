//! A client of the admin listener, with a new connection for each request.

use std::io::{Read, Write};
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
    let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    // An HTTP/1.0 server sends the body without framing, and then closes the connection.
    stream.write_all(request.as_bytes()).expect("the request is sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer in time");
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
