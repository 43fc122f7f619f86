//! Properties that hold for any bytes of a client. Tests with recorded and random bytes and the
//! fuzz target call these checks.

use nbd::protocol::wire::REQUEST_BYTES;
use nbd::protocol::{
    Action, Answered, Command, Context, Description, Negotiation, NoExport, Request, Session, TlsMode,
};

/// Treats arbitrary bytes as a client's input. The first byte determines the TLS mode and the
/// number of bytes that arrive at a time. The rest is a negotiation, followed by requests. A
/// decoded request is encoded again, and must yield the same bytes.
pub(crate) fn client(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let tls = [TlsMode::Off, TlsMode::Optional, TlsMode::Required][usize::from(first % 3)];
    let step = usize::from(first / 3) + 1;
    let mut out = Vec::new();
    let mut state = Negotiation::new(tls, &mut out);
    let (mut from, mut to) = (0, 0);
    let mut disk = Description::new(1 << 30);
    disk.contexts.push(Context::ChangedSince("monday".into()));
    let session = loop {
        let Ok((taken, action)) = state.receive(&rest[from..to], &mut out) else { return };
        assert!(taken <= to - from);
        from += taken;
        match action {
            Action::Receive if to == rest.len() => return,
            Action::Receive => to = (to + step).min(rest.len()),
            Action::Continue => assert!(taken > 0),
            Action::List => state.answer_list(Ok(&["disk".into()]), &mut out),
            Action::Describe(name) | Action::Open(name) => {
                let found = if name.len() < 6 { Ok(&disk) } else { Err(&NoExport::Unknown) };
                match state.answer_export(found, &mut out) {
                    Answered::Continue => {}
                    Answered::End => return,
                    Answered::Transmission(session) => break session,
                }
            }
            Action::StartTls => state.begin_tls(),
            Action::End => return,
        }
    };
    requests(&session, &disk, &rest[from..]);
}

fn requests(session: &Session, disk: &Description, mut rest: &[u8]) {
    while let Ok(Some(request)) = Request::decode(rest) {
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(again, rest[..REQUEST_BYTES]);
        let checked = request.check(session, disk);
        if checked == Ok(Command::Disconnect) {
            return;
        }
        if checked.is_ok() {
            let end = request.offset.checked_add(request.len_bytes.into());
            assert!(end.is_some_and(|end| end <= disk.size_bytes), "{request:?}");
        }
        rest = &rest[REQUEST_BYTES..];
        rest = &rest[rest.len().min(request.payload_bytes() as usize)..];
    }
}
