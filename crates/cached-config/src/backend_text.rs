//! A backend in one line: `memory:`, `file:DIR`, `rados:POOL[,KEY=VALUE]...`, `s3:BUCKET[,KEY=VALUE]...`,
//! `synapse:ADDRESS`.

use crate::backend::{BackendTable, FileTable, MemoryTable, RadosTable, RemoteTable};
use crate::s3_table::S3Table;
use std::fmt;
use std::str::FromStr;

impl FromStr for BackendTable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory(MemoryTable::default())),
            Some(("memory", _)) => Err("memory: takes nothing after the colon".into()),
            Some(("file", "")) => Err("file: needs a directory".into()),
            Some(("file", dir)) => Ok(Self::File(FileTable { path: dir.into(), ..FileTable::default() })),
            Some(("rados", rest)) => rados(rest).map(Self::Rados),
            Some(("s3", rest)) => s3(rest).map(Self::S3),
            Some(("synapse", "")) => Err("synapse: needs an address".into()),
            Some(("synapse", address)) => {
                Ok(Self::Synapse(RemoteTable { address: address.into(), ..RemoteTable::default() }))
            }
            _ => Err(format!(
                "{text:?} is no kind of backend; there are memory:, file:DIR, rados:POOL[,KEY=VALUE]..., \
                 s3:BUCKET[,KEY=VALUE]... and synapse:HOST:PORT"
            )),
        }
    }
}

/// Writes the kind and the place in one line, without the other keys.
impl fmt::Display for BackendTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(_) => f.write_str("memory:"),
            Self::File(table) => write!(f, "file:{}", table.path.display()),
            Self::Rados(table) => write!(f, "rados:{}", table.pool),
            Self::S3(table) => write!(f, "s3:{}", table.bucket),
            Self::Synapse(table) => write!(f, "synapse:{}", table.address),
        }
    }
}

#[cfg(feature = "rados")]
fn rados(text: &str) -> Result<RadosTable, String> {
    let config: blocker_rados::RadosConfig = text.parse()?;
    let default = blocker_rados::RadosConfig::default();
    let size = Some(config.object_bytes_max).filter(|bytes| *bytes != default.object_bytes_max);
    Ok(RadosTable {
        pool: config.pool,
        conf: config.conf_file.unwrap_or_default(),
        user: config.user,
        keyring: config.keyring.unwrap_or_default(),
        root: config.root,
        prefix: config.prefix,
        connect_timeout_secs: config.connect_timeout.as_secs(),
        op_timeout_secs: config.op_timeout.as_secs(),
        ops_in_flight_max: config.ops_in_flight_max,
        bytes_in_flight_max: crate::size::Size(config.bytes_in_flight_max),
        heads_remembered_max: config.heads_remembered_max,
        watch: config.watch,
        object_bytes_max: size.map(crate::size::Size),
        librados: config.librados.into_iter().collect(),
    })
}

#[cfg(not(feature = "rados"))]
fn rados(_: &str) -> Result<RadosTable, String> {
    Err("rados: is not built in; build with --features rados".into())
}

#[cfg(feature = "s3")]
fn s3(text: &str) -> Result<S3Table, String> {
    text.parse()
}

#[cfg(not(feature = "s3"))]
fn s3(_: &str) -> Result<S3Table, String> {
    Err("s3: is not built in; build with --features s3".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_written_as_kind_and_rest() {
        assert!(matches!("memory:".parse(), Ok(BackendTable::Memory(_))));
        assert!(
            matches!("file:/a:b".parse(), Ok(BackendTable::File(table)) if table.path.as_os_str() == "/a:b")
        );
        assert!(matches!("synapse:n:7".parse(), Ok(BackendTable::Synapse(table)) if table.address == "n:7"));
        for wrong in ["", "memory", "memory:x", "file:", "rados:", "s3:", "synapse:", "tape:0"] {
            assert!(wrong.parse::<BackendTable>().is_err(), "{wrong}");
        }
        for text in ["memory:", "file:/a:b", "synapse:n:7"] {
            assert_eq!(text.parse::<BackendTable>().unwrap().to_string(), text);
        }
    }

    #[cfg(feature = "rados")]
    #[test]
    fn rados_takes_its_keys_behind_the_pool() {
        let Ok(BackendTable::Rados(table)) =
            "rados:vm,id=u,keyring=/k,op_timeout_secs=5,librados.a=b,object_bytes_max=8192".parse()
        else {
            panic!("not taken for RADOS")
        };
        assert_eq!((table.pool.as_str(), table.user.as_str(), table.op_timeout_secs), ("vm", "u", 5));
        assert_eq!(table.store(1 << 20).object_bytes_max, 8192);
        assert_eq!(table.librados["a"], "b");
    }
}
