//! Tracks the memory regions that are lent to a ring, and the indexes of their registered pieces.
//!
//! Owners lend regions to a ring. The ring registers a region in pieces as soon as it is lent. If
//! the kernel refuses a piece, no further piece of that region is registered while the region is
//! lent. Pieces that are already registered stay so, and operations elsewhere in the region use
//! unregistered memory. Regions do not overlap. Invariant: an index belongs to one piece of one
//! region.

use std::io;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressRange {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

#[derive(Default)]
pub(crate) struct LentRegions(Vec<LentRegion>);

struct LentRegion {
    extent: AddressRange,
    piece_bytes: usize,
    lenders: usize,
    /// Indexes of the registered pieces in the ring's table of buffers. The first entry belongs to
    /// the piece at the start of the region.
    indexes: Vec<u16>,
    /// Error of a refused registration, if it was not reported yet.
    refusal: Option<io::Error>,
}

impl LentRegions {
    /// Adds a memory region, and registers its pieces up to the first that `register` refuses. If
    /// the region is lent already, only increments its number of lenders.
    pub(crate) fn lend(
        &mut self,
        extent: AddressRange,
        piece_bytes: usize,
        mut register: impl FnMut(AddressRange) -> io::Result<u16>,
    ) {
        if let Some(at) = self.position(extent) {
            self.0[at].lenders += 1;
            return;
        }
        let (indexes, refusal) = (Vec::new(), None);
        let mut region = LentRegion { extent, piece_bytes, lenders: 1, indexes, refusal };
        while region.indexes.len() * piece_bytes < extent.len && region.refusal.is_none() {
            match register(region.piece(region.indexes.len())) {
                Ok(index) => region.indexes.push(index),
                Err(error) => region.refusal = Some(error),
            }
        }
        let at = self.0.partition_point(|region| region.extent.start < extent.start);
        self.0.insert(at, region);
    }

    fn position(&self, extent: AddressRange) -> Option<usize> {
        self.0.iter().position(|region| region.extent == extent)
    }

    /// Removes one lender of a memory region. If no lender is left, removes the region and returns
    /// the indexes of its pieces. The caller must free the entries with these indexes in the ring's
    /// table of buffers.
    pub(crate) fn take_back(&mut self, extent: AddressRange) -> Vec<u16> {
        let Some(at) = self.position(extent) else { return Vec::new() };
        self.0[at].lenders -= 1;
        if self.0[at].lenders == 0 { self.0.remove(at).indexes } else { Vec::new() }
    }

    /// Returns the index of the registered piece that contains the whole range.
    pub(crate) fn find(&self, start: usize, len: usize) -> Option<u16> {
        let at = self.0.partition_point(|region| region.extent.start <= start).checked_sub(1)?;
        let region = &self.0[at];
        let number = (start - region.extent.start) / region.piece_bytes;
        let index = region.indexes.get(number)?;
        let piece = region.piece(number);
        (start.saturating_add(len) <= piece.start + piece.len).then_some(*index)
    }

    pub(crate) fn take_refusal(&mut self) -> Option<io::Error> {
        self.0.iter_mut().find_map(|region| region.refusal.take())
    }
}

impl LentRegion {
    fn piece(&self, number: usize) -> AddressRange {
        let at = number * self.piece_bytes;
        let len = self.piece_bytes.min(self.extent.len - at);
        AddressRange { start: self.extent.start + at, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: AddressRange = AddressRange { start: 0x10_0000, len: 0x2800 };

    fn refused() -> io::Error {
        io::Error::from_raw_os_error(libc::ENOMEM)
    }

    #[test]
    fn a_range_is_found_in_the_one_piece_that_has_all_of_it() {
        let mut lent = LentRegions::default();
        assert_eq!(lent.find(ALL.start, 1), None);
        let mut pieces = Vec::new();
        lent.lend(ALL, 0x1000, |piece| {
            pieces.push((piece.start - ALL.start, piece.len));
            Ok(6 + pieces.len() as u16)
        });
        assert_eq!(pieces, [(0, 0x1000), (0x1000, 0x1000), (0x2000, 0x800)], "a short one");
        assert_eq!(lent.find(ALL.start + 0x1800, 0x800), Some(8));
        assert_eq!(lent.find(ALL.start + 0x1800, 0x801), None, "two pieces");
        let last = ALL.start + 0x2000;
        assert_eq!(lent.find(last, 0x800), Some(9));
        assert_eq!(lent.find(last + 0x700, 0x200), None, "past the end");
        assert_eq!(lent.find(last + 0x800, 1), None);
        assert_eq!(lent.find(ALL.start - 1, 1), None);
    }

    #[test]
    fn registered_region_is_found_until_it_is_taken_back() {
        let mut lent = LentRegions::default();
        let [low, high] = [0x1000, 0x2000].map(|start| AddressRange { start, len: 0x1000 });
        lent.lend(high, 0x1000, |_| Ok(1));
        lent.lend(low, 0x1000, |_| Ok(0));
        assert_eq!(lent.find(0x1000, 0x1000), Some(0));
        assert_eq!(lent.find(0x1fff, 2), None);
        assert_eq!(lent.find(0x2fff, 1), Some(1));
        assert_eq!(lent.find(0x3000, 1), None);
        assert_eq!(lent.find(0x0, 1), None);
        assert_eq!(lent.take_back(low), [0]);
        assert_eq!(lent.take_back(low), []);
        assert_eq!(lent.find(0x1000, 1), None);
    }

    #[test]
    fn pieces_are_registered_until_one_fails() {
        let mut lent = LentRegions::default();
        let mut left = vec![Err(refused()), Ok(4), Ok(3)];
        lent.lend(ALL, 0x1000, |_| left.pop().unwrap());
        assert_eq!(
            [0, 0x1000, 0x2000].map(|at| lent.find(ALL.start + at, 1)),
            [Some(3), Some(4), None]
        );
        lent.lend(ALL, 0x1000, |_| panic!("no piece is registered twice"));
    }

    #[test]
    fn what_was_refused_is_said_once_and_not_tried_again() {
        let mut lent = LentRegions::default();
        let mut left = vec![Err(refused()), Ok(3)];
        lent.lend(ALL, 0x1000, |_| left.pop().unwrap());
        assert_eq!(lent.find(ALL.start + 0x1000, 1), None);
        assert_eq!(lent.find(ALL.start, 1), Some(3), "what is registered stays so");
        let said = lent.take_refusal().and_then(|error| error.raw_os_error());
        assert_eq!(said, Some(libc::ENOMEM));
        assert!(lent.take_refusal().is_none());
        assert_eq!(lent.find(ALL.start + 0x1000, 1), None);
    }

    #[test]
    fn indexes_are_free_when_last_lender_has_taken_region_back() {
        let mut lent = LentRegions::default();
        let mut left = vec![Err(refused()), Ok(5), Ok(3)];
        lent.lend(ALL, 0x1000, |_| left.pop().unwrap());
        lent.lend(ALL, 0x1000, |_| panic!("it is lent already"));
        assert_eq!(lent.take_back(ALL), []);
        assert_eq!(lent.find(ALL.start, 1), Some(3));
        assert_eq!(lent.take_back(ALL), [3, 5]);
        assert_eq!(lent.find(ALL.start, 1), None);
        assert_eq!(lent.take_back(ALL), [], "it is lent no more");
    }
}
