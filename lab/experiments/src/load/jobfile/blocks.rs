//! `Sizes`: sizes of the I/Os of a direction: one size, a range, or a list of sizes with
//! percentages.
//!
//! The values come from `bs`, `bsrange` and `bssplit`. `source` draws the size of each I/O from
//! them. Sizes are in bytes.

use millrace_random::SplitMix64;

use super::value::Base;

/// Largest number of sizes in `bssplit` of one direction, as in fio.
const SHARES_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Sizes {
    One(u32),
    /// Smallest and largest size. Possible sizes are the multiples of the smallest size in this
    /// range, and the largest size.
    Range(u32, u32),
    /// Sizes with cumulative percentages. The last size also gets the remainder up to 100 %.
    Split(Vec<(u32, f64)>),
}

impl Sizes {
    pub(super) fn least(&self) -> u32 {
        match self {
            Sizes::One(bytes) | Sizes::Range(bytes, _) => *bytes,
            Sizes::Split(shares) => shares.iter().map(|(bytes, _)| *bytes).min().unwrap_or(0),
        }
    }

    pub(super) fn most(&self) -> u32 {
        match self {
            Sizes::One(bytes) | Sizes::Range(_, bytes) => *bytes,
            Sizes::Split(shares) => shares.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0),
        }
    }

    pub(super) fn are_multiples_of(&self, block: u32) -> bool {
        let fits = |bytes: &u32| *bytes > 0 && bytes.is_multiple_of(block);
        match self {
            Sizes::One(bytes) => fits(bytes),
            Sizes::Range(least, most) => fits(least) && fits(most),
            Sizes::Split(shares) => shares.iter().all(|(bytes, _)| fits(bytes)),
        }
    }

    /// Draws a size of at most `room` bytes; `None` if all sizes are larger.
    pub(super) fn draw(&self, random: &mut SplitMix64, room: u64) -> Option<u32> {
        let has_room = |bytes: u32| u64::from(bytes) <= room;
        if !has_room(self.least()) {
            return None;
        }
        loop {
            let bytes = match self {
                Sizes::One(bytes) => *bytes,
                Sizes::Range(least, most) => {
                    let drawn = u64::from(*least) + random.below(u64::from(*most));
                    (drawn - drawn % u64::from(*least)).min(u64::from(*most)) as u32
                }
                Sizes::Split(shares) => {
                    let drawn = random.fraction() * 100.0;
                    let fits = |(bytes, up_to): &&(u32, f64)| drawn < *up_to && has_room(*bytes);
                    shares.iter().find(fits).or(shares.last()).map_or(0, |(bytes, _)| *bytes)
                }
            };
            if has_room(bytes) {
                return Some(bytes);
            }
        }
    }
}

const BYTES_MAX: u64 = (1 << 32) - 512;
pub(super) const BUFFER_MAX: u32 = 1 << 30;

pub(super) fn size(base: Base, text: &str) -> Result<u32, String> {
    match base.number(text)? {
        bytes @ 1..=BYTES_MAX => Ok(bytes as u32),
        _ => Err(format!("{text:?}: an I/O is 1 byte to 1g, a trim up to 4g less 512 bytes")),
    }
}

pub(super) fn range(base: Base, text: &str) -> Result<Sizes, String> {
    let (first, last) = base.range(text)?;
    let (first, last) = (size(base, &first.to_string())?, size(base, &last.to_string())?);
    Ok(if first == last { Sizes::One(first) } else { Sizes::Range(first, last) })
}

