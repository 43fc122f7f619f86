//! `--backend`: which backend is meant, and how to open it. A new kind of backend is one more variant
//! here; no command knows which one it talks to.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use blocker::executor::block_on;
use blocker::faulty::FaultPlan;
use blocker::file::FileConfig;
use blocker::metrics::render;
use blocker::{Blocker, Control, Error, Faulty, FileStore, Memory, Namespace, Policy, Result, SystemClock};
use blocker_rados::{RadosConfig, RadosStore};
use synapse::{Address, AddressError, ClientConfig, Secret, SynapseBlocker};

/// A backend as it is written on the command line.
#[derive(Clone, Debug)]
pub(crate) enum BackendSpec {
    File(PathBuf),
    Memory,
    Rados(Box<RadosConfig>),
    Synapse(Address),
    Faulty(FaultPlan, Box<BackendSpec>),
}

impl FromStr for BackendSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (kind, rest) =
            text.split_once(':').ok_or("a backend is written KIND:..., for example file:DIR")?;
        match kind {
            "file" if rest.is_empty() => Err("file: needs a directory".into()),
            "file" => Ok(Self::File(rest.into())),
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err("memory: takes nothing after the colon".into()),
            "rados" => Ok(Self::Rados(Box::new(rest.parse()?))),
            "synapse" => rest.parse().map(Self::Synapse).map_err(|error: AddressError| error.to_string()),
            "faulty" => {
                let example = "faulty: is written faulty:seed=1,error_permille=10:BACKEND";
                let (keys, inner) = rest.split_once(':').ok_or(example)?;
                Ok(Self::Faulty(plan(keys)?, Box::new(inner.parse()?)))
            }
            _ => Err(format!(
                "{kind:?} is no kind of backend; there are file:DIR, memory:, rados:POOL, synapse:HOST:PORT and \
                 faulty:..."
            )),
        }
    }
}

fn plan(keys: &str) -> std::result::Result<FaultPlan, String> {
    let mut plan = FaultPlan::benign(1);
    for pair in keys.split(',').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or(format!("{pair:?} is not KEY=NUMBER"))?;
        let number: u64 = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
        let permille = u32::try_from(number).ok().filter(|permille| *permille <= 1000);
        let permille = permille.ok_or(format!("{key}={number}: at most 1000"));
        match key {
            "seed" => plan.seed = number,
            "delay_us" => {
                plan.delay = Duration::ZERO..Duration::from_micros(number);
                plan.delay_permille = plan.delay_permille.max(1000);
            }
            "delay_permille" => plan.delay_permille = permille?,
            "error_permille" => plan.error_permille = permille?,
            "unknown_permille" => plan.unknown_permille = permille?,
            _ => return Err(format!("{key:?} is no fault")),
        }
    }
    Ok(plan)
}

/// A backend, and what must be closed when the command is done.
pub(crate) struct Opened {
    pub(crate) backend: Arc<dyn Blocker>,
    /// What is not data path.
    pub(crate) control: Face,
    open: Open,
}

/// How a backend is controlled: here, or by its server.
#[derive(Clone)]
pub(crate) enum Face {
    Here(Arc<dyn Control>),
    There(SynapseBlocker),
}

/// What is to be closed in order.
enum Open {
    Nothing,
    File(Arc<FileStore>),
    Rados(Arc<RadosStore>),
}

/// How long the connection to a cluster may take to close.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

impl Face {
    /// The figures of the backend and of what is before it, by name.
    ///
    /// # Errors
    /// What its server says.
    pub(crate) fn statistics(&self) -> Result<Vec<(String, u64)>> {
        match self {
            Self::Here(control) => {
                let pairs = render::pairs(&block_on(control.metrics())?);
                Ok(pairs.into_iter().map(|pair| (pair.name, pair.value.to_u64())).collect())
            }
            Self::There(server) => {
                let pairs = render::pairs(&block_on(server.metrics())?);
                Ok(pairs.into_iter().map(|pair| (pair.name, pair.value.to_u64())).collect())
            }
        }
    }

    /// How a namespace is treated.
    ///
    /// # Errors
    /// `Unsupported` where nothing is cached.
    pub(crate) fn policy(&self, namespace: &Namespace) -> Result<Policy> {
        match self {
            Self::Here(control) => block_on(control.policy(namespace.clone())),
            Self::There(server) => block_on(server.policy(namespace.clone())),
        }
    }
}

