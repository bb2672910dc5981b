//! The messages of vhost-user as bytes: any message, any descriptors, in any order.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::LONG;

/// Numbers of the messages.
pub mod code {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// Version 1, and the wish for an answer.
pub const VERSION: u32 = 1;
pub const NEED_REPLY: u32 = 8;

/// The bytes of several numbers in a row.
pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Two numbers of 32 bits: a ring and something of it.
pub fn pair(index: u32, value: u32) -> Vec<u8> {
    words(&[u64::from(index) | u64::from(value) << 32])
}

/// A connection to a device.
pub struct Wire {
    pub stream: UnixStream,
}

impl Wire {
    pub fn connect(path: &Path) -> Wire {
        Wire::over(UnixStream::connect(path).unwrap())
    }

    pub fn over(stream: UnixStream) -> Wire {
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        Wire { stream }
    }

    /// Sends bytes; false if the other side has gone.
    pub fn put(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent =
            sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
        sent.is_ok_and(|sent| sent == bytes.len())
    }

    /// Sends a message; false if the other side has gone.
    pub fn send(&self, code: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let header = [code, flags, payload.len() as u32].map(u32::to_ne_bytes).concat();
        self.put(&[&header, payload].concat(), fds)
    }

    /// The next answer: its message, payload and descriptors. None if the other side has gone.
    pub fn answer(&self) -> Option<(u32, Vec<u8>, Vec<File>)> {
        let mut header = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        // A receive with a timeout is interrupted when the process is stopped and continued.
        let receive = || recvmsg(&self.stream, &mut pieces, &mut ancillary, flags);
        let got = match rustix::io::retry_on_intr(receive) {
            Ok(got) => got.bytes,
            Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE) => 0,
            Err(error) => panic!("no answer: {error}"),
        };
        let fds = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.map(File::from).collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let fds = fds.collect();
        if got < header.len() {
            return None;
        }
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        assert_eq!(word(4) & 7, 5, "version 1, a reply");
        let mut payload = vec![0; word(8) as usize];
        (&self.stream).read_exact(&mut payload).unwrap();
        Some((word(0), payload, fds))
    }

    /// Asks for something; none if the other side hangs up instead.
    pub fn ask(&self, code: u32, payload: &[u8]) -> Option<Vec<u8>> {
        self.send(code, VERSION, payload, &[]);
        let (answered, payload, _) = self.answer()?;
        assert_eq!(answered, code);
        Some(payload)
    }

    /// Asks for a number.
    pub fn ask_number(&self, code: u32) -> u64 {
        u64::from_ne_bytes(self.ask(code, &[]).unwrap().try_into().unwrap())
    }

    /// Orders something and waits for the answer: whether it was done.
    pub fn order(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        self.send(code, VERSION | NEED_REPLY, payload, fds);
        match self.answer() {
            Some((answered, payload, _)) => {
                assert_eq!((answered, payload.len()), (code, 8));
                payload == [0; 8]
            }
            None => false,
        }
    }

    /// Orders something that must be done.
    pub fn must(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        assert!(self.order(code, payload, fds), "message {code} is refused");
    }

    /// Waits until the other side has hung up.
    pub fn until_closed(&self) {
        let mut byte = [0; 256];
        while (&self.stream).read(&mut byte).is_ok_and(|got| got > 0) {}
    }
}
