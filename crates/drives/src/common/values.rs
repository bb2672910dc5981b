//! Values of drive specs: sizes, times, switches, ranges, and lists of `key=value`.
//!
//! Pure functions from text to numbers; `None` says that the text is no such value, and the caller
//! knows the key to name in its error. Called by `spec.rs` and `open.rs`. Sizes are in bytes with
//! factors of 1,024, rates in bytes a second with factors of 1,000; times are in nanoseconds. Every
//! size accepted here is printed back by `size_text` in its shortest form.

/// A size in bytes: a number, perhaps with a fraction, and perhaps k, m, g, t or p.
pub fn size_bytes(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let lower = lower.strip_suffix("ib").or(lower.strip_suffix('b')).unwrap_or(&lower);
    let digits = lower.trim_end_matches(['k', 'm', 'g', 't', 'p']);
    let shift = match &lower[digits.len()..] {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return None,
    };
    scaled(digits, 1u64 << shift)
}

/// A time in nanoseconds: a number and ns, us, ms, s, m or h.
pub fn time_ns(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" if digits == "0" => 1,
        _ => return None,
    };
    scaled(digits, unit)
}

/// A rate in bytes a second: a number and k, m or g with factors of 1,000, as rates are stated;
/// perhaps b or b/s behind it. 0 for no limit.
pub(crate) fn rate_bytes_per_s(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let lower = lower.strip_suffix("b/s").or(lower.strip_suffix('b')).unwrap_or(&lower);
    let digits = lower.trim_end_matches(['k', 'm', 'g']);
    let unit = match &lower[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        _ => return None,
    };
    scaled(digits, unit)
}

/// A decimal number times a unit; the fraction must give a whole result.
fn scaled(digits: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !plain(whole) || !plain(fraction) || fraction.len() > 9 {
        return None;
    }
    let base = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if fraction.is_empty() {
        return Some(base);
    }
    let parts = u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit);
    let scale = 10u128.pow(fraction.len() as u32);
    let rest = u64::try_from(parts / scale).ok()?;
    (parts % scale == 0).then(|| base.checked_add(rest)).flatten()
}

/// `on` or `off`, and what people write instead.
pub(crate) fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "yes" | "1" => Some(true),
        "off" | "false" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// `START-END` in bytes, each with a suffix; the end is not part of it.
pub(crate) fn byte_range(text: &str) -> Option<std::ops::Range<u64>> {
    let (start, end) = text.split_once('-')?;
    let range = size_bytes(start)?..size_bytes(end)?;
    (range.start < range.end).then_some(range)
}

/// A size as a person would write it.
pub fn size_text(bytes: u64) -> String {
    let units = [(40, "t"), (30, "g"), (20, "m"), (10, "k")];
    let unit = units.iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(shift, name)| format!("{}{name}", bytes >> shift))
}

/// Pieces of `text` between separators that stand outside parentheses; `None` if those are not
/// balanced.
pub(crate) fn split_outside(text: &str, separator: char) -> Option<Vec<&str>> {
    let (mut pieces, mut depth, mut start) = (Vec::new(), 0u32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            c if c == separator && depth == 0 => {
                pieces.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    pieces.push(&text[start..]);
    (depth == 0).then_some(pieces)
}

/// The inside of a value written in parentheses, else the value.
pub(crate) fn unwrapped(text: &str) -> &str {
    match text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inside) if split_outside(inside, ',').is_some() => inside,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_suffixes_and_whole_fractions() {
        assert_eq!(size_bytes("4g"), Some(4 << 30));
        assert_eq!(size_bytes("1.5K"), Some(1536));
        assert_eq!(size_bytes("512"), Some(512));
        assert_eq!(size_bytes("2MiB"), Some(2 << 20));
        for wrong in ["", "g", "-1", "1.3", "1x", "99999999999t", "1kk", "4 g"] {
            assert_eq!(size_bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(time_ns("10us"), Some(10_000));
        assert_eq!(time_ns("1.5ms"), Some(1_500_000));
        assert_eq!((time_ns("10m"), time_ns("1h")), (Some(600_000_000_000), time_ns("3600s")));
        assert_eq!((time_ns("0"), time_ns("0h")), (Some(0), Some(0)));
        assert_eq!(time_ns("10"), None);
        assert_eq!(time_ns("5min"), None);
    }

    #[test]
    fn rates_have_decimal_factors() {
        assert_eq!(rate_bytes_per_s("540m"), Some(540_000_000));
        assert_eq!(rate_bytes_per_s("2.5GB/s"), Some(2_500_000_000));
        assert_eq!(rate_bytes_per_s("0"), Some(0));
        for wrong in ["", "m", "1t", "1mib", "-1"] {
            assert_eq!(rate_bytes_per_s(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_are_printed_as_they_are_read() {
        for text in ["4g", "1536", "3k", "1t", "0"] {
            assert_eq!(size_text(size_bytes(text).unwrap()), text);
        }
    }

    #[test]
    fn separators_in_parentheses_do_not_split() {
        assert_eq!(split_outside("a,(b,c),d", ','), Some(vec!["a", "(b,c)", "d"]));
        assert_eq!(split_outside("a,(b", ','), None);
        assert_eq!(split_outside("a)", ','), None);
        assert_eq!(unwrapped("(a,b)"), "a,b");
        assert_eq!(unwrapped("(a)(b)"), "(a)(b)");
    }

    #[test]
    fn range_that_is_empty_or_backwards_is_none() {
        assert_eq!(byte_range("4k-1m"), Some(4096..1 << 20));
        assert_eq!(byte_range("4k-4k"), None);
        assert_eq!(byte_range("4k"), None);
    }
}
