//! Tracks the memory regions that a ring may register as buffers, and the indexes of their
//! registered pieces.
//!
//! Owners lend regions to a ring; pieces of a region are registered on request, or when an
//! operation first uses them. If the kernel refuses a piece, no further piece of that region is
//! registered while the region is lent. Pieces that are already registered stay so, and operations
//! elsewhere in the region use unregistered memory. A region that its owner registered itself is
//! one piece. Regions do not overlap. Invariant: an index belongs to one piece of one region.

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
    /// Index of each piece of the region in the ring's table of buffers; `None` if unregistered.
    pieces: Vec<Option<u16>>,
    /// Error of a refused registration, if it was not reported yet.
    refusal: Option<io::Error>,
    is_refused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LentLookup {
    Index(u16),
    /// The range lies in this part (piece) of a region, which is not registered yet.
    Unregistered(AddressRange),
    /// The range cannot be used as registered memory: the range lies in no region, the range
    /// crosses two separately registered parts of a region, or the kernel has refused a part of the
    /// region.
    Unregisterable,
}

impl LentRegions {
    /// Adds a memory region. If the region was lent already, counts one more owner that lends it.
    pub(crate) fn lend(&mut self, extent: AddressRange, piece_bytes: usize) {
        if let Some(at) = self.position(extent) {
            self.0[at].lenders += 1;
            return;
        }
        self.insert(extent, piece_bytes, vec![None; extent.len.div_ceil(piece_bytes)]);
    }

    pub(crate) fn insert_registered(&mut self, extent: AddressRange, index: u16) {
        self.insert(extent, extent.len, vec![Some(index)]);
    }

    fn insert(&mut self, extent: AddressRange, piece_bytes: usize, pieces: Vec<Option<u16>>) {
        let at = self.0.partition_point(|region| region.extent.start < extent.start);
        let (lenders, refusal, is_refused) = (1, None, false);
        let region = LentRegion { extent, piece_bytes, lenders, pieces, refusal, is_refused };
        self.0.insert(at, region);
    }

    pub(crate) fn remove_registered(&mut self, index: u16) -> bool {
        let at = self.0.iter().position(|region| region.pieces[..] == [Some(index)]);
        at.map(|at| self.0.remove(at)).is_some()
    }

    fn position(&self, extent: AddressRange) -> Option<usize> {
        self.0.iter().position(|region| region.extent == extent)
    }

