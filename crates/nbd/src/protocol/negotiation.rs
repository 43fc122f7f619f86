//! The negotiation as a state machine: it takes options and produces replies until an export is
//! selected.

use super::wire::{
    Bad, CONTEXTS_MAX, Fields, GREETING_MAGIC, LIST_BYTES_MAX, OPTION_BYTES_MAX, OPTION_HEAD_BYTES,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, OPTIONS_MAX, TEXT_BYTES_MAX, Violation, handshake, info, option,
    option_reply, option_reply as kind, text,
};
use super::{Context, Description};

/// Whether a server offers TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TlsMode {
    /// TLS is not offered.
    #[default]
    Off,
    /// A client may use TLS.
    Optional,
    /// A client must use TLS: without it, no other option is answered.
    Required,
}

/// The result of a negotiation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Session {
    /// Whether replies are structured.
    pub is_structured: bool,
    /// The selected contexts, each with its id in the protocol.
    pub contexts: Vec<(u32, Context)>,
}

/// The next step of a negotiation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Receive more bytes.
    Receive,
    /// Call [`Negotiation::receive`] again with the remaining bytes.
    Continue,
    /// Get the names of the exports for [`Negotiation::answer_list`].
    List,
    /// Get the description of this export for [`Negotiation::answer_export`].
    Describe(String),
    /// Open this export for [`Negotiation::answer_export`].
    Open(String),
    /// Send the queued replies, start TLS, then call [`Negotiation::begin_tls`].
    StartTls,
    /// Send the queued replies, then close the connection.
    End,
}

/// The reason why a client does not get an export.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoExport {
    /// No export has that name.
    #[error("there is no export of that name")]
    Unknown,
    /// The export cannot be served now, or not to this client.
    #[error("{0}")]
    Refused(String),
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// The step after an answer about an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answered {
    /// The negotiation continues.
    Continue,
    /// The transmission starts.
    Transmission(Session),
    /// The connection is closed, because the option's reply cannot carry an error.
    End,
}

/// The negotiation of one connection.
#[derive(Debug, Default)]
pub struct Negotiation {
    tls: TlsMode,
    is_encrypted: bool,
    flags: Option<ClientFlags>,
    is_structured: bool,
    /// The selected contexts, and the export for which they were selected.
    contexts: Option<(String, Vec<Context>)>,
    option_count: u32,
    waiting: Option<Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct ClientFlags {
    is_fixed: bool,
    no_zeroes: bool,
}

/// An option whose answer depends on the exports.
#[derive(Debug)]
enum Waiting {
    List,
    Info { option: u32, name: String, requested: Vec<u16> },
    ExportName { name: String },
    Contexts { option: u32, name: String, queries: Vec<String> },
}

impl Negotiation {
    /// Starts a negotiation, and appends the greeting to `out`.
    #[must_use]
    pub fn new(tls: TlsMode, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&GREETING_MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
        Self { tls, ..Self::default() }
    }

