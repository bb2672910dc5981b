//! The kernel's trace record, `struct blk_io_trace`: its fields, and its encoding to and from
//! bytes.
//!
//! A record is 48 bytes in the byte order of its machine, which the magic number shows, followed by
//! `pdu_len` bytes of data; numbers in that data are big-endian. No other code parses these
//! untrusted bytes. Source: include/uapi/linux/blktrace_api.h, version 7.

use core::fmt;

/// Length of a record in bytes, without the data that follow the record.
pub const RECORD_BYTES: usize = 48;
/// Magic number: the upper 24 bits of a record's first word.
pub const MAGIC: u32 = 0x6561_7400;
/// Version number: the lower 8 bits of a record's first word.
pub const VERSION: u32 = 7;
/// Bit added to an action's code when the kernel puts a cgroup number (8 bytes) before the data.
pub const CGROUP: u32 = 1 << 8;
/// Length of the cgroup number in bytes.
pub const CGROUP_BYTES: usize = 8;

/// Categories of events: bits of the upper half of an action.
pub mod category {
    /// Category: reads.
    pub const READ: u16 = 1;
    /// Category: writes.
    pub const WRITE: u16 = 1 << 1;
    /// Category: requests that flush the drive's cache first.
    pub const FLUSH: u16 = 1 << 2;
    /// Category: synchronous requests. A task waits for the completion.
    pub const SYNC: u16 = 1 << 3;
    /// Category: queueing and merging.
    pub const QUEUE: u16 = 1 << 4;
    /// Category: requeued requests. The driver gave them back, to be dispatched again later.
    pub const REQUEUE: u16 = 1 << 5;
    /// Category: requests that were dispatched to the driver.
    pub const ISSUE: u16 = 1 << 6;
    /// Category: completions.
    pub const COMPLETE: u16 = 1 << 7;
    /// Category: requests of file systems and programs.
    pub const FS: u16 = 1 << 8;
    /// Category: passthrough commands.
    pub const PC: u16 = 1 << 9;
    /// Category: messages, which belong to no I/O.
    pub const NOTIFY: u16 = 1 << 10;
    /// Category: read-ahead.
    pub const AHEAD: u16 = 1 << 11;
    /// Category: file system metadata.
    pub const META: u16 = 1 << 12;
    /// Category: discards.
    pub const DISCARD: u16 = 1 << 13;
    /// Category: data of the driver.
    pub const DRV_DATA: u16 = 1 << 14;
    /// Category: forced unit access (data are written through to the medium).
    pub const FUA: u16 = 1 << 15;
}

/// The kernel's code of an I/O event: the lower 16 bits of a record's action word. Messages have
/// the codes of [`NotifyKind`] there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum EventCode {
    /// Q: a bio was queued.
    Queue = 1,
    /// M: a bio was merged at the end of a request.
    BackMerge = 2,
    /// F: a bio was merged at the front of a request.
    FrontMerge = 3,
    /// G: a bio got a request.
    GetRequest = 4,
    /// S: a task sleeps until a request is free.
    Sleep = 5,
    /// R: a request was requeued. The driver gave it back, to be dispatched again later.
    Requeue = 6,
    /// D: a request was dispatched to the driver.
    Issue = 7,
    /// C: a request was completed.
    Complete = 8,
    /// P: the queue was plugged.
    Plug = 9,
    /// U: the queue was unplugged, because the plug was full or a task waits.
    Unplug = 10,
    /// UT: the queue was unplugged by a timer.
    UnplugTimer = 11,
    /// I: a request was inserted into a queue.
    Insert = 12,
    /// X: a bio was split.
    Split = 13,
    /// B: the data goes through a bounce buffer.
    Bounce = 14,
    /// A: a bio was remapped to another device.
    Remap = 15,
    /// An aborted I/O; no tool shows this event.
    Abort = 16,
    /// The driver's own data; no tool shows this event.
    DriverData = 17,
}

