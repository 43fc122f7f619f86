//! The messages between the old process, which hands over, and the new process, which takes over.
//!
//! ```text
//!  old ► new:  Offer, Socket …, ......... StoreFree, ......... Memory, Connections …, ...... Go
//!  new ► old:  ............... Prepared, .......... StoreOpen, ..................... Ready, ... Serving
//! ```
//! Each message is one packet: a byte that identifies the message, and the message's fields,
//! little-endian; strings and bytes follow their length. Descriptors are passed along with the
//! packet. The packet's length is bounded ([`MESSAGE_BYTES_MAX`]), and so are the counts and
//! lengths in the packet.

use crate::connections::{HANDED_INPUT_BYTES_MAX, HandedConnection, HandedPhase};
use crate::listen::SocketKind;
use cached_proto::Protocol;

/// The version of the messages of a node of a ring.
pub(crate) const VERSION: u16 = 3;
/// The version of the messages of a server without a ring: programs from before the ring know it.
pub(crate) const VERSION_ALONE: u16 = 2;

/// The maximum size of a packet.
pub(crate) const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// The maximum number of descriptors passed with a packet.
pub(crate) const DESCRIPTORS_MAX: usize = 64;

/// A packet of connections is sent once the connections in it take this many bytes.
pub(crate) const BATCH_BYTES: usize = 48 << 10;

const _: () = assert!(BATCH_BYTES + HANDED_INPUT_BYTES_MAX + 1024 <= MESSAGE_BYTES_MAX);

/// The maximum number of sockets that are handed over besides those of connections.
const SOCKETS_MAX: u16 = 256;

/// The maximum length of a string in a message, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// "cHO", and the type of the first message.
const MAGIC: [u8; 4] = *b"cHO\x01";

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// The offer, which is the first message.
    Offer(Offer),
    /// A socket, whose descriptor accompanies the message.
    Socket { kind: SocketKind, name: String },
    /// The configuration is valid, and the sockets are open.
    Prepared,
    /// The old process has no object store open, either because it has closed the store or because
    /// it never had one. The new process can open its own.
    StoreFree,
    /// The new process has opened its object store, if it has one.
    StoreOpen,
    /// The old process has stopped. The descriptor of the memory file, if there is one, accompanies
    /// the message.
    Memory(MemoryState),
    /// The message has connections. The descriptors of their sockets accompany the message, in the
    /// same order.
    Connections(Vec<HandedConnection>),
    /// The new process is ready to serve.
    Ready { items: u64, connections: u32 },
    /// The memory now belongs to the new process.
    Go,
    /// The new process serves.
    Serving,
}

/// The offer of the old process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The version of the messages.
    pub(crate) version: u16,
    /// The version of the program.
    pub(crate) program: String,
    /// The number of sockets that follow.
    pub(crate) sockets: u16,
    /// The device and inode of the memory file.
    pub(crate) memory_file: Option<(u64, u64)>,
}

/// The kinds of sockets, each encoded as its index.
const SOCKET_KINDS: [SocketKind; 7] = [
    SocketKind::Tcp,
    SocketKind::Udp,
    SocketKind::Unix,
    SocketKind::Inherited,
    SocketKind::Admin,
    SocketKind::Objects,
    SocketKind::Ring,
];

/// The state of the old process after it has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryState {
    /// The time of the old process's clock, in seconds.
    pub(crate) clock_secs: u32,
    /// The nanoseconds that have passed within that second.
    pub(crate) clock_nanos: u32,
    /// The system's monotonic clock at the same moment, in nanoseconds.
    pub(crate) monotonic_nanos: u64,
    pub(crate) verbosity: u8,
    /// The number of connections that follow.
    pub(crate) connections: u32,
    /// The number by which the other nodes of a ring recognise this node while it runs; 0 without a
    /// ring, and then not sent.
    pub(crate) incarnation: u64,
}

/// The error for bytes that are not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an unknown message")]
pub(crate) struct Unknown;

