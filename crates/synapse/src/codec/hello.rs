//! The handshake: hello, challenge, proofs, welcome.
//!
//! ```text
//! client                                   server
//!   hello (session, features, nonce) ------->
//!   <------- challenge (nonce, instance)        only with a secret
//!   prove (HMAC) --------------------------->   only with a secret
//!   <------- welcome (instance, store, resumed, credits, capabilities)
//!   <------- prove, reply (HMAC)                only with a secret
//!   requests ------------------------------->
//! ```
//!
//! All values are extensions, so that each can be extended.

use blocker::{Capabilities, Error};

use super::answer::{decode_capabilities, encode_capabilities};
use super::frame::{Attached, Head, Writer, encode, kind};
use super::header::{Flags, Header, RequestId, Status, VERSION};
use super::op::Op;

/// Optional parts of the protocol, requested in the hello and granted in the welcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features(pub u64);

impl Features {
    /// Payloads carry a CRC-32 in both directions.
    pub const PAYLOAD_CRC: u64 = 1 << 0;
    /// The server sends the backend's events on this connection.
    pub const EVENTS: u64 = 1 << 1;
    /// Several ranges may be written in one change.
    pub const RUNS: u64 = 1 << 2;
    /// The granted bytes change while connected, and more may be requested.
    pub const CREDIT: u64 = 1 << 3;
    /// Lost writes are an event of their own. Without this feature they are reported as missed
    /// events.
    pub const WRITES_LOST: u64 = 1 << 7;
    /// Typed metrics can be read.
    pub const METRICS: u64 = 1 << 8;
    /// Lost changes can be listed.
    pub const LOSSES: u64 = 1 << 9;
    /// The namespaces of a cache can be listed, changed and removed.
    pub const NAMESPACES: u64 = 1 << 10;
    /// The client is itself a server, and uses reserved namespaces for its record: see
    /// [`Namespace::is_reserved`](blocker::Namespace::is_reserved). This protects nothing: it only
    /// distinguishes such clients.
    pub const RESERVED_NAMESPACES: u64 = 1 << 11;
    /// All features that this side supports. Bits 4 to 6 are reserved for reads of several ranges,
    /// a feed of changes, and objects that have moved.
    pub const ALL: u64 = Self::PAYLOAD_CRC
        | Self::EVENTS
        | Self::RUNS
        | Self::CREDIT
        | Self::WRITES_LOST
        | Self::METRICS
        | Self::LOSSES
        | Self::NAMESPACES
        | Self::RESERVED_NAMESPACES;

    /// Returns whether all bits of `feature` are set.
    #[must_use]
    pub const fn has(self, feature: u64) -> bool {
        self.0 & feature == feature
    }

    /// Returns whether a client with these features may send `op`.
    #[must_use]
    pub const fn allow(self, op: Op) -> bool {
        self.has(match op {
            Op::WriteRuns => Self::RUNS,
            Op::Credit => Self::CREDIT,
            Op::Metrics => Self::METRICS,
            Op::Losses => Self::LOSSES,
            Op::NamespaceState | Op::NamespaceStates | Op::ChangeNamespace | Op::RemoveNamespace => {
                Self::NAMESPACES
            }
            _ => 0,
        })
    }
}

/// The ID of a session: 16 bytes that a client draws when it starts, and the number of the client's
/// connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SessionId {
    /// The random number that the client has drawn.
    pub client: [u8; 16],
    /// The number of the client's connection.
    pub lane: u16,
}

/// The ID of a server's instance, drawn at random at its start. Another instance does not have this
/// instance's memory.
pub type InstanceId = [u8; 16];

/// The identity of a store, drawn at random when the store was created, and kept in it. All servers
/// of a store have its identity.
pub type StoreId = [u8; 16];

/// The maximum number of closed instances (see [`Welcome::closed`]) that a welcome lists.
pub const CLOSED_MAX: usize = 16;
/// The longest name of a server or client in a handshake, in bytes.
pub const HANDSHAKE_NAME_BYTES_MAX: usize = 255;
/// The longest name of a secret, in bytes.
pub const KEY_BYTES_MAX: usize = 64;

/// The 32 bytes drawn at random that prevent replays.
pub type Nonce = [u8; 32];

/// The limits of a session's outstanding requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credits {
    /// The number of requests, which is the number of slots.
    pub slots: u32,
    /// The total cost of the requests in bytes, see [`super::cost_bytes`].
    pub bytes: u64,
}

