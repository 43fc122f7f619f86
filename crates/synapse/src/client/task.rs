//! A lane's task: keeps a connection open, and connects again when it breaks.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::config::ClientConfig;
use super::connect::{Connected, connect};
use super::connection::{Connection, End};
use super::deadlines::Deadlines;
use super::lane::Lane;
use crate::auth::random;

/// Serves a lane until the client is closed. `first` is a connection that is already open.
pub(super) async fn run(lane: Arc<Lane>, shared: Arc<Shared>, first: Option<Connected>) {
    serve(&lane, &shared, first).await;
    lane.end();
}

async fn serve(lane: &Lane, shared: &Arc<Shared>, first: Option<Connected>) {
    let mut deadlines = Deadlines::new(shared);
    let mut next = first.map(Ok);
    let mut failures = 0;
    loop {
        let attempt = match next.take() {
            Some(attempt) => attempt,
            None => {
                let session = shared.session(lane.index);
                let config = ClientConfig { secret: shared.secret.lock().clone(), ..shared.config.clone() };
                let connecting = connect(&config, session, &shared.pool);
                match deadlines.during(lane, connecting).await {
                    Some(attempt) => attempt,
                    None => return,
                }
            }
        };
        let ended = match attempt.and_then(|connected| shared.accept(connected)) {
            Ok(connected) => {
                failures = 0;
                shared.lane_up();
                let mut connection = Connection::new(lane, shared, connected);
                let end = poll_fn(|cx| connection.poll(&mut deadlines, cx)).await;
                match end {
                    End::Closed => return connection.send_goodbye().await,
                    End::Broken(error) => {
                        shared.lane_down(&error);
                        error
                    }
                }
            }
            Err(error) => error,
        };
        let now = shared.config.clock.now();
        tracing::debug!(server = %shared.config.address, lane = lane.index, cause = %ended, "not connected");
        lane.disconnected(now, ended);
        let pause = backoff(shared, failures);
        failures = failures.saturating_add(1);
        if deadlines.during(lane, shared.config.clock.sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Returns the pause before the next attempt: doubled each time up to the longest, and drawn from its upper
/// half, so that the clients of a server that comes back do not connect all at once.
fn backoff(shared: &Shared, failures: u32) -> Duration {
    let config = &shared.config;
    let full = config.backoff_min.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
    let full = full.min(config.backoff_max);
    let spread = match config.seed {
        None => u16::from_le_bytes(random()),
        Some(seed) => (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(failures * 7) >> 48) as u16,
    };
    full / 2 + full.mul_f64(f64::from(spread) / f64::from(u16::MAX) / 2.0)
}
