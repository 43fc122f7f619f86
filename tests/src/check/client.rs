//! One client that uses one of the three protocols, with the same requests and results for all.

use crate::conn::Conn;
use crate::frame::{Request, op};

/// The protocol of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    /// The classic text protocol.
    Text,
    /// Meta commands.
    Meta,
    /// Binary frames.
    Binary,
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The change was made.
    Done,
    /// A condition did not hold, because there was no item.
    Absent,
    /// A condition did not hold, because there was another item.
    Other,
    /// There is no memory for the item.
    NoMemory,
}

/// A client.
pub struct Client {
    /// The connection.
    pub conn: Conn,
    speaks: Speaks,
}

impl Client {
    /// Returns a client on a new connection.
    pub fn new(conn: Conn, speaks: Speaks) -> Client {
        Client { conn, speaks }
    }

    /// Stores a value.
    pub fn set(&mut self, key: &str, value: &[u8], exptime: u32) -> Answer {
        let bytes = value.len();
        match self.speaks {
            Speaks::Text => self.change(&format!("set {key} 0 {exptime} {bytes}"), Some(value)),
            Speaks::Meta => self.change(&format!("ms {key} {bytes} T{exptime}"), Some(value)),
            Speaks::Binary => self.store_frame("SET", key, value, exptime, 0),
        }
    }

    /// Stores a value if the current one has this CAS value.
    pub fn cas(&mut self, key: &str, value: &[u8], cas: u64) -> Answer {
        let bytes = value.len();
        match self.speaks {
            Speaks::Text => self.change(&format!("cas {key} 0 0 {bytes} {cas}"), Some(value)),
            Speaks::Meta => self.change(&format!("ms {key} {bytes} C{cas}"), Some(value)),
            Speaks::Binary => self.store_frame("SET", key, value, 0, cas),
        }
    }

    /// Appends to a value. Any failure yields [`Answer::Other`].
    pub fn append(&mut self, key: &str, value: &[u8]) -> Answer {
        let bytes = value.len();
        match self.speaks {
            Speaks::Text => self.change(&format!("append {key} 0 0 {bytes}"), Some(value)),
            Speaks::Meta => self.change(&format!("ms {key} {bytes} MA"), Some(value)),
            Speaks::Binary => {
                self.frame(&Request::new(op("APPEND").expect("APPEND")).key(key.as_bytes()).value(value)).0
            }
        }
    }

    /// Deletes a value.
    pub fn delete(&mut self, key: &str) -> Answer {
        match self.speaks {
            Speaks::Text => self.change(&format!("delete {key}"), None),
            Speaks::Meta => self.change(&format!("md {key}"), None),
            Speaks::Binary => self.frame(&Request::new(op("DELETE").expect("DELETE")).key(key.as_bytes())).0,
        }
    }

    /// Sets a new expiry for a value.
    pub fn touch(&mut self, key: &str, exptime: u32) -> Answer {
        match self.speaks {
            Speaks::Text => self.change(&format!("touch {key} {exptime}"), None),
            Speaks::Meta => self.change(&format!("mg {key} T{exptime}"), None),
            Speaks::Binary => {
                let request = Request::new(op("TOUCH").expect("TOUCH")).extras(&exptime.to_be_bytes());
                self.frame(&request.key(key.as_bytes())).0
            }
        }
    }

    /// Adds one to a number.
    ///
    /// # Errors
    /// Returns the reason for the failure.
    pub fn increment(&mut self, key: &str) -> Result<u64, Answer> {
        let number = |text: &[u8]| String::from_utf8_lossy(text).trim_end().parse::<u64>();
        match self.speaks {
            Speaks::Text => {
                self.conn.send(format!("incr {key} 1\r\n").as_bytes());
                let line = self.conn.read_line();
                number(&line).map_err(|_| answer(&line))
            }
            Speaks::Meta => {
                self.conn.send(format!("ma {key} v\r\n").as_bytes());
                let line = self.conn.read_line();
                if !line.starts_with(b"VA ") {
                    return Err(answer(&line));
                }
                let line = self.conn.read_line();
                Ok(number(&line).unwrap_or_else(|_| unexpected(&line)))
            }
            Speaks::Binary => {
                let extras = [&1u64.to_be_bytes()[..], &[0; 8], &u32::MAX.to_be_bytes()].concat();
                let request = Request::new(op("INCR").expect("INCR")).extras(&extras).key(key.as_bytes());
                match self.frame(&request) {
                    (Answer::Done, value, _) => {
                        let bytes = value.try_into().unwrap_or_else(|bytes: Vec<u8>| unexpected(&bytes));
                        Ok(u64::from_be_bytes(bytes))
                    }
                    (answer, ..) => Err(answer),
                }
            }
        }
    }