/// The versions of the protocol that a side supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The lowest version.
    pub lowest: u8,
    /// The highest version.
    pub highest: u8,
}

impl Versions {
    /// The versions that this module implements.
    pub const OWN: Self = Self { lowest: VERSION, highest: VERSION };

    /// Returns whether `version` is supported.
    #[must_use]
    pub const fn has(self, version: u8) -> bool {
        self.lowest <= version && version <= self.highest
    }
}

/// The first frame of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Hello {
    /// The session to resume, or to begin.
    pub session: SessionId,
    /// The features that the client requests.
    pub features: Features,
    /// The nonce of the server's proof.
    pub nonce: Nonce,
    /// The credits that the client requests.
    pub credits: Credits,
    /// The versions that the client supports.
    pub versions: Versions,
    /// The client's name for the server's log; empty if the client has none.
    pub client_name: String,
    /// The name of the secret that the client will prove; empty for the default secret.
    pub key: Vec<u8>,
}

/// A server's demand for a proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Challenge {
    /// The nonce of the client's proof.
    pub nonce: Nonce,
    /// The server's instance.
    pub instance: InstanceId,
}

/// A server's acceptance of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Welcome {
    /// The server's instance.
    pub instance: InstanceId,
    /// Whether the session was known, with the outcomes of its last requests.
    pub is_resumed: bool,
    /// The number that was drawn at random when the session began. A client resumes a session only
    /// if it has received this generation before: the server may know the id from a handshake whose
    /// welcome was lost.
    pub generation: u64,
    /// The features that are granted.
    pub features: Features,
    /// The credits that are granted.
    pub credits: Credits,
    /// The duration of silence after which a side is considered dead, in milliseconds.
    pub peer_timeout_ms: u32,
    /// The backend's capabilities over this connection.
    pub capabilities: Capabilities,
    /// The identity of the store, if it has one.
    pub store: Option<StoreId>,
    /// The server's name; empty if the server has none.
    pub server_name: String,
    /// Earlier instances over the same store that had stored everything they acknowledged before
    /// they ended, the latest one first. There are at most [`CLOSED_MAX`].
    pub closed: Vec<InstanceId>,
}

impl Hello {
    /// Returns a hello of this side, without names.
    #[must_use]
    pub fn new(session: SessionId, features: Features, nonce: Nonce, credits: Credits) -> Self {
        let (client_name, key) = Default::default();
        Self { session, features, nonce, credits, versions: Versions::OWN, client_name, key }
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::default();
        writer
            .put(kind::SESSION, &session_bytes(&self.session))
            .put(kind::FEATURES, &self.features.0.to_le_bytes())
            .put(kind::NONCE, &self.nonce)
            .put(kind::CREDITS, &credit_bytes(&self.credits))
            .put(kind::VERSIONS, &[self.versions.lowest, self.versions.highest]);
        if !self.client_name.is_empty() {
            writer.put(kind::CLIENT_NAME, cut_name(&self.client_name));
        }
        if !self.key.is_empty() {
            writer.put(kind::KEY, &self.key[..self.key.len().min(KEY_BYTES_MAX)]);
        }
        frame(out, &Header::new(Op::Hello, RequestId::default()), &writer);
    }

