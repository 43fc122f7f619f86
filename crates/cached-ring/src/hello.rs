//! The handshake of a lane, by which two nodes accept each other.
//!
//! ```text
//! dialler                                   listener
//!   HELLO (names, incarnation, nonce) -------->
//!   <-------- WELCOME (names, incarnation, nonce)
//!   PROVE (HMAC) ----------------------------->
//!   <-------- PROVED (HMAC)
//! ```
//!
//! Either side may send REFUSED instead, and then closes. A frame is a `u16` with the number of the
//! bytes that follow ([`FRAME_BYTES_MAX`] at most), a `u8` with its kind, and its fields; numbers are
//! little-endian, a text has a `u8` with its length before it. A later version of the protocol may
//! append fields to HELLO and WELCOME.
//!
//! Both sides prove that they know the ring's secret: the dialler over the frames HELLO and WELCOME
//! with the label [`DIAL_LABEL`], the listener over HELLO, WELCOME and PROVE with [`SERVE_LABEL`],
//! each with the two bytes of its length. Without a secret both proofs are zeros: PROVE then only says
//! that the dialler still wants the lane, and PROVED that it may use it.

#[cfg(test)]
mod tests;

use thiserror::Error;

use crate::node::{NAME_BYTES_MAX, check_name};
use crate::numbered::numbered;

/// The maximum length of a frame after its first two bytes.
pub const FRAME_BYTES_MAX: usize = 1024;
/// The lowest version of the protocol that this node speaks.
pub const VERSION_MIN: u16 = 2;
/// The highest version of the protocol that this node speaks.
pub const VERSION_MAX: u16 = 2;
/// The feature of a node that serves [copy sessions](crate::copy).
pub const FEATURE_COPY: u64 = 1;
/// The worker of a connection that is no lane but a copy session.
pub const COPY_SESSION: u16 = u16::MAX;
/// The label of the dialler's proof.
pub const DIAL_LABEL: &[u8] = b"cached ring 1 dial";
/// The label of the listener's proof.
pub const SERVE_LABEL: &[u8] = b"cached ring 1 serve";

const MAGIC: [u8; 8] = *b"cachring";
/// The longest text of a refusal, in bytes.
const REFUSAL_BYTES_MAX: usize = 200;

// The kinds of frames.
const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const PROVE: u8 = 3;
const PROVED: u8 = 4;
const REFUSED: u8 = 9;

/// The description of a node, which both sides send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// The optional features of the protocol that the node has. A lane uses those of both.
    pub features: u64,
    /// Random bytes, which make each handshake and its proofs unique.
    pub nonce: [u8; 32],
    /// A random number of the node's process, which its successor at an upgrade takes over.
    pub incarnation: u64,
    /// The version of the node's map.
    pub map_version: u64,
    /// The digest of the node's map.
    pub map_digest: u64,
    /// The node's clock, in milliseconds since 1970.
    pub unix_time_ms: u64,
    /// The name of the ring.
    pub ring: String,
    /// The name of the node.
    pub node: String,
}

/// The dialler's first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The lowest and the highest version of the protocol that the dialler speaks.
    pub versions: (u16, u16),
    /// The worker whose lane it is, or [`COPY_SESSION`].
    pub worker: u16,
    /// The number of the dialler's workers.
    pub workers: u16,
    /// The description of the dialler.
    pub greeting: Greeting,
    /// The name of the node that the dialler wants to reach.
    pub wanted_node: String,
}

/// The listener's first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version of the protocol that the lane has.
    pub version: u16,
    /// The description of the listener.
    pub greeting: Greeting,
    /// The largest item of the node, in bytes.
    pub item_bytes_max: u32,
    /// Whether the node's items have CAS values.
    pub has_cas: bool,
    /// Whether the node evicts items when memory is full.
    pub evicts: bool,
    /// Whether the node executes `flush_all`.
    pub may_flush: bool,
    /// Whether the listener has a secret and wants a proof.
    pub wants_proof: bool,
}

/// The reason why a node refuses a lane. The peer gets the code and the line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct Refused {
    /// The kind of the reason.
    pub code: RefusedCode,
    /// The reason, as one line.
    pub text: String,
}

numbered! {
    /// The kind of reason of a refusal.
    pub enum RefusedCode {
        /// The peer broke the protocol, or this version does not know its reason.
        Protocol = 1,
        /// The nodes belong to different rings.
        OtherRing = 2,
        /// The dialler wanted to reach another node.
        OtherNode = 3,
        /// No version of the protocol is common to both.
        Version = 4,
        /// Only one node has a secret, or the secrets differ.
        Secret = 5,
        /// Two processes have the name of one node.
        SecondProcess = 6,
        /// The peer has too many lanes.
        TooMany = 7,
    }
}

impl Refused {
    fn new(code: RefusedCode, text: String) -> Self {
        Self { code, text }
    }

    /// Returns the refusal of a peer that breaks the protocol, with what it has done.
    #[must_use]
    pub fn protocol(text: &str) -> Self {
        Self::new(RefusedCode::Protocol, format!("this is no handshake of a ring: {text}"))
    }

