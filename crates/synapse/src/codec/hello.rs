//! The first frames of a connection: hello, challenge, proof, welcome, and the last one, goodbye.
//!
//! ```text
//! client                                   server
//!   hello (session, features, nonce) ------->
//!   <------- challenge (nonce, instance)        only with a secret
//!   prove (HMAC) --------------------------->   only with a secret
//!   <------- welcome (instance, resumed, credits, capabilities, HMAC)
//!   requests ------------------------------->
//! ```
//!
//! Everything stands in extensions, so that each of them can grow.

use blocker::{Capabilities, Durability, Error, Survives};

use super::extension::Writer;
use super::frame::{Attached, Head, encode, kind};
use super::header::{Flags, Header, RequestId};
use super::op::Op;
use super::status::{self, Status};

/// What a side can do beyond the least.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features(pub u64);

impl Features {
    /// Payloads carry a CRC-32 in both directions.
    pub const PAYLOAD_CRC: u64 = 1 << 0;
    /// The server sends news from the backend on this connection.
    pub const EVENTS: u64 = 1 << 1;
    /// Several ranges may be written in one change.
    pub const RUNS: u64 = 1 << 2;
    /// Everything that this version knows.
    pub const ALL: u64 = Self::PAYLOAD_CRC | Self::EVENTS | Self::RUNS;

    /// Whether all of `feature` is there.
    #[must_use]
    pub const fn has(self, feature: u64) -> bool {
        self.0 & feature == feature
    }
}

/// Which session: a client draws 16 bytes when it starts, and numbers its connections.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SessionId {
    /// Drawn at random by the client.
    pub client: [u8; 16],
    /// Which of the client's connections.
    pub lane: u16,
}

/// Which run of a server: drawn at random at its start. Another instance knows nothing of what this one
/// held in memory.
pub type InstanceId = [u8; 16];

/// 32 bytes drawn at random, against replays.
pub type Nonce = [u8; 32];

/// How much may be under way in one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credits {
    /// Requests: the number of slots.
    pub slots: u32,
    /// Bytes: what all of them cost together, see [`super::cost_bytes`].
    pub bytes: u64,
}

/// What a client says first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Which session it wants to go on with, or to begin.
    pub session: SessionId,
    /// What it would like.
    pub features: Features,
    /// For the server's proof.
    pub nonce: Nonce,
    /// How much it would like to have under way.
    pub credits: Credits,
}

/// What a server asks of a client before it lets it in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Challenge {
    /// For the client's proof.
    pub nonce: Nonce,
    /// Which run of the server this is.
    pub instance: InstanceId,
}

/// What a server says when it lets a client in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Which run of the server this is.
    pub instance: InstanceId,
    /// Whether the session was known, and with it the outcomes of its last requests.
    pub is_resumed: bool,
    /// Drawn at random when the session began. A client goes on with a session only if it has been welcomed
    /// to this very one before: the server may know the name from a greeting whose welcome was lost.
    pub birth: u64,
    /// What is granted.
    pub features: Features,
    /// How much may be under way.
    pub credits: Credits,
    /// A side that has been silent for so long is dead.
    pub peer_timeout_ms: u32,
    /// What the backend can do, over this connection.
    pub capabilities: Capabilities,
    /// The server's proof that it knows the secret; zeros without one.
    pub proof: [u8; 32],
}

impl Hello {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::default();
        writer
            .put(kind::SESSION, &session_bytes(&self.session))
            .put(kind::FEATURES, &self.features.0.to_le_bytes())
            .put(kind::NONCE, &self.nonce)
            .put(kind::CREDITS, &credit_bytes(&self.credits));
        frame(out, &Header::new(Op::Hello, RequestId::default()), &writer);
    }

    /// Reads it out of a head.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a part is missing.
    pub fn decode(head: &Head<'_>) -> Result<Self, Error> {
        let session = head.extensions.get_array(kind::SESSION).ok_or_else(|| lacks("a session"))?;
        Ok(Self {
            session: session_of(&session),
            features: features(head),
            nonce: head.extensions.get_array(kind::NONCE).ok_or_else(|| lacks("a nonce"))?,
            credits: credits(head)?,
        })
    }
}

