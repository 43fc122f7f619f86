//! Settings and certificates that can change at run time.
//!
//! Each setting is a word that threads read without a lock and that only a reload writes. All other
//! settings are in [`Settings`] and stay as they were at startup.

use super::Shared;
use crate::settings::Settings;
use cached_process::reload::LiveSecs;
use cached_tls::TlsError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Defines [`Live`]: one line per setting, with its atomic type, its value type, and how to read it
/// from the settings.
macro_rules! live {
    ($($(#[$doc:meta])* $name:ident: $Word:ident, $Type:ty, $of:expr;)*) => {
        /// The settings in force. [`Settings`] explains each of them.
        #[derive(Debug)]
        pub(crate) struct Live {
            $($name: $Word,)*
            /// The time for which the server reports that it is not ready before its listeners
            /// close.
            pub(crate) drain_delay: LiveSecs,
            /// The time that clients have to read their replies.
            pub(crate) drain_timeout: LiveSecs,
        }

        impl Live {
            pub(crate) fn new(settings: &Settings) -> Live {
                Live {
                    $($name: $Word::new($of(settings)),)*
                    drain_delay: LiveSecs::new(settings.drain.delay_secs),
                    drain_timeout: LiveSecs::new(settings.drain.timeout_secs),
                }
            }

            /// Applies those settings that can change at run time.
            pub(crate) fn set(&self, settings: &Settings) {
                $(self.$name.store($of(settings), Ordering::Relaxed);)*
                self.drain_delay.set(settings.drain.delay_secs);
                self.drain_timeout.set(settings.drain.timeout_secs);
            }

            $($(#[$doc])*
            #[inline]
            pub(crate) fn $name(&self) -> $Type {
                self.$name.load(Ordering::Relaxed)
            })*
        }
    };
}

live! {
    connections_max: AtomicUsize, usize, |of: &Settings| of.connections_max;
    /// Returns whether clients above [`connections_max`](Self::connections_max) are refused;
    /// otherwise they wait.
    refuses_excess: AtomicBool, bool, |of: &Settings| of.connections_max_fast;
    connection_bytes_max: AtomicUsize, usize, |of: &Settings| of.connection_bytes_max;
    idle_timeout_secs: AtomicU32, u32, |of: &Settings| of.idle_timeout_secs;
    batches_per_wake: AtomicU32, u32, |of: &Settings| of.batches_per_wake;
    /// Returns [`requests_per_wake`](Self::requests_per_wake), or 0 for no limit.
    requests_per_wake_or_0: AtomicU32, u32, |of: &Settings| of.requests_per_wake.unwrap_or(0);
    flush_command: AtomicBool, bool, |of: &Settings| of.flush_enabled;
    dump_commands: AtomicBool, bool, |of: &Settings| of.dump_enabled;
    watch_command: AtomicBool, bool, |of: &Settings| of.watch_enabled;
    shutdown_command: AtomicBool, bool, |of: &Settings| of.shutdown_command;
}

impl Live {
    #[inline]
    pub(crate) fn requests_per_wake(&self) -> Option<u32> {
        Some(self.requests_per_wake_or_0()).filter(|requests| *requests > 0)
    }
}

/// Reloads the certificates, and logs the outcome. After an error, the old ones stay in force.
///
/// # Errors
/// Fails if the certificates cannot be used. Returns `None` without TLS.
pub(crate) fn refresh_certificates(shared: &Shared) -> Option<Result<(), TlsError>> {
    let result = shared.tls.as_ref()?.reload();
    match &result {
        Ok(()) => tracing::info!("the certificates have been reloaded"),
        Err(error) => {
            tracing::error!(cause = %error, "the certificates cannot be replaced: the old ones stay in use");
        }
    }
    Some(result)
}
