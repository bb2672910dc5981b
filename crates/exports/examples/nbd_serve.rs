//! Serves one drive over NBD until it is killed: the server alone, to measure it.
//!
//! Usage: `nbd_serve SOCKET [DRIVE [THREADS [BACKEND]]]`, for example
//! `nbd_serve /tmp/s null:size=1t 1 uring`; the back end is auto, uring or epoll. Not part of the
//! product: the `millrace` binary is. This exists so that the figures of the server can be taken
//! without it, and prints nothing.

use std::path::PathBuf;
use std::time::Duration;

use millrace_block::{Disk, DiskConfig, Volume};
use millrace_exports::nbd::{ExportConfig, Listen, ListenConfig, Server, ServerConfig};
use millrace_reactor::Backend;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().ok_or("usage: nbd_serve SOCKET [DRIVE [THREADS [BACKEND]]]")?;
    let drive = arguments.next().unwrap_or_else(|| "null:size=1t".to_owned());
    let threads = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let backend = match arguments.next().as_deref() {
        Some("uring") => Backend::Uring,
        Some("epoll") => Backend::Epoll,
        _ => Backend::Auto,
    };
    let opened = millrace_drives::open(&drive.parse()?, threads)?;
    let config = DiskConfig { io_threads: threads, ..DiskConfig::default() };
    let volume = Volume::single(Disk::new(opened.driver, config)?)?;
    let listen = Listen::Unix(PathBuf::from(socket));
    let _server = Server::start(ServerConfig {
        exports: vec![ExportConfig { description: drive, ..ExportConfig::new("vol0", volume) }],
        listeners: vec![ListenConfig::new(listen, vec![0])],
        threads,
        backend,
        ..ServerConfig::default()
    })?;
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