const ACTS: [EventCode; 17] = [
    EventCode::Queue,
    EventCode::BackMerge,
    EventCode::FrontMerge,
    EventCode::GetRequest,
    EventCode::Sleep,
    EventCode::Requeue,
    EventCode::Issue,
    EventCode::Complete,
    EventCode::Plug,
    EventCode::Unplug,
    EventCode::UnplugTimer,
    EventCode::Insert,
    EventCode::Split,
    EventCode::Bounce,
    EventCode::Remap,
    EventCode::Abort,
    EventCode::DriverData,
];

impl EventCode {
    /// Returns the action word of a record with this event: the event's code, the event's own
    /// category, and the categories in `more`. An example of `more` is
    /// `category::WRITE | category::SYNC`.
    #[must_use]
    pub fn with(self, more: u16) -> u32 {
        let own = match self {
            EventCode::Split | EventCode::Bounce => 0,
            EventCode::Requeue => category::REQUEUE,
            EventCode::Issue => category::ISSUE,
            EventCode::Complete => category::COMPLETE,
            EventCode::DriverData => category::DRV_DATA,
            _ => category::QUEUE,
        };
        u32::from(own | more) << 16 | u32::from(self as u16)
    }

    /// Returns the event with this code, or `None` if the code is unknown.
    #[must_use]
    pub fn from_code(code: u32) -> Option<EventCode> {
        ACTS.get((code as usize).wrapping_sub(1)).copied()
    }

    /// Returns blkparse's letters for the event; empty for events that blkparse does not show.
    #[must_use]
    pub fn letters(self) -> &'static str {
        const LETTERS: [&str; 17] =
            ["Q", "M", "F", "G", "S", "R", "D", "C", "P", "U", "UT", "I", "X", "B", "A", "", ""];
        LETTERS[self as usize - 1]
    }

    /// Returns the event with these blkparse letters, or `None` if there is none.
    #[must_use]
    pub fn from_letters(letters: &str) -> Option<EventCode> {
        ACTS.into_iter().find(|act| act.letters() == letters && !letters.is_empty())
    }

    /// Returns how many bytes of data must at least follow a record of this event.
    #[must_use]
    pub fn pdu_bytes_min(self) -> usize {
        match self {
            EventCode::Unplug | EventCode::UnplugTimer | EventCode::Split => 8,
            EventCode::Remap => RemapData::BYTES,
            _ => 0,
        }
    }
}

/// A record that carries a message instead of an event of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum NotifyKind {
    /// The data of the record is the name of the process `pid`.
    Process = 0,
    /// The data of the record is the time of day: seconds since 1970 and nanoseconds, 4 bytes each.
    Timestamp = 1,
    /// The data of the record is a text message.
    Message = 2,
}

impl NotifyKind {
    /// Returns the action word of a record with this message. The word contains the message's code
    /// and [`category::NOTIFY`].
    #[must_use]
    pub fn action(self) -> u32 {
        u32::from(category::NOTIFY) << 16 | u32::from(self as u16)
    }
}

/// One record without its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    /// Sequence number of the event on its CPU; 0 for messages.
    pub sequence: u32,
    /// Time in nanoseconds of the recorder's clock.
    pub time_ns: u64,
    /// First sector of the I/O, in units of 512 bytes.
    pub sector: u64,
    /// Length of the I/O in bytes.
    pub bytes: u32,
    /// The kernel's action word: categories in the upper 16 bits, event code in the lower 16.
    pub action: u32,
    /// Process that caused the event.
    pub pid: u32,
    /// Device number; see [`device`].
    pub device: u32,
    /// CPU on which the event occurred; also the number of its trace file.
    pub cpu: u32,
    /// Result of a completion: 0, or the low 16 bits of a negative errno.
    pub error: u16,
    /// Bytes of data that follow the record.
    pub pdu_len: u16,
}

/// The reason why 48 bytes could not be decoded as a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// The record's first word does not contain the magic number. The variant holds that word.
    Magic(u32),
    /// The first word is the magic number in the other byte order.
    ByteOrder,
    /// The record's version is not [`VERSION`], the only supported one. The variant holds the
    /// record's version.
    Version(u32),
}

