//! Traces that no recorder made: every kind of event, overlaps, equal times, several CPUs.
//!
//! Owns a generator with a seed; the files have the kernel's format. They are legal, but worse than
//! a kernel's: I/Os overlap, completions cover several requests or none, times of a file step back,
//! names come late. Used by tests that compare with blkparse and btt.

use std::path::Path;

use millrace_block::blktrace::{
    EventCode, NotifyKind, Record, RemapData, category, device, encode_number,
};
use millrace_random::{SplitMix64, XorShift64};

/// CPUs of a trace.
const CPUS: usize = 4;
/// Two drives and a volume on them.
const DRIVES: [u32; 2] = [device(8, 0), device(259, 3)];
const VOLUME: u32 = device(253, 1);

/// Numbers from a seed, the same everywhere.
struct Random(XorShift64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next() % bound
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

struct Writer {
    random: Random,
    now_ns: u64,
    files: [Vec<u8>; CPUS],
    sequences: [u32; CPUS],
    open: Vec<Record>,
}

/// Writes the trace `name` with about `ios` I/Os into a directory.
///
/// # Panics
/// If a file cannot be written.
pub fn write(dir: &Path, name: &str, ios: u32, seed: u64) {
    let mut writer = Writer {
        random: Random(XorShift64::new(seed * 2 + SplitMix64::STEP)),
        now_ns: 5_000_000_000,
        files: Default::default(),
        sequences: [0; CPUS],
        open: Vec::new(),
    };
    for pid in 100..104_u32 {
        writer.note(NotifyKind::Process, pid, format!("job{pid}\0\0\0").as_bytes());
    }
    writer.note(NotifyKind::Timestamp, 0, &[1, 0, 0, 0, 2, 0, 0, 0]);
    for _ in 0..ios {
        writer.io();
    }
    while !writer.open.is_empty() {
        writer.finish();
    }
    for (cpu, bytes) in writer.files.iter().enumerate() {
        let file = dir.join(format!("{name}.blktrace.{cpu}"));
        std::fs::write(file, bytes).expect("a test's directory is writable");
    }
}

impl Writer {
    /// Lets some time pass, or none.
    fn pass(&mut self) {
        if !self.random.one_in(6) {
            self.now_ns += self.random.below(20_000);
        }
    }

    fn put(&mut self, cpu: usize, mut record: Record, data: &[u8]) {
        record.cpu = cpu as u32;
        record.pdu_len = data.len() as u16;
        if !record.has(category::NOTIFY) {
            self.sequences[cpu] += 1;
            record.sequence = self.sequences[cpu];
        }
        self.files[cpu].extend(record.encode());
        self.files[cpu].extend(data);
    }

    fn note(&mut self, note: NotifyKind, pid: u32, data: &[u8]) {
        let cpu = self.random.below(CPUS as u64) as usize;
        let (time_ns, device) = (self.now_ns, DRIVES[0]);
        let record = Record { action: note.action(), pid, time_ns, device, ..Record::default() };
        self.put(cpu, record, data);
    }

    fn event(&mut self, act: EventCode, of: &Record, data: &[u8]) {
        self.pass();
        let cpu = self.random.below(CPUS as u64) as usize;
        // An interrupt's record may precede a record with an earlier time.
        let back = if self.random.one_in(20) { self.random.below(3_000) } else { 0 };
        let categories = (of.action >> 16) as u16;
        let record = Record { action: act.with(categories), time_ns: self.now_ns - back, ..*of };
        self.put(cpu, record, data);
    }

    fn kind(&mut self) -> u16 {
        let kinds = [
            category::READ,
            category::READ | category::AHEAD,
            category::WRITE,
            category::WRITE | category::SYNC | category::META,
            category::WRITE | category::FUA | category::SYNC,
            category::WRITE | category::DISCARD,
            category::WRITE | category::FLUSH,
        ];
        category::FS | kinds[self.random.below(kinds.len() as u64) as usize]
    }

    /// An I/O up to its dispatch to the driver; other I/Os may complete meanwhile.
    fn io(&mut self) {
        let sectors = 1 + self.random.below(32) as u32;
        let mut of = Record {
            sector: self.random.below(600) * 8,
            bytes: sectors * 512,
            action: u32::from(self.kind()) << 16,
            pid: 100 + self.random.below(6) as u32,
            device: DRIVES[self.random.below(2) as usize],
            ..Record::default()
        };
        if self.random.one_in(3) {
            of = self.remapped(of);
        }
        self.rarities(&of);
        self.event(EventCode::Queue, &of, &[]);
        let mergeable = self.random.one_in(4).then(|| self.open.pop()).flatten();
        if let Some(open) = mergeable.filter(|open| open.device == of.device) {
            self.merge(open, of);
        } else {
            self.open.extend(mergeable);
            self.request(of);
        }
        while self.open.len() > 12 || (!self.open.is_empty() && self.random.one_in(3)) {
            self.finish();
        }
    }

    fn remapped(&mut self, of: Record) -> Record {
        let above = Record { device: VOLUME, sector: of.sector / 2, ..of };
        self.event(EventCode::Queue, &above, &[]);
        let remap =
            RemapData { device_from: VOLUME, device_to: of.device, sector_from: above.sector };
        self.event(EventCode::Remap, &of, &remap.encode());
        if self.random.one_in(2) {
            self.event(EventCode::Complete, &above, &[]);
        }
        of
    }

    fn rarities(&mut self, of: &Record) {
        let none = Record { bytes: 0, sector: 0, ..*of };
        match self.random.below(12) {
            0 => self.note(NotifyKind::Message, 0, b"fio marks a place\0"),
            1 => self.event(EventCode::Queue, &Record { bytes: 0, ..*of }, &[]),
            2 => self.event(EventCode::Split, of, &encode_number(of.sector + 4)),
            3 => self.event(EventCode::Bounce, of, &[]),
            4 => self.event(EventCode::UnplugTimer, &none, &encode_number(3)),
            5 => self.passing(of),
            6 => self.note(NotifyKind::Process, 104, b"late\0"),
            7 => self.note(NotifyKind::Process, 100, b"other\0"),
            _ => {}
        }
    }

    /// A command that passes through, with its bytes.
    fn passing(&mut self, of: &Record) {
        let action = (of.action & !(u32::from(category::FS) << 16)) | 0x0200_0000;
        let command = Record { action, sector: 0, ..*of };
        self.event(EventCode::Issue, &command, &[0x12, 0, 0xff, 0, 0, 0]);
        self.event(EventCode::Complete, &command, &[]);
    }

    fn merge(&mut self, open: Record, of: Record) {
        let front = self.random.one_in(2);
        self.event(if front { EventCode::FrontMerge } else { EventCode::BackMerge }, &of, &[]);
        let start = open.sector.min(of.sector);
        let bytes = (open.end().max(of.end()) - start) as u32 * 512;
        self.open.push(Record { sector: start, bytes, ..open });
    }

    fn request(&mut self, of: Record) {
        if self.random.one_in(8) {
            self.event(EventCode::Sleep, &of, &[]);
        }
        self.event(EventCode::GetRequest, &of, &[]);
        let none = Record { bytes: 0, sector: 0, ..of };
        if self.random.one_in(3) {
            self.event(EventCode::Plug, &none, &[]);
            self.event(EventCode::Unplug, &none, &encode_number(1));
        }
        if !self.random.one_in(4) {
            self.event(EventCode::Insert, &of, &[]);
        }
        self.open.push(of);
    }

    /// Issues one, maybe twice, and completes it, maybe in two parts or never.
    fn finish(&mut self) {
        let number = self.random.below(self.open.len() as u64) as usize;
        let of = self.open.swap_remove(number);
        self.event(EventCode::Issue, &of, &[]);
        if self.random.one_in(10) {
            self.event(EventCode::Requeue, &of, &[]);
            self.event(EventCode::Issue, &of, &[]);
        }
        let error = if self.random.one_in(30) { -5_i16 as u16 } else { 0 };
        let half = of.sectors() / 2;
        match self.random.below(12) {
            0 => {}
            1 if half > 0 => {
                self.event(EventCode::Complete, &Record { bytes: half * 512, ..of }, &[]);
                let bytes = of.bytes - half * 512;
                let sector = of.sector + u64::from(half);
                self.event(EventCode::Complete, &Record { bytes, sector, ..of }, &[]);
            }
            _ => self.event(EventCode::Complete, &Record { error, ..of }, &[]),
        }
    }
}
