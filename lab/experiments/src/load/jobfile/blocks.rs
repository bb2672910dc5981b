//! `Sizes`: how long I/Os of a direction are: always the same, within a range, or by shares.
//!
//! Read from `bs`, `bsrange` and `bssplit`; drawn by `source`.

use millrace_random::SplitMix64;

use super::value::Base;

/// Most shares of one direction, as in fio.
const SHARES_MAX: usize = 64;

/// Bytes of I/Os.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Sizes {
    /// One size.
    One(u32),
    /// Multiples of the first up to the second, all alike.
    Range(u32, u32),
    /// Sizes, each with how many of a hundred I/Os are of it or of one before it.
    Split(Vec<(u32, f64)>),
}

impl Sizes {
    /// The shortest.
    pub(super) fn least(&self) -> u32 {
        match self {
            Sizes::One(bytes) | Sizes::Range(bytes, _) => *bytes,
            Sizes::Split(shares) => shares.iter().map(|(bytes, _)| *bytes).min().unwrap_or(0),
        }
    }

    /// The longest.
    pub(super) fn most(&self) -> u32 {
        match self {
            Sizes::One(bytes) | Sizes::Range(_, bytes) => *bytes,
            Sizes::Split(shares) => shares.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0),
        }
    }

    /// Every size there is, if each is a multiple of `block`.
    pub(super) fn are_multiples_of(&self, block: u32) -> bool {
        let fits = |bytes: &u32| *bytes > 0 && bytes.is_multiple_of(block);
        match self {
            Sizes::One(bytes) => fits(bytes),
            Sizes::Range(least, _) => fits(least),
            Sizes::Split(shares) => shares.iter().all(|(bytes, _)| fits(bytes)),
        }
    }

    /// A size of at most `room`; none if even the shortest is longer.
    pub(super) fn draw(&self, random: &mut SplitMix64, room: u64) -> Option<u32> {
        if u64::from(self.least()) > room {
            return None;
        }
        loop {
            let bytes = match self {
                Sizes::One(bytes) => *bytes,
                Sizes::Range(least, most) => {
                    let count = u64::from(*most).min(room) / u64::from(*least);
                    *least * (1 + random.below(count)) as u32
                }
                Sizes::Split(shares) => {
                    let drawn = random.fraction() * 100.0;
                    let found = shares.iter().find(|(_, up_to)| drawn < *up_to);
                    found.or(shares.last()).map_or(0, |(bytes, _)| *bytes)
                }
            };
            if u64::from(bytes) <= room {
                return Some(bytes);
            }
        }
    }
}

/// Bytes of one I/O.
pub(super) fn size(base: Base, text: &str) -> Result<u32, String> {
    match base.number(text)? {
        bytes @ 1..=0x4000_0000 => Ok(bytes as u32),
        _ => Err(format!("{text:?}: an I/O is 1 byte to 1g")),
    }
}

/// `bsrange` of a direction.
pub(super) fn range(base: Base, text: &str) -> Result<Sizes, String> {
    let (first, last) = base.range(text)?;
    let (first, last) = (size(base, &first.to_string())?, size(base, &last.to_string())?);
    Ok(if first == last { Sizes::One(first) } else { Sizes::Range(first, last) })
}

/// `bssplit` of a direction: `4k/60:8k/:16k/`, where empty shares have what is left.
pub(super) fn split(base: Base, text: &str) -> Result<Sizes, String> {
    let mut shares = Vec::new();
    for part in text.split(':') {
        let (bytes, share) = part.split_once('/').unwrap_or((part, ""));
        let share = match share.trim() {
            "" => None,
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
    if shares.len() > SHARES_MAX {
        return Err(format!("{text:?}: at most {SHARES_MAX} sizes"));
    }
    let given: u32 = shares.iter().filter_map(|(_, share)| share.map(u32::from)).sum();
    let open = shares.iter().filter(|(_, share)| share.is_none()).count();
    if given > 100 || given < 100 && open == 0 {
        return Err(format!("{text:?}: the shares make {given} %, not 100"));
    }
    let left = f64::from(100 - given) / open.max(1) as f64;
    let mut up_to = 0.0;
    let sum = shares.into_iter().filter_map(|(bytes, share)| {
        let share = share.map_or(left, f64::from);
        up_to += share;
        (share > 0.0).then_some((bytes, up_to))
    });
    Ok(Sizes::Split(sum.collect()))
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
    fn shares_that_do_not_make_a_hundred_are_refused() {
        for text in ["4k/50:8k/60", "4k/50", "4k/x", "4k/101:", "/50:4k/50", "0/100"] {
            assert!(split(Base::BINARY, text).is_err(), "{text}");
        }
    }
}
