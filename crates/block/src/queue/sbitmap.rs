//! `Sbitmap`: a scalable bitmap of free numbers, spread over words on separate cache lines.
//!
//! Owned by a `TagSet`. A set bit means that its number is taken. Bits are taken and returned in
//! batches, with one atomic operation for up to a word of bits. Each user starts its search at its
//! own hint, so two users write to the same cache line only when the map is nearly full. Kernel
//! counterpart: lib/sbitmap.c, from which the names and the rule for bits per word come.

use alloc::boxed::Box;

use millrace_machine::{Machine, Order, Word};

/// Some bits of one word: the word's index and a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TagBits {
    pub(crate) word: u32,
    pub(crate) mask: u64,
}

impl TagBits {
    pub(crate) const NONE: TagBits = TagBits { word: 0, mask: 0 };
    /// Stands for any reserved tag, whose bit is in a separate bitmap of the tag set.
    pub(crate) const RESERVED: TagBits = TagBits { word: u32::MAX, mask: 0 };
}

/// A set of numbers below `depth`, each free or taken.
pub(crate) struct Sbitmap<M: Machine> {
    words: Box<[M::Word]>,
    /// log2 of the number of bits used in each word.
    shift: u32,
    mask: u64,
    depth: u32,
}

impl<M: Machine> Sbitmap<M> {
    /// Creates a map of `depth` (1 to 2^20) free numbers. Four or more numbers are spread over at
    /// least four words.
    pub(crate) fn new(depth: u32) -> Self {
        assert!(
            (1..=1 << 20).contains(&depth),
            "an sbitmap of {depth} bits is out of range; use 1 to 2^20"
        );
        let mut shift = 6;
        while depth >= 4 && (4u32 << shift) > depth {
            shift -= 1;
        }
        let words = depth.div_ceil(1 << shift);
        let map: Sbitmap<M> = Sbitmap {
            words: (0..words).map(|_| M::Word::new(0)).collect(),
            shift,
            mask: low_bits(1 << shift),
            depth,
        };
        // Surplus bits of the last word are permanently taken.
        let last = words - 1;
        let used = depth - (last << shift);
        // Relaxed: no other thread has the map yet.
        map.words[last as usize].store(map.mask & !low_bits(used), Order::Relaxed);
        map
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    #[inline]
    pub(crate) fn number(&self, word: u32, bit: u32) -> u32 {
        (word << self.shift) | bit
    }

    #[inline]
    pub(crate) fn bit_of(&self, number: u32) -> TagBits {
        TagBits { word: number >> self.shift, mask: 1 << (number & ((1 << self.shift) - 1)) }
    }

    /// Takes up to `want` (1 or more) free bits of one word. The search begins at the word with
    /// index `hint`, and sets `hint` to the index of the word found. Returns `None` if no bit is
    /// free.
    #[inline(always)]
    pub(crate) fn take(&self, hint: &mut u32, want: u32) -> Option<TagBits> {
        let mut mask = match self.words.get(*hint as usize) {
            Some(word) => self.take_from(word, want),
            None => 0,
        };
        if mask == 0 {
            mask = self.take_elsewhere(hint, want);
        }
        (mask != 0).then_some(TagBits { word: *hint, mask })
    }

    /// Takes up to `want` free bits of the next word after `hint` that has a free bit. Returns 0 if
    /// no word has one.
    #[inline(never)]
    fn take_elsewhere(&self, hint: &mut u32, want: u32) -> u64 {
        let count = self.words.len() as u32;
        let start = *hint % count;
        for step in 1..=count {
            let word = (start + step) % count;
            let mask = self.take_from(&self.words[word as usize], want);
            if mask != 0 {
                *hint = word;
                return mask;
            }
        }
        0
    }

    /// Takes up to `want` free bits of a word and returns them; 0 if none is free.
    #[inline(always)]
    fn take_from(&self, word: &M::Word, want: u32) -> u64 {
        loop {
            // SeqCst pairs with the SeqCst accesses of `TagSet::wait`, where the reason is given.
            let old = word.load(Order::SeqCst);
            let free = !old & self.mask;
            if free == 0 {
                return 0;
            }
            let wanted = lowest(free, want);
            // Acquire pairs with the Release in `give`: the thread that takes a bit sees all writes
            // of the bit's last holder. Relaxed: a failed exchange is tried again.
            if word.compare_exchange(old, old | wanted, Order::Acquire, Order::Relaxed).is_ok() {
                return wanted;
            }
        }
    }

    #[inline(always)]
    pub(crate) fn give(&self, bits: TagBits) {
        // SeqCst includes a Release for the next holder of these bits, and orders this store before
        // the check for waiters. Every bit of `bits.mask` is set in the word, so subtracting the
        // mask clears exactly these bits in one instruction.
        let old = self.words[bits.word as usize].fetch_add(bits.mask.wrapping_neg(), Order::SeqCst);
        assert!(old & bits.mask == bits.mask, "a tag was freed twice");
    }

    /// Returns how many numbers are taken.
    pub(crate) fn weight(&self) -> u32 {
        let mask = self.mask;
        // Acquire pairs with the Release in `give`: the caller sees the last holders' writes.
        let taken = |word: &M::Word| (word.load(Order::Acquire) & mask).count_ones();
        let sum: u32 = self.words.iter().map(taken).sum();
        sum - ((self.words.len() as u32) << self.shift).saturating_sub(self.depth)
    }
}

const fn low_bits(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

#[inline(always)]
fn lowest(bits: u64, want: u32) -> u64 {
    if want == 1 {
        return bits & bits.wrapping_neg();
    }
    lowest_of_many(bits, want)
}

fn lowest_of_many(bits: u64, want: u32) -> u64 {
    if bits.count_ones() <= want {
        return bits;
    }
    // Fast path: if the bits 0 to `want` - 1 are all free, they are the lowest free bits.
    let run = low_bits(want);
    if bits & run == run {
        return run;
    }
    let (mut rest, mut left) = (bits, want);
    while left > 0 {
        rest &= rest - 1;
        left -= 1;
    }
    bits & !rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use millrace_machine::Native;
    use proptest::prelude::*;

    #[test]
    fn full_map_returns_none_until_one_bit_is_given_back() {
        let map = Sbitmap::<Native>::new(37);
        let mut hint = 5;
        let mut taken = Vec::new();
        while let Some(bits) = map.take(&mut hint, 3) {
            taken.push(bits);
        }
        assert_eq!(map.weight(), 37);
        assert_eq!(map.take(&mut hint, 1), None);
        map.give(taken[2]);
        assert_eq!(map.take(&mut hint, 64), Some(taken[2]));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn giving_a_number_twice_panics() {
        let map = Sbitmap::<Native>::new(8);
        let bits = map.take(&mut 0, 1).expect("an empty map");
        map.give(bits);
        map.give(bits);
    }

    #[test]
    fn map_of_four_or_more_numbers_has_four_words_of_64_bits() {
        let words = [(1, 1), (3, 1), (4, 4), (7, 7), (8, 4), (37, 5), (64, 4), (255, 8), (256, 4)];
        for (depth, words) in words.into_iter().chain([(257, 5), (1 << 20, 1 << 14)]) {
            let map = Sbitmap::<Native>::new(depth);
            assert_eq!((map.words.len(), map.depth()), (words, depth));
            assert_eq!(map.weight(), 0, "depth {depth}");
            let ends = [0, depth / 2, depth - 1];
            for (number, bits) in ends.map(|number| (number, map.bit_of(number))) {
                assert_eq!(map.number(bits.word, bits.mask.trailing_zeros()), number);
            }
        }
    }

    /// A simple model of the bitmap: a set of numbers.
    struct Plain {
        taken: BTreeSet<u32>,
        depth: u32,
        /// Numbers in a word of the bitmap.
        width: u32,
    }

    impl Plain {
        /// Returns the lowest free numbers of the first word that has any, starting at the hint's
        /// word.
        fn take(&mut self, hint: u32, want: u32) -> Option<(u32, Vec<u32>)> {
            let words = self.depth.div_ceil(self.width);
            let bio_set = (hint < words).then_some(hint);
            let others = (1..=words).map(|step| (hint + step) % words);
            let found = bio_set.into_iter().chain(others).find_map(|word| {
                let numbers = word * self.width..((word + 1) * self.width).min(self.depth);
                let free = numbers.filter(|number| !self.taken.contains(number));
                let free: Vec<u32> = free.take(want as usize).collect();
                (!free.is_empty()).then_some((word, free))
            });
            found.iter().for_each(|(_, numbers)| self.taken.extend(numbers));
            found
        }
    }

    fn numbers(map: &Sbitmap<Native>, bits: TagBits) -> Vec<u32> {
        let set = (0..64).filter(|bit| bits.mask >> bit & 1 == 1);
        set.map(|bit| map.number(bits.word, bit)).collect()
    }

    proptest! {
        #[test]
        fn takes_and_gives_agree_with_a_set(
            depth in prop_oneof![1u32..80, 80u32..400],
            steps in proptest::collection::vec((0u32..300, 1u32..70, any::<bool>()), 0..200),
        ) {
            let map = Sbitmap::<Native>::new(depth);
            let width = 1 << map.shift;
            let mut model = Plain { taken: BTreeSet::new(), depth, width };
            let mut held = Vec::new();
            for (hint, want, take) in steps {
                if take {
                    let mut moved = hint;
                    let taken = map.take(&mut moved, want);
                    let expected = model.take(hint, want);
                    let found = taken.map(|bits| (bits.word, numbers(&map, bits)));
                    prop_assert_eq!(&found, &expected);
                    prop_assert_eq!(moved, expected.map_or(hint, |(word, _)| word));
                    held.extend(taken);
                } else if !held.is_empty() {
                    let bits = held.swap_remove(hint as usize % held.len());
                    map.give(bits);
                    let back = numbers(&map, bits);
                    model.taken.retain(|number| !back.contains(number));
                }
                prop_assert_eq!(map.weight() as usize, model.taken.len());
            }
        }
    }
}