impl Challenge {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::default();
        writer.put(kind::NONCE, &self.nonce).put(kind::INSTANCE, &self.instance);
        let mut header = Header::new(Op::Hello, RequestId::default());
        header.flags.put(Flags::REPLY, true);
        header.status = Status::Challenge;
        frame(out, &header, &writer);
    }

    /// Reads it out of a head.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a part is missing.
    pub fn decode(head: &Head<'_>) -> Result<Self, Error> {
        Ok(Self {
            nonce: head.extensions.get_array(kind::NONCE).ok_or_else(|| lacks("a nonce"))?,
            instance: head.extensions.get_array(kind::INSTANCE).ok_or_else(|| lacks("an instance"))?,
        })
    }
}

/// Appends a client's proof.
pub fn encode_proof(out: &mut Vec<u8>, proof: &[u8; 32]) {
    let mut writer = Writer::default();
    writer.put(kind::PROOF, proof);
    frame(out, &Header::new(Op::Prove, RequestId::default()), &writer);
}

/// Reads a client's proof.
///
/// # Errors
/// [`Error::Invalid`] if it is missing.
pub fn decode_proof(head: &Head<'_>) -> Result<[u8; 32], Error> {
    head.extensions.get_array(kind::PROOF).ok_or_else(|| lacks("a proof"))
}

impl Welcome {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::default();
        writer
            .put(kind::INSTANCE, &self.instance)
            .put(kind::FEATURES, &self.features.0.to_le_bytes())
            .put(kind::CREDITS, &credit_bytes(&self.credits))
            .put(kind::PEER_TIMEOUT, &self.peer_timeout_ms.to_le_bytes())
            .put(kind::CAPABILITIES, &encode_capabilities(&self.capabilities))
            .put(kind::BIRTH, &self.birth.to_le_bytes())
            .put(kind::PROOF, &self.proof);
        let mut header = Header::new(Op::Hello, RequestId::default());
        header.flags.put(Flags::REPLY, true);
        header.flags.put(Flags::RESUMED, self.is_resumed);
        frame(out, &header, &writer);
    }

    /// Reads it out of a head.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a part is missing or makes no sense.
    pub fn decode(head: &Head<'_>) -> Result<Self, Error> {
        let get = &head.extensions;
        let timeout = get.get_array(kind::PEER_TIMEOUT).ok_or_else(|| lacks("a timeout"))?;
        let capabilities = get.get(kind::CAPABILITIES).ok_or_else(|| lacks("capabilities"))?;
        Ok(Self {
            instance: get.get_array(kind::INSTANCE).ok_or_else(|| lacks("an instance"))?,
            is_resumed: head.header.flags.has(Flags::RESUMED),
            birth: get.get_array(kind::BIRTH).map(u64::from_le_bytes).ok_or_else(|| lacks("a birth"))?,
            features: features(head),
            credits: credits(head)?,
            peer_timeout_ms: u32::from_le_bytes(timeout),
            capabilities: decode_capabilities(capabilities).ok_or_else(|| lacks("its capabilities"))?,
            proof: get.get_array(kind::PROOF).unwrap_or_default(),
        })
    }
}

/// Appends the last word of a connection, and why: a status, or an error.
pub fn encode_goodbye(out: &mut Vec<u8>, why: Result<Status, &Error>) {
    let mut header = Header::new(Op::Goodbye, RequestId::default());
    let reason = match why {
        Ok(status) => {
            header.status = status;
            ""
        }
        Err(error) => status::put_error(&mut header, error),
    };
    let attached = Attached { payload_bytes: reason.len() as u32, ..Attached::default() };
    encode(out, &header, &attached);
    out.extend_from_slice(reason.as_bytes());
}