    /// Processes at most one option from the received bytes. Returns the number of bytes consumed
    /// and the next step, and appends replies to `out`.
    ///
    /// # Errors
    /// [`Violation`]: the connection cannot continue.
    pub fn receive(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Action), Violation> {
        let Some(flags) = self.flags else { return self.receive_flags(input) };
        let Some(head) = input.first_chunk::<OPTION_HEAD_BYTES>() else { return Ok((0, Action::Receive)) };
        let (magic, rest) = head.split_at(8);
        let magic = magic.iter().fold(0_u64, |magic, byte| (magic << 8) | u64::from(*byte));
        if magic != OPTION_MAGIC {
            return Err(Violation::OptionMagic(magic));
        }
        let number = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]);
        let len_bytes = u32::from_be_bytes([rest[4], rest[5], rest[6], rest[7]]);
        if len_bytes > OPTION_BYTES_MAX {
            return Err(Violation::OptionTooLong(len_bytes));
        }
        let end = OPTION_HEAD_BYTES + len_bytes as usize;
        let Some(data) = input.get(OPTION_HEAD_BYTES..end) else { return Ok((0, Action::Receive)) };
        self.option_count += 1;
        if self.option_count > OPTIONS_MAX {
            return Err(Violation::TooManyOptions);
        }
        if !flags.is_fixed && number != option::EXPORT_NAME {
            return Err(Violation::NotFixed(number));
        }
        let action = self.handle(number, data, out);
        if action == Action::StartTls && input.len() > end {
            return Err(Violation::PlainAfterTls);
        }
        Ok((end, action))
    }

    fn receive_flags(&mut self, input: &[u8]) -> Result<(usize, Action), Violation> {
        let Some(bytes) = input.first_chunk::<4>() else { return Ok((0, Action::Receive)) };
        let flags = u32::from_be_bytes(*bytes);
        let has = |flag: u16| flags & u32::from(flag) != 0;
        if flags & !u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES) != 0 {
            return Err(Violation::ClientFlags(flags));
        }
        let no_zeroes = has(handshake::NO_ZEROES);
        self.flags = Some(ClientFlags { is_fixed: has(handshake::FIXED_NEWSTYLE), no_zeroes });
        Ok((4, Action::Continue))
    }

    fn handle(&mut self, number: u32, data: &[u8], out: &mut Vec<u8>) -> Action {
        let needs_tls = self.tls == TlsMode::Required && !self.is_encrypted;
        let decoded = match number {
            option::ABORT => {
                reply_ack(out, number);
                return Action::End;
            }
            option::STARTTLS => return self.handle_tls(data, out),
            // The reply to this option cannot carry an error.
            option::EXPORT_NAME if needs_tls => return Action::End,
            _ if needs_tls => {
                let why = "this server demands TLS: begin with STARTTLS";
                return reply_error(out, number, kind::ERR_TLS_REQD, why);
            }
            option::EXPORT_NAME => match text(data) {
                Ok(name) => Ok((Action::Open(name.into()), Waiting::ExportName { name: name.into() })),
                Err(_) => return Action::End,
            },
            option::LIST if data.is_empty() => Ok((Action::List, Waiting::List)),
            option::LIST => Err(Bad::Form),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.is_structured = true;
                reply_ack(out, number);
                return Action::Continue;
            }
            option::STRUCTURED_REPLY => Err(Bad::Form),
            option::INFO | option::GO => decode_info(number, data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT if !self.is_structured => {
                let why = "contexts need structured replies: request those first";
                return reply_error(out, number, kind::ERR_INVALID, why);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                if number == option::SET_META_CONTEXT {
                    // The earlier selection is void, whether or not this option succeeds.
                    self.contexts = None;
                }
                decode_contexts(number, data)
            }
            _ => return reply_error(out, number, kind::ERR_UNSUP, "the option is not known"),
        };
        match decoded {
            Ok((action, waiting)) => {
                self.waiting = Some(waiting);
                action
            }
            Err(Bad::Form) => {
                reply_error(out, number, kind::ERR_INVALID, "the data of the option are malformed")
            }
            Err(Bad::TooBig) => {
                reply_error(out, number, kind::ERR_TOO_BIG, "too many strings, or one longer than 4096 bytes")
            }
        }
    }

    fn handle_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Action {
        let (kind, why) = if !data.is_empty() {
            (kind::ERR_INVALID, "STARTTLS must have no data")
        } else if self.is_encrypted {
            (kind::ERR_INVALID, "TLS is already in use")
        } else if self.tls == TlsMode::Off {
            (kind::ERR_POLICY, "this server has no certificate")
        } else {
            reply_ack(out, option::STARTTLS);
            return Action::StartTls;
        };
        reply_error(out, option::STARTTLS, kind, why)
    }

    /// Continues under TLS. Everything negotiated before is discarded, because it was not
    /// protected.
    pub fn begin_tls(&mut self) {
        self.is_encrypted = true;
        self.is_structured = false;
        self.contexts = None;
    }

    /// Answers [`Action::List`].
    pub fn answer_list(&mut self, names: Result<&[String], &NoExport>, out: &mut Vec<u8>) {
        if let Some(Waiting::List) = self.waiting.take() {
            match names {
                Ok(names) => reply_list(out, option::LIST, names),
                Err(error) => refuse(out, option::LIST, error),
            }
        }
    }

    /// Answers [`Action::Describe`] and [`Action::Open`].
    pub fn answer_export(&mut self, export: Result<&Description, &NoExport>, out: &mut Vec<u8>) -> Answered {
        match (self.waiting.take(), export) {
            (None | Some(Waiting::List), _) => Answered::Continue,
            (Some(Waiting::ExportName { .. }), Err(_)) => Answered::End,
            (Some(Waiting::Info { option, .. } | Waiting::Contexts { option, .. }), Err(error)) => {
                refuse(out, option, error);
                Answered::Continue
            }
            (Some(Waiting::ExportName { name }), Ok(export)) => {
                out.extend_from_slice(&export.size_bytes.to_be_bytes());
                out.extend_from_slice(&export.transmission_flags(self.is_structured).to_be_bytes());
                if !self.flags.is_some_and(|flags| flags.no_zeroes) {
                    out.extend_from_slice(&[0; 124]);
                }
                Answered::Transmission(self.session(&name, export))
            }
            (Some(Waiting::Info { option, name, requested }), Ok(export)) => {
                reply_infos(out, option, &name, export, self.is_structured, &requested);
                if option == option::GO {
                    return Answered::Transmission(self.session(&name, export));
                }
                Answered::Continue
            }
            (Some(Waiting::Contexts { option, name, queries }), Ok(export)) => {
                self.answer_contexts(option, name, &queries, export, out);
                Answered::Continue
            }
        }
    }

    fn answer_contexts(
        &mut self,
        option: u32,
        name: String,
        queries: &[String],
        export: &Description,
        out: &mut Vec<u8>,
    ) {
        if option == option::LIST_META_CONTEXT {
            let is_listed = |context: &&Context| {
                queries.is_empty() || queries.iter().any(|query| context.is_listed_by(query))
            };
            let listed = export.contexts.iter().filter(is_listed).map(|context| (0, context));
            return reply_contexts(out, option, listed);
        }
        let asked: Vec<_> = queries.iter().filter_map(|query| Context::parse(query)).collect();
        let selected: Vec<_> =
            export.contexts.iter().filter(|context| asked.contains(context)).cloned().collect();
        let numbered = selected.iter().enumerate().map(|(index, context)| (context_id(index), context));
        reply_contexts(out, option, numbered);
        self.contexts = Some((name, selected));
    }

    fn session(&mut self, name: &str, export: &Description) -> Session {
        // Contexts apply only to the export for which they were selected, and only those that it
        // still has.
        let selected = self.contexts.take().filter(|(of, _)| of == name).map(|(_, selected)| selected);
        let numbered = selected.unwrap_or_default().into_iter().enumerate();
        let contexts = numbered
            .map(|(index, context)| (context_id(index), context))
            .filter(|(_, context)| export.contexts.contains(context))
            .collect();
        Session { is_structured: self.is_structured, contexts }
    }
}