impl Message {
    /// Encodes the message as a packet.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Message::Offer(offer) => {
                out.extend_from_slice(&MAGIC);
                out.extend_from_slice(&offer.version.to_le_bytes());
                put_bytes(&mut out, offer.program.as_bytes());
                out.extend_from_slice(&offer.sockets.to_le_bytes());
                out.push(u8::from(offer.memory_file.is_some()));
                let (device, inode) = offer.memory_file.unwrap_or_default();
                out.extend_from_slice(&device.to_le_bytes());
                out.extend_from_slice(&inode.to_le_bytes());
            }
            Message::Socket { kind, name } => {
                out.push(2);
                out.push(SOCKET_KINDS.iter().position(|known| known == kind).unwrap_or_default() as u8);
                put_bytes(&mut out, name.as_bytes());
            }
            Message::Prepared => out.push(3),
            Message::Memory(state) => {
                // Programs from before the ring know the first kind only.
                out.push(if state.incarnation == 0 { 4 } else { 11 });
                out.extend_from_slice(&state.clock_secs.to_le_bytes());
                out.extend_from_slice(&state.clock_nanos.to_le_bytes());
                out.extend_from_slice(&state.monotonic_nanos.to_le_bytes());
                out.push(state.verbosity);
                out.extend_from_slice(&state.connections.to_le_bytes());
                if state.incarnation != 0 {
                    out.extend_from_slice(&state.incarnation.to_le_bytes());
                }
            }
            Message::Connections(connections) => {
                out.push(5);
                connections.iter().for_each(|connection| put_connection(&mut out, connection));
            }
            Message::Ready { items, connections } => {
                out.push(6);
                out.extend_from_slice(&items.to_le_bytes());
                out.extend_from_slice(&connections.to_le_bytes());
            }
            Message::Go => out.push(7),
            Message::Serving => out.push(8),
            Message::StoreFree => out.push(9),
            Message::StoreOpen => out.push(10),
        }
        out
    }

    /// Decodes a packet.
    ///
    /// # Errors
    /// Returns [`Unknown`] if the packet is none of these messages, or exceeds a limit. An offer of
    /// an unknown version is decoded only up to its version.
    pub(crate) fn decode(packet: &[u8]) -> Result<Message, Unknown> {
        if packet.len() > MESSAGE_BYTES_MAX {
            return Err(Unknown);
        }
        if let Some(rest) = packet.strip_prefix(&MAGIC) {
            return offer(rest);
        }
        let mut rest = Reader(packet);
        let message = match rest.byte()? {
            2 => {
                let kind = *SOCKET_KINDS.get(usize::from(rest.byte()?)).ok_or(Unknown)?;
                Message::Socket { kind, name: rest.text()? }
            }
            3 => Message::Prepared,
            kind @ (4 | 11) => {
                let state = MemoryState {
                    clock_secs: rest.u32()?,
                    clock_nanos: rest.u32()?,
                    monotonic_nanos: rest.u64()?,
                    verbosity: rest.byte()?,
                    connections: rest.u32()?,
                    incarnation: if kind == 11 { rest.u64()? } else { 0 },
                };
                if state.clock_nanos >= 1_000_000_000 || (kind == 11 && state.incarnation == 0) {
                    return Err(Unknown);
                }
                Message::Memory(state)
            }
            5 => {
                let mut connections = Vec::new();
                while !rest.0.is_empty() {
                    if connections.len() == DESCRIPTORS_MAX {
                        return Err(Unknown);
                    }
                    connections.push(rest.connection()?);
                }
                Message::Connections(connections)
            }
            6 => Message::Ready { items: rest.u64()?, connections: rest.u32()? },
            7 => Message::Go,
            8 => Message::Serving,
            9 => Message::StoreFree,
            10 => Message::StoreOpen,
            _ => return Err(Unknown),
        };
        if rest.0.is_empty() { Ok(message) } else { Err(Unknown) }
    }
}