    fn position_of(&self, address: usize) -> Option<usize> {
        let at = self.0.partition_point(|region| region.extent.start <= address).checked_sub(1)?;
        let AddressRange { start, len } = self.0[at].extent;
        (address < start + len).then_some(at)
    }
    /// Removes one lender of a memory region. After the last lender, forgets the region and returns
    /// the indexes of its registered buffers in the ring's table, which the caller must free.
    pub(crate) fn take_back(&mut self, extent: AddressRange) -> Vec<u16> {
        let Some(at) = self.position(extent) else { return Vec::new() };
        self.0[at].lenders -= 1;
        match self.0[at].lenders {
            0 => self.0.remove(at).pieces.into_iter().flatten().collect(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn find(&self, start: usize, len: usize) -> LentLookup {
        let Some(at) = self.position_of(start) else { return LentLookup::Unregisterable };
        let region = &self.0[at];
        let piece = (start - region.extent.start) / region.piece_bytes;
        let of = region.piece(piece);
        match region.pieces[piece] {
            _ if of.start + of.len < start.saturating_add(len) => LentLookup::Unregisterable,
            Some(index) => LentLookup::Index(index),
            None if region.is_refused => LentLookup::Unregisterable,
            None => LentLookup::Unregistered(of),
        }
    }

    /// Returns a piece of the region that is not registered yet. Returns `None` if all pieces are
    /// registered or the kernel has refused one.
    pub(crate) fn unregistered(&self, extent: AddressRange) -> Option<AddressRange> {
        let region = self.position(extent).map(|at| &self.0[at]).filter(|one| !one.is_refused)?;
        let piece = region.pieces.iter().position(Option::is_none)?;
        Some(region.piece(piece))
    }

    pub(crate) fn note(&mut self, of: AddressRange, registered: Result<u16, io::Error>) {
        let Some(at) = self.position_of(of.start) else { return };
        let region = &mut self.0[at];
        match registered {
            Ok(index) => {
                let piece = (of.start - region.extent.start) / region.piece_bytes;
                region.pieces[piece] = Some(index);
            }
            Err(error) => (region.refusal, region.is_refused) = (Some(error), true),
        }
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

    #[test]
    fn a_range_is_found_in_the_one_piece_that_has_all_of_it() {
        let mut lent = LentRegions::default();
        assert_eq!(lent.find(ALL.start, 1), LentLookup::Unregisterable);
        lent.lend(ALL, 0x1000);
        let second = AddressRange { start: ALL.start + 0x1000, len: 0x1000 };
        assert_eq!(lent.find(ALL.start + 0x1800, 0x800), LentLookup::Unregistered(second));
        lent.note(second, Ok(7));
        assert_eq!(lent.find(ALL.start + 0x1800, 0x800), LentLookup::Index(7));
        assert_eq!(lent.find(ALL.start + 0x1800, 0x801), LentLookup::Unregisterable, "two pieces");
        let last = AddressRange { start: ALL.start + 0x2000, len: 0x800 };
        assert_eq!(lent.find(last.start, 0x800), LentLookup::Unregistered(last), "a short one");
        assert_eq!(
            lent.find(last.start + 0x700, 0x200),
            LentLookup::Unregisterable,
            "past the end"
        );
        assert_eq!(lent.find(last.start + 0x800, 1), LentLookup::Unregisterable);
        assert_eq!(lent.find(ALL.start - 1, 1), LentLookup::Unregisterable);
    }

    #[test]
    fn registered_region_is_found_until_it_is_removed() {
        let mut lent = LentRegions::default();
        lent.insert_registered(AddressRange { start: 0x2000, len: 0x1000 }, 1);
        lent.insert_registered(AddressRange { start: 0x1000, len: 0x1000 }, 0);
        assert_eq!(lent.find(0x1000, 0x1000), LentLookup::Index(0));
        assert_eq!(lent.find(0x1fff, 2), LentLookup::Unregisterable);
        assert_eq!(lent.find(0x2fff, 1), LentLookup::Index(1));
        assert_eq!(lent.find(0x3000, 1), LentLookup::Unregisterable);
        assert_eq!(lent.find(0x0, 1), LentLookup::Unregisterable);
        assert!(lent.remove_registered(0));
        assert!(!lent.remove_registered(0));
        assert_eq!(lent.find(0x1000, 1), LentLookup::Unregisterable);
    }

    #[test]
    fn pieces_are_given_out_for_registration_until_one_fails() {
        let mut lent = LentRegions::default();
        assert_eq!(lent.unregistered(ALL), None);
        lent.lend(ALL, 0x1000);
        let piece = |at: usize, len| Some(AddressRange { start: ALL.start + at, len });
        assert_eq!(lent.unregistered(ALL), piece(0, 0x1000));
        lent.note(piece(0, 0x1000).unwrap(), Ok(3));
        lent.note(piece(0x1000, 0x1000).unwrap(), Ok(4));
        assert_eq!(lent.unregistered(ALL), piece(0x2000, 0x800));
        let refused = Err(io::Error::from_raw_os_error(libc::ENOMEM));
        lent.note(piece(0x2000, 0x800).unwrap(), refused);
        assert_eq!(lent.unregistered(ALL), None);
    }

    #[test]
    fn what_was_refused_is_said_once_and_not_tried_again() {
        let mut lent = LentRegions::default();
        lent.lend(ALL, 0x1000);
        let first = AddressRange { start: ALL.start, len: 0x1000 };
        lent.note(first, Ok(3));
        let second = AddressRange { start: ALL.start + 0x1000, len: 0x1000 };
        lent.note(second, Err(io::Error::from_raw_os_error(libc::ENOMEM)));
        assert_eq!(lent.find(second.start, 1), LentLookup::Unregisterable);
        assert_eq!(lent.find(ALL.start, 1), LentLookup::Index(3), "what is registered stays so");
        let said = lent.take_refusal().and_then(|error| error.raw_os_error());
        assert_eq!(said, Some(libc::ENOMEM));
        assert!(lent.take_refusal().is_none());
        assert_eq!(lent.find(second.start, 1), LentLookup::Unregisterable);
    }

    #[test]
    fn indexes_are_free_when_last_lender_has_taken_region_back() {
        let mut lent = LentRegions::default();
        lent.lend(ALL, 0x1000);
        lent.lend(ALL, 0x1000);
        lent.note(AddressRange { start: ALL.start, len: 0x1000 }, Ok(3));
        lent.note(AddressRange { start: ALL.start + 0x1000, len: 0x1000 }, Ok(5));
        assert_eq!(lent.take_back(ALL), []);
        assert_eq!(lent.find(ALL.start, 1), LentLookup::Index(3));
        assert_eq!(lent.take_back(ALL), [3, 5]);
        assert_eq!(lent.find(ALL.start, 1), LentLookup::Unregisterable);
        assert_eq!(lent.take_back(ALL), [], "it is lent no more");
    }
}
