//! `[objects.http]`: the listener for HTTP requests for objects, which is off unless this table is
//! present.

use std::path::PathBuf;
use std::sync::Arc;

use cached_tls::{ServerTls, TlsSettings};
use object_http::{Address, AddressError, Keys, PORT_DEFAULT, Server, ServerConfig, SettingError};

use crate::config_file::{ConfigError, invalid};
use crate::config_keys;
use crate::listeners::{Listening, exposure, restrict_socket, unix_mode};
use crate::quantity::Size;
use crate::tables::{check_tls, load_tls};

config_keys! {
    /// The table `[objects.http]`. An empty string means none.
    pub struct HttpTable over ServerConfig = ServerConfig::default();

    /// The addresses to listen on: `host:port`, or `unix:` and a path.
    pub listen: Vec<String> = own(vec![format!("127.0.0.1:{PORT_DEFAULT}")]);
    /// Permissions of unix sockets, in octal.
    pub unix_mode: String = own("700".into());
    /// The file of clients' keys and their rights.
    pub keys_file: PathBuf = own(PathBuf::new());
    /// Whether to allow addresses that other machines can reach without a keys file.
    pub allow_exposed: bool = own(false);
    /// The number of threads that serve connections.
    pub threads: usize = own(THREADS), in 1..=THREADS_MAX;
    /// The maximum number of connections.
    pub connections_max: u32 = same(connections_max);
    /// The maximum number of connections from one address; `None` means half of `connections_max`.
    pub peer_connections_max: Option<u32> = same(peer_connections_max);
    /// The maximum size of the head of a request.
    pub head_bytes_max: Size = size(head_bytes_max);
    /// The maximum total size of bodies in memory.
    pub bytes_max: Size = size(bytes_max);
    /// The maximum time for a request, in milliseconds, apart from the transfer of bodies.
    pub request_timeout_ms: u64 = millis(request_timeout), in 1..=TIME_MS_MAX;
    /// The time, in milliseconds, after which a client is disconnected if it makes no progress.
    pub stall_timeout_ms: u64 = millis(stall_timeout), in 1..=TIME_MS_MAX;
    /// The settings of TLS; without this table, there is no TLS.
    pub tls: Option<TlsSettings> = own(None);
}

/// The key of the file of clients' keys.
const KEYS_FILE: &str = "objects.http.keys_file";
/// The default number of threads.
const THREADS: usize = 4;
const THREADS_MAX: usize = 1024;
/// One day.
const TIME_MS_MAX: u64 = 24 * 60 * 60 * 1000;

impl HttpTable {
    /// Returns the addresses to listen on.
    ///
    /// # Errors
    /// Returns the string that is not an address.
    pub fn addresses(&self) -> Result<Vec<Address>, ConfigError> {
        let wrong = |error: AddressError| ConfigError::new("objects.http.listen", error);
        self.listen.iter().map(|text| text.parse().map_err(wrong)).collect()
    }

    /// Returns the addresses for a [check](crate::check_addresses) of all listeners; invalid ones
    /// are left out.
    #[must_use]
    pub fn listening(&self) -> Vec<Listening> {
        Listening::parsed::<Address>("objects.http.listen", &self.listen)
    }

    /// Binds a server to the addresses, and sets the permissions of unix sockets.
    ///
    /// # Errors
    /// Returns one line if the system refuses.
    ///
    /// # Panics
    /// Panics if it is called outside of a tokio runtime.
    pub async fn bind(&self, server: &Server) -> Result<(), String> {
        for address in self.addresses().map_err(|error| error.to_string())? {
            server.bind(&address).await.map_err(|error| error.to_string())?;
            if let Address::Unix(path) = &address {
                restrict_socket("objects.http.unix_mode", &self.unix_mode, path)?;
            }
        }
        Ok(())
    }

    /// Reads the keys; `None` if no file is named.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has a mistake.
    pub fn keys(&self) -> Result<Option<Keys>, ConfigError> {
        if self.keys_file.as_os_str().is_empty() {
            return Ok(None);
        }
        let keys = Keys::from_file(&self.keys_file);
        keys.map(Some).map_err(|error| ConfigError::of_file(KEYS_FILE, error))
    }

    /// Reads the keys of a running server again, if it has any. They are in force once the returned
    /// function is called, which returns the key that names their file.
    ///
    /// # Errors
    /// Returns one line if the file cannot be read or has a mistake. The present keys then stay in
    /// force.
    pub fn keys_again(keys: Option<&Keys>) -> Result<Option<impl FnOnce() -> String + use<>>, String> {
        let Some(keys) = keys else { return Ok(None) };
        let put_in_force = keys.read_again().map_err(|error| format!("{KEYS_FILE}: {error}"))?;
        Ok(Some(move || {
            put_in_force();
            KEYS_FILE.to_owned()
        }))
    }

