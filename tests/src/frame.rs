//! Binary protocol frames: composing requests, malformed ones too, and patterns for responses.
//!
//! ```text
//!  0       1       2               4       5       6               8
//! +-------+-------+---------------+-------+-------+---------------+
//! | magic | op    | key length    | extras| type  | vbucket/status|
//! +-------+-------+---------------+-------+-------+---------------+
//! | body length (extras+key+value)| opaque                        |
//! +-------------------------------+-------------------------------+
//! | CAS                                                           |
//! +---------------------------------------------------------------+
//! | extras, key, value                                            |
//! ```

use crate::pattern::{Pattern, Piece};

/// Operation codes by the names that scripts use.
pub const OPS: &[(&str, u8)] = &[
    ("GET", 0x00),
    ("SET", 0x01),
    ("ADD", 0x02),
    ("REPLACE", 0x03),
    ("DELETE", 0x04),
    ("INCR", 0x05),
    ("DECR", 0x06),
    ("QUIT", 0x07),
    ("FLUSH", 0x08),
    ("GETQ", 0x09),
    ("NOOP", 0x0a),
    ("VERSION", 0x0b),
    ("GETK", 0x0c),
    ("GETKQ", 0x0d),
    ("APPEND", 0x0e),
    ("PREPEND", 0x0f),
    ("STAT", 0x10),
    ("SETQ", 0x11),
    ("ADDQ", 0x12),
    ("REPLACEQ", 0x13),
    ("DELETEQ", 0x14),
    ("INCRQ", 0x15),
    ("DECRQ", 0x16),
    ("QUITQ", 0x17),
    ("FLUSHQ", 0x18),
    ("APPENDQ", 0x19),
    ("PREPENDQ", 0x1a),
    ("TOUCH", 0x1c),
    ("GAT", 0x1d),
    ("GATQ", 0x1e),
    ("SASL_LIST", 0x20),
    ("SASL_AUTH", 0x21),
    ("SASL_STEP", 0x22),
    ("GATK", 0x23),
    ("GATKQ", 0x24),
];

/// The default opaque of frames.
pub const OPAQUE: u32 = 0xdead_beef;

/// Returns an operation code, given by name or as `0x..`.
pub fn op(name: &str) -> Option<u8> {
    match name.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16).ok(),
        None => OPS.iter().find(|(known, _)| *known == name).map(|&(_, code)| code),
    }
}

/// Returns the status and text of memcached's error response.
pub fn error_text(status: u16) -> &'static [u8] {
    match status {
        0x01 => b"Not found",
        0x02 => b"Data exists for key.",
        0x03 => b"Too large.",
        0x04 => b"Invalid arguments",
        0x05 => b"Not stored.",
        0x06 => b"Non-numeric server-side value for incr or decr",
        0x20 => b"Auth failure.",
        0x81 => b"Unknown command",
        0x82 => b"Out of memory",
        _ => b"",
    }
}

/// A request; its length fields are correct unless set explicitly.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Operation code.
    pub op: u8,
    /// Extras.
    pub extras: Vec<u8>,
    /// Key.
    pub key: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
    /// CAS.
    pub cas: u64,
    /// Opaque; the default is [`OPAQUE`].
    pub opaque: Option<u32>,
    /// Magic; the default is 0x80.
    pub magic: Option<u8>,
    /// Data type.
    pub datatype: u8,
    /// Virtual bucket.
    pub vbucket: u16,
    /// A wrong key length.
    pub keylen: Option<u16>,
    /// A wrong extras length.
    pub extlen: Option<u8>,
    /// A wrong body length.
    pub bodylen: Option<u32>,
}

impl Request {
    /// Returns a request with this operation.
    pub fn new(op: u8) -> Self {
        Self { op, ..Self::default() }
    }

    /// Adds a key.
    pub fn key(mut self, key: &[u8]) -> Self {
        self.key = key.to_vec();
        self
    }

    /// Adds extras.
    pub fn extras(mut self, extras: &[u8]) -> Self {
        self.extras = extras.to_vec();
        self
    }

    /// Adds a value.
    pub fn value(mut self, value: &[u8]) -> Self {
        self.value = value.to_vec();
        self
    }

    /// Returns the bytes to send.
    pub fn bytes(&self) -> Vec<u8> {
        let keylen = self.keylen.unwrap_or(self.key.len() as u16);
        let extlen = self.extlen.unwrap_or(self.extras.len() as u8);
        let bodylen = self.bodylen.unwrap_or((self.extras.len() + self.key.len() + self.value.len()) as u32);
        let mut out = vec![self.magic.unwrap_or(0x80), self.op];
        out.extend(keylen.to_be_bytes());
        out.extend([extlen, self.datatype]);
        out.extend(self.vbucket.to_be_bytes());
        out.extend(bodylen.to_be_bytes());
        out.extend(self.opaque.unwrap_or(OPAQUE).to_be_bytes());
        out.extend(self.cas.to_be_bytes());
        for part in [&self.extras, &self.key, &self.value] {
            out.extend(part);
        }
        out
    }
}

/// Returns a storage request with flags and exptime 0.
pub fn store(op: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    Request::new(op).extras(&[0; 8]).key(key).value(value).bytes()
}

/// The expected CAS field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CasField {
    /// This value.
    Is(u64),
    /// Any value except 0, captured under the name if there is one.
    Some(Option<String>),
}

/// An expected response.
#[derive(Clone, Debug)]
pub struct Response {
    /// Operation code.
    pub op: u8,
    /// Status.
    pub status: u16,
    /// Extras.
    pub extras: Vec<u8>,
    /// Key.
    pub key: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
    /// CAS.
    pub cas: CasField,
    /// Opaque.
    pub opaque: u32,
}

impl Response {
    /// Returns a successful response without body.
    pub fn new(op: u8) -> Self {
        Self {
            op,
            status: 0,
            extras: Vec::new(),
            key: Vec::new(),
            value: Vec::new(),
            cas: CasField::Is(0),
            opaque: OPAQUE,
        }
    }

    /// Returns an error response with memcached's text.
    pub fn error(op: u8, status: u16) -> Self {
        Self { status, value: error_text(status).to_vec(), ..Self::new(op) }
    }

    /// Returns the pattern of the frame's bytes.
    pub fn pattern(&self) -> Pattern {
        let bodylen = (self.extras.len() + self.key.len() + self.value.len()) as u32;
        let mut head = vec![0x81, self.op];
        head.extend((self.key.len() as u16).to_be_bytes());
        head.extend([self.extras.len() as u8, 0]);
        head.extend(self.status.to_be_bytes());
        head.extend(bodylen.to_be_bytes());
        head.extend(self.opaque.to_be_bytes());
        let mut pieces = Vec::new();
        match &self.cas {
            CasField::Is(cas) => {
                head.extend(cas.to_be_bytes());
                pieces.push(Piece::Literal(head));
            }
            CasField::Some(name) => {
                pieces.push(Piece::Literal(head));
                pieces.push(Piece::Cas(name.clone()));
            }
        }
        let body = [&self.extras[..], &self.key, &self.value].concat();
        pieces.push(Piece::Literal(body));
        Pattern(pieces)
    }
}
