//! A server of one's own: a volume over a Unix socket, with a protocol of two words.
//!
//! A client writes `read OFFSET LENGTH` and a line feed, and gets an answer of one line, `ok` or
//! what went wrong, with that many bytes behind an `ok`. Each connection has a thread of its own,
//! and each thread a device of its own on the same volume: nothing is shared but the volume. (The
//! NBD server of the feature `serve` turns many connections on a few threads instead.) It stripes
//! over the drives of the specs, such as `file:path=a.img,size=64m`, or over memory without one.
//! `cargo run -p millrace --example own_export -- SOCKET [SPEC...]`
#![allow(clippy::print_stderr)]

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use millrace::{BlockDevice, Volume};

/// Most bytes that a client may ask for: nobody outside decides how much memory is taken.
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

/// Serves whoever connects, until the listener fails.
pub fn serve(listener: &UnixListener, volume: &Arc<Volume>) -> io::Result<()> {
    for client in listener.incoming() {
        let (client, volume) = (client?, Arc::clone(volume));
        // A client that goes away ends its own thread only.
        std::thread::spawn(move || {
            if let Err(error) = serve_client(client, &volume) {
                eprintln!("a client's connection ends: {error}");
            }
        });
    }
    Ok(())
}

/// Answers one client until it has gone.
fn serve_client(mut client: UnixStream, volume: &Arc<Volume>) -> io::Result<()> {
    let mut disk = match BlockDevice::open(volume) {
        Ok(disk) => disk,
        Err(error) => {
            // Such as that more clients are there than threads may use files.
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

/// The bytes that a line asks for. The line may be anything: whoever connects has written it.
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
    // Refuses ranges that are not of whole blocks, or reach behind the end.
    disk.read_at(offset_bytes.parse()?, &mut bytes)?;
    Ok(bytes)
}