impl core::error::Error for RecordError {}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Magic(word) => {
                write!(f, "not a blktrace record: it begins with {word:#010x}, not {MAGIC:#010x}")
            }
            RecordError::ByteOrder => write!(
                f,
                "the record has the opposite byte order; read it on a machine with that byte order"
            ),
            RecordError::Version(version) => write!(
                f,
                "the record has version {version}, but only version {VERSION} can be read"
            ),
        }
    }
}

impl Record {
    /// Returns the event's code, or `None` for a message or an unknown code.
    #[must_use]
    pub fn act(&self) -> Option<EventCode> {
        let code = self.action & 0xffff & !CGROUP;
        if self.has(category::NOTIFY) { None } else { EventCode::from_code(code) }
    }

    /// Returns the kind of message, or `None` for an event or an unknown code.
    #[must_use]
    pub fn note(&self) -> Option<NotifyKind> {
        [NotifyKind::Process, NotifyKind::Timestamp, NotifyKind::Message]
            .into_iter()
            .find(|kind| kind.action() == self.action & !CGROUP)
    }

    /// Returns true if the record is in any of these categories.
    #[must_use]
    pub fn has(&self, categories: u16) -> bool {
        (self.action >> 16) as u16 & categories != 0
    }

    /// Returns the I/O's length in whole sectors.
    #[must_use]
    pub fn sectors(&self) -> u32 {
        self.bytes >> 9
    }

    /// Returns the sector after the I/O's last sector.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.sector.wrapping_add(u64::from(self.sectors()))
    }

    /// Encodes the record as the bytes of a trace file.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
        put(0, &(MAGIC | VERSION).to_ne_bytes());
        put(4, &self.sequence.to_ne_bytes());
        put(8, &self.time_ns.to_ne_bytes());
        put(16, &self.sector.to_ne_bytes());
        put(24, &self.bytes.to_ne_bytes());
        put(28, &self.action.to_ne_bytes());
        put(32, &self.pid.to_ne_bytes());
        put(36, &self.device.to_ne_bytes());
        put(40, &self.cpu.to_ne_bytes());
        put(44, &self.error.to_ne_bytes());
        put(46, &self.pdu_len.to_ne_bytes());
        bytes
    }

    /// Decodes the bytes of a trace file.
    ///
    /// # Errors
    /// If these bytes do not begin with this machine's magic and the known version.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<Record, RecordError> {
        let magic = u32::from_ne_bytes(word(bytes, 0));
        match (magic & !0xff, magic.swap_bytes() & !0xff) {
            (MAGIC, _) if magic & 0xff == VERSION => {}
            (MAGIC, _) => return Err(RecordError::Version(magic & 0xff)),
            (_, MAGIC) => return Err(RecordError::ByteOrder),
            _ => return Err(RecordError::Magic(magic)),
        }
        Ok(Record {
            sequence: u32::from_ne_bytes(word(bytes, 4)),
            time_ns: u64::from_ne_bytes(word(bytes, 8)),
            sector: u64::from_ne_bytes(word(bytes, 16)),
            bytes: u32::from_ne_bytes(word(bytes, 24)),
            action: u32::from_ne_bytes(word(bytes, 28)),
            pid: u32::from_ne_bytes(word(bytes, 32)),
            device: u32::from_ne_bytes(word(bytes, 36)),
            cpu: u32::from_ne_bytes(word(bytes, 40)),
            error: u16::from_ne_bytes(word(bytes, 44)),
            pdu_len: u16::from_ne_bytes(word(bytes, 46)),
        })
    }
}

fn word<const N: usize>(bytes: &[u8; RECORD_BYTES], at: usize) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at..at + N]);
    word
}

/// The data of a remap event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemapData {
    /// Device that the I/O was submitted to.
    pub device_from: u32,
    /// Device that the I/O goes to.
    pub device_to: u32,
    /// First sector of the I/O on the original device (`device_from`).
    pub sector_from: u64,
}

impl RemapData {
    /// Length of a remap event's encoded data, in bytes.
    pub const BYTES: usize = 16;