    /// Returns the refusal of a proof that is wrong.
    #[must_use]
    pub fn wrong_secret() -> Self {
        Self::new(RefusedCode::Secret, "the nodes have different ring secrets".into())
    }

    /// Returns the refusal of a process with the name `node`, which another live process has.
    #[must_use]
    pub fn second_process(node: &str) -> Self {
        let text = format!("a second process is called {node:?}; each node needs a name of its own");
        Self::new(RefusedCode::SecondProcess, text)
    }

    /// Returns the refusal of a lane beyond `lanes_max` lanes of one node.
    #[must_use]
    pub fn too_many(lanes_max: u32) -> Self {
        let text =
            format!("a node may open {lanes_max} connections here (peer_lanes_max): one for each thread");
        Self::new(RefusedCode::TooMany, text)
    }
}

/// A frame of the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The dialler's first frame.
    Hello(Hello),
    /// The listener's first frame.
    Welcome(Welcome),
    /// The dialler's proof that it knows the secret.
    Prove([u8; 32]),
    /// The listener's proof that it knows the secret.
    Proved([u8; 32]),
    /// The peer refuses the lane.
    Refused(Refused),
}

impl Hello {
    /// Returns the version of the lane, if the listener `own` may accept it.
    ///
    /// # Errors
    /// Returns the reason to refuse it: another ring, another node, no common version, or a process
    /// with the listener's own name.
    pub fn check(&self, own: &Greeting) -> Result<u16, Refused> {
        let theirs = &self.greeting;
        let (min, max) = self.versions;
        let version = VERSION_MAX.min(max);
        if version < VERSION_MIN.max(min) {
            let own = format!("this node speaks versions {VERSION_MIN} to {VERSION_MAX}");
            let text = format!("{own} of the ring's protocol, the peer {min} to {max}");
            return Err(Refused::new(RefusedCode::Version, text));
        }
        check_names(theirs, own)?;
        if self.wanted_node != own.node {
            let text = format!("this is node {:?}, not {:?}", own.node, self.wanted_node);
            return Err(Refused::new(RefusedCode::OtherNode, text));
        }
        Ok(version)
    }
}

impl Welcome {
    /// Returns the features of the lane, if the dialler `hello` may use it.
    ///
    /// # Errors
    /// Returns the reason to refuse it: another ring or node than wanted, a version that was not
    /// offered, a process with the dialler's own name, or a secret that only one of both has.
    pub fn check(&self, hello: &Hello, has_secret: bool) -> Result<u64, Refused> {
        let (theirs, own) = (&self.greeting, &hello.greeting);
        if !(hello.versions.0..=hello.versions.1).contains(&self.version) {
            let text = format!("the peer chose version {}, which was not offered", self.version);
            return Err(Refused::new(RefusedCode::Version, text));
        }
        check_names(theirs, own)?;
        if theirs.node != hello.wanted_node {
            let text = format!("this is a lane to node {:?}, not to {:?}", hello.wanted_node, theirs.node);
            return Err(Refused::new(RefusedCode::OtherNode, text));
        }
        // Only the proof shows the dialler that the listener is a node of the ring.
        if self.wants_proof != has_secret {
            let (with, without) = if has_secret { (own, theirs) } else { (theirs, own) };
            let text = format!("node {:?} has a ring secret, node {:?} has none", with.node, without.node);
            return Err(Refused::new(RefusedCode::Secret, text));
        }
        Ok(theirs.features & own.features)
    }
}

/// Checks that two nodes belong to one ring, and are not the same.
fn check_names(theirs: &Greeting, own: &Greeting) -> Result<(), Refused> {
    if theirs.ring != own.ring {
        let text = format!("this is a node of the ring {:?}, not of {:?}", own.ring, theirs.ring);
        return Err(Refused::new(RefusedCode::OtherRing, text));
    }
    if theirs.node == own.node {
        if theirs.incarnation == own.incarnation {
            let text =
                format!("node {:?} has reached itself: the map has its address for another node", own.node);
            return Err(Refused::new(RefusedCode::OtherNode, text));
        }
        return Err(Refused::second_process(&own.node));
    }
    Ok(())
}

