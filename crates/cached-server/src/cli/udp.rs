//! `-U`: the addresses at which datagrams are read.
//!
//! As in memcached they are those of `-l`, an own port of each included, and without `-p` the port is TCP's
//! as well.

use super::auth::Wrong;
use super::overlay::{move_to, number};
use super::{Cli, listen, wrong};
use crate::config::settings::{ListenAddress, ListenTls, Settings};
use crate::config::{ConfigError, File};
use cached_process::{Exit, Failure};

/// The port of addresses in the file that have none.
const PORT: i32 = 11211;

impl Cli {
    /// Returns the value of `-U`, if it is given.
    pub(super) fn udp_port_given(&self, notes: &mut Vec<String>) -> Result<Option<i32>, Failure> {
        let Some(text) = &self.udp_port else { return Ok(None) };
        match number("-U", text, notes)? {
            port @ -1..=65535 => Ok(Some(port as i32)),
            port => {
                let line =
                    format!("-U {port}: the UDP port must be 0 (off) to 65535, or -1 for any free one");
                wrong(Exit::Usage, line)
            }
        }
    }

    /// Sets the addresses, after those of TCP and after authentication.
    pub(super) fn udp(
        &self,
        file: Option<&File>,
        settings: &mut Settings,
        port: Option<i32>,
        bare: bool,
    ) -> Result<(), Wrong> {
        let has_tls = settings.tls.is_some();
        let own = file.map_or(&[][..], |file| &file.memcached.listen);
        let addresses = match port {
            // A unix socket replaces the network.
            _ if self.unix_socket.is_some() => Ok(Vec::new()),
            Some(0) => Ok(Vec::new()),
            None => {
                let texts = file.map_or(&[][..], |file| &file.memcached.udp_listen);
                match texts.is_empty() {
                    true => Ok(Vec::new()),
                    false => listen::addresses(texts, PORT, None, has_tls, false).map_err(|error| {
                        let key = "memcached.udp_listen".into();
                        Wrong::Key(ConfigError { key, why: error.to_string() })
                    }),
                }
            }
            Some(port) if self.listen.is_empty() && !own.is_empty() => {
                let moved = listen::addresses(own, port, None, has_tls, false).map(|mut addresses| {
                    move_to(&mut addresses, u16::try_from(port).unwrap_or(0));
                    addresses
                });
                moved.map_err(Wrong::Flag)
            }
            Some(port) => listen::addresses(&self.listen, port, None, has_tls, bare || file.is_some())
                .map_err(Wrong::Flag),
        }?;
        settings.udp_listen.clear();
        for address in addresses {
            // Neither applies to datagrams.
            let address = ListenAddress { protocol: None, tls: ListenTls::AsSet, ..address };
            if !settings.udp_listen.contains(&address) {
                settings.udp_listen.push(address);
            }
        }
        settings.udp_port = match settings.udp_listen.first() {
            None => 0,
            Some(ListenAddress { port: 0, .. }) => -1,
            Some(first) => first.port.into(),
        };
        if settings.udp_listen.is_empty() || !settings.auth.is_required() {
            return Ok(());
        }
        // memcached's messages.
        let line = match settings.auth.sasl {
            Some(_) => "ERROR: Cannot enable UDP while using binary SASL authentication.",
            None => "Cannot use UDP with ascii authentication enabled (-U 0 to disable)",
        };
        Err(match port {
            Some(_) => Wrong::Flag(Failure::new(Exit::Usage, line)),
            None => {
                let why = "lets clients in without a password; it must be empty with auth_file or sasl_file";
                Wrong::Key(ConfigError { key: "memcached.udp_listen".into(), why: why.into() })
            }
        })
    }
}
