//! Encodes requests as a client would send them.

use cached_proto::binary::{self, Command, Header, MAGIC_REQUEST};
use cached_proto::meta::{Flag, MetaFlags, MetaKey, ReturnFlag, SetMode};
use cached_proto::text::{Request, StoreVerb, Tokens, Verb};

/// Encodes a text or meta request in its simplest form.
pub(super) fn text(request: &Request<'_>) -> Vec<u8> {
    let mut line = Line(Vec::new());
    let mut body: &[u8] = b"";
    let mut quiet = false;
    match *request {
        Request::Get(mut get) => {
            match (get.exptime, get.with_cas) {
                (None, false) => line.word("get"),
                (None, true) => line.word("gets"),
                (Some(exptime), false) => line.word("gat").number(exptime),
                (Some(exptime), true) => line.word("gats").number(exptime),
            };
            while let Some(key) = get.next_key() {
                line.bytes(key);
            }
        }
        Request::Store(store) => {
            let header = store.header;
            line.word(match header.verb {
                StoreVerb::Set => "set",
                StoreVerb::Add => "add",
                StoreVerb::Replace => "replace",
                StoreVerb::Append => "append",
                StoreVerb::Prepend => "prepend",
                StoreVerb::Cas => "cas",
            });
            line.bytes(header.key).number(header.flags).number(header.exptime).number(header.value_len);
            if header.verb == StoreVerb::Cas {
                line.number(header.cas);
            }
            (body, quiet) = (store.body, header.noreply);
        }
        Request::Delete(delete) => {
            line.word("delete").bytes(delete.key);
            if delete.key == b"noreply" && !delete.noreply {
                // The line ends with a word that is ignored, so that the key is not mistaken for
                // it.
                line.word("0");
            }
            quiet = delete.noreply;
        }
        Request::Arithmetic(number) => {
            line.word(if number.decrement { "decr" } else { "incr" }).bytes(number.key).number(number.delta);
            quiet = number.noreply;
        }
        Request::Touch(touch) => {
            line.word("touch").bytes(touch.key).number(touch.exptime);
            quiet = touch.noreply;
        }
        Request::FlushAll(flush) => {
            line.word("flush_all");
            match flush.delay {
                Some(delay) => line.number(delay),
                None => line.word("never"),
            };
            quiet = flush.noreply;
        }
        Request::FlushPrefix(flush) => {
            line.word("flush_prefix");
            line.bytes(flush.prefix);
            quiet = flush.noreply;
        }
        Request::Verbosity(verbosity) => {
            line.word("verbosity").number(verbosity.level);
            quiet = verbosity.noreply;
        }
        Request::Version => {
            line.word("version");
        }
        Request::Quit => {
            line.word("quit");
        }
        Request::Stats(tokens) => line.tokens(&tokens),
        Request::Admin(admin) => {
            assert_eq!(admin.tokens.get(0).unwrap() == b"watch", admin.verb == Verb::Watch);
            line.tokens(&admin.tokens);
        }
        Request::MetaGet(get) => {
            line.word("mg").bytes(get.key.as_sent());
            line.flags(&get.flags, None);
        }
        Request::MetaSet(set) => {
            let header = set.header;
            line.word("ms").bytes(header.key.as_sent()).number(header.value_len);
            line.flags(
                &header.flags,
                Some(match header.mode {
                    SetMode::Set => "MS",
                    SetMode::Add => "ME",
                    SetMode::Replace => "MR",
                    SetMode::Append => "MA",
                    SetMode::Prepend => "MP",
                }),
            );
            body = set.body;
        }
        Request::MetaDelete(delete) => {
            line.word("md").bytes(delete.key.as_sent());
            line.flags(&delete.flags, None);
        }
        Request::MetaArithmetic(number) => {
            line.word("ma").bytes(number.key.as_sent());
            line.flags(&number.flags, Some(if number.decrement { "MD" } else { "MI" }));
        }
        Request::MetaNoop => {
            line.word("mn");
        }
        Request::MetaDebug(debug) => {
            line.word("me").bytes(debug.key.as_sent());
            if MetaKey::is_binary(&debug.key) {
                line.word("b").word("k");
            }
        }
    }
    if quiet {
        line.word("noreply");
    }
    [&line.0[..], b"\r\n", body].concat()
}

struct Line(Vec<u8>);

impl Line {
    fn bytes(&mut self, word: &[u8]) -> &mut Line {
        if !self.0.is_empty() {
            self.0.push(b' ');
        }
        self.0.extend_from_slice(word);
        self
    }

    fn word(&mut self, word: &str) -> &mut Line {
        self.bytes(word.as_bytes())
    }

