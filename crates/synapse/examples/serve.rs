//! Serves a backend over TCP with a shared secret, and uses it through a client like another host.
//!
//! ```text
//! cargo run -p cached-synapse --example serve
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use blocker::metrics::render;
use blocker::{
    Blocker, BlockerExt, FlushRequest, Memory, Name, Namespace, ObjectId, ReadRequest, Scope, WriteRequest,
};
use synapse::{ClientConfig, Secret, Server, ServerConfig, SynapseBlocker};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // Both sides need the same secret, for example the output of `openssl rand -hex 32`.
    let secret = Secret::new(b"5f1d0c9a7b3e4f5688aa0b1c2d3e4f50")?;

    // The server, with an in-memory backend. Port 0 lets the system choose a port.
    let mut config = ServerConfig::default();
    config.secret = Some(secret.clone());
    let server = Server::new(Arc::new(Memory::default()), config)?;
    let address = server.listen(&"127.0.0.1:0".parse()?).await?;

    // The client, through which the backend is used over the network.
    let mut config = ClientConfig::new(address);
    config.secret = Some(secret);
    config.name = "example".into();
    let store = SynapseBlocker::connect(config).await?;

    let disk = ObjectId::new(Namespace::new("vm")?, Name::new("disk.0")?);
    store.write(WriteRequest::new(disk.clone(), 4096, b"hello")).await?;
    store.flush(FlushRequest::new(Scope::Object(disk.clone()))).await?;
    let read = store.read(ReadRequest::new(disk, 4096, 5)).await?;
    println!("read {:?}", String::from_utf8(read.data.to_vec())?);

    // The control plane is available over the network too.
    for pair in render::pairs(&store.control().metrics().await?) {
        println!("{pair}");
    }

    drop(store);
    server.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
