//! Finds the registered buffer that contains an address, by a binary search.
//!
//! Regions should not overlap; of overlapping regions only one may be found.

pub(crate) struct RegisteredRegions {
    sorted: Vec<RegisteredRegion>,
    free: Vec<u16>,
}

#[derive(Clone, Copy)]
struct RegisteredRegion {
    start: usize,
    end: usize,
    index: u16,
}

impl RegisteredRegions {
    pub(crate) fn new(slots: u16) -> RegisteredRegions {
        RegisteredRegions { sorted: Vec::new(), free: (0..slots).rev().collect() }
    }

    pub(crate) fn reserve(&mut self) -> Option<u16> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, index: u16) {
        self.free.push(index);
    }

    /// Records that the region at `start` is registered under `index`.
    pub(crate) fn insert(&mut self, start: usize, len: usize, index: u16) {
        let at = self.sorted.partition_point(|region| region.start < start);
        self.sorted.insert(at, RegisteredRegion { start, end: start + len, index });
    }

    /// Removes the region of `index`. Returns false if there is none.
    pub(crate) fn remove(&mut self, index: u16) -> bool {
        match self.sorted.iter().position(|region| region.index == index) {
            Some(at) => {
                self.sorted.remove(at);
                true
            }
            None => false,
        }
    }

    /// Returns the index of the region that contains all of `start .. start + len`.
    pub(crate) fn find(&self, start: usize, len: usize) -> Option<u16> {
        let after = self.sorted.partition_point(|region| region.start <= start);
        let region = self.sorted.get(after.checked_sub(1)?)?;
        (start.checked_add(len)? <= region.end).then_some(region.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_returns_the_region_that_contains_the_whole_range() {
        let mut regions = RegisteredRegions::new(4);
        regions.insert(0x2000, 0x1000, 1);
        regions.insert(0x1000, 0x1000, 0);
        assert_eq!(regions.find(0x1000, 0x1000), Some(0));
        assert_eq!(regions.find(0x1fff, 2), None);
        assert_eq!(regions.find(0x2fff, 1), Some(1));
        assert_eq!(regions.find(0x3000, 1), None);
        assert_eq!(regions.find(0x0, 1), None);
        assert!(regions.remove(0));
        assert!(!regions.remove(0));
        assert_eq!(regions.find(0x1000, 1), None);
    }
}
