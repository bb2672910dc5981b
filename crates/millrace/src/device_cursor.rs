//! `DeviceCursor`: a [`BlockDevice`] as a stream of bytes with a position.
//!
//! Whole blocks are transferred directly between the caller's memory and the device. A block that a
//! write covers only in part is read into a buffer, changed and written back.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::BlockDevice;

/// Reads, writes and seeks on a device at any byte offset, as on a file.
///
/// A write of less than a logical block reads the block first, so nothing else may write to the
/// same block at the same time. For many small reads or writes, wrap the cursor in a
/// [`BufReader`](io::BufReader) or [`BufWriter`](io::BufWriter) with a buffer of several blocks.
/// `flush` makes all writes durable. At the end of the device, `read` and `write` return 0, so
/// `write_all` fails with `WriteZero`.
///
/// # Example
///
/// ```
/// use std::io::{Read, Seek, SeekFrom, Write};
///
/// use millrace::{BlockDevice, DeviceCursor};
///
/// let mut disk = DeviceCursor::new(BlockDevice::open_drive("ram:size=1m")?);
/// disk.seek(SeekFrom::Start(1000))?;
/// disk.write_all(b"hello")?;
/// disk.flush()?;
/// disk.seek(SeekFrom::Current(-5))?;
/// let mut text = [0; 5];
/// disk.read_exact(&mut text)?;
/// assert_eq!(&text, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeviceCursor {
    device: BlockDevice,
    position_bytes: u64,
    block: Vec<u8>,
}

enum TransferPiece {
    /// The next bytes of the transfer form whole blocks. The field is the total length of these
    /// blocks in bytes.
    Blocks(usize),
    /// The next `len` bytes of the transfer lie in a single block, from byte `from` of the block
    /// on.
    PartOfBlock { from: usize, len: usize },
}

impl DeviceCursor {
    /// Creates a cursor at the start of a device.
    #[must_use]
    pub fn new(device: BlockDevice) -> DeviceCursor {
        let block = vec![0; device.block_bytes() as usize];
        DeviceCursor { device, position_bytes: 0, block }
    }

    /// Returns the device.
    #[must_use]
    pub fn get_ref(&self) -> &BlockDevice {
        &self.device
    }

    /// Returns the device. I/O on it does not move the cursor.
    pub fn get_mut(&mut self) -> &mut BlockDevice {
        &mut self.device
    }

    /// Returns the device.
    #[must_use]
    pub fn into_inner(self) -> BlockDevice {
        self.device
    }

    /// Returns the next piece of a transfer of `len` bytes, or `None` at the end of the transfer or
    /// of the device.
    fn piece(&self, len: usize) -> Option<TransferPiece> {
        let block_bytes = self.block.len();
        let left = self.device.size_bytes().saturating_sub(self.position_bytes);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        let from = (self.position_bytes % block_bytes as u64) as usize;
        match (from, len) {
            (_, 0) => None,
            (0, len) if len >= block_bytes => Some(TransferPiece::Blocks(len - len % block_bytes)),
            _ => Some(TransferPiece::PartOfBlock { from, len: len.min(block_bytes - from) }),
        }
    }

    /// Reads the block that contains the position, and returns the offset of the block.
    fn read_block(&mut self) -> io::Result<u64> {
        let offset_bytes = self.position_bytes - self.position_bytes % self.block.len() as u64;
        self.device.read_at(offset_bytes, &mut self.block)?;
        Ok(offset_bytes)
    }

    fn advance(&mut self, len: usize) -> usize {
        self.position_bytes += len as u64;
        len
    }
}

impl Read for DeviceCursor {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = match self.piece(into.len()) {
            None => 0,
            Some(TransferPiece::Blocks(len)) => {
                self.device.read_at(self.position_bytes, &mut into[..len])?;
                len
            }
            Some(TransferPiece::PartOfBlock { from, len }) => {
                self.read_block()?;
                into[..len].copy_from_slice(&self.block[from..from + len]);
                len
            }
        };
        Ok(self.advance(len))
    }
}

impl Write for DeviceCursor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = match self.piece(bytes.len()) {
            None => 0,
            Some(TransferPiece::Blocks(len)) => {
                self.device.write_at(self.position_bytes, &bytes[..len])?;
                len
            }
            Some(TransferPiece::PartOfBlock { from, len }) => {
                let offset_bytes = self.read_block()?;
                self.block[from..from + len].copy_from_slice(&bytes[..len]);
                self.device.write_at(offset_bytes, &self.block)?;
                len
            }
        };
        Ok(self.advance(len))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.device.flush()
    }
}

impl Seek for DeviceCursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position_bytes = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.device.size_bytes().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position_bytes.checked_add_signed(offset),
        };
        self.position_bytes = position_bytes.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "seek to a position before byte 0")
        })?;
        Ok(self.position_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE_BYTES: usize = 16 << 10;

    /// Offset and length in bytes; an even number is written, an odd one means a read.
    fn steps() -> impl Strategy<Value = Vec<(usize, usize, u8)>> {
        prop::collection::vec((0..SIZE_BYTES + 100, 0..3000_usize, any::<u8>()), 1..40)
    }

    proptest! {
        #[test]
        fn reads_and_writes_at_any_byte_are_those_of_a_plain_array(
            steps in steps(),
        ) {
            let device = BlockDevice::linear(&["ram:size=8k,block=1k", "ram:size=8k"]).unwrap();
            let mut cursor = DeviceCursor::new(device);
            let mut plain = io::Cursor::new(vec![0_u8; SIZE_BYTES]);
            for (at, len, fill) in steps {
                cursor.seek(SeekFrom::Start(at as u64)).unwrap();
                if fill % 2 == 0 {
                    let len = len.min(SIZE_BYTES.saturating_sub(at));
                    cursor.write_all(&vec![fill; len]).unwrap();
                    plain.get_mut().iter_mut().skip(at).take(len).for_each(|byte| *byte = fill);
                } else {
                    plain.set_position(at as u64);
                    let (mut read, mut expected) = (Vec::new(), Vec::new());
                    (&mut cursor).take(len as u64).read_to_end(&mut read).unwrap();
                    (&mut plain).take(len as u64).read_to_end(&mut expected).unwrap();
                    prop_assert_eq!(read, expected);
                }
            }
        }
    }

    #[test]
    fn device_end_takes_no_more_and_positions_start_at_zero() {
        let mut cursor = DeviceCursor::new(BlockDevice::open_drive("ram:size=4k").unwrap());
        assert_eq!(cursor.seek(SeekFrom::End(-10)).unwrap(), 4086);
        let error = cursor.write_all(&[7; 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
        assert_eq!(cursor.read(&mut [0; 10]).unwrap(), 0);
        let error = cursor.seek(SeekFrom::Current(-5000)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        cursor.flush().unwrap();
        let mut block = [0; 512];
        cursor.into_inner().read_at(4096 - 512, &mut block).unwrap();
        assert_eq!((block[501], &block[502..]), (0, &[7; 10][..]));
    }
}
