//! A bare NBD connection on a standard socket, for tests that must be rude or count every byte.
//!
//! Owns one stream with time limits, so that a server that never answers fails the test instead of
//! stopping it. Speaks simple replies only, keeps no state but the stream, and checks nothing that
//! a test might want to break. Called by the tests; calls nothing of the product, so a
//! mistake in the protocol core cannot hide here.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Command: read.
pub const READ: u16 = 0;
/// Command: write.
pub const WRITE: u16 = 1;
/// Command: flush.
pub const FLUSH: u16 = 3;
/// Command: trim.
pub const TRIM: u16 = 4;
/// Flag of a command: it is on stable storage when it is answered.
pub const FLAG_FUA: u16 = 1;
/// Bytes of a simple reply without its payload.
pub const REPLY_BYTES: usize = 16;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPT_EXPORT_NAME: u32 = 1;
/// Longer than anything a healthy server needs on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes that a client sends to be granted `export` and nothing else: its flags and one option.
#[must_use]
pub fn handshake(export: &str) -> Vec<u8> {
    // Fixed newstyle, and no zeroes after the answer.
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(b"IHAVEOPT");
    bytes.extend_from_slice(&OPT_EXPORT_NAME.to_be_bytes());
    bytes.extend_from_slice(&(export.len() as u32).to_be_bytes());
    bytes.extend_from_slice(export.as_bytes());
    bytes
}

/// The header of a request; the payload of a write comes after it.
#[must_use]
pub fn request(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    flagged_request(0, command, cookie, offset, length)
}

/// [`request`] with flags.
#[must_use]
pub fn flagged_request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// A connection.
#[derive(Debug)]
pub struct RawNbd {
    stream: UnixStream,
    size_bytes: u64,
}

impl RawNbd {
    /// Connects and reads the greeting; the handshake is the caller's to do.
    ///
    /// # Errors
    ///
    /// The socket's error; `UnexpectedEof` if the server closes instead of greeting.
    pub fn greet(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut raw = RawNbd { stream, size_bytes: 0 };
        let mut greeting = [0; 18];
        raw.stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        Ok(raw)
    }

    /// Connects and is granted `export`.
    ///
    /// # Errors
    ///
    /// As [`RawNbd::greet`].
    pub fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let mut raw = RawNbd::greet(socket)?;
        raw.send(&handshake(export))?;
        let mut answer = [0; 10];
        raw.stream.read_exact(&mut answer)?;
        let (size, _flags) = answer.split_first_chunk().expect("10 bytes hold 8");
        raw.size_bytes = u64::from_be_bytes(*size);
        Ok(raw)
    }

    /// Size of the export in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    ///
    /// The socket's error; `BrokenPipe` if the server has closed.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives exactly as many bytes as `bytes` has.
    ///
    /// # Errors
    ///
    /// The socket's error; `WouldBlock` after 20 s.
    pub fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.stream.read_exact(bytes)
    }

    /// Receives the head of a simple reply: the NBD error, 0 for success, and the cookie.
    ///
    /// # Errors
    ///
    /// As [`RawNbd::receive`].
    ///
    /// # Panics
    ///
    /// When what comes is no simple reply.
    pub fn reply(&mut self) -> io::Result<(u32, u64)> {
        let mut bytes = [0; REPLY_BYTES];
        self.receive(&mut bytes)?;
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(word(0), REPLY_MAGIC, "not a simple reply: {bytes:x?}");
        Ok((word(4), u64::from(word(8)) << 32 | u64::from(word(12))))
    }

    /// Writes `data` at `offset` and waits for the reply.
    ///
    /// # Errors
    ///
    /// As [`RawNbd::reply`].
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = request(WRITE, offset, offset, data.len() as u32);
        bytes.extend_from_slice(data);
        self.send(&bytes)?;
        assert_eq!(self.reply()?, (0, offset), "write of {} bytes", data.len());
        Ok(())
    }

    /// Reads `length` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// As [`RawNbd::reply`].
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub fn read(&mut self, offset: u64, length: u32) -> io::Result<Vec<u8>> {
        self.send(&request(READ, offset, offset, length))?;
        assert_eq!(self.reply()?, (0, offset), "read of {length} bytes");
        let mut data = vec![0; length as usize];
        self.receive(&mut data)?;
        Ok(data)
    }

    /// Makes everything written durable.
    ///
    /// # Errors
    ///
    /// As [`RawNbd::reply`].
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub fn flush(&mut self) -> io::Result<()> {
        self.send(&request(FLUSH, 1, 0, 0))?;
        assert_eq!(self.reply()?, (0, 1), "flush");
        Ok(())
    }

    /// A second handle of the socket, by which another thread can end it.
    ///
    /// # Errors
    ///
    /// The error of duplicating the descriptor.
    pub fn clone_stream(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Ends the client's sending direction, as a client does that half-closes its socket.
    pub fn stop_sending(&self) {
        // A shutdown fails only if the server was faster to close.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Waits for the server to close, and discards the bytes that it still sends. Returns false if
    /// the connection is still open after 20 s.
    pub fn is_closed_by_server(&mut self) -> bool {
        let mut rest = vec![0; 64 * 1024];
        loop {
            match self.stream.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                // Bytes of ours that were not read when it closed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_28_bytes_with_length_last() {
        let bytes = request(READ, 7, 512, 0x0102_0304);
        assert_eq!(bytes.len(), 28);
        assert_eq!(bytes[24..], [1, 2, 3, 4]);
    }
}