impl Frame {
    /// Returns the frame's bytes, with the two bytes of its length.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 2];
        match self {
            Self::Hello(hello) => {
                out.push(HELLO);
                out.extend_from_slice(&MAGIC);
                for number in [hello.versions.0, hello.versions.1, hello.worker, hello.workers] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                encode_greeting(&mut out, &hello.greeting);
                encode_text(&mut out, &hello.wanted_node, NAME_BYTES_MAX);
            }
            Self::Welcome(welcome) => {
                out.push(WELCOME);
                out.extend_from_slice(&welcome.version.to_le_bytes());
                encode_greeting(&mut out, &welcome.greeting);
                out.extend_from_slice(&welcome.item_bytes_max.to_le_bytes());
                let bits = [welcome.has_cas, welcome.evicts, welcome.may_flush, welcome.wants_proof];
                out.push(bits.iter().rev().fold(0, |all, bit| all << 1 | u8::from(*bit)));
            }
            Self::Prove(proof) => {
                out.push(PROVE);
                out.extend_from_slice(proof);
            }
            Self::Proved(proof) => {
                out.push(PROVED);
                out.extend_from_slice(proof);
            }
            Self::Refused(refused) => {
                out.extend_from_slice(&[REFUSED, refused.code as u8]);
                encode_text(&mut out, &refused.text, REFUSAL_BYTES_MAX);
            }
        }
        let len = (out.len() - 2) as u16;
        out[..2].copy_from_slice(&len.to_le_bytes());
        out
    }

    /// Returns whether the first two bytes are those of TLS: a handshake, or an alert. No frame has such a
    /// length.
    #[must_use]
    pub fn is_tls(first: [u8; 2]) -> bool {
        matches!(first, [21 | 22, 3])
    }

    /// Returns how many bytes follow the first two bytes of a frame: they are for
    /// [`decode`](Self::decode).
    ///
    /// # Errors
    /// Returns a refusal if no frame has this length.
    pub fn len(first: [u8; 2]) -> Result<usize, Refused> {
        match usize::from(u16::from_le_bytes(first)) {
            len @ 1..=FRAME_BYTES_MAX => Ok(len),
            len => Err(Refused::protocol(&format!("a frame has {len} bytes"))),
        }
    }

    /// Decodes the bytes after the first two.
    ///
    /// # Errors
    /// Returns a refusal if they are not a frame.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refused> {
        let mut fields = Fields(bytes);
        let kind = fields.u8()?;
        let frame = match kind {
            HELLO => {
                if fields.array()? != MAGIC {
                    return Err(Refused::protocol("the first frame is no HELLO"));
                }
                let versions = (fields.u16()?, fields.u16()?);
                let (worker, workers) = (fields.u16()?, fields.u16()?);
                let (greeting, wanted_node) = (fields.greeting()?, fields.name()?);
                return Ok(Self::Hello(Hello { versions, worker, workers, greeting, wanted_node }));
            }
            WELCOME => {
                let (version, greeting) = (fields.u16()?, fields.greeting()?);
                let (item_bytes_max, bits) = (u32::from_le_bytes(fields.array()?), fields.u8()?);
                let [has_cas, evicts, may_flush, wants_proof] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
                let welcome =
                    Welcome { version, greeting, item_bytes_max, has_cas, evicts, may_flush, wants_proof };
                return Ok(Self::Welcome(welcome));
            }
            PROVE => Self::Prove(fields.array()?),
            PROVED => Self::Proved(fields.array()?),
            REFUSED => Self::Refused(fields.refused()?),
            other => return Err(Refused::protocol(&format!("there is no frame of kind {other}"))),
        };
        match fields.0 {
            [] => Ok(frame),
            rest => Err(Refused::protocol(&format!("{} bytes follow a frame of kind {kind}", rest.len()))),
        }
    }
}

fn encode_greeting(out: &mut Vec<u8>, greeting: &Greeting) {
    let Greeting { features, nonce, incarnation, map_version, map_digest, unix_time_ms, ring, node } =
        greeting;
    out.extend_from_slice(nonce);
    for number in [features, incarnation, map_version, map_digest, unix_time_ms] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    encode_text(out, ring, NAME_BYTES_MAX);
    encode_text(out, node, NAME_BYTES_MAX);
}

fn encode_text(out: &mut Vec<u8>, text: &str, bytes_max: usize) {
    let text = &text[..text.floor_char_boundary(bytes_max)];
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

/// The fields of a frame that were not decoded yet.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let (first, rest) =
            self.0.split_first_chunk().ok_or_else(|| Refused::protocol("a frame ends within a field"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8, Refused> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Refused> {
        self.array().map(u16::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Refused> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, Refused> {
        let len = usize::from(self.u8()?);
        let (text, rest) =
            self.0.split_at_checked(len).ok_or_else(|| Refused::protocol("a frame ends within a text"))?;
        self.0 = rest;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn name(&mut self) -> Result<String, Refused> {
        let name = self.text()?;
        // The refusal is logged.
        if name.len() > NAME_BYTES_MAX {
            return Err(Refused::protocol(&format!("a name has {} bytes", name.len())));
        }
        check_name(&name).map_err(|error| Refused::protocol(&error.to_string()))?;
        Ok(name)
    }

    fn greeting(&mut self) -> Result<Greeting, Refused> {
        let nonce = self.array()?;
        let (features, incarnation) = (self.u64()?, self.u64()?);
        let (map_version, map_digest, unix_time_ms) = (self.u64()?, self.u64()?, self.u64()?);
        let (ring, node) = (self.name()?, self.name()?);
        Ok(Greeting { features, nonce, incarnation, map_version, map_digest, unix_time_ms, ring, node })
    }

    fn refused(&mut self) -> Result<Refused, Refused> {
        let code = RefusedCode::of(self.u8()?).unwrap_or(RefusedCode::Protocol);
        // The text is logged: it must stay one line of at most 200 bytes.
        let mut text: String = self.text()?.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        text.truncate(text.floor_char_boundary(REFUSAL_BYTES_MAX));
        Ok(Refused::new(code, text))
    }
}
