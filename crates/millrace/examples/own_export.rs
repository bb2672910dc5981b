//! A custom server: a volume over a Unix socket, with a protocol of two words.
//!
//! A client writes `read OFFSET LENGTH` and a line feed, and gets one line, `ok` or an error text,
//! and after `ok` that many bytes. Each connection has a thread with a device of its own, so that
//! connections share nothing but the volume. (The NBD server of the feature `serve` runs many
//! connections on a few threads instead.) The volume stripes over the drives in the arguments, such
//! as `file:path=a.img,size=64m`, or over memory without any. `cargo run -p millrace --example
//! own_export -- SOCKET [SPEC...]`
#![allow(clippy::print_stderr)]

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use millrace::{BlockDevice, Volume};

/// Longest read that a client may ask for, so that clients cannot exhaust memory.
const LENGTH_MAX: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().ok_or("give the path of a socket, and perhaps drives")?;
    let given: Vec<String> = arguments.collect();
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let drives = if given.is_empty() { &["ram:size=64m", "ram:size=64m"] } else { &given[..] };
    let disk = BlockDevice::stripe(drives)?;
    serve(&UnixListener::bind(Path::new(&socket))?, disk.volume())?;
    Ok(())
}

/// Serves clients until the listener fails.
pub fn serve(listener: &UnixListener, volume: &Arc<Volume>) -> io::Result<()> {
    for client in listener.incoming() {
        let (client, volume) = (client?, Arc::clone(volume));
        // An error ends only the thread of that client.
        std::thread::spawn(move || {
            if let Err(error) = serve_client(client, &volume) {
                eprintln!("a client's connection ends: {error}");
            }
        });
    }
    Ok(())
}

/// Serves one client until it disconnects.
fn serve_client(mut client: UnixStream, volume: &Arc<Volume>) -> io::Result<()> {
    let mut disk = match BlockDevice::open(volume) {
        Ok(disk) => disk,
        Err(error) => {
            // Fails, for example, if there are more clients than queues of file drives.
            writeln!(client, "{error}")?;
            return Err(io::Error::other(error));
        }
    };
    for line in BufReader::new(client.try_clone()?).lines() {
        match answer(&mut disk, &line?) {
            Ok(bytes) => {
                client.write_all(b"ok\n")?;
                client.write_all(&bytes)?;
            }
            Err(error) => writeln!(client, "{error}")?,
        }
    }
    Ok(())
}

/// Reads the bytes that a line asks for. The line is untrusted input.
fn answer(disk: &mut BlockDevice, line: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let words: Vec<&str> = line.split(' ').collect();
    let ["read", offset_bytes, length] = words.as_slice() else {
        return Err("write: read OFFSET LENGTH".into());
    };
    let length: usize = length.parse()?;
    if length > LENGTH_MAX {
        return Err(format!("at most {LENGTH_MAX} bytes at a time").into());
    }
    let mut bytes = vec![0; length];
    // Also refuses ranges that do not consist of whole blocks or exceed the volume.
    disk.read_at(offset_bytes.parse()?, &mut bytes)?;
    Ok(bytes)
}
