//! `Link`: one direction of a link, on which transfers follow each other.
//!
//! Pure arithmetic on virtual time, as timing.rs, which books here; so does a controller that
//! several drives share.

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct Link {
    bytes_per_s: u64,
    free_ns: u64,
}

impl Link {
    /// An idle one; 0 for one without a limit.
    pub(crate) fn new(bytes_per_s: u64) -> Link {
        Link { bytes_per_s, free_ns: 0 }
    }

    /// Books a transfer.
    pub(crate) fn book(&mut self, now_ns: u64, nr_sectors: u32) -> Booked {
        if self.bytes_per_s == 0 {
            return Booked::default();
        }
        // At most 2^32 sectors of 2^9 bytes: 2^41 times 10^9 needs more than 64 bits.
        let bytes_ns = (u128::from(nr_sectors) << 9) * 1_000_000_000;
        let transfer_ns = (bytes_ns / u128::from(self.bytes_per_s)) as u64;
        self.free_ns = self.free_ns.max(now_ns) + transfer_ns;
        Booked { transfer_ns, free_ns: self.free_ns }
    }
}

/// A transfer on a link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Booked {
    transfer_ns: u64,
    free_ns: u64,
}

impl Booked {
    /// Over two links at the same time: the slower one counts.
    pub(crate) fn with(self, other: Booked) -> Booked {
        Booked {
            transfer_ns: self.transfer_ns.max(other.transfer_ns),
            free_ns: self.free_ns.max(other.free_ns),
        }
    }

    /// When it is over, for data that are ready at `ready_ns`.
    pub(crate) fn end_ns(self, ready_ns: u64) -> u64 {
        (ready_ns + self.transfer_ns).max(self.free_ns)
    }
}