    /// Returns a value and its CAS value.
    pub fn get(&mut self, key: &str) -> Option<(Vec<u8>, u64)> {
        match self.speaks {
            Speaks::Text => {
                self.conn.send(format!("gets {key}\r\n").as_bytes());
                let found = self.read_value().map(|(_, value, cas)| (value, cas));
                if found.is_some() {
                    self.expect_line(b"END");
                }
                found
            }
            Speaks::Meta => {
                self.conn.send(format!("mg {key} v c\r\n").as_bytes());
                let line = String::from_utf8_lossy(&self.conn.read_line()).into_owned();
                let words: Vec<&str> = line.split(' ').collect();
                match words[..] {
                    ["EN"] => None,
                    ["VA", bytes, cas, ..] => {
                        let number =
                            |text: &str| text.parse().unwrap_or_else(|_| unexpected(line.as_bytes()));
                        let value = self.read_body(number(bytes) as usize);
                        Some((value, number(cas.trim_start_matches('c'))))
                    }
                    _ => unexpected(line.as_bytes()),
                }
            }
            Speaks::Binary => match self.frame(&Request::new(op("GET").expect("GET")).key(key.as_bytes())) {
                (Answer::Done, value, cas) => Some((value, cas)),
                (Answer::Absent, ..) => None,
                (answer, value, _) => unexpected(format!("{answer:?} {value:?}").as_bytes()),
            },
        }
    }

    /// Returns the values of several keys, in their order.
    pub fn get_many(&mut self, keys: &[String]) -> Vec<Option<Vec<u8>>> {
        if self.speaks != Speaks::Text {
            return keys.iter().map(|key| self.get(key).map(|(value, _)| value)).collect();
        }
        self.conn.send(format!("gets {}\r\n", keys.join(" ")).as_bytes());
        let mut found = vec![None; keys.len()];
        let mut at = 0;
        while let Some((key, value, _)) = self.read_value() {
            // The reply has the keys in the order of the request; missing keys are left out.
            match keys[at..].iter().position(|asked| *asked == key) {
                Some(gap) => at += gap,
                None => unexpected(key.as_bytes()),
            }
            found[at] = Some(value);
            at += 1;
        }
        found
    }

    /// Reads `VALUE key flags bytes cas` and the value, or `None` at the end.
    fn read_value(&mut self) -> Option<(String, Vec<u8>, u64)> {
        let line = String::from_utf8_lossy(&self.conn.read_line()).into_owned();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["END"] => None,
            ["VALUE", key, _, bytes, cas] => {
                let number = |text: &str| text.parse().unwrap_or_else(|_| unexpected(line.as_bytes()));
                Some((key.to_owned(), self.read_body(number(bytes) as usize), number(cas)))
            }
            _ => unexpected(line.as_bytes()),
        }
    }

    fn read_body(&mut self, bytes: usize) -> Vec<u8> {
        let mut value = self.conn.read_exact(bytes + 2);
        if !value.ends_with(b"\r\n") {
            unexpected(&value);
        }
        value.truncate(bytes);
        value
    }

    fn expect_line(&mut self, expected: &[u8]) {
        let line = self.conn.read_line();
        if line != expected {
            unexpected(&line);
        }
    }

    fn change(&mut self, line: &str, value: Option<&[u8]>) -> Answer {
        let mut request = format!("{line}\r\n").into_bytes();
        if let Some(value) = value {
            request.extend(value);
            request.extend(b"\r\n");
        }
        self.conn.send(&request);
        answer(&self.conn.read_line())
    }

    fn store_frame(&mut self, name: &str, key: &str, value: &[u8], exptime: u32, cas: u64) -> Answer {
        let extras = [[0; 4], exptime.to_be_bytes()].concat();
        let request = Request::new(op(name).expect("an operation")).extras(&extras).key(key.as_bytes());
        self.frame(&Request { cas, ..request.value(value) }).0
    }

    /// Returns status, value and CAS value of the response to a frame.
    fn frame(&mut self, request: &Request) -> (Answer, Vec<u8>, u64) {
        self.conn.send(&request.bytes());
        let head = self.conn.read_exact(24);
        if head[..2] != [0x81, request.op] {
            unexpected(&head);
        }
        let body_bytes = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let body = self.conn.read_exact(body_bytes);
        let mut cas = [0; 8];
        cas.copy_from_slice(&head[16..24]);
        let answer = match u16::from_be_bytes([head[6], head[7]]) {
            0 => Answer::Done,
            1 => Answer::Absent,
            2 | 5 => Answer::Other,
            0x82 => Answer::NoMemory,
            _ => unexpected(&head),
        };
        (answer, body[usize::from(head[4])..].to_vec(), u64::from_be_bytes(cas))
    }
}

/// Returns the outcome of a change from a reply line.
fn answer(line: &[u8]) -> Answer {
    match line.split(|byte| *byte == b' ').next().unwrap_or_default() {
        b"STORED" | b"DELETED" | b"TOUCHED" | b"HD" => Answer::Done,
        b"NOT_FOUND" | b"NF" | b"EN" => Answer::Absent,
        b"EXISTS" | b"EX" | b"NOT_STORED" | b"NS" => Answer::Other,
        b"SERVER_ERROR" if line.starts_with(b"SERVER_ERROR out of memory") => Answer::NoMemory,
        _ => unexpected(line),
    }
}

fn unexpected(reply: &[u8]) -> ! {
    panic!("a reply that cannot be: {}", reply[..reply.len().min(200)].escape_ascii())
}
