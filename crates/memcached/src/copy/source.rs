//! The source's end of a copy session: sends the items.

use crate::shared::Shared;
use cached_ring::Move;
use std::net::TcpStream;

/// Why a session has ended before its end, as a part of a line.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {}

/// Sends the items of a move, whose COPY has come, until COMMITTED has come or the move has ended.
/// `seal` seals the slots; if it returns false, or `ends` returns true, the session ends. A read of the
/// stream lasts a few milliseconds at most.
///
/// # Errors
/// Returns [`SourceError`]. If the slots are sealed, they stay so.
pub(super) fn serve(
    _shared: &Shared,
    _stream: &TcpStream,
    _the_move: &Move,
    _seal: &(dyn Fn() -> bool + Sync),
    _ends: &(dyn Fn() -> bool + Sync),
) -> Result<(), SourceError> {
    todo!()
}