/// Why the other side closes the connection.
#[must_use]
pub fn decode_goodbye(header: &Header, reason: &[u8]) -> Error {
    status::take_error(header, reason).unwrap_or(match header.status {
        Status::Replaced => Error::Retryable("another connection has taken the session over".into()),
        Status::Ending => Error::Retryable("the other side is ending".into()),
        _ => Error::Retryable("the other side has closed the connection".into()),
    })
}

fn frame(out: &mut Vec<u8>, header: &Header, writer: &Writer) {
    encode(out, header, &Attached { extension: writer.bytes(), ..Attached::default() });
}

fn lacks(what: &str) -> Error {
    Error::Invalid(format!("the greeting lacks {what}").into())
}

fn features(head: &Head<'_>) -> Features {
    Features(head.extensions.get_array(kind::FEATURES).map_or(0, u64::from_le_bytes))
}

fn session_bytes(session: &SessionId) -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..16].copy_from_slice(&session.client);
    bytes[16..].copy_from_slice(&session.lane.to_le_bytes());
    bytes
}

fn session_of(bytes: &[u8; 18]) -> SessionId {
    let mut client = [0; 16];
    client.copy_from_slice(&bytes[..16]);
    SessionId { client, lane: u16::from_le_bytes([bytes[16], bytes[17]]) }
}

fn credit_bytes(credits: &Credits) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&credits.slots.to_le_bytes());
    bytes[4..].copy_from_slice(&credits.bytes.to_le_bytes());
    bytes
}

fn credits(head: &Head<'_>) -> Result<Credits, Error> {
    let bytes: [u8; 12] = head.extensions.get_array(kind::CREDITS).ok_or_else(|| lacks("credits"))?;
    let (slots, length) = bytes.split_at(4);
    let credits = Credits {
        slots: slots.try_into().map(u32::from_le_bytes).unwrap_or_default(),
        bytes: length.try_into().map(u64::from_le_bytes).unwrap_or_default(),
    };
    if credits.slots == 0 {
        return Err(Error::Invalid("a session needs at least one slot".into()));
    }
    Ok(credits)
}

/// Capabilities as they were first sent: six `u64`, then bytes.
const CAPABILITY_BYTES_MIN: usize = 6 * 8 + 10;
/// As they are sent: the most runs after that. Longer ones may follow in later versions.
const CAPABILITY_BYTES: usize = CAPABILITY_BYTES_MIN + 4;

pub(super) fn encode_capabilities(capabilities: &Capabilities) -> [u8; CAPABILITY_BYTES] {
    let mut bytes = [0; CAPABILITY_BYTES];
    let longs = [
        capabilities.object_bytes_max,
        capabilities.request_bytes_max,
        capabilities.compare_bytes_max,
        u64::from(capabilities.list_entries_max),
        capabilities.atomic_bytes,
        capabilities.crash_atomic_bytes,
    ];
    for (at, long) in bytes.chunks_exact_mut(8).zip(longs) {
        at.copy_from_slice(&long.to_le_bytes());
    }
    let (durability, replicas) = durability_bytes(capabilities.durability_max);
    let survives = match capabilities.survives {
        Survives::Nothing => 0,
        Survives::ProcessKill => 1,
        Survives::PowerLoss => 2,
    };
    let bools = [
        capabilities.write_full_atomic,
        capabilities.conditions,
        capabilities.fencing,
        capabilities.tombstones,
        capabilities.order_domains,
        capabilities.copy_native,
        capabilities.holes_native,
    ];
    for (at, is) in bytes[48..55].iter_mut().zip(bools) {
        *at = u8::from(is);
    }
    bytes[55..58].copy_from_slice(&[durability, replicas, survives]);
    bytes[CAPABILITY_BYTES_MIN..].copy_from_slice(&capabilities.runs_max.to_le_bytes());
    bytes
}

