//! What is served: written as `KIND:REST`, opened at the start, closed in order at the end.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use blocker::{Blocker, Control, FileStore, Memory};
use blocker_rados::{RadosConfig, RadosStore};

/// A backend as it is written.
#[derive(Clone, Debug)]
pub(crate) enum BackendSpec {
    /// `memory:`
    Memory,
    /// `file:DIR`
    File(PathBuf),
    /// `rados:POOL[,key=value...]`
    Rados(Box<RadosConfig>),
}

impl FromStr for BackendSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("memory", _)) => Err("memory: takes nothing after the colon".into()),
            Some(("file", "")) => Err("file: needs a directory".into()),
            Some(("file", dir)) => Ok(Self::File(dir.into())),
            Some(("rados", rest)) => Ok(Self::Rados(Box::new(rest.parse()?))),
            _ => Err(format!(
                "{text:?} is no kind of backend; there are memory:, file:DIR and rados:POOL[,key=value...]"
            )),
        }
    }
}

/// An open backend.
pub(crate) struct Opened {
    pub(crate) blocker: Arc<dyn Blocker>,
    pub(crate) control: Option<Arc<dyn Control>>,
    open: Open,
}

/// What is to be closed in order.
enum Open {
    Nothing,
    File(Arc<FileStore>),
    Rados(Arc<RadosStore>),
}

impl BackendSpec {
    /// # Errors
    /// What opening it says.
    pub(crate) fn open(&self) -> blocker::Result<Opened> {
        Ok(match self {
            Self::Memory => {
                let memory = Arc::new(Memory::default());
                Opened { blocker: Arc::clone(&memory) as _, control: Some(memory), open: Open::Nothing }
            }
            Self::File(dir) => {
                let file = Arc::new(FileStore::open(dir)?);
                let control: Arc<dyn Control> = Arc::clone(&file) as _;
                Opened { blocker: Arc::clone(&file) as _, control: Some(control), open: Open::File(file) }
            }
            Self::Rados(config) => {
                let rados = Arc::new(RadosStore::open(config.as_ref().clone())?);
                let control: Arc<dyn Control> = Arc::clone(&rados) as _;
                Opened { blocker: Arc::clone(&rados) as _, control: Some(control), open: Open::Rados(rados) }
            }
        })
    }
}

impl Opened {
    /// Closes it, once nobody uses it any more.
    ///
    /// # Errors
    /// Something may not be stored.
    pub(crate) fn close(self, patience: Duration) -> blocker::Result<()> {
        drop((self.blocker, self.control));
        match self.open {
            Open::Nothing => Ok(()),
            Open::File(file) => file.close(),
            Open::Rados(rados) => {
                // Everything acknowledged is stored; closing is only tidy.
                if let Some(rados) = Arc::into_inner(rados) {
                    rados.close(patience);
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
        assert!(matches!("file:/a:b".parse(), Ok(BackendSpec::File(dir)) if dir.as_os_str() == "/a:b"));
        assert!(matches!("rados:vm".parse(), Ok(BackendSpec::Rados(config)) if config.pool == "vm"));
        for wrong in ["", "memory", "memory:x", "file:", "rados:", "tape:0"] {
            assert!(wrong.parse::<BackendSpec>().is_err(), "{wrong}");
        }
    }
}