    /// Encodes a remap event's data as in a trace file.
    #[must_use]
    pub fn encode(&self) -> [u8; RemapData::BYTES] {
        let mut bytes = [0; RemapData::BYTES];
        bytes[..4].copy_from_slice(&self.device_from.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.device_to.to_be_bytes());
        bytes[8..].copy_from_slice(&self.sector_from.to_be_bytes());
        bytes
    }

    /// Decodes a remap record's data; `None` if the data is too short.
    #[must_use]
    pub fn decode(data: &[u8]) -> Option<RemapData> {
        let (from, rest) = data.split_first_chunk::<4>()?;
        let (to, rest) = rest.split_first_chunk::<4>()?;
        let (sector, _) = rest.split_first_chunk::<8>()?;
        Some(RemapData {
            device_from: u32::from_be_bytes(*from),
            device_to: u32::from_be_bytes(*to),
            sector_from: u64::from_be_bytes(*sector),
        })
    }
}

/// Encodes the data of an unplug (number of I/Os) or of a split (first sector of the second part).
#[must_use]
pub fn encode_number(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Decodes the data of an unplug or a split; `None` if the data is too short.
#[must_use]
pub fn decode_number(data: &[u8]) -> Option<u64> {
    data.split_first_chunk::<8>().map(|(number, _)| u64::from_be_bytes(*number))
}

/// Packs a device number as inside the kernel: 12 bits of major, 20 bits of minor number.
#[must_use]
pub const fn device(major: u32, minor: u32) -> u32 {
    major << 20 | (minor & 0xf_ffff)
}

/// Returns the major number of a device.
#[must_use]
pub const fn major(device: u32) -> u32 {
    device >> 20
}

/// Returns the minor number of a device.
#[must_use]
pub const fn minor(device: u32) -> u32 {
    device & 0xf_ffff
}

/// The kind of a record's I/O in blkparse's letters: F for preflush, then D, W, R or N, then F for
/// FUA, A for read-ahead, S for sync, M for metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rwbs {
    letters: [u8; 6],
    len: usize,
}

impl Rwbs {
    /// Returns blkparse's letters for the kind of a record's I/O.
    #[must_use]
    pub fn of(record: &Record) -> Rwbs {
        let kind = match () {
            () if record.has(category::DISCARD) => b'D',
            () if record.has(category::WRITE) => b'W',
            () if record.bytes != 0 => b'R',
            () => b'N',
        };
        let letters = [
            (record.has(category::FLUSH), b'F'),
            (true, kind),
            (record.has(category::FUA), b'F'),
            (record.has(category::AHEAD), b'A'),
            (record.has(category::SYNC), b'S'),
            (record.has(category::META), b'M'),
        ];
        let mut rwbs = Rwbs { letters: [0; 6], len: 0 };
        for (_, letter) in letters.into_iter().filter(|(there, _)| *there) {
            rwbs.letters[rwbs.len] = letter;
            rwbs.len += 1;
        }
        rwbs
    }