pub(super) fn decode_capabilities(bytes: &[u8]) -> Option<Capabilities> {
    let fixed = bytes.first_chunk::<CAPABILITY_BYTES_MIN>()?;
    let long = |index: usize| {
        let at = &fixed[index * 8..index * 8 + 8];
        at.try_into().map(u64::from_le_bytes).unwrap_or_default()
    };
    let is = |index: usize| fixed[48 + index] != 0;
    let mut capabilities = Capabilities::full(long(0));
    // Not known to the first servers of this version.
    let runs_max = bytes.get(CAPABILITY_BYTES_MIN..CAPABILITY_BYTES).and_then(|runs| runs.try_into().ok());
    capabilities.runs_max = runs_max.map_or(0, u32::from_le_bytes);
    capabilities.request_bytes_max = long(1);
    capabilities.compare_bytes_max = long(2);
    capabilities.list_entries_max = u32::try_from(long(3)).ok()?;
    capabilities.atomic_bytes = long(4);
    capabilities.crash_atomic_bytes = long(5);
    capabilities.write_full_atomic = is(0);
    capabilities.conditions = is(1);
    capabilities.fencing = is(2);
    capabilities.tombstones = is(3);
    capabilities.order_domains = is(4);
    capabilities.copy_native = is(5);
    capabilities.holes_native = is(6);
    capabilities.durability_max = durability_of(fixed[55], fixed[56])?;
    capabilities.survives = match fixed[57] {
        0 => Survives::Nothing,
        1 => Survives::ProcessKill,
        2 => Survives::PowerLoss,
        _ => return None,
    };
    Some(capabilities)
}

pub(super) fn durability_bytes(durability: Durability) -> (u8, u8) {
    match durability {
        Durability::Cached => (0, 0),
        Durability::Journaled => (1, 0),
        Durability::Replicated(count) => (2, count),
        Durability::Stored => (3, 0),
    }
}

pub(super) fn durability_of(code: u8, replicas: u8) -> Option<Durability> {
    Some(match code {
        0 => Durability::Cached,
        1 => Durability::Journaled,
        2 => Durability::Replicated(replicas),
        3 => Durability::Stored,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::frame::decode;
    use super::*;

    fn head(bytes: &[u8]) -> Head<'_> {
        decode(bytes, 0).unwrap().unwrap()
    }

    #[test]
    fn greetings_arrive_as_they_were_sent() {
        let session = SessionId { client: [7; 16], lane: 3 };
        let credits = Credits { slots: 64, bytes: 1 << 33 };
        let hello = Hello { session, features: Features(3), nonce: [9; 32], credits };
        let mut out = Vec::new();
        hello.encode(&mut out);
        assert_eq!(Hello::decode(&head(&out)), Ok(hello));

        let challenge = Challenge { nonce: [1; 32], instance: [2; 16] };
        out.clear();
        challenge.encode(&mut out);
        assert_eq!(Challenge::decode(&head(&out)), Ok(challenge));
        assert!(Hello::decode(&head(&out)).is_err());

        let mut capabilities = Capabilities::full(5 << 20);
        capabilities.survives = Survives::PowerLoss;
        capabilities.durability_max = Durability::Replicated(2);
        capabilities.copy_native = false;
        let welcome = Welcome {
            instance: [4; 16],
            is_resumed: true,
            birth: 77,
            features: Features(1),
            credits,
            peer_timeout_ms: 30_000,
            capabilities,
            proof: [5; 32],
        };
        out.clear();
        welcome.encode(&mut out);
        assert_eq!(Welcome::decode(&head(&out)), Ok(welcome));

        out.clear();
        encode_proof(&mut out, &[6; 32]);
        assert_eq!(decode_proof(&head(&out)), Ok([6; 32]));
    }

    #[test]
    fn a_goodbye_says_why() {
        let mut out = Vec::new();
        encode_goodbye(&mut out, Err(&Error::Denied("wrong secret".into())));
        let head = decode(&out, 512).unwrap().unwrap();
        let reason = &out[head.head_bytes..];
        assert_eq!(decode_goodbye(&head.header, reason), Error::Denied("wrong secret".into()));
    }
}
