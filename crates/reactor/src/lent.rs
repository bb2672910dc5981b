//! Tracks memory regions that their owners lend to a ring. Pieces of a region are registered on
//! request, or when an operation first uses them.
//!
//! If the kernel refuses a piece, no further piece of that region is registered while it is lent;
//! registered pieces stay registered, and operations elsewhere in the region use unregistered
//! memory. Invariant: an index belongs to one piece of one region.

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
    /// Number of times that the region is lent; each drive of a thread lends it once.
    lenders: usize,
    /// Index of each registered piece; `None` for a piece that is not registered.
    pieces: Vec<Option<u16>>,
    /// Error with which the kernel refused a piece, until it is reported.
    refusal: Option<io::Error>,
    is_refused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LentLookup {
    /// The range lies in a registered piece with this index.
    Index(u16),
    /// The range lies in this piece, which must be registered first.
    Unregistered(AddressRange),
    /// The range lies in a region, but crosses the boundary of two pieces, or its piece cannot be
    /// registered.
    Ordinary,
    /// The range does not lie in any region.
    Elsewhere,
}

impl LentRegions {
    /// Lends a region, or counts one more lender if it is lent already.
    pub(crate) fn lend(&mut self, extent: AddressRange, piece_bytes: usize) {
        if let Some(known) = self.0.iter_mut().find(|region| region.extent == extent) {
            known.lenders += 1;
            return;
        }
        let pieces = vec![None; extent.len.div_ceil(piece_bytes)];
        let (lenders, refusal, is_refused) = (1, None, false);
        self.0.push(LentRegion { extent, piece_bytes, lenders, pieces, refusal, is_refused });
    }

    /// Takes a region back. Returns the indexes to free if it has no other lender.
    pub(crate) fn take_back(&mut self, extent: AddressRange) -> Vec<u16> {
        let Some(at) = self.0.iter().position(|region| region.extent == extent) else {
            return Vec::new();
        };
        self.0[at].lenders -= 1;
        match self.0[at].lenders {
            0 => self.0.swap_remove(at).pieces.into_iter().flatten().collect(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn find(&self, start: usize, len: usize) -> LentLookup {
        let Some(region) = self.0.iter().find(|region| region.has(start)) else {
            return LentLookup::Elsewhere;
        };
        let piece = (start - region.extent.start) / region.piece_bytes;
        let of = region.piece(piece);
        match region.pieces[piece] {
            _ if of.start + of.len < start.saturating_add(len) => LentLookup::Ordinary,
            Some(index) => LentLookup::Index(index),
            None if region.is_refused => LentLookup::Ordinary,
            None => LentLookup::Unregistered(of),
        }
    }

    /// Returns a piece of the region that is not registered yet, unless the kernel refused one
    /// before.
    pub(crate) fn unregistered(&self, extent: AddressRange) -> Option<AddressRange> {
        let region = self.0.iter().find(|region| region.extent == extent && !region.is_refused)?;
        let piece = region.pieces.iter().position(Option::is_none)?;
        Some(region.piece(piece))
    }

    /// Records the result of registering a piece that [`LentRegions::find`] returned.
    pub(crate) fn note(&mut self, of: AddressRange, registered: Result<u16, io::Error>) {
        let Some(region) = self.0.iter_mut().find(|region| region.has(of.start)) else { return };
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
    fn has(&self, address: usize) -> bool {
        (self.extent.start..self.extent.start + self.extent.len).contains(&address)
    }

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
        assert_eq!(lent.find(ALL.start, 1), LentLookup::Elsewhere);
        lent.lend(ALL, 0x1000);
        let second = AddressRange { start: ALL.start + 0x1000, len: 0x1000 };
        assert_eq!(lent.find(ALL.start + 0x1800, 0x800), LentLookup::Unregistered(second));
        lent.note(second, Ok(7));
        assert_eq!(lent.find(ALL.start + 0x1800, 0x800), LentLookup::Index(7));
        assert_eq!(lent.find(ALL.start + 0x1800, 0x801), LentLookup::Ordinary, "two pieces");
        let last = AddressRange { start: ALL.start + 0x2000, len: 0x800 };
        assert_eq!(lent.find(last.start, 0x800), LentLookup::Unregistered(last), "a short one");
        assert_eq!(lent.find(last.start + 0x700, 0x200), LentLookup::Ordinary, "past the end");
        assert_eq!(lent.find(last.start + 0x800, 1), LentLookup::Elsewhere);
        assert_eq!(lent.find(ALL.start - 1, 1), LentLookup::Elsewhere);
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
        assert_eq!(lent.find(second.start, 1), LentLookup::Ordinary);
        assert_eq!(lent.find(ALL.start, 1), LentLookup::Index(3), "what is registered stays so");
        let said = lent.take_refusal().and_then(|error| error.raw_os_error());
        assert_eq!(said, Some(libc::ENOMEM));
        assert!(lent.take_refusal().is_none());
        assert_eq!(lent.find(second.start, 1), LentLookup::Ordinary);
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
        assert_eq!(lent.find(ALL.start, 1), LentLookup::Elsewhere);
        assert_eq!(lent.take_back(ALL), [], "it is lent no more");
    }
}