fn offer(bytes: &[u8]) -> Result<Message, Unknown> {
    let mut rest = Reader(bytes);
    let version = rest.u16()?;
    let none = Offer { version, program: String::new(), sockets: 0, memory_file: None };
    if !(VERSION_ALONE..=VERSION).contains(&version) {
        return Ok(Message::Offer(none));
    }
    let (program, sockets, has_file) = (rest.text()?, rest.u16()?, rest.flag()?);
    let file = (rest.u64()?, rest.u64()?);
    if sockets > SOCKETS_MAX || !rest.0.is_empty() {
        return Err(Unknown);
    }
    Ok(Message::Offer(Offer { program, sockets, memory_file: has_file.then_some(file), ..none }))
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_connection(out: &mut Vec<u8>, connection: &HandedConnection) {
    let HandedConnection { protocol, is_authenticated, phase, input } = connection;
    out.push(match protocol {
        None => 0,
        Some(Protocol::Text) => 1,
        Some(Protocol::Binary) => 2,
    });
    out.push(u8::from(*is_authenticated));
    match *phase {
        HandedPhase::Command => out.push(0),
        HandedPhase::Gate { swallow, is_started, failures } => {
            out.push(1);
            out.extend_from_slice(&swallow.to_le_bytes());
            out.push(u8::from(is_started));
            out.push(failures);
        }
        HandedPhase::Swallow(bytes) => {
            out.push(2);
            out.extend_from_slice(&bytes.to_le_bytes());
        }
    }
    put_bytes(out, input);
}

/// The undecoded rest of a packet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Unknown> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Unknown)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unknown> {
        self.take(N)?.try_into().map_err(|_| Unknown)
    }

    fn byte(&mut self) -> Result<u8, Unknown> {
        Ok(self.array::<1>()?[0])
    }

    fn flag(&mut self) -> Result<bool, Unknown> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Unknown),
        }
    }

    fn u16(&mut self) -> Result<u16, Unknown> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Unknown> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Unknown> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self, bytes_max: usize) -> Result<&'a [u8], Unknown> {
        let bytes = self.u32()? as usize;
        if bytes > bytes_max { Err(Unknown) } else { self.take(bytes) }
    }

    fn text(&mut self) -> Result<String, Unknown> {
        let bytes = self.bytes(TEXT_BYTES_MAX)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Unknown)
    }

    fn connection(&mut self) -> Result<HandedConnection, Unknown> {
        let protocol = match self.byte()? {
            0 => None,
            1 => Some(Protocol::Text),
            2 => Some(Protocol::Binary),
            _ => return Err(Unknown),
        };
        let is_authenticated = self.flag()?;
        let phase = match self.byte()? {
            0 => HandedPhase::Command,
            1 => HandedPhase::Gate { swallow: self.u64()?, is_started: self.flag()?, failures: self.byte()? },
            2 => HandedPhase::Swallow(self.u64()?),
            _ => return Err(Unknown),
        };
        let input = self.bytes(HANDED_INPUT_BYTES_MAX)?.to_vec();
        Ok(HandedConnection { protocol, is_authenticated, phase, input })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(phase: HandedPhase, input: &[u8]) -> HandedConnection {
        HandedConnection {
            protocol: Some(Protocol::Binary),
            is_authenticated: true,
            phase,
            input: input.to_vec(),
        }
    }

    /// The layout that programs from before the ring send and expect.
    #[test]
    fn a_server_without_a_ring_is_understood_by_programs_from_before_the_ring() {
        let state = MemoryState {
            clock_secs: 1,
            clock_nanos: 2,
            monotonic_nanos: 3,
            verbosity: 4,
            connections: 5,
            incarnation: 0,
        };
        let packet = [4, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 5, 0, 0, 0];
        assert_eq!(Message::Memory(state).encode(), packet);
        assert_eq!(Message::decode(&packet), Ok(Message::Memory(state)));
        let offer = Offer { version: VERSION_ALONE, program: "1".into(), sockets: 0, memory_file: None };
        assert_eq!(Message::decode(&Message::Offer(offer.clone()).encode()), Ok(Message::Offer(offer)));
    }

    fn all() -> Vec<Message> {
        vec![
            Message::Offer(Offer {
                version: VERSION,
                program: "1.2.3".into(),
                sockets: 3,
                memory_file: Some((1, u64::MAX)),
            }),
            Message::Offer(Offer { version: VERSION, program: String::new(), sockets: 0, memory_file: None }),
            Message::Socket { kind: SocketKind::Unix, name: "/run/cached".into() },
            Message::Socket { kind: SocketKind::Admin, name: String::new() },
            Message::Socket { kind: SocketKind::Objects, name: "127.0.0.1:11311".into() },
            Message::Socket { kind: SocketKind::Ring, name: "10.0.0.1:11311".into() },
            Message::Prepared,
            Message::StoreFree,
            Message::StoreOpen,
            Message::Memory(MemoryState {
                clock_secs: 7,
                clock_nanos: 999_999_999,
                monotonic_nanos: u64::MAX,
                verbosity: 3,
                incarnation: u64::MAX,
                connections: 9,
            }),
            Message::Connections(vec![
                connection(HandedPhase::Command, b"get k"),
                connection(HandedPhase::Swallow(1 << 40), b""),
                HandedConnection { protocol: None, ..connection(HandedPhase::Command, b"") },
                HandedConnection {
                    protocol: Some(Protocol::Text),
                    is_authenticated: false,
                    ..connection(HandedPhase::Gate { swallow: 5, is_started: true, failures: 9 }, b"x")
                },
            ]),
            Message::Ready { items: 1, connections: 2 },
            Message::Go,
            Message::Serving,
        ]
    }

    #[test]
    fn messages_round_trip_and_a_part_of_one_is_none() {
        for message in all() {
            let packet = message.encode();
            assert_eq!(Message::decode(&packet), Ok(message.clone()));
            for cut in 0..packet.len() {
                let part = Message::decode(&packet[..cut]);
                let is_shorter_list = matches!((&message, &part), (Message::Connections(_), Ok(_)));
                assert!(is_shorter_list || part.is_err(), "{message:?} cut at {cut}: {part:?}");
            }
            if !matches!(message, Message::Connections(_)) {
                assert_eq!(Message::decode(&[&packet[..], b"\0"].concat()), Err(Unknown), "{message:?}");
            }
        }
    }

    #[test]
    fn limits_are_kept() {
        let batch = |count| Message::Connections(vec![connection(HandedPhase::Command, b""); count]).encode();
        assert!(Message::decode(&batch(DESCRIPTORS_MAX)).is_ok());
        assert_eq!(Message::decode(&batch(DESCRIPTORS_MAX + 1)), Err(Unknown));
        let input =
            |bytes| Message::Connections(vec![connection(HandedPhase::Command, &vec![0; bytes])]).encode();
        assert!(Message::decode(&input(HANDED_INPUT_BYTES_MAX)).is_ok());
        assert_eq!(Message::decode(&input(HANDED_INPUT_BYTES_MAX + 1)), Err(Unknown));
        assert_eq!(Message::decode(&vec![5; MESSAGE_BYTES_MAX + 1]), Err(Unknown));
        // The length exceeds the packet.
        assert_eq!(Message::decode(&[2, 0, 255, 255, 255, 255]), Err(Unknown));
        assert_eq!(Message::decode(&[2, 0, 1, 0, 0, 0, 0xff]), Err(Unknown), "not UTF-8");
    }

    #[test]
    fn an_offer_of_another_version_is_read_as_far_as_that() {
        let packet = [&MAGIC[..], &9u16.to_le_bytes(), b"whatever a later program writes"].concat();
        let Ok(Message::Offer(offer)) = Message::decode(&packet) else { panic!("an offer") };
        assert_eq!(offer.version, 9);
    }

    /// Repeats what the fuzz target does, from a fixed seed.
    #[test]
    fn mutated_messages_are_read_or_refused() {
        let packets: Vec<Vec<u8>> = all().iter().map(Message::encode).collect();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let mut known = 0;
        for _ in 0..50_000 {
            let mut packet = packets[random(packets.len())].clone();
            for _ in 0..=random(3) {
                let (at, what) = (random(packet.len() + 1), random(4));
                if what == 0 && at < packet.len() {
                    packet[at] ^= 1_u8 << random(8);
                } else if what == 1 && at < packet.len() {
                    packet.remove(at);
                } else if what == 2 {
                    packet.insert(at, random(256) as u8);
                } else {
                    let other = &packets[random(packets.len())];
                    packet.extend_from_slice(&other[..random(other.len() + 1)]);
                }
            }
            if let Ok(message) = Message::decode(&packet) {
                assert_eq!(Message::decode(&message.encode()), Ok(message));
                known += 1;
            }
        }
        assert!(known > 1_000, "{known}: too few are messages still");
    }

    /// The corpus of the fuzz target.
    #[test]
    fn the_committed_corpus_is_read_or_refused() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/hand_over");
        let mut known = 0;
        for entry in std::fs::read_dir(corpus).expect("the corpus is part of the repository") {
            let packet = std::fs::read(entry.expect("an entry").path()).expect("a file");
            if let Ok(message) = Message::decode(&packet) {
                assert_eq!(Message::decode(&message.encode()), Ok(message));
                known += 1;
            }
        }
        assert_eq!(known, 9, "all but one are messages");
    }
}