impl Opened {
    /// # Errors
    /// What opening it says.
    pub(crate) fn open(
        spec: &BackendSpec,
        secret: Option<&Secret>,
        timeout: Option<Duration>,
    ) -> Result<Self> {
        match spec {
            BackendSpec::Memory => {
                let memory = Arc::new(Memory::default());
                let control = Face::Here(Arc::clone(&memory) as _);
                Ok(Self { backend: memory, control, open: Open::Nothing })
            }
            BackendSpec::File(dir) => {
                // One call at a time: threads would only cost.
                let config = FileConfig { threads: 0, ..FileConfig::default() };
                // Here it is the path that is wrong, not what lies behind it.
                std::fs::create_dir_all(dir).map_err(|error| {
                    let dir = dir.display();
                    Error::Denied(format!("{dir} is not there, and cannot be made: {error}").into())
                })?;
                let file = Arc::new(FileStore::open_with(dir, config, Arc::new(SystemClock))?);
                let control = Face::Here(Arc::clone(&file) as _);
                Ok(Self { backend: Arc::clone(&file) as _, control, open: Open::File(file) })
            }
            BackendSpec::Rados(config) => {
                let mut config = config.as_ref().clone();
                if let Some(timeout) = timeout {
                    config.op_timeout = match config.op_timeout {
                        Duration::ZERO => timeout,
                        own => own.min(timeout),
                    };
                    config.connect_timeout = config.connect_timeout.min(timeout);
                }
                let rados = Arc::new(RadosStore::open(config)?);
                let control = Face::Here(Arc::clone(&rados) as _);
                Ok(Self { backend: Arc::clone(&rados) as _, control, open: Open::Rados(rados) })
            }
            BackendSpec::Synapse(address) => {
                let mut config = ClientConfig::new(address.clone());
                config.secret = secret.cloned();
                config.name = "cachectl".into();
                config.call_timeout = timeout;
                if let Some(timeout) = timeout {
                    config.reconnect_timeout = config.reconnect_timeout.min(timeout);
                    config.connect_timeout = config.connect_timeout.min(timeout);
                }
                let client = SynapseBlocker::connect_on_thread(config)?;
                let control = Face::There(client.clone());
                Ok(Self { backend: Arc::new(client), control, open: Open::Nothing })
            }
            BackendSpec::Faulty(plan, inner) => {
                let Self { backend, control, open } = Self::open(inner, secret, timeout)?;
                let backend = Arc::new(Faulty::new(backend, plan.clone(), Arc::new(SystemClock)));
                Ok(Self { backend, control, open })
            }
        }
    }

    /// # Errors
    /// What closing it says: something may not be stored.
    pub(crate) fn close(self) -> Result<()> {
        drop((self.backend, self.control));
        match self.open {
            Open::Nothing => Ok(()),
            Open::File(file) => file.close(),
            Open::Rados(rados) => {
                // Everything acknowledged is stored; closing is only tidy.
                if let Some(rados) = Arc::into_inner(rados) {
                    rados.close(CLOSE_PATIENCE);
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_written_as_kind_and_rest() {
        assert!(matches!("memory:".parse(), Ok(BackendSpec::Memory)));
        assert!(matches!("file:a:b".parse(), Ok(BackendSpec::File(dir)) if dir.as_os_str() == "a:b"));
        let Ok(BackendSpec::Faulty(plan, inner)) = "faulty:seed=7,error_permille=5:file:d".parse() else {
            panic!("not taken for a faulty backend")
        };
        assert_eq!((plan.seed, plan.error_permille), (7, 5));
        assert!(matches!(*inner, BackendSpec::File(_)));
        let Ok(BackendSpec::Rados(config)) = "rados:vm,user=u".parse() else { panic!("not taken for RADOS") };
        assert_eq!((config.pool.as_str(), config.user.as_str()), ("vm", "u"));
        assert!(
            matches!("synapse:node:7".parse(), Ok(BackendSpec::Synapse(Address::Tcp(at))) if at == "node:7")
        );
        assert!(matches!("synapse:unix:/run/s".parse(), Ok(BackendSpec::Synapse(Address::Unix(_)))));
        for wrong in [
            "",
            "synapse:",
            "synapse:node:port",
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
            assert!(wrong.parse::<BackendSpec>().is_err(), "{wrong}");
        }
    }
}
