//! `ModelIo`: the properties of an I/O from which its time is computed. `DuplexLink`: a link with
//! one transfer at a time in each direction.
//!
//! Each simulated drive has a link of its own in its `ServiceTiming`. A controller has one link for
//! all its drives.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ModelIoKind {
    Read,
    /// Write that completes when its data are in the write buffer.
    Write,
    /// Write that completes when its data and all earlier writes are on the medium.
    DurableWrite,
    /// Flush, which completes when all earlier writes are on the medium.
    Flush,
    /// Command that transfers no data and occupies no flash unit, such as a discard.
    Command,
}

/// Properties of an I/O from which its timing is computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelIo {
    pub(crate) kind: ModelIoKind,
    pub(crate) sector: u64,
    /// Length in sectors; at least 1 for an I/O that transfers data.
    pub(crate) nr_sectors: u32,
}

pub(super) fn transfer_ns(nr_sectors: u32, bytes_per_s: u64) -> u64 {
    // The product exceeds 64 bits: up to 2^32 sectors of 2^9 bytes make 2^41 bytes, times 10^9
    // nanoseconds.
    let bytes_ns = (u128::from(nr_sectors) << 9) * 1_000_000_000;
    (bytes_ns / u128::from(bytes_per_s)) as u64
}

#[derive(Debug)]
struct LinkDirection {
    bytes_per_s: u64,
    free_ns: u64,
}

impl LinkDirection {
    fn book(&mut self, now_ns: u64, nr_sectors: u32) -> BookedTransfer {
        if self.bytes_per_s == 0 {
            return BookedTransfer::default();
        }
        let transfer_ns = transfer_ns(nr_sectors, self.bytes_per_s);
        self.free_ns = self.free_ns.max(now_ns) + transfer_ns;
        BookedTransfer { transfer_ns, free_ns: self.free_ns }
    }
}

#[derive(Debug)]
pub(crate) struct DuplexLink {
    to_host: LinkDirection,
    from_host: LinkDirection,
}

impl DuplexLink {
    /// Creates an idle link with these bandwidths in bytes per second; 0 means no limit.
    pub(crate) fn new(to_host: u64, from_host: u64) -> DuplexLink {
        let idle = |bytes_per_s| LinkDirection { bytes_per_s, free_ns: 0 };
        DuplexLink { to_host: idle(to_host), from_host: idle(from_host) }
    }

    pub(crate) fn book(&mut self, now_ns: u64, io: ModelIo) -> BookedTransfer {
        match io.kind {
            ModelIoKind::Read => self.to_host.book(now_ns, io.nr_sectors),
            ModelIoKind::Write | ModelIoKind::DurableWrite => {
                self.from_host.book(now_ns, io.nr_sectors)
            }
            ModelIoKind::Flush | ModelIoKind::Command => BookedTransfer::default(),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BookedTransfer {
    transfer_ns: u64,
    free_ns: u64,
}

impl BookedTransfer {
    /// Returns the times of one transfer over two links at once: the slower link determines them.
    pub(crate) fn with(self, other: BookedTransfer) -> BookedTransfer {
        BookedTransfer {
            transfer_ns: self.transfer_ns.max(other.transfer_ns),
            free_ns: self.free_ns.max(other.free_ns),
        }
    }

    pub(crate) fn end_ns(self, ready_ns: u64) -> u64 {
        (ready_ns + self.transfer_ns).max(self.free_ns)
    }
}