/// Returns the id of a selected context. There are at most [`CONTEXTS_MAX`].
fn context_id(index: usize) -> u32 {
    index as u32 + 1
}

fn refuse(out: &mut Vec<u8>, option: u32, error: &NoExport) {
    let kind = match error {
        NoExport::Unknown => kind::ERR_UNKNOWN,
        NoExport::Refused(_) => kind::ERR_POLICY,
        NoExport::ShuttingDown => kind::ERR_SHUTDOWN,
    };
    reply_error(out, option, kind, &error.to_string());
}

fn decode_info(option: u32, data: &[u8]) -> Result<(Action, Waiting), Bad> {
    let mut fields = Fields(data);
    let name = fields.text()?.to_owned();
    let count = fields.half()?;
    let requested = (0..count).map(|_| fields.half()).collect::<Result<Vec<_>, _>>()?;
    fields.end()?;
    let action = if option == option::GO { Action::Open } else { Action::Describe };
    Ok((action(name.clone()), Waiting::Info { option, name, requested }))
}

fn decode_contexts(option: u32, data: &[u8]) -> Result<(Action, Waiting), Bad> {
    let mut fields = Fields(data);
    let name = fields.text()?.to_owned();
    let count = fields.word()? as usize;
    if count > CONTEXTS_MAX {
        return Err(Bad::TooBig);
    }
    let queries = (0..count).map(|_| fields.text().map(str::to_owned)).collect::<Result<Vec<_>, _>>()?;
    fields.end()?;
    Ok((Action::Describe(name.clone()), Waiting::Contexts { option, name, queries }))
}

