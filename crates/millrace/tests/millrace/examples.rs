//! The examples, each run as a newcomer would run it.

#[path = "../../examples/async_tokio.rs"]
mod async_tokio;
#[path = "../../examples/own_driver.rs"]
mod own_driver;
#[path = "../../examples/own_export.rs"]
mod own_export;
#[path = "../../examples/own_scheduler.rs"]
mod own_scheduler;
#[path = "../../examples/stripe.rs"]
mod stripe;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace::{BlockDevice, Layout, build_volume};

#[test]
fn stripe_reads_what_it_wrote_on_memory_and_on_files() {
    stripe::run(&["ram:size=4m", "ram:size=4m"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let spec = |name: &str| format!("file:path={},size=4m", dir.path().join(name).display());
    stripe::run(&[&spec("a"), &spec("b")]).unwrap();
}

#[test]
fn own_scheduler_serves_a_disk_that_rotates() {
    own_scheduler::run().unwrap();
}

#[test]
fn own_driver_keeps_its_bytes_inverted() {
    own_driver::run().unwrap();
}

#[test]
fn own_driver_is_as_short_as_it_says() {
    let text = include_str!("../../examples/own_driver.rs");
    let (head, rest) = text.split_once("\n/// Drive whose ").unwrap();
    let (driver, _) = rest.split_once("\nfn main() ").unwrap();
    assert!(head.contains("less than 70 lines"));
    let imports = head.rsplit("\nuse ").next().unwrap();
    assert_eq!(imports.matches(';').count(), 1, "the driver begins behind the imports");
    let lines = driver.trim_end().lines().count();
    assert!(lines < 70, "{lines} lines");
}

#[test]
fn async_tokio_shares_a_device_among_tasks() {
    async_tokio::run().unwrap();
}

#[test]
fn own_export_answers_a_client_and_refuses_what_makes_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let mut disk = BlockDevice::stripe(&["ram:size=1m", "ram:size=1m"]).unwrap();
    disk.write_at(512, &[b'm'; 512]).unwrap();
    let volume = Arc::clone(disk.volume());
    // The server ends with the process.
    std::thread::spawn(move || own_export::serve(&listener, &volume));
    let mut client = UnixStream::connect(&path).unwrap();
    let mut answers = BufReader::new(client.try_clone().unwrap());
    let mut ask = |line: &str, length: usize| {
        writeln!(client, "{line}").unwrap();
        let mut said = String::new();
        answers.read_line(&mut said).unwrap();
        let mut bytes = vec![0; length];
        answers.read_exact(&mut bytes).unwrap();
        (said, bytes)
    };
    assert_eq!(ask("read 512 512", 512), ("ok\n".to_owned(), vec![b'm'; 512]));
    assert_eq!(ask("rm -rf", 0).0, "write: read OFFSET LENGTH\n");
    assert!(ask("read 1 512", 0).0.contains("multiples of its logical block of 512 bytes"));
    assert_eq!(ask("read 0 9999999", 0).0, "at most 1048576 bytes at a time\n");
    assert_eq!(ask("read 0 0", 0).0, "ok\n");
}

/// The first line that a client hears.
fn heard(path: &Path, ask: &str) -> String {
    let mut client = UnixStream::connect(path).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    writeln!(client, "{ask}").unwrap();
    let mut said = String::new();
    BufReader::new(client).read_line(&mut said).unwrap();
    said
}

#[test]
fn export_from_files_serves_several_clients_and_explains_limits() {
    let dir = tempfile::tempdir().unwrap();
    let spec = |name: &str| format!("file:path={},size=1m", dir.path().join(name).display());
    let disk = BlockDevice::stripe(&[spec("a"), spec("b")]).unwrap();
    let path = dir.path().join("s");
    let (listener, volume) = (UnixListener::bind(&path).unwrap(), Arc::clone(disk.volume()));
    std::thread::spawn(move || own_export::serve(&listener, &volume));
    let waiting: Vec<_> = (0..4).map(|_| UnixStream::connect(&path).unwrap()).collect();
    assert_eq!(heard(&path, "read 0 512"), "ok\n", "beside four others");
    drop(waiting);
    // The drives of this one are opened for one thread, which is this.
    let drives = [spec("c").parse().unwrap()];
    let (volume, _) = build_volume("v", Layout::Linear, &drives, &Default::default()).unwrap();
    let _disk = BlockDevice::open(&volume).unwrap();
    let path = dir.path().join("t");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || own_export::serve(&listener, &volume));
    let said = heard(&path, "read 0 512");
    assert!(said.contains("each of its 1 queues belongs to another thread; open the"), "{said}");
}
