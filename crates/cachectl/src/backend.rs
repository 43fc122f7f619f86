//! `--backend`: parses the name of a backend, and opens it. No command depends on the kind of
//! backend.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blocker::faulty::FaultPlan;
use blocker::{Blocker, Error, Faulty, Result, SystemClock};
use cached_config::{BackendTable, OpenOptions, StartError, Store, parse_number};
use synapse::Secret;

/// A backend as written on the command line: a store, optionally with fault injection over it.
#[derive(Clone, Debug)]
pub(crate) struct BackendSpec {
    store: BackendTable,
    /// The plans of fault injection, the outermost first.
    faults: Vec<FaultPlan>,
    /// The text from which the backend was parsed.
    text: String,
}

impl BackendSpec {
    /// Returns whether the backend has several servers, of which one serves and another one may
    /// take over.
    fn has_several_servers(&self) -> bool {
        matches!(&self.store, BackendTable::Synapse(table) if table.address.contains(','))
    }

    /// Returns the backend, which will be created if it is a file store that is missing.
    pub(crate) fn creating(mut self) -> Self {
        if let BackendTable::File(file) = &mut self.store {
            file.create = true;
        }
        self
    }

    /// Returns the store.
    pub(crate) fn table(&self) -> &BackendTable {
        &self.store
    }

    /// Returns whether the backend is a server.
    pub(crate) fn is_server(&self) -> bool {
        matches!(self.store, BackendTable::Synapse(_))
    }
}

/// Writes the text from which the backend was parsed.
impl fmt::Display for BackendSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for BackendSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let Some(rest) = text.strip_prefix("faulty:") else {
            let mut store: BackendTable =
                text.parse().map_err(|error| format!("{error}; and faulty:KEY=NUMBER,...:BACKEND"))?;
            match &mut store {
                // The tool makes one call at a time, so threads would only cost time.
                BackendTable::File(file) => file.threads = 0,
                // A wrong address is an error of the command line.
                BackendTable::Synapse(remote) => drop(remote.client().map_err(|error| error.why)?),
                _ => {}
            }
            return Ok(Self { store, faults: Vec::new(), text: text.to_owned() });
        };
        let example =
            "faulty: expects keys and a backend, for example faulty:seed=1,error_permille=10:BACKEND";
        let (keys, below) = rest.split_once(':').ok_or(example)?;
        let plan = plan(keys)?;
        let mut spec: Self = below.parse()?;
        spec.faults.insert(0, plan);
        spec.text = text.to_owned();
        Ok(spec)
    }
}

fn plan(keys: &str) -> std::result::Result<FaultPlan, String> {
    let mut plan = FaultPlan::benign(1);
    for pair in keys.split(',').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or(format!("{pair:?} is not KEY=NUMBER"))?;
        let number = parse_number(key, value).map_err(|why| format!("{key}: {why}"))?;
        let permille = u32::try_from(number).ok().filter(|permille| *permille <= 1000);
        let permille = permille.ok_or(format!("{key}={number}: must be at most 1000"));
        match key {
            "seed" => plan.seed = number,
            "delay_us" => {
                plan.delay = Duration::ZERO..Duration::from_micros(number);
                plan.delay_permille = plan.delay_permille.max(1000);
            }
            "delay_permille" => plan.delay_permille = permille?,
            "error_permille" => plan.error_permille = permille?,
            "unknown_permille" => plan.unknown_permille = permille?,
            _ => return Err(format!("{key:?} is not a key of faulty:")),
        }
    }
    Ok(plan)
}

/// An open backend, which is closed in order when the command is done.
pub(crate) struct Opened {
    pub(crate) backend: Arc<dyn Blocker>,
    /// The store below the fault injection, for operations that only a store supports.
    pub(crate) store: Store,
}

/// The delay before the servers are asked again whether one of them serves.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The maximum time for closing the connection to a cluster.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl Opened {
    /// Opens the backend; `timeout` limits connecting and each request. If the backend has several
    /// servers, none of which serves, waits until one takes over. With `only_reads`, a store
    /// in a directory is not changed, and refuses changes.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) fn open(
        spec: &BackendSpec,
        secret: Option<&Secret>,
        timeout: Option<Duration>,
        only_reads: bool,
    ) -> Result<Self> {
        let (secret, client_name) = (secret.cloned(), "cachectl".into());
        let options = OpenOptions { secret, timeout, client_name, only_reads, ..OpenOptions::default() };
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut store = loop {
            let error = match Store::open(&spec.store, &options) {
                Ok(store) => break store,
                Err(StartError::Config(error) | StartError::Locked(error)) => {
                    return Err(Error::Denied(error.why.into()));
                }
                Err(StartError::Store(error)) => error,
            };
            let is_late = deadline.is_some_and(|deadline| Instant::now() + RETRY_DELAY >= deadline);
            if is_late || !spec.has_several_servers() || !matches!(error, Error::Retryable(_)) {
                return Err(error);
            }
            std::thread::sleep(RETRY_DELAY);
        };
        for plan in spec.faults.iter().rev() {
            let faulty = |below| Arc::new(Faulty::new(below, plan.clone(), Arc::new(SystemClock))) as _;
            store = store.with_layer(faulty);
        }
        Ok(Self { backend: store.backend(), store })
    }

    /// Closes the backend.
    ///
    /// # Errors
    /// Returns the errors of the store. In that case some data may not be stored.
    pub(crate) fn close(self) -> Result<()> {
        drop(self.backend);
        self.store.close(CLOSE_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_written_as_kind_and_rest() {
        let parse = |text: &str| text.parse::<BackendSpec>();
        let store = |text: &str| parse(text).unwrap().store.to_string();
        assert_eq!(store("memory:"), "memory:");
        assert_eq!(store("file:a:b"), "file:a:b");
        let spec = parse("faulty:seed=7,error_permille=5:file:d").unwrap();
        assert_eq!((spec.faults[0].seed, spec.faults[0].error_permille), (7, 5));
        assert_eq!(spec.store.to_string(), "file:d");
        let spec = parse("faulty:seed=1:faulty:seed=2:memory:").unwrap();
        assert_eq!(spec.faults.iter().map(|plan| plan.seed).collect::<Vec<_>>(), [1, 2]);
        let BackendTable::Rados(table) = parse("rados:vm,user=u").unwrap().store else {
            panic!("not taken for RADOS")
        };
        assert_eq!((table.pool.as_str(), table.user.as_str()), ("vm", "u"));
        assert_eq!(store("synapse:node:7"), "synapse:node:7");
        assert_eq!(store("synapse:unix:/run/s"), "synapse:unix:/run/s");
        assert_eq!(store("synapse:node:7,other"), "synapse:node:7,other");
        for wrong in [
            "",
            "synapse:",
            "synapse:node:port",
            "synapse:node:7,",
            "synapse:node,node:11311",
            "rados:",
            "rados:p,oops=1",
            "file",
            "file:",
            "memory:x",
            "tape:0",
            "faulty:seed=1",
            "faulty:seed=x:memory:",
            "faulty:error_permille=1001:memory:",
            "faulty:oops=1:memory:",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
