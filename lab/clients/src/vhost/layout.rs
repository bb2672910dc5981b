//! Computes the offsets of the parts of one virtqueue and of its buffers in shared memory.
//!
//! Pure arithmetic from checked options to offsets, called by the ring and by the code that
//! allocates its memory. Descriptors, which both sides only read after the set-up, share no cache
//! line with data that changes with every batch (indices, headers, statuses). Headers and statuses
//! are packed, so that a batch transfers few cache lines: 4 headers, or 64 statuses, fit one line.

use millrace_exports::virtio::{HEADER_BYTES, area_bytes};
use thiserror::Error;

/// Maximum number of entries of a ring: more than any server accepts.
pub const RING_SIZE_MAX: u16 = 1024;
/// Size in bytes of an indirect table: three descriptors, in one cache line.
pub(crate) const TABLE_BYTES: usize = 64;
/// Alignment of the ring and of its data, in bytes.
pub const PAGE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;

/// Placement of a request's descriptors in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Descriptors {
    /// Each request chains three of the ring's descriptors, so the number of requests in flight is
    /// at most a third of the ring's size.
    Chained,
    /// Each request has an indirect table and one of the ring's descriptors, so the number of
    /// requests in flight is at most the ring's size.
    Indirect,
}

/// Method by which the driver learns of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The driver polls, requests no interrupts, and from time to time yields its CPU.
    Poll,
    /// The driver polls and never yields its CPU, as clients with a CPU of their own do.
    Spin,
    /// The driver requests an interrupt before it sleeps.
    Events,
}

/// Size, depth and negotiated options of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingOptions {
    /// Number of entries: a power of two up to 1024.
    pub size: u16,
    /// Maximum number of requests in flight, each with a slot; 1 or more.
    pub depth: u16,
    /// Size in bytes of the buffer of each request in flight.
    pub data_bytes: u32,
    /// Placement of the requests' descriptors.
    pub descriptors: Descriptors,
    /// True if `VIRTIO_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// Method of waiting for completions.
    pub wait: Wait,
}

/// Reason why the options of a ring are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The ring size is not a power of two, or too large.
    #[error("a ring of {size} entries: it must be a power of two up to {RING_SIZE_MAX}")]
    Size {
        /// Ring size that the caller requested.
        size: u16,
    },
    /// The number of slots is 0, or too large for the ring.
    #[error(
        "{depth} requests in flight in a ring of {size} entries: 1 to {most} fit; \
         take a larger ring or indirect descriptors"
    )]
    Depth {
        /// Depth that the caller requested.
        depth: u16,
        /// Number of entries of the ring.
        size: u16,
        /// Maximum number of requests in flight that fit into this ring.
        most: u16,
    },
}

/// Offsets of the ring's parts from its start, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingLayout {
    /// Offset of the descriptor table.
    pub descriptors: usize,
    /// Offset of the available ring: flags, index, entries, used event.
    pub available: usize,
    /// Offset of the used ring: flags, index, entries, available event.
    pub used: usize,
    /// Offset of the indirect tables, one for each slot; unused with chained descriptors.
    pub(crate) tables: usize,
    pub(crate) headers: usize,
    pub(crate) statuses: usize,
    pub(crate) data: usize,
    /// Distance from one buffer to the next, in bytes.
    pub(crate) data_stride: usize,
    /// Offset of the ring's end: a multiple of a page.
    pub end: usize,
}

impl RingLayout {
    /// Computes the layout of a ring.
    ///
    /// # Errors
    /// Fails if the options contradict each other.
    pub fn new(options: &RingOptions) -> Result<RingLayout, LayoutError> {
        let &RingOptions { size, depth, data_bytes, descriptors, .. } = options;
        if !size.is_power_of_two() || size > RING_SIZE_MAX {
            return Err(LayoutError::Size { size });
        }
        let most = slots_max(size, descriptors);
        if depth == 0 || depth > most {
            return Err(LayoutError::Depth { depth, size, most });
        }
        let areas = area_bytes(size).map(|bytes| bytes as usize);
        let depth = usize::from(depth);
        let tables = match descriptors {
            Descriptors::Chained => 0,
            Descriptors::Indirect => depth * TABLE_BYTES,
        };
        let mut end = 0;
        let mut part = |bytes: usize, align: usize| {
            let start = end;
            end = (start + bytes).next_multiple_of(align);
            start
        };
        let data_stride = (data_bytes as usize).next_multiple_of(LINE_BYTES);
        let data_stride = match data_stride {
            stride if stride >= PAGE_BYTES => stride.next_multiple_of(PAGE_BYTES),
            stride => stride.next_power_of_two(),
        };
        let descriptors = part(areas[0], LINE_BYTES);
        let available = part(areas[1], LINE_BYTES);
        let used = part(areas[2], LINE_BYTES);
        let tables = part(tables, LINE_BYTES);
        let headers = part(depth * HEADER_BYTES, LINE_BYTES);
        let statuses = part(depth, PAGE_BYTES);
        let data = part(depth * data_stride, PAGE_BYTES);
        Ok(RingLayout {
            descriptors,
            available,
            used,
            tables,
            headers,
            statuses,
            data,
            data_stride,
            end,
        })
    }
}

/// Returns the number of requests that fit a ring of `size` descriptors.
#[must_use]
pub const fn slots_max(size: u16, descriptors: Descriptors) -> u16 {
    match descriptors {
        Descriptors::Chained => size / 3,
        Descriptors::Indirect => size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: RingOptions = RingOptions {
        size: 256,
        depth: 85,
        data_bytes: 4096,
        descriptors: Descriptors::Chained,
        event_idx: true,
        wait: Wait::Poll,
    };

    #[test]
    fn parts_follow_each_other_and_share_no_line() {
        for descriptors in [Descriptors::Chained, Descriptors::Indirect] {
            for data_bytes in [0, 1, 512, 4096, 5000] {
                let layout =
                    RingLayout::new(&RingOptions { descriptors, data_bytes, ..OPTIONS }).unwrap();
                let parts =
                    [layout.available, layout.used, layout.tables, layout.headers, layout.statuses];
                assert!(parts.is_sorted());
                assert!(parts.iter().all(|offset| offset.is_multiple_of(64)));
                assert!(layout.data.is_multiple_of(PAGE_BYTES) && layout.data > layout.statuses);
                assert!(layout.data_stride >= data_bytes as usize);
                assert_eq!(layout.end % PAGE_BYTES, 0);
                assert!(layout.end >= layout.data + 85 * layout.data_stride);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let wrong = RingLayout::new(&RingOptions { size: 100, ..OPTIONS });
        assert_eq!(wrong, Err(LayoutError::Size { size: 100 }));
        let wrong = RingLayout::new(&RingOptions { size: 2048, ..OPTIONS });
        assert_eq!(wrong, Err(LayoutError::Size { size: 2048 }));
        let wrong = RingLayout::new(&RingOptions { depth: 86, ..OPTIONS });
        assert_eq!(wrong, Err(LayoutError::Depth { depth: 86, size: 256, most: 85 }));
        let wrong = RingLayout::new(&RingOptions { depth: 0, ..OPTIONS });
        assert_eq!(wrong, Err(LayoutError::Depth { depth: 0, size: 256, most: 85 }));
    }
}