    fn number(&mut self, number: impl ToString) -> &mut Line {
        self.word(&number.to_string())
    }

    fn tokens(&mut self, tokens: &Tokens<'_>) {
        for token in tokens.iter() {
            self.bytes(token);
        }
    }

    /// Returns the flags in an order with the same meaning.
    fn flags(&mut self, flags: &MetaFlags, mode: Option<&str>) {
        let recache = flags.recache().map(|value| format!("R{value}"));
        let ttl = flags.ttl().map(|value| format!("T{value}"));
        let vivify = flags.vivify().map(|value| format!("N{value}"));
        let mut before: Vec<Option<String>> = Vec::new();
        let mut after = Vec::new();
        if !flags.recaches_after_update() {
            before.push(recache.clone());
        }
        let mut updates = [(flags.shows_ttl_before_update(), ttl), (flags.shows_ttl_before_vivify(), vivify)];
        if flags.updates_after_vivify() {
            updates.reverse();
        }
        for (behind, word) in updates {
            (if behind { &mut after } else { &mut before }).push(word);
        }
        if flags.recaches_after_update() {
            after.push(recache);
        }
        for word in before.iter().flatten() {
            self.word(word);
        }
        for flag in flags.returns.iter() {
            match flag {
                ReturnFlag::Opaque => self.bytes(flags.opaque.as_bytes()),
                ReturnFlag::Key => self.word("k"),
                ReturnFlag::Size => self.word("s"),
                ReturnFlag::TtlLeft => self.word("t"),
                ReturnFlag::Cas => self.word("c"),
                ReturnFlag::ClientFlags => self.word("f"),
                ReturnFlag::LastAccess => self.word("l"),
                ReturnFlag::Hit => self.word("h"),
            };
        }
        for word in after.iter().flatten() {
            self.word(word);
        }
        for (flag, word) in [
            (Flag::BinaryKey, "b".to_string()),
            (Flag::Quiet, "q".to_string()),
            (Flag::NoUpdate, "u".to_string()),
            (Flag::Value, "v".to_string()),
            (Flag::RemoveValue, "x".to_string()),
            (Flag::Invalidate, "I".to_string()),
            (Flag::Route, "L".to_string()),
            (Flag::Path, "P".to_string()),
            (Flag::Mode, mode.unwrap_or("M").to_string()),
            (Flag::SetClientFlags, format!("F{}", flags.client_flags())),
            (Flag::CompareCas, format!("C{}", flags.compare_cas().unwrap_or(0))),
            (Flag::NewCas, format!("E{}", flags.new_cas().unwrap_or(0))),
            (Flag::Initial, format!("J{}", flags.initial())),
            (Flag::Delta, format!("D{}", flags.delta())),
        ] {
            if flags.has(flag) {
                self.word(&word);
            }
        }
    }
}

/// Encodes a binary request.
pub(super) fn binary(request: &binary::Request<'_>) -> Vec<u8> {
    let mut extras = Vec::new();
    let (mut value, key): (&[u8], &[u8]) = match request.command {
        Command::Get { key, exptime, .. } => {
            extras.extend(exptime.into_iter().flat_map(u32::to_be_bytes));
            (b"", key)
        }
        Command::Touch { key, exptime } => {
            extras.extend(exptime.to_be_bytes());
            (b"", key)
        }
        Command::Store(store) => (store.value, store.header.key),
        Command::Delete { key } | Command::Stat { key } => (b"", key),
        Command::Arithmetic(number) => {
            extras.extend(number.delta.to_be_bytes());
            extras.extend(number.initial.to_be_bytes());
            extras.extend(number.exptime.unwrap_or(u32::MAX).to_be_bytes());
            (b"", number.key)
        }
        Command::Flush { exptime } => {
            extras.extend(exptime.to_be_bytes());
            (b"", b"")
        }
        Command::Noop | Command::Version | Command::Quit => (b"", b""),
    };
    if let Command::Store(store) = request.command {
        use binary::StoreVerb::{Append, Prepend};
        if !matches!(store.header.verb, Append | Prepend) {
            extras.extend(store.header.flags.to_be_bytes());
            extras.extend(store.header.exptime.to_be_bytes());
        }
        value = store.value;
    }
    let header = Header {
        magic: MAGIC_REQUEST,
        opcode: request.head.opcode,
        key_len: key.len() as u16,
        extras_len: extras.len() as u8,
        body_len: (extras.len() + key.len() + value.len()) as u32,
        opaque: request.head.opaque,
        cas: request.head.cas,
    };
    [&header.to_bytes()[..], &extras, key, value].concat()
}