/// Parses fio's `bssplit` of one direction, such as `4k/60:8k/:16k/`. Sizes with an empty or zero
/// percentage share the remaining percentage. As in fio, an empty list entry ends the list, and the
/// largest percentage is adjusted so that the sum is 100.
pub(super) fn split(base: Base, text: &str) -> Result<Sizes, String> {
    let mut shares = Vec::new();
    for part in text.split(':').map(str::trim).take_while(|part| !part.is_empty()) {
        let (bytes, share) = part.split_once('/').unwrap_or((part, ""));
        // fio ignores text after the number: `4k-8k/30.` is 30 % of 4k.
        let bytes = bytes.split('-').next().unwrap_or("");
        let share = match share.trim().trim_end_matches('.') {
            "" | "0" => None,
            share => Some(
                share
                    .parse::<u8>()
                    .ok()
                    .filter(|share| *share <= 100)
                    .ok_or_else(|| format!("{part:?}: write SIZE/PERCENT, such as 4k/60"))?,
            ),
        };
        shares.push((size(base, bytes)?, share));
    }
    if shares.is_empty() || shares.len() > SHARES_MAX {
        return Err(format!("{text:?}: write 1 to {SHARES_MAX} sizes, such as 4k/60:8k/40"));
    }
    let given: u32 = shares.iter().filter_map(|(_, share)| share.map(u32::from)).sum();
    let open = shares.iter().filter(|(_, share)| share.is_none()).count() as u32;
    if given > 100 && open > 0 {
        return Err(format!(
            "{text:?}: the percentages add up to {given} %, so nothing is left for sizes without a \
             percentage; write at most 100 %"
        ));
    }
    let left = 100_u32.saturating_sub(given) / open.max(1);
    // As in fio, round each size down to a multiple of the smallest size.
    let least = shares.iter().map(|(bytes, _)| *bytes).min().unwrap_or(1);
    let mut shares: Vec<(u32, u32)> = shares
        .into_iter()
        .map(|(bytes, share)| (bytes - bytes % least, share.map_or(left, u32::from)))
        .filter(|(_, share)| *share > 0)
        .collect();
    shares.sort_by_key(|(_, share)| *share);
    let mut up_to = 0;
    let sums = shares.into_iter().map(|(bytes, share)| {
        up_to += share;
        (bytes, f64::from(up_to))
    });
    Ok(Sizes::Split(sums.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(sizes: &Sizes, room: u64) -> Vec<(u32, u32)> {
        let mut random = SplitMix64::new(1);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..100_000 {
            let size = sizes.draw(&mut random, room).expect("the shortest fits");
            *counts.entry(size).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }

    #[test]
    fn shares_are_kept_and_empty_ones_get_what_is_left() {
        let sizes = split(Base::BINARY, "4k/50:1k/:32k/").unwrap();
        let counts = counts(&sizes, u64::MAX);
        for ((size, count), (expected, share)) in
            counts.iter().zip([(1024, 25_000), (4096, 50_000), (32_768, 25_000i32)])
        {
            assert_eq!(*size, expected);
            assert!((*count as i32 - share).abs() < 600, "{counts:?}");
        }
        assert_eq!((sizes.least(), sizes.most()), (1024, 32_768));
    }

    #[test]
    fn a_range_has_all_multiples_alike_and_none_that_has_no_room() {
        let sizes = range(Base::BINARY, "4k-16k").unwrap();
        let all = counts(&sizes, u64::MAX);
        assert_eq!(
            all.iter().map(|(size, _)| *size).collect::<Vec<_>>(),
            [4096, 8192, 12_288, 16_384]
        );
        assert!(all.iter().all(|(_, count)| count.abs_diff(25_000) < 600), "{all:?}");
        assert_eq!(counts(&sizes, 8200).last().map(|(size, _)| *size), Some(8192));
        assert_eq!(sizes.draw(&mut SplitMix64::new(1), 4095), None);
    }

    #[test]
    fn largest_share_makes_up_what_shares_lack_or_have_too_much() {
        for (text, expected) in [
            ("8k/50:4k/48:", [48_000, 52_000]),
            ("4k/1:8k/98", [1_000, 99_000]),
            ("4k/60:8k/70", [60_000, 40_000]),
            ("4k/30:8k/0", [30_000, 70_000]),
            ("4k/40:8k/60::16k/", [40_000, 60_000i32]),
            ("4k-16k/40.:8k/60", [40_000, 60_000]),
        ] {
            let sizes = split(Base::BINARY, text).unwrap();
            let counts = counts(&sizes, u64::MAX);
            assert_eq!(counts.len(), 2, "{text}: {counts:?}");
            for ((_, count), share) in counts.iter().zip(expected) {
                assert!((*count as i32 - share).abs() < 600, "{text}: {counts:?}");
            }
        }
    }

    #[test]
    fn sizes_of_split_are_rounded_down_to_multiples_of_its_shortest() {
        let sizes = split(Base::BINARY, "16k/40:36k/60").unwrap();
        assert_eq!(sizes, Sizes::Split(vec![(16_384, 40.0), (32_768, 100.0)]));
    }

    #[test]
    fn end_of_range_is_drawn_even_if_it_is_no_multiple_of_its_begin() {
        let counts = counts(&range(Base::BINARY, "4k-18k").unwrap(), u64::MAX);
        assert_eq!(counts.last().map(|(size, _)| *size), Some(18 << 10));
        assert!(counts[4].1.abs_diff(100_000 * 2 / 18) < 600, "{counts:?}");
    }

    #[test]
    fn shares_that_leave_nothing_for_the_others_are_refused() {
        for text in ["4k/60:8k/60:16k/", "4k/x", "4k/101:", "/50:4k/50", "0/100", "", ":4k"] {
            assert!(split(Base::BINARY, text).is_err(), "{text}");
        }
    }
}