    /// Returns the kind of I/O as blkparse's letters, such as `WS` for a synchronous write.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.letters[..self.len]).expect("the letters are ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            words in any::<[u32; 6]>(), longs in any::<[u64; 2]>(), shorts in any::<[u16; 2]>()
        ) {
            let [sequence, bytes, action, pid, device, cpu] = words;
            let ([time_ns, sector], [error, pdu_len]) = (longs, shorts);
            let record = Record {
                sequence, time_ns, sector, bytes, action, pid, device, cpu, error, pdu_len,
            };
            prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
            let remap = RemapData { device_from: device, device_to: pid, sector_from: sector };
            prop_assert_eq!(RemapData::decode(&remap.encode()), Some(remap));
            prop_assert_eq!(decode_number(&encode_number(sector)), Some(sector));
        }

        #[test]
        fn any_bytes_are_a_record_or_an_error(
            start in any::<[u8; 24]>(), rest in any::<[u8; 24]>(), magic in any::<bool>()
        ) {
            let mut bytes = [0; RECORD_BYTES];
            bytes[..24].copy_from_slice(&start);
            bytes[24..].copy_from_slice(&rest);
            if magic {
                bytes[..4].copy_from_slice(&(MAGIC | VERSION).to_ne_bytes());
            }
            let decoded = Record::decode(&bytes);
            prop_assert!(decoded.is_ok() || !magic);
            if let Ok(record) = decoded {
                prop_assert_eq!(record.encode(), bytes);
                prop_assert!((1..=6).contains(&Rwbs::of(&record).as_str().len()));
                prop_assert!(record.act().is_none() || record.note().is_none());
            }
        }
    }

    #[test]
    fn the_layout_is_the_kernels() {
        let record = Record {
            sequence: 1,
            time_ns: 2,
            sector: 3,
            bytes: 4096,
            action: EventCode::Queue.with(category::WRITE | category::SYNC),
            pid: 5,
            device: device(8, 1),
            cpu: 6,
            error: 7,
            pdu_len: 8,
        };
        let bytes = record.encode();
        assert_eq!(bytes[..4], 0x6561_7407_u32.to_ne_bytes());
        assert_eq!(bytes[28..32], 0x001a_0001_u32.to_ne_bytes());
        assert_eq!(bytes[36..40], 0x0080_0001_u32.to_ne_bytes());
        assert_eq!((record.act(), record.end()), (Some(EventCode::Queue), 11));
        assert_eq!(Rwbs::of(&record).as_str(), "WS");
    }

    #[test]
    fn categories_of_actions_are_the_kernels() {
        use category::{COMPLETE, DRV_DATA, ISSUE, QUEUE, REQUEUE};
        let own = ACTS.map(|act| (act.with(0) >> 16) as u16);
        let expected = [
            QUEUE, QUEUE, QUEUE, QUEUE, QUEUE, REQUEUE, ISSUE, COMPLETE, QUEUE, QUEUE, QUEUE,
            QUEUE, 0, 0, QUEUE, QUEUE, DRV_DATA,
        ];
        assert_eq!(own, expected);
    }

    #[test]
    fn bytes_of_another_machine_version_or_kind_are_refused() {
        let mut bytes = Record::default().encode();
        bytes[..4].reverse();
        assert_eq!(Record::decode(&bytes), Err(RecordError::ByteOrder));
        bytes[..4].copy_from_slice(&(MAGIC | 8).to_ne_bytes());
        assert_eq!(Record::decode(&bytes), Err(RecordError::Version(8)));
        bytes[..4].copy_from_slice(&0_u32.to_ne_bytes());
        assert_eq!(Record::decode(&bytes), Err(RecordError::Magic(0)));
    }

    #[test]
    fn numbers_and_letters_match_the_kernel_and_blkparse() {
        use category::{
            AHEAD, COMPLETE, DISCARD, DRV_DATA, FLUSH, FS, FUA, ISSUE, META, NOTIFY, PC, QUEUE,
            READ, REQUEUE, SYNC, WRITE,
        };
        let categories = [
            READ, WRITE, FLUSH, SYNC, QUEUE, REQUEUE, ISSUE, COMPLETE, FS, PC, NOTIFY, AHEAD, META,
            DISCARD, DRV_DATA, FUA,
        ];
        let bits: [u16; 16] = core::array::from_fn(|bit| 1 << bit);
        assert_eq!((categories, CGROUP), (bits, 0x100));
        let letters = "Q M F G S R D C P U UT I X B A".split(' ');
        for (code, letters) in (1..).zip(letters) {
            let act = EventCode::from_code(code).unwrap();
            assert_eq!((act.letters(), act as u32), (letters, code));
            assert_eq!(EventCode::from_letters(letters), Some(act));
            // The categories to add may include the event's own category.
            let whole = act.with(WRITE | QUEUE);
            assert_eq!((whole & 0xffff, whole >> 16 & 0x12), (code, 0x12), "{letters}");
        }
        // blkparse shows neither event, so they have no letters.
        assert_eq!([EventCode::Abort, EventCode::DriverData].map(EventCode::letters), ["", ""]);
        assert_eq!(["", "T", "q"].map(EventCode::from_letters), [None; 3]);
        let notes = [NotifyKind::Process, NotifyKind::Timestamp, NotifyKind::Message]
            .map(NotifyKind::action);
        assert_eq!(notes, [0x0400_0000, 0x0400_0001, 0x0400_0002]);
        let with_data = ACTS.map(EventCode::pdu_bytes_min);
        assert_eq!(with_data, [0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 0, 8, 0, 16, 0, 0]);
    }

    #[test]
    fn devices_have_12_bits_of_major_and_20_of_minor_number() {
        for (major_number, minor_number, number) in [
            (8, 1, 0x0080_0001),
            (259, 0xf_ffff, 0x103f_ffff),
            (0xfff, 0, 0xfff0_0000),
            (1, 2, 0x10_0002),
        ] {
            assert_eq!(device(major_number, minor_number), number);
            assert_eq!((major(number), minor(number)), (major_number, minor_number));
        }
        assert_eq!(device(2, 0x12_3456), 0x0022_3456, "bits that do not fit are cut off");
    }

    #[test]
    fn data_of_remaps_and_numbers_are_big_endian() {
        let remap = RemapData { device_from: 0x0102_0304, device_to: 5, sector_from: 0x0607 };
        let bytes = [1, 2, 3, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 6, 7];
        assert_eq!(remap.encode(), bytes);
        assert_eq!(RemapData::decode(&[&bytes[..], &[9]].concat()), Some(remap));
        assert_eq!(RemapData::decode(&bytes[..15]), None);
        assert_eq!(encode_number(0x0102), [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(decode_number(&[0, 0, 0, 0, 0, 0, 1, 2, 3]), Some(0x0102));
        assert_eq!(decode_number(&[0; 7]), None);
    }

    #[test]
    fn kinds_of_io_have_blkparses_letters() {
        use category::{AHEAD, DISCARD, FLUSH, FUA, META, READ, SYNC, WRITE};
        for (categories, bytes, letters) in [
            (READ, 512, "R"),
            (READ, 0, "N"),
            (WRITE, 0, "W"),
            (WRITE | DISCARD, 512, "D"),
            (DISCARD, 0, "D"),
            (FLUSH, 0, "FN"),
            (WRITE | FLUSH | FUA | SYNC, 512, "FWFS"),
            (READ | AHEAD | META, 512, "RAM"),
            (FLUSH | WRITE | FUA | AHEAD | SYNC | META, 512, "FWFASM"),
        ] {
            let record =
                Record { action: EventCode::Queue.with(categories), bytes, ..Record::default() };
            assert_eq!(Rwbs::of(&record).as_str(), letters);
        }
    }

    #[test]
    fn a_record_ends_behind_its_whole_sectors() {
        for (bytes, sectors) in [(0, 0), (511, 0), (512, 1), (4096, 8), (u32::MAX, (1 << 23) - 1)] {
            let record = Record { sector: 10, bytes, ..Record::default() };
            assert_eq!((record.sectors(), record.end()), (sectors, 10 + u64::from(sectors)));
        }
    }

    #[test]
    fn every_code_is_its_own_action_and_notes_are_none() {
        for act in ACTS {
            let record = Record { action: act.with(category::READ), ..Record::default() };
            assert_eq!((record.act(), record.note()), (Some(act), None));
        }
        for note in [NotifyKind::Process, NotifyKind::Timestamp, NotifyKind::Message] {
            let record = Record { action: note.action(), ..Record::default() };
            assert_eq!((record.act(), record.note()), (None, Some(note)));
        }
        // A cgroup number before the data changes neither the code nor the categories.
        for action in
            [EventCode::Issue.with(category::WRITE) | CGROUP, NotifyKind::Message.action() | CGROUP]
        {
            let record = Record { action, ..Record::default() };
            let note = record.has(category::NOTIFY);
            assert_eq!(record.act(), (!note).then_some(EventCode::Issue));
            assert_eq!(record.note(), note.then_some(NotifyKind::Message));
        }
        let unknown = Record { action: NotifyKind::Message.action() + 1, ..Record::default() };
        assert_eq!((unknown.act(), unknown.note()), (None, None));
        let unknown = [0, 18, 0xffff].map(|action| Record { action, ..Record::default() });
        assert!(unknown.iter().all(|record| record.act().is_none()));
    }
}