/// Appends a reply of type `kind` to `option`. `data` is sent as one piece.
fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let len_bytes: usize = data.iter().map(|piece| piece.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    // The data are a few strings of limited length.
    out.extend_from_slice(&(len_bytes as u32).to_be_bytes());
    data.iter().for_each(|piece| out.extend_from_slice(piece));
}

fn reply_ack(out: &mut Vec<u8>, option: u32) {
    reply(out, option, option_reply::ACK, &[]);
}

/// Appends an error with its reason. The client may go on with another option.
fn reply_error(out: &mut Vec<u8>, option: u32, kind: u32, why: &str) -> Action {
    reply(out, option, kind, &[truncated(why).as_bytes()]);
    Action::Continue
}

/// Appends the names of all exports, or an error if they do not fit into a reply.
fn reply_list(out: &mut Vec<u8>, option: u32, names: &[String]) {
    let start = out.len();
    for name in names {
        let name = name.as_bytes();
        if name.len() > TEXT_BYTES_MAX {
            // The name is too long for any client to ask for.
            continue;
        }
        let length = (name.len() as u32).to_be_bytes();
        reply(out, option, option_reply::SERVER, &[&length, name]);
        if out.len() - start > LIST_BYTES_MAX {
            out.truncate(start);
            reply_error(out, option, option_reply::ERR_TOO_BIG, "there are too many exports to list");
            return;
        }
    }
    reply_ack(out, option);
}

/// Appends the information about the export `name`: always its size, flags and block sizes, and the
/// rest if requested.
fn reply_infos(
    out: &mut Vec<u8>,
    option: u32,
    name: &str,
    export: &Description,
    is_structured: bool,
    requested: &[u16],
) {
    let mut add = |kind: u16, data: &[&[u8]]| {
        let kind = kind.to_be_bytes();
        let mut all: Vec<&[u8]> = vec![&kind];
        all.extend_from_slice(data);
        reply(out, option, option_reply::INFO, &all);
    };
    let flags = export.transmission_flags(is_structured).to_be_bytes();
    add(info::EXPORT, &[&export.size_bytes.to_be_bytes(), &flags]);
    if requested.contains(&info::NAME) {
        add(info::NAME, &[name.as_bytes()]);
    }
    if requested.contains(&info::DESCRIPTION) && !export.text.is_empty() {
        add(info::DESCRIPTION, &[truncated(&export.text).as_bytes()]);
    }
    let [least, preferred] = [export.block_bytes_min, export.block_bytes_preferred].map(u32::to_be_bytes);
    add(info::BLOCK_SIZE, &[&least, &preferred, &export.payload_bytes_max().to_be_bytes()]);
    reply_ack(out, option);
}

/// Appends contexts with their ids.
fn reply_contexts<'a>(out: &mut Vec<u8>, option: u32, contexts: impl Iterator<Item = (u32, &'a Context)>) {
    for (id, context) in contexts {
        let name = context.to_string();
        reply(out, option, option_reply::META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
    }
    reply_ack(out, option);
}

/// Returns the longest beginning of `text` that is a valid string of the protocol.
pub(super) fn truncated(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}