    /// Reads the certificates; `None` without TLS.
    ///
    /// # Errors
    /// Fails if the certificates cannot be used.
    pub fn load_tls(&self) -> Result<Option<Arc<ServerTls>>, ConfigError> {
        load_tls("objects.http.tls", self.tls.as_ref(), &[])
    }

    /// Returns the configuration of the server, without runtimes, with keys and certificates that
    /// were read before.
    #[must_use]
    pub fn server(&self, keys: Option<Keys>, tls: Option<Arc<ServerTls>>) -> ServerConfig {
        let mut config = ServerConfig::default();
        self.apply(&mut config);
        (config.keys, config.tls) = (keys, tls);
        config
    }

    /// Returns the number of file descriptors that the listener may need.
    #[must_use]
    pub fn descriptors_max(&self) -> u64 {
        u64::from(self.connections_max) + self.listen.len() as u64 + 3 * self.threads as u64 + 8
    }

    /// Checks the table together with the maximum size of an object, `object_bytes_max`, as far as
    /// this is possible without opening a socket or a file.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub fn check(&self, object_bytes_max: u64) -> Result<(), ConfigError> {
        unix_mode("objects.http.unix_mode", &self.unix_mode)?;
        self.check_ranges("objects.http")?;
        if let Some(table) = &self.tls {
            check_tls("objects.http.tls", table)?;
        }
        self.server(None, None).check(object_bytes_max).map_err(|error| HttpTable::error(&error))?;
        let addresses = self.addresses()?;
        if addresses.is_empty() {
            return invalid("objects.http.listen", "is empty; it must name an address to listen on");
        }
        let exposed = addresses.iter().find_map(|address| exposure(&address.to_string()));
        let is_open = self.keys_file.as_os_str().is_empty() && !self.allow_exposed;
        match exposed.filter(|_| is_open) {
            None => Ok(()),
            Some(exposed) => {
                let right = "name a keys_file, or set allow_exposed = true";
                invalid("objects.http.listen", format!("{exposed}, and clients need no key: {right}"))
            }
        }
    }

    /// Converts an error of the server to the corresponding key of the table, in which some
    /// settings have different names.
    #[must_use]
    pub fn error(error: &SettingError) -> ConfigError {
        let key = match error.setting {
            name @ ("request_timeout" | "stall_timeout") => format!("{name}_ms"),
            name => name.to_owned(),
        };
        ConfigError::new(format!("objects.http.{key}"), &*error.problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_one_line_with_what_would_be_right() {
        let error = |change: fn(&mut HttpTable)| {
            let mut table = HttpTable::default();
            change(&mut table);
            table.check(4 << 20).expect_err("it is wrong").to_string()
        };
        HttpTable::default().check(4 << 20).expect("the defaults work");
        for (change, words) in [
            ((|table| table.listen = vec![]) as fn(&mut HttpTable), "objects.http.listen: is empty;"),
            (|table| table.listen = vec!["a:b".into()], "\"a:b\" is not an address"),
            (|table| table.listen = vec!["0.0.0.0:1".into()], "clients need no key: name a keys_file"),
            (|table| table.threads = 0, "objects.http.threads: is 0; it must be between"),
            (|table| table.bytes_max = Size(1 << 20), "objects.http.bytes_max: must be at least"),
            (|table| table.head_bytes_max = Size(1), "objects.http.head_bytes_max: must be between"),
            (|table| table.stall_timeout_ms = 0, "objects.http.stall_timeout_ms: is 0"),
            (|table| table.unix_mode = "9".into(), "objects.http.unix_mode: is \"9\""),
            (|table| table.tls = Some(TlsSettings::default()), "objects.http.tls.chain_file: is missing"),
        ] {
            let error = error(change);
            assert!(error.contains(words), "{error}");
        }
        let table = HttpTable { listen: vec!["0.0.0.0:1".into()], allow_exposed: true, ..Default::default() };
        table.check(4 << 20).expect("it is allowed");
        let table = HttpTable { keys_file: "/no/such/file".into(), ..Default::default() };
        let missing = table.keys().expect_err("there is no file").to_string();
        assert!(missing.starts_with("objects.http.keys_file: cannot read /no/such/file"), "{missing}");
    }
}