    /// Reads the hello from a head.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if a part is missing or has a wrong length.
    pub fn decode(head: &Head<'_>) -> Result<Self, Error> {
        Ok(Self {
            session: session_of(&required(head, kind::SESSION, "a session")?),
            features: features(head)?,
            nonce: required(head, kind::NONCE, "a nonce")?,
            credits: credits(head)?,
            versions: match exact(head, kind::VERSIONS, "versions")? {
                Some([lowest, highest]) => Versions { lowest, highest },
                None => Versions::OWN,
            },
            client_name: name_of(head, kind::CLIENT_NAME),
            key: match head.extensions.get(kind::KEY).unwrap_or_default() {
                // A truncated name could denote another secret.
                key if key.len() > KEY_BYTES_MAX => {
                    let text =
                        format!("the name of a key has {} bytes; the maximum is {KEY_BYTES_MAX}", key.len());
                    return Err(Error::Invalid(text.into()));
                }
                key => key.to_vec(),
            },
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

    /// Reads the challenge from a head.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if a part is missing.
    pub fn decode(head: &Head<'_>) -> Result<Self, Error> {
        Ok(Self {
            nonce: required(head, kind::NONCE, "a nonce")?,
            instance: required(head, kind::INSTANCE, "an instance")?,
        })
    }
}

/// Appends a proof: the client's proof, or the server's proof in reply.
pub fn encode_proof(out: &mut Vec<u8>, proof: &[u8; 32], is_reply: bool) {
    let mut writer = Writer::default();
    writer.put(kind::PROOF, proof);
    let mut header = Header::new(Op::Prove, RequestId::default());
    header.flags.put(Flags::REPLY, is_reply);
    frame(out, &header, &writer);
}

/// Reads a proof.
///
/// # Errors
/// Returns [`Error::Invalid`] if the proof is missing.
pub fn decode_proof(head: &Head<'_>) -> Result<[u8; 32], Error> {
    required(head, kind::PROOF, "a proof")
}

impl Welcome {
    /// Returns a welcome to a new session, without features, names, or an identity of the store.
    #[must_use]
    pub fn new(instance: InstanceId, generation: u64, credits: Credits, capabilities: Capabilities) -> Self {
        Self {
            instance,
            is_resumed: false,
            generation,
            features: Features::default(),
            credits,
            peer_timeout_ms: 30_000,
            capabilities,
            store: None,
            server_name: String::new(),
            closed: Vec::new(),
        }
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::default();
        writer
            .put(kind::INSTANCE, &self.instance)
            .put(kind::FEATURES, &self.features.0.to_le_bytes())
            .put(kind::CREDITS, &credit_bytes(&self.credits))
            .put(kind::PEER_TIMEOUT, &self.peer_timeout_ms.to_le_bytes())
            .put(kind::CAPABILITIES, &encode_capabilities(&self.capabilities))
            .put(kind::GENERATION, &self.generation.to_le_bytes());
        if let Some(store) = &self.store {
            writer.put(kind::STORE, store);
        }
        if !self.server_name.is_empty() {
            writer.put(kind::SERVER_NAME, cut_name(&self.server_name));
        }
        if !self.closed.is_empty() {
            writer.put(kind::CLOSED, self.closed[..self.closed.len().min(CLOSED_MAX)].as_flattened());
        }
        let mut header = Header::new(Op::Hello, RequestId::default());
        header.flags.put(Flags::REPLY, true);
        header.flags.put(Flags::RESUMED, self.is_resumed);
        frame(out, &header, &writer);
    }

    /// Reads the welcome from a head.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if a part is missing or invalid.
    pub fn decode(head: &Head<'_>) -> Result<Self, Error> {
        let get = &head.extensions;
        let capabilities = get.get(kind::CAPABILITIES).ok_or_else(|| lacks("capabilities"))?;
        let (closed, rest) = get.get(kind::CLOSED).unwrap_or_default().as_chunks();
        if !rest.is_empty() || get.get(kind::STORE).is_some_and(|store| store.len() != size_of::<StoreId>()) {
            return Err(Error::Invalid("an identity in the handshake does not have 16 bytes".into()));
        }
        Ok(Self {
            instance: required(head, kind::INSTANCE, "an instance")?,
            is_resumed: head.header.flags.has(Flags::RESUMED),
            generation: u64::from_le_bytes(required(head, kind::GENERATION, "a session generation")?),
            features: features(head)?,
            credits: credits(head)?,
            peer_timeout_ms: u32::from_le_bytes(required(head, kind::PEER_TIMEOUT, "a timeout")?),
            capabilities: decode_capabilities(capabilities).ok_or_else(|| lacks("its capabilities"))?,
            store: get.get_array(kind::STORE),
            server_name: name_of(head, kind::SERVER_NAME),
            closed: closed[..closed.len().min(CLOSED_MAX)].to_vec(),
        })
    }
}

/// Returns the versions that the peer supports, as stated in its hello or goodbye.
#[must_use]
pub fn versions(head: &Head<'_>) -> Option<Versions> {
    head.extensions.get_array(kind::VERSIONS).map(|[lowest, highest]| Versions { lowest, highest })
}

fn frame(out: &mut Vec<u8>, header: &Header, writer: &Writer) {
    encode(out, header, &Attached { extension: writer.bytes(), ..Attached::default() });
}

/// Returns an extension that every peer sends.
fn required<const N: usize>(head: &Head<'_>, kind: u16, what: &str) -> Result<[u8; N], Error> {
    head.extensions.get_array(kind).ok_or_else(|| lacks(what))
}

fn lacks(what: &str) -> Error {
    Error::Invalid(format!("the handshake lacks {what}").into())
}

/// Returns a name for sending: whole characters, at most [`HANDSHAKE_NAME_BYTES_MAX`] bytes.
fn cut_name(name: &str) -> &[u8] {
    &name.as_bytes()[..name.floor_char_boundary(HANDSHAKE_NAME_BYTES_MAX)]
}

/// Returns a received name. It is only text for people: bytes that are not UTF-8 are replaced.
fn name_of(head: &Head<'_>, kind: u16) -> String {
    let bytes = head.extensions.get(kind).unwrap_or_default();
    let mut name = String::from_utf8_lossy(&bytes[..bytes.len().min(HANDSHAKE_NAME_BYTES_MAX)]).into_owned();
    // The replacement characters may be longer than the bytes that they replace.
    name.truncate(name.floor_char_boundary(HANDSHAKE_NAME_BYTES_MAX));
    name
}

fn features(head: &Head<'_>) -> Result<Features, Error> {
    Ok(Features(exact(head, kind::FEATURES, "features")?.map_or(0, u64::from_le_bytes)))
}

/// Returns an extension, which must have exactly `N` bytes if present.
fn exact<const N: usize>(head: &Head<'_>, kind: u16, what: &str) -> Result<Option<[u8; N]>, Error> {
    let wrong =
        |length| Error::Invalid(format!("{what} in the handshake have {length} bytes instead of {N}").into());
    let value = head.extensions.get(kind);
    value.map(|value| value.try_into().map_err(|_| wrong(value.len()))).transpose()
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

#[cfg(test)]
mod tests {
    use blocker::{Durability, Survives};

    use super::super::frame::decode;
    use super::*;

    fn head(bytes: &[u8]) -> Head<'_> {
        decode(bytes, 0).unwrap().unwrap()
    }

    #[test]
    fn handshakes_arrive_as_they_were_sent() {
        let session = SessionId { client: [7; 16], lane: 3 };
        let credits = Credits { slots: 64, bytes: 1 << 33 };
        let mut hello = Hello::new(session, Features(3), [9; 32], credits);
        (hello.client_name, hello.key) = ("front-7".into(), b"2026".to_vec());
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
        let mut welcome = Welcome::new([4; 16], 77, credits, capabilities);
        (welcome.is_resumed, welcome.features) = (true, Features(1));
        (welcome.store, welcome.server_name) = (Some([8; 16]), "node-1".into());
        welcome.closed = vec![[1; 16], [2; 16]];
        out.clear();
        welcome.encode(&mut out);
        assert_eq!(Welcome::decode(&head(&out)), Ok(welcome));

        out.clear();
        encode_proof(&mut out, &[6; 32], false);
        assert_eq!(decode_proof(&head(&out)), Ok([6; 32]));
    }

    #[test]
    fn names_are_cut_at_whole_characters_and_identities_are_whole() {
        let mut hello =
            Hello::new(SessionId::default(), Features(0), [0; 32], Credits { slots: 1, bytes: 1 });
        hello.client_name = "ä".repeat(200);
        let mut out = Vec::new();
        hello.encode(&mut out);
        assert_eq!(Hello::decode(&head(&out)).unwrap().client_name, "ä".repeat(127));

        let credits = Credits { slots: 1, bytes: 1 };
        let mut welcome = Welcome::new([4; 16], 77, credits, Capabilities::full(4096));
        welcome.closed = vec![[1; 16]; CLOSED_MAX + 5];
        out.clear();
        welcome.encode(&mut out);
        assert_eq!(Welcome::decode(&head(&out)).unwrap().closed.len(), CLOSED_MAX);
        for kind in [kind::STORE, kind::CLOSED] {
            let mut writer = Writer::default();
            writer.put(kind, &[1; 15]);
            for (kind, value) in [
                (kind::INSTANCE, &[1; 16][..]),
                (kind::PEER_TIMEOUT, &[1; 4]),
                (kind::CAPABILITIES, &encode_capabilities(&Capabilities::full(4096))),
                (kind::GENERATION, &[1; 8]),
                (kind::CREDITS, &[1; 12]),
            ] {
                writer.put(kind, value);
            }
            out.clear();
            frame(&mut out, &Header::new(Op::Hello, RequestId::default()), &writer);
            assert!(matches!(Welcome::decode(&head(&out)), Err(Error::Invalid(_))), "{kind}");
        }
    }
}
